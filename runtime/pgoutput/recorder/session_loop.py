"""The loop of one session: it records the stream, watches the catalogs, and reports events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from pgoutput._text import qualified_name
from pgoutput.errors import ReplicationError
from pgoutput.recorder.catalog_watch import CatalogWatch
from pgoutput.recorder.connection import Connection
from pgoutput.recorder.copied_rows import transactions_of
from pgoutput.recorder.events import TableComplete, TableNotCopied
from pgoutput.recorder.folder import Folder
from pgoutput.recorder.options import Settings
from pgoutput.recorder.reports import Reporter
from pgoutput.recorder.server_errors import UndefinedObject
from pgoutput.recorder.session import Session
from pgoutput.recorder.session_start import PreparedSession
from pgoutput.recorder.slots import start_command
from pgoutput.recorder.snapshot_requests import SnapshotRequests
from pgoutput.recorder.table_snapshots import TableSnapshots
from pgoutput.recording import Metadata, PublicationChange, Remarks
from pgoutput.wire import format_lsn

_CATALOG_SECONDS: Final = 5.0
"""Largest number of seconds that the end of a segment waits for a reading of the catalogs."""


class SessionLoop:
    """One session of a recording: records the stream, watches the catalogs, and reports events.

    Args:
        connection: Replication connection.
        folder: Folder of the recording.
        start: Where the session starts.
        settings: Settings of the recorder.
        reporter: Reports events of the session.
    """

    def __init__(
        self,
        connection: Connection,
        folder: Folder,
        start: PreparedSession,
        settings: Settings,
        reporter: Reporter,
    ) -> None:
        self._connection = connection
        self._folder = folder
        self._start = start
        self._settings = settings
        self._reporter = reporter
        self._announced: list[PublicationChange] = []
        """Changes of publications that are already in the metadata of a segment of this session."""
        self._watch = CatalogWatch(
            connection.pinned_dsn, settings.publications, start.catalog, start.timelines
        )
        self._snapshots = TableSnapshots(
            connection.pinned_dsn,
            start.source,
            folder.copies,
            settings,
            reporter.report,
        )
        self._requests = SnapshotRequests(folder.directory)
        self._storing: frozenset[int] = frozenset()
        """OIDs of the tables whose copied rows are being stored."""

    def run(self, until: int | None, stop: Callable[[], bool], on_stream: Callable[[], None]) -> None:
        """Record until an LSN is stored and acknowledged, or until the session is stopped.

        Args:
            until: The LSN; None for no end.
            stop: Returns whether to stop.
            on_stream: Called when the server has begun to stream.

        Raises:
            ConnectionLost: The connection was lost, or the server has switched to another timeline.
            ReplicationError: The server has ended the stream with an error, or a publication was recreated.
            RecordingError: The folder was moved or removed, or a table became incomplete in strict mode.
            DecodeError: A message cannot be decoded.
            OSError: A file cannot be written.
        """
        assert self._folder.state is not None
        self._reporter.report_known_incomplete(self._folder.state.incomplete)
        with self._watch, self._snapshots:
            session = self._begin()
            on_stream()
            if self._has_unannounced_changes():
                session.announce()

            def tick() -> bool:
                if self._save_catalog_updates():
                    session.announce()
                self._reporter.report_progress(session, self._watch.wal_lsn)
                self._request_snapshots()
                self._store_snapshots(session)
                return self._snapshots.is_copying

            try:
                session.run(until, stop, tick)
            except UndefinedObject as error:  # decoding uses the catalogs as of the WAL it reads
                raise ReplicationError(
                    f"{error} where the slot {self._settings.slot} stands: do without it, or record "
                    "anew from a new slot and in another folder"
                ) from None
            finally:
                self._reporter.session_ends(session)

    def _begin(self) -> Session:
        """Start the stream; return the session that records it."""
        start = self._start
        self._connection.start_replication(start_command(start.source, start.begin_lsn))
        self._reporter.session_begins(start)
        return Session(
            self._connection,
            self._folder.directory,
            start,
            self._settings,
            on_stored=self._save_stored,
            save_lsn=lambda lsn: self._folder.update(acknowledged_lsn=lsn),
            remarks=self._remarks,
        )

    def _has_unannounced_changes(self) -> bool:
        """Return whether the last segment lacks known incomplete tables or changes of publications."""
        state, last = self._folder.state, self._folder.last_segment()
        assert state is not None
        return last is not None and bool(state.publication_changes or last.incomplete != state.incomplete)

    def _save_stored(self, path: Path, metadata: Metadata) -> None:
        """Save in the state of the recording that a segment is stored, and report the segment."""
        announced = metadata.publication_changes
        self._folder.update(
            last_segment=metadata.number,
            publication_changes=lambda state: tuple(
                one for one in state.publication_changes if one not in announced
            ),
        )
        self._reporter.report_stored(path, metadata)

    def _remarks(self, oids: Sequence[int]) -> Remarks:
        """Return incomplete tables and changes of publications for the metadata of a segment.

        If the catalogs as last read lack a relation of the segment, the catalogs are read again first:
        the metadata must name each incomplete table that the segment has changes of.

        Args:
            oids: OIDs of the relations that the segment describes.
        """
        assert self._folder.catalog is not None
        if not self._folder.catalog.tables.keys() >= set(oids):
            self._watch.read_now(_CATALOG_SECONDS)
        self._save_catalog_updates()
        state = self._folder.state
        assert state is not None
        changes = tuple(one for one in state.publication_changes if one not in self._announced)
        self._announced.extend(changes)
        return Remarks(tuple(one for one in state.incomplete if one.oid not in self._storing), changes)

    def _request_snapshots(self) -> None:
        """Have tables copied that a user asks for, and with a snapshot all incomplete tables."""
        state, catalog = self._folder.state, self._folder.catalog
        assert state is not None
        assert catalog is not None
        published = catalog.tables.keys()
        if self._settings.snapshot:
            self._snapshots.request(one.oid for one in state.incomplete if one.oid in published)
        self._snapshots.request(self._requests.read(catalog))
        while not self._snapshots.failures.empty():
            oids, reason = self._snapshots.failures.get()
            for name in self._names(oids):
                self._reporter.report(TableNotCopied(table=name, reason=reason))
            self._requests.finish(oids, reason)
            if self._settings.strict:
                raise self._folder.incomplete_error(state.incomplete)

    def _names(self, oids: Iterable[int]) -> list[str]:
        assert self._folder.catalog is not None
        tables = self._folder.catalog.tables
        return [qualified_name(tables[oid].namespace, tables[oid].name) for oid in oids if oid in tables]

    def _store_snapshots(self, session: Session) -> None:
        """Store copied tables if the stream has reached their rows."""
        copied = self._snapshots.copied
        if copied is None or not session.has_received(copied.lsn):
            return
        oids = copied.tables.keys()
        self._storing = frozenset(oids)
        path, source = self._folder.path, self._start.source
        session.insert(lambda lsn: transactions_of(copied, path, lsn, source))
        self._folder.update(
            incomplete=lambda state: tuple(one for one in state.incomplete if one.oid not in oids)
        )
        self._storing = frozenset()
        session.announce()
        self._snapshots.stored()
        self._requests.finish(copied.requested)
        for oid, table in copied.tables.items():
            for name in self._names([oid]):
                self._reporter.report(TableComplete(table=name, lsn=format_lsn(table.lsn)))

    def _save_catalog_updates(self) -> bool:
        """Save and report changes found by `CatalogWatch`; return whether any must be in segment metadata."""
        self._folder.check_in_place()
        updates = self._watch.take_updates()
        for catalog, changes in updates:
            self._folder.save_changes(catalog, changes)
            self._reporter.report_changes(changes)
            if self._settings.strict and (refused := self._settings.refused(changes.incomplete, catalog)):
                raise self._folder.incomplete_error(refused)
        return any(changes.publications or changes.incomplete for _, changes in updates)
