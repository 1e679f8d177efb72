"""The loop of one session: it records the stream, and stores copied rows between two transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from logicalrep._text import qualified_name
from logicalrep.errors import ChangesLost
from logicalrep.recorder.catalogs import FRESH_ROOTS_SINCE, CatalogWatch, PendingTable
from logicalrep.recorder.client import Connection, PublicationSkipped, UndefinedObject, start_command
from logicalrep.recorder.events import RowsComplete, TableComplete, TableNotCopied
from logicalrep.recorder.options import Settings
from logicalrep.recorder.session.remarks import SessionRemarks, without_copied
from logicalrep.recorder.session.remembered import RememberedPublications
from logicalrep.recorder.session.reports import Reporter
from logicalrep.recorder.session.session import Session
from logicalrep.recorder.session.start import PreparedSession
from logicalrep.recorder.snapshots import SnapshotRequests, TableSnapshots, transactions_of
from logicalrep.recorder.storage import Folder, Packer, PackerThread, State
from logicalrep.recording import Metadata
from logicalrep.wire import format_lsn


class SessionLoop:
    """One session of a recording: records the stream, watches the catalogs, and copies tables.

    Args:
        connection: Replication connection.
        folder: Folder of the recording.
        start: The prepared session: server, slot, catalogs, and where the stream begins.
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
        dsn = connection.pinned_dsn
        self._watch = CatalogWatch(dsn, settings.slot, settings.publications, start.catalog, start.timelines)
        self._snapshots = TableSnapshots(dsn, start.source, folder.copies, settings, reporter.report)
        version = connection.server_version
        self._remembered = RememberedPublications(folder, start, self._watch, version)
        self._remarks = SessionRemarks(folder, start, settings, reporter, self._watch, self._remembered)
        self._requests = SnapshotRequests(folder.directory, folder.search_seconds)
        self._packing: AbstractContextManager[Packer | PackerThread] = (
            nullcontext(Packer(folder.directory, settings.segment_seconds))
            if folder.is_local
            else PackerThread(folder.directory, settings.segment_seconds, folder.state.first_segments)
        )

    def run(self, until: int | None, stop: Callable[[], bool], on_stream: Callable[[], None]) -> bool:
        """Record until an LSN is stored and acknowledged, or until the session is stopped.

        Returns False if another session must begin at once, because the walsender still uses earlier settings
        of publications, or earlier roots of partitions, or has skipped a publication; otherwise True.

        Args:
            until: LSN at which to end; None for no end.
            stop: Returns whether to stop.
            on_stream: Called when the server has begun to stream.

        Raises:
            ConnectionLost: The connection was lost, or the server has switched to another timeline.
            ReplicationError: The server has ended the stream with an error.
            ChangesLost: A publication was dropped and created again, or did not exist at the slot's LSN.
            RecordingError: The folder was moved or removed, or a table became incomplete in strict mode.
            DecodeError: A message cannot be decoded.
            OSError: A file cannot be written.
        """
        self._reporter.report_start(self._folder.state, self._start)
        remarks = self._remarks
        with self._watch, self._snapshots, self._packing as self._packer:
            session = self._session = self._begin()
            on_stream()
            if self._has_unannounced_changes():
                session.announce()

            def tick() -> bool:
                if requests := self._requests.find():
                    self._watch.read_now()  # the requested tables may have been published just now
                is_due = remarks.is_due(session)
                if remarks.save_updates() or is_due:
                    session.announce()
                self._report_progress(session)
                if not self._stale_lsn():  # otherwise the next session copies tables
                    self._request_copies(requests)
                    self._store_copies(session)
                is_undecided = remarks.settle_truncates(session) or remarks.must_announce
                # What the server sends next is later than the catalogs that were read before the session.
                self._connection.may_skip_publications &= not session.has_received(self._start.catalog.lsn)
                return is_undecided or self._snapshots.is_copying or bool(self._stale_lsn())

            def is_stale() -> bool:
                lsn = self._stale_lsn()
                return bool(lsn) and session.has_received(lsn) and not session.open_transactions

            try:
                session.run(until, lambda: stop() or is_stale(), tick)
            except PublicationSkipped:
                if session.received_lsn < self._folder.state.publications_lsn:
                    raise
                return False  # the next session finds in the catalogs which tables lack changes
            except UndefinedObject as error:  # the publication did not exist yet at the LSN of the slot
                raise ChangesLost(
                    f"at the LSN of the slot {self._settings.slot}, {error}: record without that "
                    "publication, or record anew from a new slot and in another folder"
                ) from None
            finally:
                self._reporter.session_ends(session)
            if stop() or not is_stale():
                return True
            self._remembered.forget()
            return False

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
            save_lsn=lambda lsn: self._folder.update(
                acknowledged_lsn=lsn, pending=lambda state: _undecided(state, lsn)
            ),
            save_seconds=self._folder.save_seconds,
            remarks=lambda *found: self._remarks.for_segment(self._session, *found),
        )

    def _has_unannounced_changes(self) -> bool:
        """Return whether the state has incomplete tables or other remarks that the last segment lacks."""
        state, last = self._folder.state, self._folder.last_segment()
        return last is not None and bool(
            state.publication_changes
            or state.gone
            or state.renamed
            or last.incomplete != state.incomplete
            or last.source.upgrades != state.upgrades
        )

    def _report_progress(self, session: Session) -> None:
        self._reporter.report_progress(session, self._watch.end_lsn, self._watch.slot)

    def _save_stored(self, path: Path, metadata: Metadata) -> None:
        """Save in the recording's state that a segment is stored, and report it.

        Small segments are then joined to packs, which are ZIP files of successive segments.
        """
        announced, gone, renamed = metadata.publication_changes, metadata.gone, metadata.renamed
        self._folder.update(
            last_segment=metadata.number,
            publication_changes=lambda state: tuple(
                one for one in state.publication_changes if one not in announced
            ),
            gone=lambda state: tuple(one for one in state.gone if one not in gone),
            renamed=lambda state: tuple(one for one in state.renamed if one not in renamed),
            pending=lambda state: _undecided(state, metadata.end_lsn),
        )
        self._reporter.report_stored(self._folder.location / path.name, metadata)
        self._packer.add(metadata.number)

    def _stale_lsn(self) -> int:
        """Return the LSN after which another session must begin; 0 if this session can go on.

        Before PostgreSQL 15, a walsender goes on to use a partition's earlier root after the partition was
        attached or detached (rel_sync_cache_relation_cb in pgoutput.c).
        """
        remembered = self._remembered.lsn
        if self._connection.server_version >= FRESH_ROOTS_SINCE:
            return remembered
        start, roots = self._start, self._folder.catalog.roots
        begin = max(start.start.lsn, start.acknowledged_lsn)
        altered = (one for one in self._folder.state.incomplete if one.altered and one.oid in roots)
        return max([remembered, *(one.lsn for one in altered if one.lsn > begin)])

    def _request_copies(self, names: Sequence[str]) -> None:
        """Request copies of the tables that users ask for, and of incomplete tables if the settings say so.

        Args:
            names: File names of the users' new requests.
        """
        state, catalog = self._folder.state, self._folder.catalog
        self._snapshots.retry(self._requests.read(names, catalog))
        incomplete = {one.oid: self._settings.copies(one, catalog.tables) for one in state.incomplete}
        rows = {oid: None if oid in incomplete else keys for oid, keys in self._requests.rows.items()}
        self._snapshots.request(rows | {oid: None for oid, is_due in incomplete.items() if is_due})
        while not self._snapshots.failures.empty():
            oids, reason = self._snapshots.failures.get()
            for name in self._names(oids):
                self._reporter.report(TableNotCopied(table=name, reason=reason))
            self._requests.fail(oids, reason)
            self._snapshots.retry_later(oids)
            if self._settings.strict:
                raise self._folder.incomplete_error(state.incomplete)

    def _store_copies(self, session: Session) -> None:
        """Store copied tables if the stream has reached the LSN of their last snapshot."""
        copied = self._snapshots.copied
        if copied is None or not session.has_received(copied.lsn):
            return
        self._remarks.note_later_alterations(copied)
        self._remarks.storing = copied
        place, source = self._folder.location.place, self._start.source
        report = partial(self._report_progress, session)
        session.insert(lambda lsn: transactions_of(copied, place, lsn, source), report)
        self._folder.update(incomplete=lambda state: without_copied(state.incomplete, copied))
        self._remarks.storing = None
        session.announce()
        self._snapshots.stored()
        self._snapshots.request(dict.fromkeys(copied.left_out))
        self._requests.finish(copied.stored)
        for oid, keys in copied.stored.items():
            for table in self._names([oid] if oid in copied.tables else ()):
                lsn = format_lsn(copied.tables[oid].lsn)
                self._reporter.report(
                    TableComplete(table=table, lsn=lsn)
                    if keys is None
                    else RowsComplete(table=table, lsn=lsn, keys=len(keys))
                )

    def _names(self, oids: Iterable[int]) -> list[str]:
        tables = self._folder.catalog.tables
        return [qualified_name(tables[oid].namespace, tables[oid].name) for oid in oids if oid in tables]


def _undecided(state: State, lsn: int) -> tuple[PendingTable, ...]:
    """Return the pending tables of `state` for which messages after `lsn` must still be awaited."""
    return tuple(one for one in state.pending if one.truncated_by is not None or one.table.lsn > lsn)
