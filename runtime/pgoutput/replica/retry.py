"""Retry failed tables: read the changes that the tables have missed from the recording, and apply them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput._text import one_line
from pgoutput.errors import PgoutputError, ReplicaError
from pgoutput.recording import Location, PathOrUri, Recording, SegmentReader, locate
from pgoutput.replica.batch import TableResult, apply_changes
from pgoutput.replica.failed_tables import (
    FailedTable,
    MissedBatch,
    read_failed_tables,
    read_missed_batches,
    record_failure,
    remove_failure,
    remove_missed_batch,
)
from pgoutput.replica.ownership import Owner, read_owner
from pgoutput.views import CHANGES, ChangesView, plan_changes, read


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
            for missed in batches:
                error = ""
                for result in _apply_batch(source, target, owner, table, missed):
                    yield result
                    error = result.error
                if error:
                    record_failure(target, msgspec.structs.replace(table, error=error))
                    return
                remove_missed_batch(target, table.oid, missed.batch)
    except ReplicaError as error:  # the record of the missed batches is damaged
        record_failure(target, msgspec.structs.replace(table, error=str(error)))
        yield TableResult(table.oid, table.namespace, table.name, {}, error=str(error))
        return
    remove_failure(target, table.oid)


def _apply_batch(
    source: Recording, target: Location, owner: Owner, table: FailedTable, missed: MissedBatch
) -> Iterator[TableResult]:
    with TemporaryDirectory(prefix="pgoutput-") as folder:
        file = os.path.join(folder, "changes")
        try:
            _store_changes(source, table.oid, missed, file)
        except PgoutputError as error:
            yield TableResult(table.oid, table.namespace, table.name, {}, error=str(error))
            return
        except Exception as error:  # an unexpected error of one table must not stop the other tables
            text = f"{table.namespace}.{table.name}: {one_line(error)}"
            yield TableResult(table.oid, table.namespace, table.name, {}, error=text)
            return
        yield from apply_changes(
            _sorted_changes(file),
            target.place,
            owner.query,
            missed.batch,
            recording=owner.recording,
            history=owner.output == "history",
        )


def _store_changes(source: Recording, oid: int, missed: MissedBatch, file: str) -> None:
    """Write one relation's changes of a missed micro-batch to an Arrow file: they may not fit in memory."""
    numbers = range(missed.first_segment, missed.last_segment + 1)
    source.check(numbers)
    with pa.ipc.new_file(file, CHANGES) as writer:
        for task in plan_changes(source, numbers):
            with SegmentReader(task.place) as segment:
                for batch in read(
                    segment, ChangesView(segment, task, lambda shape: shape.relation.oid == oid)
                ):
                    writer.write_batch(batch)


def _sorted_changes(file: str) -> Iterator[pa.RecordBatch]:
    """Yield the changes of an Arrow file, sorted by `sequence`, the order in which a query applies changes.

    The file's batches are not concatenated, because Arrow arrays of strings are limited to 2 GiB.
    """
    with pa.OSFile(file) as source, pa.ipc.open_file(source) as reader:
        keys = [_sort_keys(reader.get_batch(number)) for number in range(reader.num_record_batches)]
        if not keys:
            return
        batch_of = np.repeat(np.arange(len(keys)), [len(lsns) for lsns, _ in keys])
        row = np.concatenate([np.arange(len(lsns)) for lsns, _ in keys])
        order = np.lexsort([np.concatenate(column) for column in reversed([*zip(*keys, strict=True)])])
        boundaries = np.flatnonzero(np.diff(batch_of[order])) + 1
        for rows in np.split(order, boundaries):
            if len(rows):
                batch = reader.get_batch(int(batch_of[rows[0]]))
                yield batch.take(pa.array(row[rows]))


def _sort_keys(batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return copies of the columns `commit_lsn` and `position`, so that the Arrow batch can be freed."""
    return batch["commit_lsn"].to_numpy().copy(), batch["position"].to_numpy().copy()
