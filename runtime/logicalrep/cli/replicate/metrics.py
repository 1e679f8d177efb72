"""Metrics and health of a replica, from the reports of its query."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from logicalrep.cli.common.lag import LagClock, last_commit_time, unix_seconds
from logicalrep.cli.common.metrics import Metric, Metrics
from logicalrep.recording import Recording
from logicalrep.replica import TableResult, replica_table, replica_tables

_SILENCE_SECONDS: Final = 600.0
"""Seconds without a report after which a query counts as stuck; one table may take minutes."""

_TABLES: Final = 20
"""Largest number of tables with metrics of their own, unless details are wanted."""


SELF_CHECK_DIFFERENCES: Final = "logicalrep_replica_self_check_differences"

REPLICA: Final = (
    Metric("logicalrep_replica_batches_total", "Micro-batches applied."),
    Metric("logicalrep_replica_changes_total", "Changes applied, by operation.", ("operation",)),
    Metric("logicalrep_replica_errors_total", "Times that changes could not be applied to a table."),
    Metric(
        "logicalrep_replica_applied_changes_total",
        "Changes applied to a table, by operation.",
        ("table", "operation"),
    ),
    Metric(
        "logicalrep_replica_table_applied_timestamp_seconds",
        "When changes were last applied to a table and committed.",
        ("table",),
    ),
    Metric(
        "logicalrep_replica_table_errors_total",
        "Micro-batches that could not be applied to a table.",
        ("table",),
    ),
    Metric("logicalrep_replica_failed_tables", "Tables whose changes cannot be applied."),
    Metric("logicalrep_replica_tables_that_may_differ", "Tables that may differ from their source."),
    Metric(
        SELF_CHECK_DIFFERENCES,
        "Tables in which the self-check of `logicalrep sync` has found a difference.",
    ),
    Metric(
        "logicalrep_replica_last_commit_timestamp_seconds",
        "Commit time of the last transaction applied, by the server's clock.",
    ),
    Metric("logicalrep_replica_lag_segments", "Segments of the recording that are not applied."),
    Metric(
        "logicalrep_replica_lag_bytes",
        "WAL between the last segment that was applied and the end of the recording.",
    ),
    Metric(
        "logicalrep_replica_lag_seconds",
        "Time since the recording has a segment that is not applied; 0 if all are applied.",
    ),
)
"""The metrics of a replica."""


class ReplicaMetrics:
    """Keeps the metrics of a replica up to date, and judges its health.

    Args:
        metrics: The metrics to update.
        recording: The recording that the replica follows; the caller updates its list of segments.
        target: Path or URI of the replica.
        detail: Whether to serve the metrics of all tables, and not only of the 20 with the greatest lag.
    """

    def __init__(self, metrics: Metrics, recording: Recording, target: str, *, detail: bool = False) -> None:
        self._metrics = metrics
        self._recording = recording
        self._target = target
        self._clock = LagClock()
        self._failed: dict[int, str] = {}
        """Names of the failed tables by OID, beginning with the table that failed first."""
        self._changes: Counter[str] = Counter()
        """Number of changes applied to each table."""
        if not detail:
            metrics.tables = self._lagging_tables
        self._may_differ: set[int] = set()
        self._applied_segment: int | None = None
        self._last_report = time.time()
        self._count_tables()

    def add_batch(self) -> None:
        """Add 1 to the number of applied micro-batches."""
        self._metrics.add("logicalrep_replica_batches_total", 1)

    def add(self, result: TableResult) -> None:
        """Update the metrics with the result of a micro-batch for one table."""
        metrics, table = self._metrics, f"{result.namespace}.{result.name}"
        metrics.add("logicalrep_replica_errors_total", float(bool(result.error)))
        metrics.add("logicalrep_replica_table_errors_total", float(bool(result.error)), table)
        self._changes[table] += sum(result.changes.values())
        for operation, changes in result.changes.items():
            metrics.add("logicalrep_replica_changes_total", changes, operation)
            metrics.add("logicalrep_replica_applied_changes_total", changes, table, operation)
        if result.changes:
            metrics.set("logicalrep_replica_table_applied_timestamp_seconds", time.time(), table)
        if not result.error:
            self._failed.pop(result.oid, None)
        elif result.oid not in self._failed:
            self._failed[result.oid] = table
        if (
            result.may_differ or result.dropped or result.oid in self._may_differ
        ):  # read the table's state again: a new copy of the rows makes the table equal
            known = replica_table(self._target, result.oid)
            is_different = known is not None and bool(known.may_differ) and known.dropped is None
            (self._may_differ.add if is_different else self._may_differ.discard)(result.oid)
        self._count_tables()

    def read_tables(self) -> None:
        """Read from the target which tables have failed or may differ after earlier runs; set the metrics.

        Raises:
            ReplicaError: The target cannot be read.
        """
        tables = replica_tables(self._target).values()
        self._failed = {one.oid: f"{one.namespace}.{one.name}" for one in tables if one.error}
        self._may_differ = {one.oid for one in tables if one.may_differ and one.dropped is None}
        self._count_tables()

    def show_progress(self, applied_segment: int) -> None:
        """Update the metrics of how far the replica is behind the recording.

        Args:
            applied_segment: Number of the last segment whose changes were all applied; 0 for none.
        """
        self._last_report = now = time.time()
        metrics, last = self._metrics, self._recording.last
        end = 0 if last is None else last.number
        if applied_segment != self._applied_segment:
            self._applied_segment = applied_segment
            self._clock.forget(applied_segment)
            is_known = applied_segment in self._recording.numbers
            applied = self._recording.metadata([applied_segment])[0] if is_known else None
            self._applied_lsn = None if applied is None else applied.end_lsn
            if (committed := last_commit_time(self._recording, applied_segment)) is not None:
                metrics.set("logicalrep_replica_last_commit_timestamp_seconds", unix_seconds(committed))
        self._clock.saw_end(end, now)
        start = self._applied_lsn
        if start is None:  # nothing is applied, or the segment was removed
            first = self._recording.numbers[:1]
            start = self._recording.metadata(first)[0].start_lsn if first else 0
        metrics.set("logicalrep_replica_lag_segments", end - applied_segment)
        metrics.set("logicalrep_replica_lag_bytes", 0 if last is None else max(0, last.end_lsn - start))
        metrics.set(
            "logicalrep_replica_lag_seconds", lambda: self._clock.behind(applied_segment, time.time())
        )

    def stuck(self) -> str:
        """Return a text if the query has reported nothing for ten minutes; else an empty text."""
        silence = time.time() - self._last_report
        return (
            f"the replica has reported nothing for {silence:.0f} seconds"
            if silence > _SILENCE_SECONDS
            else ""
        )

    def not_ready(self) -> str:
        """Return why the replica is not complete; an empty text if it is."""
        return f"failed tables: {len(self._failed)}" if self._failed else ""

    def _lagging_tables(self) -> set[str]:
        """Return the names of at most 20 tables: failed tables first, then tables with the most changes.

        Failed tables have the greatest lag. All other tables have the same lag, because each micro-batch
        applies the changes of all of them.
        """
        changes = dict(self._changes)  # copies, because another thread adds tables
        tables = [*dict(self._failed).values(), *sorted(changes, key=changes.__getitem__, reverse=True)]
        return set(tables[:_TABLES])

    def _count_tables(self) -> None:
        self._metrics.set("logicalrep_replica_failed_tables", len(self._failed))
        self._metrics.set("logicalrep_replica_tables_that_may_differ", len(self._may_differ))
