"""The metrics that `--metrics` serves to Prometheus: their definitions, and their current values."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from threading import Event, Lock
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

STAGES: Final = ("received", "stored", "acknowledged")
"""Values of the label `stage`."""

WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")
"""Values of the label `status`: those of the column wal_status of pg_replication_slots."""


class Metric(NamedTuple):
    """The definition of a metric."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


RECORDER: Final = (
    Metric(
        "pgoutput_recorder_connected", "gauge", "1 while the server streams to the recorder, otherwise 0."
    ),
    Metric(
        "pgoutput_recorder_sessions_total", "counter", "Sessions: connections on which the server streamed."
    ),
    Metric("pgoutput_recorder_received_messages_total", "counter", "Messages received from the server."),
    Metric("pgoutput_recorder_received_bytes_total", "counter", "Size of the messages received."),
    Metric("pgoutput_recorder_stored_segments_total", "counter", "Segments stored."),
    Metric("pgoutput_recorder_stored_messages_total", "counter", "Messages in the segments stored."),
    Metric(
        "pgoutput_recorder_stored_transactions_total",
        "counter",
        "Transactions that committed in these segments.",
    ),
    Metric(
        "pgoutput_recorder_errors_total",
        "counter",
        "Connections lost or refused (`connection`), and tables whose rows could not be copied (`copy`).",
        ("kind",),
    ),
    Metric(
        "pgoutput_recorder_lag_bytes",
        "gauge",
        "WAL between the LSN that was received, stored or acknowledged and the end of the server's WAL.",
        ("stage",),
    ),
    Metric(
        "pgoutput_recorder_lag_seconds",
        "gauge",
        "Time since the server's WAL went beyond the LSN that was received, stored or acknowledged.",
        ("stage",),
    ),
    Metric(
        "pgoutput_recorder_last_commit_timestamp_seconds",
        "gauge",
        "Commit time of the last transaction received, by the server's clock.",
    ),
    Metric("pgoutput_recorder_open_transactions", "gauge", "Transactions received that have not ended."),
    Metric(
        "pgoutput_recorder_oldest_transaction_age_seconds",
        "gauge",
        "Time since the oldest open transaction began to arrive; 0 if none is open.",
    ),
    Metric(
        "pgoutput_recorder_incomplete_tables",
        "gauge",
        "Tables whose rows the recording lacks, at least in part.",
    ),
    Metric(
        "pgoutput_recorder_changes_lost",
        "gauge",
        "1 if the recorder ends because changes are lost, such as those of a lost slot, otherwise 0.",
    ),
    Metric("pgoutput_slot_retained_wal_bytes", "gauge", "WAL that the server retains because of the slot."),
    Metric(
        "pgoutput_slot_safe_wal_bytes",
        "gauge",
        "WAL that the server can write before the slot may lose WAL. Without a limit: no value.",
    ),
    Metric(
        "pgoutput_slot_wal_status",
        "gauge",
        "1 for the value of wal_status that the slot has, 0 for the others. Before PostgreSQL 13: no value.",
        ("status",),
    ),
)
"""The metrics of a recorder and its slot."""

REPLICA: Final = (
    Metric("pgoutput_replica_batches_total", "counter", "Micro-batches applied."),
    Metric("pgoutput_replica_changes_total", "counter", "Changes applied, by operation.", ("operation",)),
    Metric("pgoutput_replica_errors_total", "counter", "Times that changes could not be applied to a table."),
    Metric(
        "pgoutput_replica_applied_changes_total",
        "counter",
        "Changes applied to a table, by operation.",
        ("table", "operation"),
    ),
    Metric(
        "pgoutput_replica_table_applied_timestamp_seconds",
        "gauge",
        "When changes were last applied to a table and committed.",
        ("table",),
    ),
    Metric(
        "pgoutput_replica_table_errors_total",
        "counter",
        "Micro-batches that could not be applied to a table.",
        ("table",),
    ),
    Metric("pgoutput_replica_failed_tables", "gauge", "Tables whose changes cannot be applied."),
    Metric(
        "pgoutput_replica_tables_that_may_differ",
        "gauge",
        "Tables that may differ from their source.",
    ),
    Metric(
        "pgoutput_replica_last_commit_timestamp_seconds",
        "gauge",
        "Commit time of the last transaction applied, by the server's clock.",
    ),
    Metric("pgoutput_replica_lag_segments", "gauge", "Segments of the recording that are not applied."),
    Metric(
        "pgoutput_replica_lag_bytes",
        "gauge",
        "WAL between the last segment that was applied and the end of the recording.",
    ),
    Metric(
        "pgoutput_replica_lag_seconds",
        "gauge",
        "Time since the recording has a segment that is not applied; 0 if all are applied.",
    ),
)
"""The metrics of a replica."""

Value: TypeAlias = float | Callable[[], float]
"""The value of a metric, or a function that returns the value when the metric is served."""


class Metrics:
    """The current values of metrics. Implements the interface `Collector` of prometheus_client.

    Attributes:
        scraped: An event that is set when all values were collected.
        tables: Returns the values of the label `table` to serve; None for all.

    Args:
        definitions: Metrics to serve. Counters without labels begin with 0; others have no value at first.
    """

    def __init__(self, definitions: Iterable[Metric]) -> None:
        self._lock = Lock()
        self.scraped: Event = Event()
        self.tables: Callable[[], Container[str]] | None = None
        self._metrics = {one.name: one for one in definitions}
        self._values: dict[str, dict[tuple[str, ...], Value]] = {
            one.name: {(): 0.0} if one.kind == "counter" and not one.labels else {}
            for one in self._metrics.values()
        }

    def set(self, name: str, value: Value | None, *labels: str) -> None:
        """Set the value of a metric; None removes the value."""
        with self._lock:
            if value is None:
                self._values[name].pop(labels, None)
            else:
                self._values[name][labels] = value

    def get(self, name: str) -> Value | None:
        """Return the value of a metric without labels; None if it has no value."""
        with self._lock:
            return self._values.get(name, {}).get(())

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Add a number to the value of a counter."""
        with self._lock:
            value = self._values[name].get(labels, 0.0)
            assert isinstance(value, float | int)
            self._values[name][labels] = value + amount

    def collect(self) -> Iterator[Family]:
        """Yield the metrics in the classes of prometheus_client."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        classes = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        tables = None if self.tables is None else self.tables()
        for name, metric in self._metrics.items():
            family = classes[metric.kind](name, metric.help, labels=metric.labels)
            with self._lock:
                values = list(self._values[name].items())
            for labels, value in values:
                if tables is not None and "table" in metric.labels and labels[0] not in tables:
                    continue
                family.add_metric(labels, value() if callable(value) else value)
            yield family
        self.scraped.set()
