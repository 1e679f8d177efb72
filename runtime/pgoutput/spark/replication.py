"""Streaming queries that keep tables equal to their source, or write the changes themselves.

Each batch is divided by relation; the executors apply the changes of each to its Delta table, in order and
with nothing of the data in the driver. See `pgoutput.replica` for what becomes of tables. A table that fails
is set aside, and the batches that it misses are noted; the others go on.
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

from pgoutput.errors import RecordingError
from pgoutput.recording import PathOrUri, locate
from pgoutput.replica import Applied, apply_changes
from pgoutput.replica.aside import Aside, Missed, read_aside, set_aside
from pgoutput.replica.claim import Claim, check_owner, claim
from pgoutput.views import CHANGES

Report: TypeAlias = Callable[[int, Sequence[Applied]], None]
"""Is told the number of a batch, and what was applied in it."""

_APPLIED: Final = pa.schema([("applied", pa.binary())])
"""`Applied` as JSON."""
_APPLIED_DDL: Final = "applied binary"


def replicate(
    changes: DataFrame,
    target: PathOrUri,
    *,
    history: bool = False,
    checkpoint: PathOrUri | None = None,
    trigger: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> StreamingQuery:
    """Start a query that keeps a Delta table per relation equal to the source.

    `pgoutput.replica.replica_tables` tells where the tables are, which may differ and which were set aside;
    `pgoutput.replica.retry_tables` applies what those have missed. The query can be stopped or killed at any
    moment; the next one with the same target and checkpoint goes on, and nothing is lost or made twice.
    Target and checkpoint belong to one recording; another one is refused.

    Args:
        changes: The view `changes` of a recording, as a streaming DataFrame.
        target: The folder of the tables, as a path or URI that all executors reach. One query writes there.
        history: Whether all versions of rows are kept (SCD type 2): `__START_AT` and `__END_AT` say from when
            to when one was there.
        checkpoint: Where Spark keeps how far the query is; in the target if None.
        trigger: What `DataStreamWriter.trigger` takes: `{"availableNow": True}`.
        report: Is called after each batch.

    Raises:
        ValueError: `changes` is not such a DataFrame.
        RecordingError: The target holds something else.

    The query ends with a RecordingError where the target, or one of its tables, belongs to another recording.
    """
    place = _absolute(target)
    keeps = "history" if history else "tables"
    run = partial(_apply_batch, place, history, report)
    return _start(changes, place, keeps, checkpoint, trigger, run)


def write_feed(
    changes: DataFrame,
    target: PathOrUri,
    *,
    checkpoint: PathOrUri | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start a query that writes changes as they are, as plain Parquet in a folder for each batch.

    A batch that is written again after a crash replaces what there is of it, so that any reader of Parquet
    finds each change once.

    Args:
        changes: The view `changes` of a recording, as a streaming DataFrame.
        target: The folder, as a path that Spark understands. One query writes there.
        checkpoint: Where Spark keeps how far the query is; in the target if None.
        trigger: What `DataStreamWriter.trigger` takes: `{"availableNow": True}`.

    Raises:
        ValueError: `changes` is not such a DataFrame.
        RecordingError: The target holds something else.
    """
    place = _absolute(target)
    return _start(changes, place, "a feed", checkpoint, trigger, partial(_feed_batch, place))


class _Offset(msgspec.Struct, frozen=True):
    """An offset of the data source `pgoutput`."""

    segment: int = 0
    recording: str = ""


class _Batch(msgspec.Struct, frozen=True):
    """A batch, and who writes it."""

    number: int
    owner: Claim
    checkpoint: str

    def missed(self, session: SparkSession) -> Missed:
        """Return which segments the batch has."""
        before = _offset(session, self.checkpoint, self.number - 1) if self.number else _Offset()
        last = _offset(session, self.checkpoint, self.number).segment
        return Missed(self.number, before.segment + 1, last)


_Run: TypeAlias = Callable[[DataFrame, _Batch], None]
"""Works on the rows of a batch."""


