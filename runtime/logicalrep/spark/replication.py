"""Keep Delta tables equal to the source of a recording, with the executors of Spark."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from pyspark.sql import SparkSession, is_remote

from logicalrep.recording import PathOrUri
from logicalrep.replica import Dropped, Progress, Query, Report, Updates
from logicalrep.spark.engine import SparkEngine


def replicate(
    session: SparkSession,
    recording: PathOrUri,
    target: PathOrUri,
    *,
    history: bool = False,
    follow: bool = False,
    latency: float = 0.0,
    updates: Updates | None = None,
    dropped: Dropped = "keep",
    stop: threading.Event | None = None,
    on_batch: Report | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """Apply the changes of a recording that a target does not have yet, in the executors of Spark.

    The result is the same as that of `logicalrep.replica.replicate`, and each function can continue a replica
    that the other has begun. Several tables, and parts of a large table, are written in parallel. No
    checkpoint is needed: each table stores its position. The executors must reach recording and target under
    the same paths or URIs as this process, and must have this package installed.
    `spark.sql.shuffle.partitions` is the number of tasks that read and apply changes: set it to the number of
    the executors' cores.

    Args:
        session: The Spark session, which may be one of Spark Connect.
        recording: The recording, as a path or URI.
        target: The folder that holds the replica, as a path or URI.
        history: Whether to keep all versions of rows (SCD type 2).
        follow: Whether to wait for new segments after the last segment, instead of returning.
        latency: With `follow`: least time from the beginning of one micro-batch to the next, in seconds.
        updates: How commits remove rows from now on, as in `logicalrep.replica.replicate`.
        dropped: What happens to the table of a relation that was dropped on the server, as in
            `logicalrep.replica.replicate`.
        stop: If another thread or a signal handler sets this event, Spark's tasks are interrupted within a
            second, and the function returns. The next call continues. A task may still commit for about two
            seconds.
        on_batch: Called after each micro-batch with the number of its last segment, and one result for each
            table that was changed.
        on_progress: Called each second while a micro-batch is applied, and every 10 seconds while no segment
            follows.

    Raises:
        RecordingError: The recording cannot be read, or lacks segments that the target does not have yet.
        ReplicaError: The target contains something other than a replica, belongs to another recording, or a
            file of the target cannot be read or written.
        PySparkException: Spark has failed, or a task could not read a segment.
        Py4JError, OSError: Spark's Java process has ended.
    """

    def show(progress: Progress) -> None:
        if is_remote():  # a Spark Connect server ends a session that has sent no request for an hour
            session.conf.get("spark.sql.shuffle.partitions")
        if on_progress is not None:
            on_progress(progress)

    query = Query(
        _absolute(recording),
        _absolute(target),
        history=history,
        updates=updates,
        dropped=dropped,
        stop=stop,
        on_batch=on_batch,
        on_progress=show,
        engine=SparkEngine(session),
    )
    query.run(follow=follow, latency=latency)


def _absolute(place: PathOrUri) -> str:
    """Return a URI unchanged, a path as absolute path: executors may have other working directories."""
    text = os.fspath(place)
    return text.rstrip("/") if "://" in text else os.path.abspath(text)
