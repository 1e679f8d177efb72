"""Streaming queries that keep tables equal to their source, or write the changes themselves.

Each batch is divided by relation; the executors apply the changes of each to its Delta table, in order and
with nothing of the data in the driver. See `pgoutput.replica` for what becomes of tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pgoutput.replica import Applied, apply_changes
from pgoutput.replica.claim import claim, owner
from pgoutput.segments.location import Place
from pgoutput.views import CHANGES

Report: TypeAlias = Callable[[int, Sequence[Applied]], None]
"""Is told the number of a batch, and what was applied in it."""

_APPLIED: Final = pa.schema(
    [
        ("oid", pa.int64()),
        ("namespace", pa.string()),
        ("name", pa.string()),
        ("operation", pa.string()),
        ("changes", pa.int64()),
    ]
)
_APPLIED_DDL: Final = "oid long, namespace string, name string, operation string, changes long"


def replicate(
    changes: DataFrame,
    target: Place,
    *,
    history: bool = False,
    checkpoint: Place | None = None,
    trigger: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> StreamingQuery:
    """Start a query that keeps a Delta table per relation equal to the source.

    `pgoutput.replica.replica_tables` tells where the tables are. The query can be stopped or killed at any
    moment; the next one with the same target and checkpoint goes on, and nothing is lost or made twice.

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
        CaptureError: The target holds something else.
    """
    place = _absolute(target)
    keeps = "history" if history else "tables"
    run = partial(_apply_batch, place, history, report)
    return _start(changes, place, keeps, checkpoint, trigger, run)


def write_feed(
    changes: DataFrame,
    target: Place,
    *,
    checkpoint: Place | None = None,
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
        CaptureError: The target holds something else.
    """
    place = _absolute(target)
    return _start(changes, place, "a feed", checkpoint, trigger, partial(_feed_batch, place))


_Run: TypeAlias = Callable[[str, DataFrame, int], None]
"""Works on a batch: the id of the query, the rows, the number of the batch."""


def _start(
    changes: DataFrame,
    target: str,
    keeps: str,
    checkpoint: Place | None,
    trigger: Mapping[str, Any] | None,
    run: _Run,
) -> StreamingQuery:
    if not changes.isStreaming:
        raise ValueError("the changes are not a stream: they come from spark.readStream")
    missing = [name for name in CHANGES.names if name not in changes.columns]
    if missing:
        raise ValueError(f"the changes lack {', '.join(missing)}: they come from the view changes")
    owner(target, keeps)
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
        self._query: str | None = None

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Work on a batch."""
        if self._query is None:
            self._query = _query_id(rows.sparkSession, self._checkpoint)
        claim(self._target, self._query, self._keeps)
        self._run(self._query, rows, batch)


def _query_id(session: SparkSession, checkpoint: str) -> str:
    """The id that Spark gave the query, which lives and dies with the checkpoint (StreamMetadata)."""
    (row,) = session.read.text(f"{checkpoint}/metadata", wholetext=True).collect()
    return str(msgspec.json.decode(row["value"])["id"])


def _apply_batch(
    target: str, history: bool, report: Report | None, query: str, rows: DataFrame, batch: int
) -> None:
    # With a number, adaptive execution leaves the partitions as they are: one at least for each core.
    parts = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    ordered = (
        rows.select(*CHANGES.names)
        .repartition(parts, "relation.oid")
        .sortWithinPartitions("relation.oid", "sequence")
    )
    work = partial(_apply_part, target, history, query, batch)
    applied = [Applied(*row) for row in ordered.mapInArrow(work, _APPLIED_DDL).collect()]
    if report is not None:
        report(batch, sorted(applied))


def _apply_part(
    target: str, history: bool, query: str, batch: int, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    changes = (pa.RecordBatch.from_arrays(_cast(one), schema=CHANGES) for one in rows if one.num_rows)
    for applied in apply_changes(changes, target, query, batch, history=history):
        yield pa.RecordBatch.from_pylist([applied._asdict()], _APPLIED)


def _cast(rows: pa.RecordBatch) -> list[pa.Array]:
    return [rows[field.name].cast(field.type) for field in CHANGES]


def _feed_batch(target: str, query: str, rows: DataFrame, batch: int) -> None:
    rows.write.mode("overwrite").parquet(f"{target}/batch={batch}")


def _absolute(place: Place) -> str:
    """A path from the root: the executors may be elsewhere."""
    text = os.fspath(place)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)
