"""The loop of one session: it records the stream, watches the catalogs, and reports events."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from pgoutput._text import qualified_name
from pgoutput.errors import ChangesLost
from pgoutput.jsonlines import from_json
from pgoutput.messages import Relation
from pgoutput.recorder.catalogs import (
    FRESH_ROOTS_SINCE,
    Catalog,
    CatalogChanges,
    CatalogWatch,
    PendingTable,
    Statement,
    contradicted,
    description_of,
    incomplete_table,
    parse_statement,
    without_undescribed,
)
from pgoutput.recorder.client import Connection, UndefinedObject, start_command
from pgoutput.recorder.events import RowsComplete, TableComplete, TableNotCopied
from pgoutput.recorder.options import Settings
from pgoutput.recorder.session.reports import Reporter
from pgoutput.recorder.session.session import Session
from pgoutput.recorder.session.start import PreparedSession
from pgoutput.recorder.snapshots import CopiedTables, SnapshotRequests, TableSnapshots, transactions_of
from pgoutput.recorder.storage import Folder, Packer, PackerThread, State
from pgoutput.recording import (
    GoneTable,
    IncompleteTable,
    Metadata,
    PublicationChange,
    Remarks,
    SchemaVersion,
)
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS, format_lsn

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
        self._announced: set[PublicationChange | GoneTable] = set()
        """What is already in the metadata of a segment of this session."""
        self._gone_lsn = start.catalog.lsn
        """LSN before which the stream has all changes of the tables that are gone."""
        state = folder.state
        assert state is not None
        self._published: set[int] = {
            *start.catalog.tables,
            *(one.oid for one in state.gone),
            *(one.oid for one in state.incomplete),
        }
        """OIDs of tables that are published, or were published and are not any more."""
        self._watch = CatalogWatch(
            connection.pinned_dsn, settings.slot, settings.publications, start.catalog, start.timelines
        )
        self._snapshots = TableSnapshots(
            connection.pinned_dsn,
            start.source,
            folder.copies,
            settings,
            reporter.report,
        )
        self._requests = SnapshotRequests(folder.directory, folder.search_seconds)
        self._packing: AbstractContextManager[Packer | PackerThread] = (
            nullcontext(Packer(folder.directory, settings.segment_seconds))
            if folder.is_local
            else PackerThread(folder.directory, settings.segment_seconds, state.first_segments)
        )
        self._altered: dict[int, int] = {}
        """LSN of the last reading of the catalogs that has found a table's columns altered, by OID."""
        self._truncates: dict[int, int] = {}
        """`Session.truncates` when a segment ended last."""
        self._storing: CopiedTables | None = None
        """Tables whose copied rows are being stored."""

    def run(self, until: int | None, stop: Callable[[], bool], on_stream: Callable[[], None]) -> bool:
        """Record until an LSN is stored and acknowledged, or until the session is stopped.

        Returns False if another session must begin at once: the server sends changes of partitions under
        relations that they belonged to before.

        Args:
            until: The LSN; None for no end.
            stop: Returns whether to stop.
            on_stream: Called when the server has begun to stream.

        Raises:
            ConnectionLost: The connection was lost, or the server has switched to another timeline.
            ReplicationError: The server has ended the stream with an error.
            ChangesLost: A publication was created anew, or after the LSN of the slot.
            RecordingError: The folder was moved or removed, or a table became incomplete in strict mode.
            DecodeError: A message cannot be decoded.
            OSError: A file cannot be written.
        """
        assert self._folder.state is not None
        self._reporter.report_known(self._folder.state, self._start.catalog)
        with self._watch, self._snapshots, self._packing as self._packer:
            session = self._session = self._begin()
            on_stream()
            if self._has_unannounced_changes():
                session.announce()

            def tick() -> bool:
                if requests := self._requests.find():
                    self._watch.read_now(_CATALOG_SECONDS)  # a publication may have the tables since just now
                is_due = bool(self._unannounced_gone()) and session.has_received(self._gone_lsn)
                if self._save_catalog_updates() or is_due:
                    session.announce()
                self._report_progress(session)
                if not self._stale_lsn():  # the next session copies
                    self._request_snapshots(requests)
                    self._store_snapshots(session)
                is_undecided = self._settle_truncates(session) or bool(self._unannounced_gone())
                return is_undecided or self._snapshots.is_copying or bool(self._stale_lsn())

            def is_stale() -> bool:
                lsn = self._stale_lsn()
                return bool(lsn) and session.has_received(lsn) and not session.open_transactions

            try:
                session.run(until, lambda: stop() or is_stale(), tick)
            except UndefinedObject as error:  # decoding uses the catalogs as of the WAL it reads
                raise ChangesLost(
                    f"{error} where the slot {self._settings.slot} stands: do without it, or record "
                    "anew from a new slot and in another folder"
                ) from None
            finally:
                self._reporter.session_ends(session)
            return stop() or not is_stale()

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
            remarks=self._remarks,
        )

    def _has_unannounced_changes(self) -> bool:
        """Return whether the last segment lacks what the state of the recording has."""
        state, last = self._folder.state, self._folder.last_segment()
        assert state is not None
        return last is not None and bool(
            state.publication_changes
            or state.gone
            or last.incomplete != state.incomplete
            or last.source.upgrades != state.upgrades
        )

    def _report_progress(self, session: Session) -> None:
        self._reporter.report_progress(session, self._watch.wal_lsn, self._watch.slot)

    def _save_stored(self, path: Path, metadata: Metadata) -> None:
        """Save that a segment is stored in the state of the recording, report it, and pack small segments."""
        announced, gone = metadata.publication_changes, metadata.gone
        self._folder.update(
            last_segment=metadata.number,
            publication_changes=lambda state: tuple(
                one for one in state.publication_changes if one not in announced
            ),
            gone=lambda state: tuple(one for one in state.gone if one not in gone),
            pending=lambda state: _undecided(state, metadata.end_lsn),
        )
        self._reporter.report_stored(self._folder.location / path.name, metadata)
        self._packer.add(metadata.number)

    def _remarks(self, versions: Sequence[SchemaVersion], described: Sequence[bytes]) -> Remarks:
        """Return incomplete and dropped tables, and changes of publications, for a segment's metadata.

        If the segment describes a relation otherwise than the catalogs as last read, describes a statement of
        DDL, or truncates a table with partitions, the catalogs are read again first: the metadata must name
        each incomplete table that the segment has changes of.

        Args:
            versions: The schema versions that begin in the segment.
            described: Contents of the logical messages that describe statements of DDL.
        """
        assert self._folder.catalog is not None
        relations: list[Any] = [from_json(one.relation) for one in versions]
        new = {one.oid for one in relations if not _is_described(self._folder.catalog, one)}
        truncates, self._truncates = self._truncates, dict(self._session.truncates)
        truncated = self._truncates.items() - truncates.items()
        is_due = new or described or any(_is_root(self._folder.catalog, oid) for oid, _ in truncated)
        existing = self._watch.read_now(_CATALOG_SECONDS, new) if is_due else ()
        if existing is None:
            self._note_unread(new)
        statements = [parse_statement(one) for one in described]
        self._save_catalog_updates(statements)
        self._note_left(statements)
        self._note_incomplete(contradicted(self._pending(), versions))
        self._note_described(relations)
        self._note_gone(relations, new if existing is None else existing)
        state = self._folder.state
        assert state is not None
        changes = tuple(one for one in state.publication_changes if one not in self._announced)
        gone = self._unannounced_gone() if self._session.received_lsn >= self._gone_lsn else ()
        self._announced.update(changes, gone)
        return Remarks(_without(state.incomplete, self._storing), changes, gone)

    def _stale_lsn(self) -> int:
        """Return the LSN after which another session must begin; 0 if none.

        Before PostgreSQL 15, a walsender keeps in mind through which root a partition is published, also when
        the partition is attached or detached (rel_sync_cache_relation_cb in pgoutput.c).
        """
        catalog, state, start = self._folder.catalog, self._folder.state, self._start
        assert catalog is not None
        assert state is not None
        if self._connection.server_version >= FRESH_ROOTS_SINCE:
            return 0
        begin = max(start.start.lsn, start.acknowledged_lsn)
        roots = (one.lsn for one in state.incomplete if one.altered and _is_root(catalog, one.oid))
        return max((lsn for lsn in roots if lsn > begin), default=0)

    def _unannounced_gone(self) -> tuple[GoneTable, ...]:
        assert self._folder.state is not None
        return tuple(one for one in self._folder.state.gone if one not in self._announced)

    def _request_snapshots(self, names: Sequence[str]) -> None:
        """Have tables copied that a user asks for, and incomplete tables as the settings say.

        Args:
            names: File names of new requests.
        """
        state, catalog = self._folder.state, self._folder.catalog
        assert state is not None
        assert catalog is not None
        self._snapshots.retry(self._requests.read(names, catalog))
        incomplete = {one.oid: self._settings.copies(one, catalog.tables) for one in state.incomplete}
        rows = {oid: None if oid in incomplete else keys for oid, keys in self._requests.rows.items()}
        self._snapshots.request(rows | {oid: None for oid, is_due in incomplete.items() if is_due})
        while not self._snapshots.failures.empty():
            oids, reason = self._snapshots.failures.get()
            for name in self._names(oids):
                self._reporter.report(TableNotCopied(table=name, reason=reason))
            self._requests.fail(oids, reason)
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
        self._note_later_alterations(copied)
        self._storing = copied
        place, source = self._folder.location.place, self._start.source
        report = partial(self._report_progress, session)
        session.insert(lambda lsn: transactions_of(copied, place, lsn, source), report)
        self._folder.update(incomplete=lambda state: _without(state.incomplete, copied))
        self._storing = None
        session.announce()
        self._snapshots.stored()
        self._snapshots.request(dict.fromkeys(copied.left_out))
        self._requests.finish(copied.stored)
        for oid, keys in copied.stored.items():
            for name in self._names([oid] if oid in copied.tables else ()):
                lsn = format_lsn(copied.tables[oid].lsn)
                self._reporter.report(
                    TableComplete(table=name, lsn=lsn)
                    if keys is None
                    else RowsComplete(table=name, lsn=lsn, keys=len(keys))
                )

    def _note_later_alterations(self, copied: CopiedTables) -> None:
        """Note copied tables as incomplete that were altered after they were copied, if the stream says so.

        In the recording, the copied rows come after the description of the alteration. If only rows with some
        keys of such a table were copied, they are left out, and all rows are copied.
        """
        if not self._start.catalog.ddl_events:
            return
        self._watch.read_now(_CATALOG_SECONDS)
        self._save_catalog_updates()
        catalog = self._folder.catalog
        assert catalog is not None
        since = {oid for oid, table in copied.tables.items() if self._altered.get(oid, 0) > table.lsn}
        copied.left_out.update(since - copied.complete.keys())
        altered = tuple(
            incomplete_table(table, catalog, "altered while its rows were copied", altered=True)
            for oid, table in catalog.tables.items()
            if oid in since & copied.complete.keys()
        )
        self._report_changes(catalog, CatalogChanges((), altered))

    def _note_described(self, relations: Sequence[Relation]) -> None:
        """Note tables whose columns, as last read, are those of a Relation message."""
        catalog = self._folder.catalog
        assert catalog is not None
        described = {
            one.oid
            for one in relations
            if (table := catalog.tables.get(one.oid)) is not None
            and table.undescribed is not None
            and table.columns.keys() == {column.name for column in one.columns}
        }
        if described:
            self._watch.note_described(described)
            self._folder.save_catalog(without_undescribed(catalog, described))

    def _note_left(self, statements: Sequence[Statement]) -> None:
        """Note published tables that a statement of the stream has taken out of their only publication.

        Two readings of the catalogs need not show it, if the table was published again in between.
        """
        catalog, state = self._folder.catalog, self._folder.state
        assert catalog is not None
        assert state is not None
        known = {one.oid for one in state.incomplete}
        left = {oid: one.text for one in statements for oid in one.left if oid not in known}
        tables = [(table, left[oid]) for oid, table in catalog.tables.items() if oid in left]
        removed = tuple(
            incomplete_table(table, catalog, f"not published for a time, by {text}", lsn=self._watch.wal_lsn)
            for table, text in tables
            if len(table.publications) == 1
        )
        if removed:
            self._report_changes(catalog, CatalogChanges((), removed))

    def _pending(self) -> tuple[PendingTable, ...]:
        assert self._folder.state is not None
        return self._folder.state.pending

    def _settle_truncates(self, session: Session) -> bool:
        """Decide which truncated tables are incomplete; return whether one is still undecided."""
        pending = [one for one in self._pending() if one.truncated_by is not None]
        sent = [one for one in pending if session.truncates.get(one.table.oid) == one.truncated_by]
        unsent = [one for one in pending if one not in sent and session.has_received(one.table.lsn)]
        if sent:
            self._folder.update(pending=lambda state: tuple(one for one in state.pending if one not in sent))
        if unsent:
            self._note_incomplete(unsent)
            session.announce()
        return len(sent) + len(unsent) < len(pending)

    def _note_incomplete(self, found: Collection[PendingTable]) -> None:
        """Note that tables are incomplete, as the stream has decided."""
        if not found:
            return
        assert self._folder.catalog is not None
        self._folder.update(pending=lambda state: tuple(one for one in state.pending if one not in found))
        tables = tuple(one.table for one in found if one.table.oid in self._folder.catalog.tables)
        self._report_changes(self._folder.catalog, CatalogChanges((), tables))

    def _note_unread(self, oids: Collection[int]) -> None:
        """Note tables with other columns than the catalogs had that cannot be read again now.

        The next reading may show the same columns as the last one, and not those that the stream describes.
        """
        catalog = self._folder.catalog
        assert catalog is not None
        reason = f"altered after {format_lsn(catalog.lsn)}, and the catalogs could not be read"
        tables = [table for oid, table in catalog.tables.items() if oid in oids]
        found = tuple(incomplete_table(one, catalog, reason, altered=True) for one in tables)
        self._report_changes(catalog, CatalogChanges((), found))

    def _note_gone(self, relations: Sequence[Relation], existing: Collection[int]) -> None:
        """Note relations of the stream that no reading of the catalogs has shown, and roots that had them.

        A relation was published by itself, or it was a partition: before changes of a partition that is
        published through its root, the server describes both (maybe_send_schema in pgoutput.c). The
        description does not name the root: it has the same columns.

        Args:
            relations: The Relation messages of the schema versions that begin in a segment.
            existing: OIDs of the new relations that exist.
        """
        catalog = self._folder.catalog
        assert catalog is not None
        known = self._published | {oid for one in catalog.tables.values() for oid in one.storages}
        unknown = [one for one in relations if one.oid not in known]
        self._published |= {one.oid for one in unknown}
        columns = [{column.name for column in one.columns} for one in unknown]
        reason = (
            f"a partition with changes was created and dropped or detached before {format_lsn(catalog.lsn)}"
        )
        roots = tuple(
            incomplete_table(table, catalog, reason, altered=True)
            for oid, table in catalog.tables.items()
            if oid not in table.storages
            and any(names <= table.columns.keys() or names >= table.columns.keys() for names in columns)
        )
        gone = tuple(
            GoneTable(
                oid=one.oid,
                namespace=one.namespace,
                name=one.name,
                after_lsn=catalog.lsn,
                time=time.time_ns() // 1000 - EPOCH_UNIX_MICROSECONDS,
                is_dropped=one.oid not in existing,
            )
            for one in unknown
        )
        if unknown:
            self._report_changes(catalog, CatalogChanges((), roots, gone))

    def _save_catalog_updates(self, statements: Sequence[Statement] = ()) -> bool:
        """Save and report changes found by `CatalogWatch`; return whether any must be in segment metadata.

        Args:
            statements: Statements of the stream that may explain the changes.
        """
        self._folder.check_in_place()
        updates = self._watch.take_updates()
        for catalog, changes in updates:
            before = self._folder.catalog
            assert before is not None
            self._published |= catalog.tables.keys()
            for oid, table in catalog.tables.items():
                if oid in before.tables and before.tables[oid].columns != table.columns:
                    self._altered[oid] = catalog.lsn
            self._report_changes(catalog, _explained(changes, statements))
        return any(one.publications or one.incomplete or one.gone for _, one in updates)

    def _report_changes(self, catalog: Catalog, changes: CatalogChanges) -> None:
        """Save and report changes of the catalogs."""
        self._folder.save_changes(catalog, changes)
        if changes.gone:
            self._gone_lsn = max(self._gone_lsn, catalog.lsn)
        self._reporter.report_changes(changes, catalog)
        if self._settings.strict and (refused := self._settings.refused(changes.incomplete, catalog.tables)):
            raise self._folder.incomplete_error(refused)


