"""Failed tables: Delta tables whose changes could not be applied, and their missed micro-batches.

A target has a folder `_failed_tables/OID` for each failed table. The folder contains a file `error` with the
text of the error, and one file for each missed micro-batch. The file of a missed micro-batch is named after
its number, and contains the numbers of its first and last segment. A missed micro-batch is recorded before
the query's checkpoint counts it as done, so that no change is lost. A table that has missed micro-batches is
a failed table even if its file `error` is lost.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from pgoutput.errors import ReplicaError
from pgoutput.recording import Location
from pgoutput.replica.small_files import read_file, remove_empty_folder, remove_file, write_file

_FOLDER: Final = "_failed_tables"
_ERROR: Final = "error"
_UNKNOWN: Final = "the table has missed batches; the error is not known, because its file is lost"


class FailedTable(msgspec.Struct, frozen=True):
    """A failed table of a replica: the relation that the table follows, and the table's error."""

    oid: int
    namespace: str
    name: str
    error: str
    """Text of the error because of which changes could not be applied to the table."""


class MissedBatch(msgspec.Struct, frozen=True):
    """A micro-batch that was not applied to a failed table, or only in part."""

    batch: int
    """Number of the missed micro-batch."""
    first_segment: int
    """Number of the first segment whose changes are in the micro-batch."""
    last_segment: int
    """Number of the last segment whose changes are in the micro-batch."""


def read_failed_tables(target: Location) -> dict[int, FailedTable]:
    """Return the failed tables of a target, by relation OID.

    Raises:
        ReplicaError: The target cannot be read.
    """
    folder = target / _FOLDER
    tables = (_read_failed_table(folder / str(oid), oid) for oid in _numbered_names(folder))
    return {table.oid: table for table in tables if table is not None}


def _read_failed_table(folder: Location, oid: int) -> FailedTable | None:
    if text := read_file(folder / _ERROR):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=FailedTable)
    return FailedTable(oid, "", "", _UNKNOWN) if _numbered_names(folder) else None


def record_failure(target: Location, table: FailedTable, missed: MissedBatch | None = None) -> None:
    """Record a failed table, and a micro-batch that the table has missed, in files of the target.

    Args:
        target: The folder that holds the replica.
        table: The failed table.
        missed: The missed micro-batch; None if all micro-batches that the table has missed are recorded.

    Raises:
        ReplicaError: The target cannot be written.
    """
    folder = target / _FOLDER / str(table.oid)
    if missed is not None:
        write_file(folder / str(missed.batch), msgspec.json.encode(missed).decode())
    write_file(folder / _ERROR, msgspec.json.encode(table).decode())


def read_missed_batches(target: Location, oid: int) -> list[MissedBatch]:
    """Return the micro-batches that a failed table has missed, sorted by number.

    Raises:
        ReplicaError: The target cannot be read.
    """
    folder = target / _FOLDER / str(oid)
    return [_read_missed_batch(folder / str(batch)) for batch in _numbered_names(folder)]


def _read_missed_batch(file: Location) -> MissedBatch:
    try:
        return msgspec.json.decode(read_file(file), type=MissedBatch)
    except msgspec.DecodeError as error:
        raise ReplicaError(f"{file}: {error}. Begin anew, with an empty target") from error


def remove_missed_batch(target: Location, oid: int, batch: int) -> None:
    """Remove the record of a missed micro-batch, after its changes were applied to the failed table.

    Raises:
        ReplicaError: The target cannot be written.
    """
    remove_file(target / _FOLDER / str(oid) / str(batch))


def remove_failure(target: Location, oid: int) -> None:
    """Remove a table's error. The table stays failed if a query has just recorded another missed micro-batch.

    Raises:
        ReplicaError: The target cannot be written.
    """
    folder = target / _FOLDER / str(oid)
    if _ERROR in folder.names():
        remove_file(folder / _ERROR)
    remove_empty_folder(folder)


def _numbered_names(folder: Location) -> list[int]:
    return sorted(int(name) for name in folder.names() if name.isdecimal())
