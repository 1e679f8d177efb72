"""Streaming queries that keep Delta tables equal to their source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from pgoutput.recording import PathOrUri
from pgoutput.replica import Dropped, Report, Updates, check_owner, claim_target
from pgoutput.spark.checkpoint import read_batch
from pgoutput.spark.tables import TablesWriter
from pgoutput.views import BATCHES, CHANGES


def replicate(
    changes: DataFrame,
    target: PathOrUri,
    *,
    history: bool = False,
    updates: Updates | None = None,
    dropped: Dropped = "keep",
    checkpoint: PathOrUri | None = None,
    trigger: Mapping[str, Any] | None = None,
    on_batch: Report | None = None,
) -> StreamingQuery:
    """Start a streaming query that keeps one Delta table per relation equal to the source.

    `pgoutput.replica.replica_tables` lists the tables with their location, error, and the reasons why they
    may differ from the source. The query can be stopped or killed at any moment: each table stores its
    position, and each change is applied exactly once. A target belongs to one recording; others are refused.
    With the view `batches`, the driver brings some tables up to date before the first micro-batch begins:
    tables that failed earlier, and tables that were replaced by an older copy.

    Args:
        changes: The view `batches` of a recording, as a streaming DataFrame; or the view `changes`, which
            takes longer, and may be filtered.
        target: The folder that holds the replica, as a path or URI that all executors can reach.
        history: Whether to keep all versions of rows (SCD type 2). `__START_AT` and `__END_AT` contain the
            LSN, position and time of the changes that begin and end a version.
        updates: How commits from now on remove rows, as in `pgoutput.replica.replicate`.
        dropped: What happens to the table of a relation that was dropped on the server, as in
            `pgoutput.replica.replicate`.
        checkpoint: Location of the query's checkpoint; a folder in the target if None.
        trigger: Arguments of `DataStreamWriter.trigger`, such as `{"availableNow": True}`.
        on_batch: Called after each micro-batch with the number of its last segment, and one result for each
            table that was changed.

    Raises:
        ValueError: `changes` is not a streaming DataFrame of the view `batches` or `changes`.
        ReplicaError: The target contains something other than a replica.

    The query fails with a ReplicaError if the target, or one of its tables, belongs to another recording.
    """
    location = _absolute(target)
    output = "history" if history else "tables"
    view = BATCHES if "data" in changes.columns else CHANGES
    if not changes.isStreaming:
        raise ValueError(
            "expected a streaming DataFrame of changes, found a batch DataFrame: use spark.readStream"
        )
    missing = [name for name in view.names if name not in changes.columns]
    if missing:
        raise ValueError(
            f"the DataFrame of changes lacks the columns {', '.join(missing)}: read it from the view changes"
        )
    check_owner(location, output, recording="")
    write = TablesWriter(
        location,
        history=history,
        updates=updates,
        report=on_batch,
        dropped=dropped,
        is_filtered=view is not BATCHES,
    )
    kept = f"{location}/_checkpoint" if checkpoint is None else _absolute(checkpoint)
    writer = changes.writeStream.option("checkpointLocation", kept)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.foreachBatch(_BatchFunction(location, output, kept, write)).start()


class _BatchFunction:
    """The function for `foreachBatch`. With Spark Connect, a process of the Spark server calls the function.

    Args:
        target: The folder that the query writes to.
        output: What the query writes: "tables" or "history".
        checkpoint: Location of the query's checkpoint.
        write: Writes the rows of a micro-batch.
    """

    def __init__(self, target: str, output: str, checkpoint: str, write: TablesWriter) -> None:
        self._target = target
        self._output = output
        self._checkpoint = checkpoint
        self._write = write

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Check that the target takes changes of this recording, then write a micro-batch."""
        batch = read_batch(rows.sparkSession, self._checkpoint, number)
        self._write(rows, batch, claim_target(self._target, self._output, batch.recording))


def _absolute(place: PathOrUri) -> str:
    """Return a URI unchanged, a path as absolute path: executors may have other working directories."""
    text = os.fspath(place)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)