def _start(
    changes: DataFrame,
    target: str,
    keeps: str,
    checkpoint: PathOrUri | None,
    trigger: Mapping[str, Any] | None,
    run: _Run,
) -> StreamingQuery:
    if not changes.isStreaming:
        raise ValueError("the changes are not a stream: they come from spark.readStream")
    missing = [name for name in CHANGES.names if name not in changes.columns]
    if missing:
        raise ValueError(f"the changes lack {', '.join(missing)}: they come from the view changes")
    check_owner(target, keeps, recording="")
    place = f"{target}/_checkpoint" if checkpoint is None else _absolute(checkpoint)
    writer = changes.writeStream.option("checkpointLocation", place)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.foreachBatch(_Batches(target, keeps, place, run)).start()


class _Batches:
    """What the query calls for each batch. With Spark Connect that is in another process than the caller's.

    Args:
        target: Where the query writes.
        keeps: What it makes there.
        checkpoint: Where its checkpoint is.
        run: Works on a batch.
    """

    def __init__(self, target: str, keeps: str, checkpoint: str, run: _Run) -> None:
        self._target = target
        self._keeps = keeps
        self._checkpoint = checkpoint
        self._run = run
        self._owner: Claim | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Work on a batch."""
        session = rows.sparkSession
        # For each batch: of several streams, one may have had no segments when the query began.
        recording = _offset(session, self._checkpoint, batch).recording
        if self._owner is None:
            self._owner = Claim(_query_id(session, self._checkpoint), self._keeps, recording)
        claim(self._target, self._owner, batch=batch)
        self._run(rows, _Batch(batch, self._owner, self._checkpoint))


def _query_id(session: SparkSession, checkpoint: str) -> str:
    """The id that Spark gave the query, which lives and dies with the checkpoint (StreamMetadata)."""
    return str(msgspec.json.decode(_read_text(session, f"{checkpoint}/metadata"))["id"])


def _offset(session: SparkSession, checkpoint: str, batch: int) -> _Offset:
    """Return where a batch ends in the recording. The checkpoint has it before the batch runs (OffsetSeqLog).

    Where the changes come from no recording, the result names none.
    """
    found = []
    for line in _read_text(session, f"{checkpoint}/offsets/{batch}").splitlines():
        with suppress(msgspec.DecodeError):  # the version of the log, or an offset of another source
            found.append(msgspec.json.decode(line, type=_Offset))
    recorded = [one for one in found if one.recording]
    if len(recorded) > 1:
        raise RecordingError("the changes come from several streams: replicate each into a target of its own")
    return recorded[0] if recorded else _Offset()


def _read_text(session: SparkSession, place: str) -> str:
    (row,) = session.read.text(place, wholetext=True).collect()
    return str(row["value"])


def _apply_batch(target: str, history: bool, report: Report | None, rows: DataFrame, batch: _Batch) -> None:
    # With a number, adaptive execution leaves the partitions as they are: one at least for each core.
    parts = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    ordered = (
        rows.select(*CHANGES.names)
        .repartition(parts, "relation.oid")
        .sortWithinPartitions("relation.oid", "sequence")
    )
    aside = {oid: one.error for oid, one in read_aside(locate(target)).items()}
    work = partial(_apply_part, target, history, aside, batch)
    applied = [
        msgspec.json.decode(bytes(row["applied"]), type=Applied)
        for row in ordered.mapInArrow(work, _APPLIED_DDL).collect()
    ]
    if failed := [one for one in applied if one.error]:
        if not batch.owner.recording:  # the changes could not be read again
            raise RecordingError(failed[0].error)
        missed = batch.missed(rows.sparkSession)
        for one in failed:
            set_aside(locate(target), Aside(one.oid, one.namespace, one.name, one.error), missed)
    if report is not None:
        report(batch.number, sorted(applied, key=lambda one: one.oid))


def _apply_part(
    target: str, history: bool, aside: Mapping[int, str], batch: _Batch, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    changes = (pa.RecordBatch.from_arrays(_cast(one), schema=CHANGES) for one in rows if one.num_rows)
    owner = batch.owner
    for applied in apply_changes(
        changes, target, owner.query, batch.number, recording=owner.recording, history=history, aside=aside
    ):
        yield pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(applied)])], schema=_APPLIED)


def _cast(rows: pa.RecordBatch) -> list[pa.Array]:
    return [rows[field.name].cast(field.type) for field in CHANGES]


def _feed_batch(target: str, rows: DataFrame, batch: _Batch) -> None:
    rows.write.mode("overwrite").parquet(f"{target}/batch={batch.number}")


def _absolute(place: PathOrUri) -> str:
    """A path from the root: the executors may be elsewhere."""
    text = os.fspath(place)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)
