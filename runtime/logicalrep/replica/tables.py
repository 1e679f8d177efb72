"""List the tables of a target: location, error, and whether the table equals its source."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec

from logicalrep.apply import Difference, decode_differences
from logicalrep.errors import ReplicaError
from logicalrep.recording import GoneTable, Location, PathOrUri, Verified, locate
from logicalrep.replica.failed_tables import FailedTable, read_failed_tables
from logicalrep.replica.ownership import read_owner
from logicalrep.replica.positions import read_names
from logicalrep.replica.verified import VERIFIED, decode_verified
from logicalrep.targets import (
    MAY_DIFFER,
    NAME,
    NAMESPACE,
    RECORDING,
    THREADS,
    decode_dropped,
    find_table,
    folder_name,
    missing_entry,
    registered_oids,
    unregistered_tables,
)


class ReplicaTable(msgspec.Struct, frozen=True):
    """The Delta table of one relation, as listed by `replica_tables`."""

    oid: int
    """OID of the relation."""
    namespace: str
    """Namespace of the relation; empty for pg_catalog, as in Relation messages."""
    name: str
    """Name of the relation; empty if the table cannot be read, and no run has stored the name."""
    place: str
    """Path or URI of the Delta table; empty if the table was not found, or failed before its creation."""
    recording: str
    """UUID of the recording."""
    may_differ: tuple[Difference, ...]
    """Reasons why the table may differ from its source; empty if no reason is known."""
    dropped: GoneTable | None
    """When the relation was dropped on the server; None if it was not."""
    error: str
    """Why the table has failed or cannot be read; empty if neither is the case."""
    verified_through: Verified | None
    """Result of the last comparison with the source; None if there was none, or if it found differences."""

    @property
    def shown_name(self) -> str:
        """Name of the relation with its namespace; with the folder of the table, if that has another name."""
        if not self.name:
            return f"OID {self.oid}"
        folder = locate(self.place).path.rpartition("/")[2] if self.place else ""
        is_own = folder in ("", folder_name(self.namespace, self.name))
        return f"{self.namespace}.{self.name}{'' if is_own else f' (in the folder {folder})'}"


def replica_tables(target: PathOrUri) -> dict[int, ReplicaTable]:
    """Return a description of each table of a target, by relation OID.

    Args:
        target: The folder that holds the replica, as a path or URI.

    Raises:
        ReplicaError: The target cannot be read.
    """
    folder, owner = locate(target), read_owner(target)
    failed = read_failed_tables(folder)
    if owner is not None:
        for oid in unregistered_tables(folder, owner.recording):
            failed[oid] = FailedTable(oid, "", "", str(missing_entry(folder, oid)))
    oids = sorted(registered_oids(folder) | failed.keys())
    with ThreadPoolExecutor(THREADS) as pool:
        tables = [*pool.map(lambda oid: _read_table(folder, oid, failed.get(oid)), oids)]
    return {table.oid: table for table in tables if table is not None}


def replica_table(target: PathOrUri, oid: int) -> ReplicaTable | None:
    """Return a description of the table of one relation of a target; None if there is none.

    Raises:
        ReplicaError: The target cannot be read.
    """
    folder = locate(target)
    return _read_table(folder, oid, read_failed_tables(folder).get(oid))


def _read_table(target: Location, oid: int, failed: FailedTable | None) -> ReplicaTable | None:
    error = "" if failed is None else failed.error
    place = ""
    may_differ: tuple[Difference, ...] = ()
    verified: Verified | None = None
    dropped: GoneTable | None = None
    properties: dict[str, str] = {} if failed is None else {NAMESPACE: failed.namespace, NAME: failed.name}
    try:
        if (table := find_table(target, oid)) is not None:
            place = table.place.place
            properties |= table.properties
            may_differ = decode_differences(properties.get(MAY_DIFFER))
            dropped = decode_dropped(table)
            verified = decode_verified(properties.get(VERIFIED))
    except (ReplicaError, ValueError) as failure:
        error = error or str(failure)
    if not place and not error:
        return None  # a run was killed before it created the table
    if not properties.get(NAME):
        properties[NAMESPACE], properties[NAME] = read_names(target).get(oid, ("", ""))
    return ReplicaTable(
        oid,
        properties.get(NAMESPACE, ""),
        properties.get(NAME, ""),
        place,
        properties.get(RECORDING, ""),
        may_differ,
        dropped,
        error,
        verified,
    )
