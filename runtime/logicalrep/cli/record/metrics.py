"""Metrics and health of a recorder, from its events."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime
from math import inf
from typing import Final

from logicalrep.cli.common.lag import LagClock, commit_age
from logicalrep.cli.common.metrics import Metric, Metrics
from logicalrep.recorder import (
    Connected,
    Event,
    Lost,
    Progress,
    Reconnecting,
    Stopped,
    Stored,
    TableComplete,
    TableDropped,
    TableIncomplete,
    TableNotCopied,
)
from logicalrep.wire import parse_lsn

_SILENCE_SECONDS: Final = 60.0
"""Seconds without an event after which a connected recorder counts as stuck; one event a second is normal."""

STAGES: Final = ("received", "stored", "acknowledged")
"""Values of the label `stage`: what has been done with the WAL up to an LSN."""

WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")
"""Values of the label `status`: those of the column wal_status of pg_replication_slots."""

RECORDER: Final = (
    Metric("logicalrep_recorder_connected", "1 while the server streams to the recorder, otherwise 0."),
    Metric("logicalrep_recorder_sessions_total", "Sessions: connections on which the server streamed."),
    Metric("logicalrep_recorder_received_messages_total", "Messages received from the server."),
    Metric("logicalrep_recorder_received_bytes_total", "Size of the messages received."),
    Metric("logicalrep_recorder_stored_segments_total", "Segments stored."),
    Metric("logicalrep_recorder_stored_messages_total", "Messages in the segments stored."),
    Metric("logicalrep_recorder_stored_transactions_total", "Transactions that committed in these segments."),
    Metric(
        "logicalrep_recorder_errors_total",
        "Connections lost or refused (`connection`), and tables whose rows could not be copied (`copy`).",
        ("kind",),
    ),
    Metric(
        "logicalrep_recorder_lag_bytes",
        "WAL between the LSN that was received, stored or acknowledged and the end of the server's WAL.",
        ("stage",),
    ),
    Metric(
        "logicalrep_recorder_lag_seconds",
        "Time since the server's WAL went beyond the LSN that was received, stored or acknowledged.",
        ("stage",),
    ),
    Metric(
        "logicalrep_recorder_last_commit_timestamp_seconds",
        "Commit time of the last transaction received, by the server's clock.",
    ),
    Metric("logicalrep_recorder_open_transactions", "Transactions received that have not ended."),
    Metric(
        "logicalrep_recorder_oldest_transaction_age_seconds",
        "Time since the oldest open transaction began to arrive; 0 if none is open.",
    ),
    Metric(
        "logicalrep_recorder_incomplete_tables", "Tables whose rows the recording lacks, at least in part."
    ),
    Metric(
        "logicalrep_recorder_changes_lost",
        "1 if the recorder ends because changes are lost, such as those of a lost slot, otherwise 0.",
    ),
    Metric("logicalrep_slot_retained_wal_bytes", "WAL that the server retains because of the slot."),
    Metric(
        "logicalrep_slot_safe_wal_bytes",
        "WAL that the server can write before the slot may lose WAL. Without a limit: no value.",
    ),
    Metric(
        "logicalrep_slot_wal_status",
        "1 for the value of wal_status that the slot has, 0 for the others. Before PostgreSQL 13: no value.",
        ("status",),
    ),
)
"""The metrics of a recorder and its slot."""


class RecorderMetrics:
    """Keeps the metrics of a recorder up to date, and judges its health.

    Attributes:
        complete_lsn: LSN up to which all ended transactions are stored; 0 if it is not known yet.

    Args:
        metrics: The metrics to update.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.complete_lsn = 0
        self._metrics = metrics
        self._clock = LagClock()
        self._latest_commit = -inf
        """Latest commit time so far, in seconds since 1970."""
        self._first_wal_lsn: int | None = None
        """End of the server's WAL when it was first known."""
        self._incomplete: set[str] = set()
        self._is_connected = False
        self._last_event = time.time()
        for kind in ("connection", "copy"):
            metrics.add("logicalrep_recorder_errors_total", 0, kind)
        metrics.set("logicalrep_recorder_incomplete_tables", 0)
        metrics.set("logicalrep_recorder_connected", 0)
        metrics.set("logicalrep_recorder_changes_lost", 0)

    def add(self, event: Event) -> None:
        """Update the metrics with an event of the recorder."""
        self._last_event = time.time()
        metrics = self._metrics
        match event:
            case Connected():
                self._set_connected(True)
                metrics.add("logicalrep_recorder_sessions_total", 1)
            case Progress():
                self._add_progress(event)
            case Stored():
                metrics.add("logicalrep_recorder_stored_segments_total", 1)
                metrics.add("logicalrep_recorder_stored_messages_total", event.messages)
                metrics.add("logicalrep_recorder_stored_transactions_total", event.transactions)
            case Reconnecting():
                self._set_connected(False)
                metrics.add("logicalrep_recorder_errors_total", 1, "connection")
            case TableNotCopied():
                metrics.add("logicalrep_recorder_errors_total", 1, "copy")
            case TableIncomplete() | TableComplete() | TableDropped():
                self._incomplete.discard(event.table)
                if isinstance(event, TableIncomplete):
                    self._incomplete.add(event.table)
                metrics.set("logicalrep_recorder_incomplete_tables", len(self._incomplete))
            case Lost():
                self._set_connected(False)
                metrics.set("logicalrep_recorder_changes_lost", 1)
            case Stopped():
                self._set_connected(False)
                metrics.set("logicalrep_recorder_received_messages_total", event.messages)

    def stuck(self) -> str:
        """Return a text if the connected recorder has reported nothing for a minute; else an empty text."""
        silence = time.time() - self._last_event
        if self._is_connected and silence > _SILENCE_SECONDS:
            return f"the recorder is connected, and has reported nothing for {silence:.0f} seconds"
        return ""

    def not_ready(self) -> str:
        """Return why the recorder does not record; an empty text if it does."""
        return "" if self._is_connected else "the recorder is not connected to the server"

    def _set_connected(self, is_connected: bool) -> None:
        self._is_connected = is_connected
        self._metrics.set("logicalrep_recorder_connected", float(is_connected))

    def _add_progress(self, event: Progress) -> None:
        metrics = self._metrics
        self.complete_lsn = parse_lsn(event.complete_lsn)
        commit_time = None
        if event.last_commit_time is not None:
            with suppress(ValueError):  # the year is outside the years 1 to 9999
                commit_time = datetime.fromisoformat(event.last_commit_time).timestamp()
            metrics.set("logicalrep_recorder_last_commit_timestamp_seconds", commit_time)
        metrics.set("logicalrep_recorder_received_messages_total", event.messages)
        metrics.set("logicalrep_recorder_received_bytes_total", event.received_bytes)
        metrics.set("logicalrep_recorder_open_transactions", event.open_transactions)
        metrics.set(
            "logicalrep_recorder_oldest_transaction_age_seconds", event.oldest_transaction_seconds or 0
        )
        metrics.set("logicalrep_slot_retained_wal_bytes", event.retained_wal_bytes)
        metrics.set("logicalrep_slot_safe_wal_bytes", event.safe_wal_bytes)
        for status in WAL_STATUSES:
            is_known = event.wal_status is not None
            metrics.set(
                "logicalrep_slot_wal_status", float(status == event.wal_status) if is_known else None, status
            )
        if event.wal_lsn is not None:
            lsns = [parse_lsn(getattr(event, f"{stage}_lsn")) for stage in STAGES]
            self._add_lag(parse_lsn(event.wal_lsn), lsns, commit_time)

    def _add_lag(self, wal_lsn: int, lsns: list[int], commit_time: float | None) -> None:
        """Update the metrics of the lag, in bytes and in seconds, for each stage.

        Args:
            wal_lsn: End of the server's WAL.
            lsns: Three LSNs: up to which the stream was received, stored and acknowledged.
            commit_time: Commit time of the last received transaction; None if not known.
        """
        self._clock.forget(min(lsns))
        self._clock.saw_end(wal_lsn, self._last_event)
        if self._first_wal_lsn is None:
            self._first_wal_lsn = wal_lsn
        received = lsns[0]
        now = self._last_event
        age = commit_age(commit_time, now, now - self._latest_commit)
        if age is not None and received < self._first_wal_lsn:
            # The server may have written the WAL after `received` at any time since the last received commit:
            # the lag counts from this commit.
            self._latest_commit = max(self._latest_commit, now - age)
            self._clock.saw_end(received + 1, now - age)
        for stage, lsn in zip(STAGES, lsns, strict=True):
            self._metrics.set("logicalrep_recorder_lag_bytes", max(0, wal_lsn - lsn), stage)
            self._metrics.set("logicalrep_recorder_lag_seconds", lambda lsn=lsn: self._lag(lsn), stage)

    def _lag(self, lsn: int) -> float:
        now = time.time()
        silence = 0.0 if self._is_connected else now - self._last_event
        return max(self._clock.behind(lsn, now), silence)
