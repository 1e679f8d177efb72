"""Reports of a recorder: events for a callback, and the totals of all sessions."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable
from typing import Final

from logicalrep._log import log_event
from logicalrep._text import qualified_name
from logicalrep.recorder.catalogs import Catalog, CatalogChanges
from logicalrep.recorder.client import Slot
from logicalrep.recorder.events import (
    Connected,
    Event,
    Progress,
    PublicationAltered,
    Stopped,
    Stored,
    TableDropped,
    TableIncomplete,
    event_level,
    event_text,
)
from logicalrep.recorder.options import Settings
from logicalrep.recorder.session.session import Session
from logicalrep.recorder.session.start import PreparedSession
from logicalrep.recorder.storage import State
from logicalrep.recording import GoneTable, IncompleteTable, Location, Metadata
from logicalrep.wire import format_lsn, format_time, parse_lsn

_PROGRESS_SECONDS: Final = 1.0
"""Smallest number of seconds between two `Progress` events."""


class Reporter:
    """Creates the events of a recorder, passes them to `on_event`, and counts messages over all sessions.

    Args:
        on_event: Called with each event, from several threads; None discards the events.
        folder: Path or URL of the recording.
        settings: Settings of the recorder.
    """

    def __init__(self, on_event: Callable[[Event], None] | None, folder: str, settings: Settings) -> None:
        self._on_event = on_event
        self._folder = folder
        self._settings = settings
        self._messages = 0
        """Number of messages received in all sessions."""
        self._received_bytes = 0
        """Size of the messages received in the sessions before the current session, in bytes."""
        self._earlier_messages = 0
        """Number of messages received in the sessions before the current session."""
        self._acknowledged_lsn: int | None = None
        self._has_reported_known = False

    def report(self, event: Event) -> None:
        """Log an event, and pass it to `on_event`."""
        log_event("logicalrep.recorder", event_level(event), event_text(event), event)
        if self._on_event is not None:
            self._on_event(event)

    def report_start(self, state: State, start: PreparedSession) -> None:
        """Report the changes that the start of a session has found in the catalogs.

        In the first session, all tables that `state` has as incomplete, dropped or unpublished are reported.
        """
        changes = start.changes
        if not self._has_reported_known:
            self._has_reported_known = True
            changes = CatalogChanges(changes.publications, state.incomplete, state.gone)
        self.report_changes(changes, start.catalog)

    def report_changes(self, changes: CatalogChanges, catalog: Catalog) -> None:
        """Report publications that were altered, and tables that became incomplete or were dropped."""
        for change in changes.publications:
            self.report(PublicationAltered(publication=change.publication, changes=change.changes))
        self._report_incomplete(changes.incomplete, catalog)
        self._report_dropped(changes.gone)

    def _report_incomplete(self, tables: Iterable[IncompleteTable], catalog: Catalog) -> None:
        for one in tables:
            name, lsn = qualified_name(one.namespace, one.name), format_lsn(one.lsn)
            advice = ""
            if self._settings.copies(one, catalog.tables):
                advice = "the recorder copies its rows"
            elif one.lost and one.oid in catalog.tables:
                command = ["logicalrep", "snapshot", "--recording", self._folder, "--table", name]
                advice = f"to copy its rows, run {shlex.join(command)}"
            self.report(TableIncomplete(table=name, lsn=lsn, reason=one.reason, advice=advice))

    def _report_dropped(self, tables: Iterable[GoneTable]) -> None:
        for one in tables:
            if one.is_dropped:
                name = qualified_name(one.namespace, one.name)
                self.report(TableDropped(table=name, after_lsn=format_lsn(one.after_lsn)))

    def session_begins(self, start: PreparedSession) -> None:
        """Report that the server has begun to stream, and begin to count the messages of the session."""
        self._earlier_messages = self._progress_messages = self._messages
        self._progress_time = time.monotonic()
        source = start.source
        self.report(
            Connected(
                session=start.start.session,
                server_version=source.server_version,
                slot=source.slot,
                proto_version=source.proto_version,
                options=source.options,
                start_lsn=format_lsn(start.start.lsn),
            )
        )

    def report_stored(self, location: Location, metadata: Metadata) -> None:
        """Report that a segment was stored."""
        self.report(
            Stored(
                path=str(location),
                session=metadata.session,
                messages=metadata.messages,
                transactions=metadata.transactions,
                end_lsn=format_lsn(metadata.end_lsn),
            )
        )

    def report_progress(self, session: Session, wal_lsn: int | None, slot: Slot | None) -> None:
        """Report the progress of the current session, at most once a second.

        Args:
            session: The current session.
            wal_lsn: End of the server's WAL, or None if unknown.
            slot: The replication slot, or None if unknown.
        """
        self._messages = self._earlier_messages + session.messages
        seconds = time.monotonic() - self._progress_time
        if seconds < _PROGRESS_SECONDS:
            return
        commit_time, age = session.last_commit_time, session.oldest_transaction_seconds
        retained = None
        if slot is not None and slot.restart_lsn is not None and wal_lsn is not None:
            retained = max(0, wal_lsn - parse_lsn(slot.restart_lsn))
        self.report(
            Progress(
                messages=self._messages,
                messages_per_second=round((self._messages - self._progress_messages) / seconds, 1),
                lag_bytes=None if wal_lsn is None else max(0, wal_lsn - session.acknowledged_lsn),
                last_commit_time=None if commit_time is None else format_time(commit_time, "T", "auto"),
                open_transactions=session.open_transactions,
                acknowledged_lsn=format_lsn(session.acknowledged_lsn),
                received_bytes=self._received_bytes + session.received_bytes,
                received_lsn=format_lsn(session.received_lsn),
                stored_lsn=format_lsn(session.stored_lsn),
                complete_lsn=format_lsn(session.complete_lsn),
                wal_lsn=None if wal_lsn is None else format_lsn(wal_lsn),
                oldest_transaction_seconds=None if age is None else round(age, 1),
                retained_wal_bytes=retained,
                wal_status=None if slot is None else slot.wal_status,
                safe_wal_bytes=None if slot is None else slot.safe_wal_size,
            )
        )
        self._progress_messages, self._progress_time = self._messages, time.monotonic()

    def session_ends(self, session: Session) -> None:
        """Add the messages of an ended session to the totals."""
        self._messages = self._earlier_messages + session.messages
        self._received_bytes += session.received_bytes
        self._acknowledged_lsn = session.acknowledged_lsn

    def report_stopped(self) -> None:
        """Report that the recorder has ended, with the totals of all sessions."""
        lsn = None if self._acknowledged_lsn is None else format_lsn(self._acknowledged_lsn)
        self.report(Stopped(messages=self._messages, acknowledged_lsn=lsn))
