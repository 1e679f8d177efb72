"""The tables of a target: where each lies, and whether it can be relied on."""

from __future__ import annotations

import msgspec

from pgoutput.errors import ReplicaError
from pgoutput.recording import Location, PathOrUri, locate
from pgoutput.replica.aside import Aside, read_aside
from pgoutput.replica.differences import Difference, decode_differences
from pgoutput.replica.folders import MAY_DIFFER, NAME, NAMESPACE, RECORDING, RELATIONS, find_registered


class ReplicaTable(msgspec.Struct, frozen=True):
    """The table of one relation."""

    oid: int
    namespace: str
    """Empty for pg_catalog, as in Relation messages."""
    name: str
    place: str
    """Path or URI of the Delta table; empty if it cannot be found or was never created."""
    recording: str
    """UUID of the recording; empty where the changes came from none."""
    may_differ: tuple[Difference, ...]
    """Why the table may differ from its source; empty if it is equal, as far as the stream tells."""
    error: str
    """Why the table was set aside or cannot be read; empty if it is kept up to date."""


def replica_tables(target: PathOrUri) -> dict[int, ReplicaTable]:
    """Return the tables of a target, by OID of the relation.

    Args:
        target: The folder, as a path or URI.

    Raises:
        ReplicaError: The target cannot be read.
    """
    folder = locate(target)
    aside = read_aside(folder)
    registered = {int(name) for name in (folder / RELATIONS).names() if name.isdecimal()}
    found = (_table(folder, oid, aside.get(oid)) for oid in sorted(registered | aside.keys()))
    return {table.oid: table for table in found if table is not None}


def _table(target: Location, oid: int, aside: Aside | None) -> ReplicaTable | None:
    error = "" if aside is None else aside.error
    place = ""
    may_differ: tuple[Difference, ...] = ()
    properties: dict[str, str] = {} if aside is None else {NAMESPACE: aside.namespace, NAME: aside.name}
    try:
        if (found := find_registered(target, oid)) is not None:
            location, table = found
            place = location.place
            properties |= table.metadata().configuration
            may_differ = decode_differences(properties.get(MAY_DIFFER))
    except (ReplicaError, ValueError) as failure:
        error = error or str(failure)
    if not place and not error:
        return None  # a run was killed before it created the table
    return ReplicaTable(
        oid,
        properties.get(NAMESPACE, ""),
        properties.get(NAME, ""),
        place,
        properties.get(RECORDING, ""),
        may_differ,
        error,
    )