def _undecided(state: State, lsn: int) -> tuple[PendingTable, ...]:
    """Return the pending tables that the stream after an LSN decides on, and those that need a Truncate."""
    return tuple(one for one in state.pending if one.truncated_by is not None or one.table.lsn > lsn)


def _explained(changes: CatalogChanges, statements: Sequence[Statement]) -> CatalogChanges:
    """Return changes of the catalogs whose reasons name the statements that concern the table."""
    texts = {oid: one.text for one in statements for oid in one.tables}
    incomplete = tuple(
        msgspec.structs.replace(one, lost=f"{one.lost} ({texts[one.oid]})")
        if one.lost and one.oid in texts
        else one
        for one in changes.incomplete
    )
    return msgspec.structs.replace(changes, incomplete=incomplete)


def _is_described(catalog: Catalog, relation: Relation) -> bool:
    """Return whether the catalogs have a table, or a partition of a root, with the columns of a relation."""
    table = catalog.tables.get(relation.oid)
    if table is None:
        return any(relation.oid in one.storages for one in catalog.tables.values())
    return description_of(relation) == tuple(catalog.sent_columns(table).values())


def _is_root(catalog: Catalog, oid: int) -> bool:
    """Return whether a table is published with the rows of its partitions."""
    return oid in catalog.tables and oid not in catalog.tables[oid].storages


def _without(
    incomplete: Sequence[IncompleteTable], copied: CopiedTables | None
) -> tuple[IncompleteTable, ...]:
    """Return incomplete tables without completely copied ones, unless changes are missing after the copy."""
    if copied is None:
        return tuple(incomplete)
    complete = copied.complete
    left = [
        msgspec.structs.replace(one, lost="", altered=False)
        if one.oid in complete and one.lsn <= complete[one.oid].lsn
        else one
        for one in incomplete
    ]
    return tuple(one for one in left if one.reason)
