"""Streaming queries that keep Delta tables equal to their source, or write the changes as Parquet.

`replicate` partitions each micro-batch by relation. The executors apply the changes of each relation to its
Delta table, in order; no row passes through the driver. If the changes of a table cannot be applied, the
error and the micro-batches that the table misses are recorded in the target (see `pgoutput.replica`). Changes
of the other tables are still applied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pgoutput.errors import ReplicaError
from pgoutput.recording import PathOrUri, locate
from pgoutput.replica import (
    FailedTable,
    MissedBatch,
    Owner,
    TableResult,
    apply_changes,
    check_owner,
    claim_target,
    read_failed_tables,
    record_failure,
)
from pgoutput.views import CHANGES

Report: TypeAlias = Callable[[int, Sequence[TableResult]], None]
"""A function called after each micro-batch with the micro-batch's number and one result per changed table."""

_RESULTS: Final = pa.schema([("result", pa.binary())])
"""Arrow schema of rows that each contain one `TableResult` as JSON."""
_RESULTS_DDL: Final = "result binary"


def replicate(
    changes: DataFrame,
    target: PathOrUri,
    *,
    history: bool = False,
    checkpoint: PathOrUri | None = None,
    trigger: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> StreamingQuery:
    """Start a streaming query that keeps one Delta table per relation equal to the source.

    `pgoutput.replica.replica_tables` lists the tables with their location, error, and the reasons why they
    may differ from the source. `pgoutput.replica.retry_tables` applies the micro-batches that failed tables
    have missed. The query can be stopped or killed at any moment: the next query with the same target and
    checkpoint resumes, and each change is applied exactly once. Target and checkpoint belong to one
    recording; other recordings are refused.

    Args:
        changes: The view `changes` of a recording, as a streaming DataFrame.
        target: The folder that holds the replica, as a path or URI that all executors can reach. Only one
            query may write to it.
        history: Whether to keep all versions of rows (SCD type 2). `__START_AT` and `__END_AT` contain the
            LSN, position and time of the changes that begin and end a version.
        checkpoint: Location of the query's checkpoint; a folder in the target if None.
        trigger: Arguments of `DataStreamWriter.trigger`, such as `{"availableNow": True}`.
        report: Called after each micro-batch with the number of the micro-batch, and one result for each
            table that has changes in the micro-batch.

    Raises:
        ValueError: `changes` is not a streaming DataFrame of the view `changes`.
        ReplicaError: The target contains something other than a replica.

    The query fails with a ReplicaError if the target, or one of its tables, belongs to another recording.
    """
    location = _absolute(target)
    output = "history" if history else "tables"
    write = partial(_apply_batch, location, history, report)
    return _start(changes, location, output, checkpoint, trigger, write)


def write_feed(
    changes: DataFrame,
    target: PathOrUri,
    *,
    checkpoint: PathOrUri | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start a streaming query that writes changes as Parquet, in one folder for each micro-batch.

    A micro-batch that is repeated after a crash replaces its folder, so readers find each change once.

    Args:
        changes: The view `changes` of a recording, as a streaming DataFrame.
        target: The folder, as a path that Spark can write to. Only one query may write to it.
        checkpoint: Location of the query's checkpoint; a folder in the target if None.
        trigger: Arguments of `DataStreamWriter.trigger`, such as `{"availableNow": True}`.

    Raises:
        ValueError: `changes` is not a streaming DataFrame of the view `changes`.
        ReplicaError: The target contains something other than a feed.
    """
    location = _absolute(target)
    return _start(changes, location, "a feed", checkpoint, trigger, partial(_write_feed_batch, location))


class _Offset(msgspec.Struct, frozen=True):
    """An offset of the data source `pgoutput`: how far a streaming query has read."""

    segment: int = 0
    """Number of the last segment that was read; 0 at the beginning of the recording."""
    recording: str = ""
    """UUID of the recording; empty if there are no segments yet or the changes come from another source."""


class _Batch(msgspec.Struct, frozen=True):
    """A micro-batch: its number, and the streaming query that writes it."""

    number: int
    owner: Owner
    checkpoint: str

    def as_missed(self, session: SparkSession) -> MissedBatch:
        """Return a record of this micro-batch, with its segments, for failed tables that have missed it."""
        before = _read_offset(session, self.checkpoint, self.number - 1) if self.number else _Offset()
        last = _read_offset(session, self.checkpoint, self.number).segment
        return MissedBatch(self.number, before.segment + 1, last)


_WriteBatch: TypeAlias = Callable[[DataFrame, _Batch], None]
"""A function that writes the rows of a micro-batch."""


def _start(
    changes: DataFrame,
    target: str,
    output: str,
    checkpoint: PathOrUri | None,
    trigger: Mapping[str, Any] | None,
    write: _WriteBatch,
) -> StreamingQuery:
    if not changes.isStreaming:
        raise ValueError("the changes are not a streaming DataFrame: read them with spark.readStream")
    missing = [name for name in CHANGES.names if name not in changes.columns]
    if missing:
        raise ValueError(f"the changes lack {', '.join(missing)}: read them from the view changes")
    check_owner(target, output, recording="")
    location = f"{target}/_checkpoint" if checkpoint is None else _absolute(checkpoint)
    writer = changes.writeStream.option("checkpointLocation", location)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.foreachBatch(_BatchFunction(target, output, location, write)).start()


class _BatchFunction:
    """The function for `foreachBatch`. With Spark Connect, a process of the Spark server calls the function.

    Args:
        target: The folder that the query writes to.
        output: What the query writes: "tables", "history" or "a feed".
        checkpoint: Location of the query's checkpoint.
        write: Called to write the rows of a micro-batch.
    """

    def __init__(self, target: str, output: str, checkpoint: str, write: _WriteBatch) -> None:
        self._target = target
        self._output = output
        self._checkpoint = checkpoint
        self._write = write
        self._owner: Owner | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Check that this query owns the target, then write a micro-batch."""
        session = rows.sparkSession
        # Read for each batch: if there are several streams, one may have had no segments in the first batch.
        recording = _read_offset(session, self._checkpoint, batch).recording
        if self._owner is None:
            self._owner = Owner(_read_query_id(session, self._checkpoint), self._output, recording)
        claim_target(self._target, self._owner, batch=batch)
        self._write(rows, _Batch(batch, self._owner, self._checkpoint))


def _read_query_id(session: SparkSession, checkpoint: str) -> str:
    """Return Spark's ID of a streaming query from the metadata in its checkpoint (StreamMetadata)."""
    return str(msgspec.json.decode(_read_text(session, f"{checkpoint}/metadata"))["id"])


def _read_offset(session: SparkSession, checkpoint: str, batch: int) -> _Offset:
    """Return the end offset of a micro-batch, without a UUID if the changes do not come from a recording.

    Spark writes the end offset to the checkpoint before it runs the micro-batch (OffsetSeqLog).
    """
    offsets = []
    for line in _read_text(session, f"{checkpoint}/offsets/{batch}").splitlines():
        with suppress(msgspec.DecodeError):  # the version of the log, or an offset of another source
            offsets.append(msgspec.json.decode(line, type=_Offset))
    recorded = [offset for offset in offsets if offset.recording]
    if len(recorded) > 1:
        raise ReplicaError("the changes come from several streams: replicate each into a target of its own")
    return recorded[0] if recorded else _Offset()


def _read_text(session: SparkSession, path: str) -> str:
    (row,) = session.read.text(path, wholetext=True).collect()
    return str(row["value"])


def _apply_batch(target: str, history: bool, report: Report | None, rows: DataFrame, batch: _Batch) -> None:
    # An explicit number of partitions keeps adaptive query execution from coalescing them.
    parts = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    ordered = (
        rows.select(*CHANGES.names)
        .repartition(parts, "relation.oid")
        .sortWithinPartitions("relation.oid", "sequence")
    )
    errors = {oid: table.error for oid, table in read_failed_tables(locate(target)).items()}
    apply_partition = partial(_apply_partition, target, history, errors, batch)
    results = [
        msgspec.json.decode(bytes(row["result"]), type=TableResult)
        for row in ordered.mapInArrow(apply_partition, _RESULTS_DDL).collect()
    ]
    if failed := [result for result in results if result.error]:
        if not batch.owner.recording:  # the changes cannot be read again for a retry
            raise ReplicaError(failed[0].error)
        missed = batch.as_missed(rows.sparkSession)
        for one in failed:
            record_failure(locate(target), FailedTable(one.oid, one.namespace, one.name, one.error), missed)
    if report is not None:
        report(batch.number, sorted(results, key=lambda result: result.oid))


def _apply_partition(
    target: str, history: bool, errors: Mapping[int, str], batch: _Batch, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Apply the changes of a Spark partition in an executor; yield one row with the result of each table."""
    columns = ([one[field.name].cast(field.type) for field in CHANGES] for one in rows if one.num_rows)
    changes = (pa.RecordBatch.from_arrays(arrays, schema=CHANGES) for arrays in columns)
    owner = batch.owner
    for result in apply_changes(
        changes, target, owner.query, batch.number, recording=owner.recording, history=history, failed=errors
    ):
        yield pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(result)])], schema=_RESULTS)


def _write_feed_batch(target: str, rows: DataFrame, batch: _Batch) -> None:
    rows.write.mode("overwrite").parquet(f"{target}/batch={batch.number}")


def _absolute(place: PathOrUri) -> str:
    """Return a URI unchanged, a path as absolute path: executors may have other working directories."""
    text = os.fspath(place)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)
