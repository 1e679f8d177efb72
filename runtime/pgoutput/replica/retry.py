"""Retry failed tables: read the changes that the tables have missed from the recording, and apply them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import msgspec

from pgoutput._text import one_line
from pgoutput.errors import PgoutputError, RecordingError, ReplicaError
from pgoutput.recording import Location, PathOrUri, Recording, locate
from pgoutput.replica.batch import TableResult, apply_changes
from pgoutput.replica.failed_tables import (
    FailedTable,
    read_failed_tables,
    read_missed_batches,
    record_failure,
    remove_failure,
    remove_missed_batch,
)
from pgoutput.replica.ownership import Owner, read_owner
from pgoutput.replica.recorded_changes import complete_since, store_changes


def retry_tables(recording: PathOrUri, target: PathOrUri) -> Iterator[TableResult]:
    """Apply the micro-batches that the failed tables of a target have missed, in order.

    The query that writes to the target must not run at the same time. The changes are read from the
    recording, so do not use this function if the query's DataFrame filters or alters the changes. The changes
    of one micro-batch and table are first written to a temporary file in `tempfile.gettempdir()`.

    Args:
        recording: The recording that the target follows.
        target: The folder that holds the replica, as a path or URI.

    Yields:
        One result for each failed table and missed micro-batch. If a table fails again, its last result has
        the error.

    Raises:
        ReplicaError: The recording or the target cannot be read, or the target follows another recording.
    """
    folder = locate(target)
    failed = read_failed_tables(folder)
    if not failed:
        return
    source = Recording(recording)
    owner = read_owner(target)
    if owner is None or owner.recording != source.identity:
        raise ReplicaError(
            f"{folder}: the target is not a replica of recording {source.identity} in {source.location}"
        )
    for table in failed.values():
        yield from _retry_table(source, folder, owner, table)


def _retry_table(
    source: Recording, target: Location, owner: Owner, table: FailedTable
) -> Iterator[TableResult]:
    try:
        # Read again until no missed batch is left: a query may record further missed batches.
        while batches := read_missed_batches(target, table.oid):
            first, last = batches[0].first_segment, batches[-1].last_segment
            first = complete_since(source, table.oid, first, last)
            for missed in batches:
                numbers = range(max(first, missed.first_segment), missed.last_segment + 1)
                error = ""
                for result in _apply_batch(source, target, owner, table, missed.batch, numbers):
                    yield result
                    error = result.error
                if error:
                    record_failure(target, msgspec.structs.replace(table, error=error))
                    return
                remove_missed_batch(target, table.oid, missed.batch)
    except (ReplicaError, RecordingError) as error:  # a record is damaged, or segments were pruned
        record_failure(target, msgspec.structs.replace(table, error=str(error)))
        yield TableResult(table.oid, table.namespace, table.name, {}, error=str(error))
        return
    remove_failure(target, table.oid)


def _apply_batch(
    source: Recording, target: Location, owner: Owner, table: FailedTable, batch: int, numbers: range
) -> Iterator[TableResult]:
    if not numbers:
        return  # a snapshot that was taken later replaces all rows
    with TemporaryDirectory(prefix="pgoutput-") as folder:
        file = os.path.join(folder, "changes")
        try:
            source.check(numbers)
            changes = store_changes(source, [table.oid], numbers, file)
        except PgoutputError as error:
            yield TableResult(table.oid, table.namespace, table.name, {}, error=str(error))
            return
        except Exception as error:  # an unexpected error of one table must not stop the other tables
            text = f"{table.namespace}.{table.name}: {one_line(error)}"
            yield TableResult(table.oid, table.namespace, table.name, {}, error=text)
            return
        yield from apply_changes(
            changes.sorted(table.oid),
            target.place,
            owner.query,
            batch,
            recording=owner.recording,
            history=owner.output == "history",
        )
