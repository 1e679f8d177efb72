"""Remove tables of a target that cannot be continued, so that they are built anew from the recording."""

from __future__ import annotations

from collections.abc import Iterable

from logicalrep.errors import RecordingError, ReplicaError
from logicalrep.recording import PathOrUri, Recording, locate
from logicalrep.replica.failed_tables import remove_failure
from logicalrep.replica.ownership import read_owner
from logicalrep.replica.positions import Positions
from logicalrep.replica.recorded_changes import complete_since
from logicalrep.replica.tables import replica_table
from logicalrep.targets import remove_table


def reset_tables(recording: PathOrUri, target: PathOrUri, tables: Iterable[str]) -> None:
    """Remove tables of a target, with all their files; the next run builds them anew.

    This helps if a file of a table is lost for good. Until the next run, readers find no table. After a kill,
    call the function again.

    Args:
        recording: The recording that the target follows.
        target: The folder that holds the replica, as a path or URI.
        tables: Names of tables, such as `public.orders`. Tables of dropped relations stay.

    Raises:
        RecordingError: The recording cannot be read, or lacks the rows of a table; no table is removed.
        ReplicaError: The target has no such table, belongs to another recording, or cannot be written.
    """
    source, folder = Recording(recording), locate(target)
    owner = read_owner(target)
    if owner is None or owner.recording != source.identity:
        raise ReplicaError(
            f"{folder}: no table was reset: the target does not belong to the recording {source.location}. "
            "Give the recording of the target"
        )
    positions, oids = Positions(source, folder), list[int]()
    for name in tables:
        found = {oid: replica_table(target, oid) for oid in positions.find(name)}
        current = [oid for oid, table in found.items() if table is None or table.dropped is None]
        if not current:
            raise ReplicaError(f"{folder}: the target has no table {name} to reset: correct the name")
        oids.append(current[0])
        try:
            complete_since(source, current[0], 1, source.numbers[-1])
        except RecordingError as error:
            raise RecordingError(f"{name} cannot be reset: {error}") from error
    for oid in oids:
        remove_table(folder, oid)
        remove_failure(folder, oid)
