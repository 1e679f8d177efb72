"""Failed tables: tables of a target whose changes could not be applied, with the error.

A target has a file `_failed_tables/OID` for each failed table. A failed table lacks the changes after its
position. These changes are applied by the next run, or by the same run after a pause.
"""

from __future__ import annotations

from typing import Final

import msgspec

from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets import read_file, remove_file, write_file

_FOLDER: Final = "_failed_tables"
_UNKNOWN: Final = "the error of the table is unknown: the file in _failed_tables is damaged"


class FailedTable(msgspec.Struct, frozen=True):
    """A failed table of a replica: the relation that the table follows, and the table's error."""

    oid: int
    namespace: str
    name: str
    error: str
    """Text of the error because of which changes could not be applied to the table."""


def read_failed_tables(target: Location) -> dict[int, FailedTable]:
    """Return the failed tables of a target, by relation OID.

    Raises:
        ReplicaError: The target cannot be read.
    """
    names = (target / _FOLDER).names()
    return {int(name): _read(target / _FOLDER / name, int(name)) for name in names if name.isdecimal()}


def _read(file: Location, oid: int) -> FailedTable:
    try:
        return msgspec.json.decode(read_file(file), type=FailedTable)
    except (msgspec.DecodeError, ReplicaError):
        return FailedTable(oid, "", "", _UNKNOWN)


def record_failure(target: Location, table: FailedTable) -> None:
    """Store a failed table with its error in a file of the target; replace an earlier error.

    Raises:
        ReplicaError: The target cannot be written.
    """
    write_file(target / _FOLDER / str(table.oid), msgspec.json.encode(table).decode())


def remove_failure(target: Location, oid: int) -> None:
    """Remove the stored error of a table that is not a failed table any more.

    Raises:
        ReplicaError: The target cannot be written.
    """
    remove_file(target / _FOLDER / str(oid))
