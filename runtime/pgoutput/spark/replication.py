"""Streaming queries that keep Delta tables equal to their source, or write the changes as Parquet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from pgoutput.errors import ReplicaError
from pgoutput.recording import PathOrUri, Recording, locate
from pgoutput.replica import (
    Dropped,
    MissedBatch,
    Owner,
    Registration,
    Report,
    Selection,
    check_owner,
    claim_target,
    selected_tables,
)
from pgoutput.spark.checkpoint import Batch, read_offset, read_query_id
from pgoutput.spark.tables import TablesWriter
from pgoutput.views import BATCHES, CHANGES


def replicate(
    changes: DataFrame,
    target: PathOrUri,
    *,
    history: bool = False,
    dropped: Dropped = "keep",
    checkpoint: PathOrUri | None = None,
    trigger: Mapping[str, Any] | None = None,
    report: Report | None = None,
    recording: PathOrUri | None = None,
) -> StreamingQuery:
    """Start a streaming query that keeps one Delta table per relation equal to the source.

    `pgoutput.replica.replica_tables` lists the tables with their location, error, and the reasons why they
    may differ from the source. `pgoutput.replica.retry_tables` applies the micro-batches that failed tables
    have missed. The query can be stopped or killed at any moment: the next query with the same target and
    checkpoint resumes, and each change is applied exactly once. Target and checkpoint belong to one
    recording; other recordings are refused.

    Args:
        changes: The view `batches` of a recording, as a streaming DataFrame; or the view `changes`, which
            takes longer, and may be filtered.
        target: The folder that holds the replica, as a path or URI that all executors can reach. Only one
            query may write to it.
        history: Whether to keep all versions of rows (SCD type 2). `__START_AT` and `__END_AT` contain the
            LSN, position and time of the changes that begin and end a version.
        dropped: What happens to the table of a relation that was dropped on the server, as in
            `pgoutput.replica.replicate`. Needs `recording`.
        checkpoint: Location of the query's checkpoint; a folder in the target if None.
        trigger: Arguments of `DataStreamWriter.trigger`, such as `{"availableNow": True}`.
        report: Called after each micro-batch with the number of the micro-batch, and one result for each
            table that has changes in the micro-batch.
        recording: The recording that the changes come from, so that `pgoutput prune` keeps the segments that
            the query needs: the query registers in it. None if the recording is not pruned, and the target
            follows all tables; then tables that become incomplete without a change are not marked.

    Raises:
        ValueError: `changes` is not a streaming DataFrame of one of these views.
        ReplicaError: The target contains something other than a replica.

    The query fails with a ReplicaError if the target, or one of its tables, belongs to another recording.
    """
    location = _absolute(target)
    output = "history" if history else "tables"
    place = None if recording is None else _absolute(recording)
    write = TablesWriter(location, history=history, report=report, dropped=dropped)
    view = BATCHES if "data" in changes.columns else CHANGES
    return _start(changes, view, location, output, checkpoint, trigger, write, place)


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
    write = partial(_write_feed_batch, location)
    return _start(changes, CHANGES, location, "a feed", checkpoint, trigger, write)


_WriteBatch: TypeAlias = Callable[[DataFrame, Batch, Recording | None], None]
"""A function that writes the rows of a micro-batch; the recording is None if it was not given."""


def _start(
    changes: DataFrame,
    view: pa.Schema,
    target: str,
    output: str,
    checkpoint: PathOrUri | None,
    trigger: Mapping[str, Any] | None,
    write: _WriteBatch,
    recording: str | None = None,
) -> StreamingQuery:
    if not changes.isStreaming:
        raise ValueError("the changes are not a streaming DataFrame: read them with spark.readStream")
    missing = [name for name in view.names if name not in changes.columns]
    if missing:
        raise ValueError(f"the changes lack {', '.join(missing)}: read them from the view changes")
    check_owner(target, output, recording="")
    location = f"{target}/_checkpoint" if checkpoint is None else _absolute(checkpoint)
    writer = changes.writeStream.option("checkpointLocation", location)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.foreachBatch(_BatchFunction(target, output, location, write, recording)).start()


class _BatchFunction:
    """The function for `foreachBatch`. With Spark Connect, a process of the Spark server calls the function.

    Args:
        target: The folder that the query writes to.
        output: What the query writes: "tables", "history" or "a feed".
        checkpoint: Location of the query's checkpoint.
        write: Called to write the rows of a micro-batch.
        recording: The recording to register in; None for no registration.
    """

    def __init__(
        self, target: str, output: str, checkpoint: str, write: _WriteBatch, recording: str | None = None
    ) -> None:
        self._target = target
        self._output = output
        self._checkpoint = checkpoint
        self._write = write
        self._recording = recording
        self._owner: Owner | None = None
        self._source: Recording | None = None
        self._registration: Registration | None = None
        self._selection: Selection | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Check that this query owns the target, then write a micro-batch."""
        session = rows.sparkSession
        # Read for each batch: if there are several streams, one may have had no segments in the first batch.
        recording = read_offset(session, self._checkpoint, batch).recording
        if self._owner is None:
            self._owner = Owner(read_query_id(session, self._checkpoint), self._output, recording)
        claim_target(self._target, self._owner, batch=batch)
        one = Batch(batch, self._owner, self._checkpoint)
        if self._recording is not None and recording:
            segments = one.as_missed(session)
            self._register(self._recording, self._owner, segments.first_segment - 1)
            rows = self._select(rows, segments)
        elif selected_tables(locate(self._target)) is not None:
            raise ReplicaError(
                f"{self._target}: the target follows only some tables: pass `recording` to replicate"
            )
        self._write(rows, one, self._source)

    def _register(self, place: str, owner: Owner, segment: int) -> None:
        """Register the query in the recording; Spark commits a micro-batch when it has been written."""
        if self._source is None or self._registration is None:
            self._source = Recording(place)
            self._registration = Registration(self._source, locate(self._target), owner)
        self._source.refresh()  # Spark has found the segments by another listing
        self._registration.update(segment)

    def _select(self, rows: DataFrame, segments: MissedBatch) -> DataFrame:
        """Return the rows of the relations that the target follows."""
        if self._source is None or segments.last_segment < segments.first_segment:
            return rows
        if self._selection is None:
            self._selection = Selection(self._source, locate(self._target))
        oids = self._selection.oids(segments.batch, segments.first_segment, segments.last_segment)
        if oids is None:
            return rows
        return rows.filter(sf.col("oid" if "data" in rows.columns else "relation.oid").isin(sorted(oids)))


def _write_feed_batch(target: str, rows: DataFrame, batch: Batch, recording: Recording | None) -> None:
    rows.write.mode("overwrite").parquet(f"{target}/batch={batch.number}")


def _absolute(place: PathOrUri) -> str:
    """Return a URI unchanged, a path as absolute path: executors may have other working directories."""
    text = os.fspath(place)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)
