"""What the self-check of a replica has found: kept in one small file of the target, not in each table."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from logicalrep.recording import Location
from logicalrep.targets import read_file, write_file

_FILE: Final = "_self_check.json"


class CheckedTable(msgspec.Struct, omit_defaults=True):
    """What the self-check knows about a table."""

    name: str
    """Name of the table with its schema."""
    state: str = ""
    """Digest of the table's catalog rows when it was compared last."""
    time: float = 0.0
    """When the table was compared last, in seconds since 1970; 0 for never."""
    seconds: float = 0.0
    """What comparing it took, on the side that took longer."""
    refusal: str = ""
    """Why the table is not compared; empty if it is."""
    difference: str = ""
    """What differs from the server; empty if nothing was found."""
    copied: str = ""
    """`state` when a copy was requested because of a difference. There is one copy for each state."""
    request: str = ""
    """File name of the request for the copy; empty if the copy is finished."""


class SelfCheckReport(msgspec.Struct):
    """What the self-check of a replica knows, as stored in the target."""

    tables: dict[int, CheckedTable] = {}
    """The published tables, by OID."""
    period: float = 0.0
    """Seconds in which each table is compared once; 0 before the first comparison."""

    def texts(self, kind: Literal["difference", "refusal"]) -> dict[str, str]:
        """Return the differences that were found, or why tables are not compared, by name of the table."""
        tables = [*self.tables.values()]  # a copy, because the self-check's thread adds tables
        return {one.name: text for one in tables if (text := getattr(one, kind))}


def read_self_check(target: Location) -> SelfCheckReport | None:
    """Return what the self-check of a replica has stored; None if it has not run.

    Raises:
        ReplicaError: The target cannot be read.
    """
    if not (text := read_file(target / _FILE)):
        return None
    try:
        return msgspec.json.decode(text, type=SelfCheckReport)
    except msgspec.DecodeError:  # it is made anew
        return SelfCheckReport()


def store_self_check(target: Location, report: SelfCheckReport) -> None:
    """Store what the self-check of a replica knows.

    Raises:
        ReplicaError: The target cannot be written.
    """
    write_file(target / _FILE, msgspec.json.encode(report).decode())
