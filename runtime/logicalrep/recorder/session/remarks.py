"""Remarks of a session: tables that are incomplete or gone, and publications that were altered.

They come from the catalogs and the stream. They are saved in the state of the recording, reported as events,
and written to the metadata of segments. A table is gone if it was dropped, or if it is not published any more
or only through its root.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from logicalrep.jsonlines import from_json
from logicalrep.messages import Relation
from logicalrep.recorder.catalogs import (
    Catalog,
    CatalogChanges,
    CatalogWatch,
    PendingTable,
    Statement,
    contradicted,
    description_of,
    following_columns,
    incomplete_table,
    parse_statement,
    renamed_tables,
    without_undescribed,
)
from logicalrep.recorder.options import Settings
from logicalrep.recorder.session.remembered import RememberedPublications
from logicalrep.recorder.session.reports import Reporter
from logicalrep.recorder.session.session import Session
from logicalrep.recorder.session.start import PreparedSession
from logicalrep.recorder.snapshots import CopiedTables
from logicalrep.recorder.storage import Folder
from logicalrep.recording import (
    GoneTable,
    IncompleteTable,
    PublicationChange,
    Remarks,
    RenamedTable,
    SchemaVersion,
)
from logicalrep.wire import format_lsn, stored_name, timestamp_now


class SessionRemarks:
    """Collects the remarks of a session: incomplete and dropped tables, and altered publications.

    Attributes:
        storing: Tables whose copied rows are being stored; None if there are none.

    Args:
        folder: Folder of the recording.
        start: The prepared session, with the catalogs as read before it.
        settings: Settings of the recorder.
        reporter: Reports what is noticed.
        watch: Thread that reads the catalogs.
        remembered: Its method `note` is called with each reading of the catalogs that shows an altered
            publication.
    """

    def __init__(
        self,
        folder: Folder,
        start: PreparedSession,
        settings: Settings,
        reporter: Reporter,
        watch: CatalogWatch,
        remembered: RememberedPublications,
    ) -> None:
        self._remembered = remembered
        self._folder = folder
        self._start = start
        self._settings = settings
        self._reporter = reporter
        self._watch = watch
        self.storing: CopiedTables | None = None
        self._announced: set[PublicationChange | GoneTable | RenamedTable] = set()
        """Remarks that are in the metadata of a segment of this session."""
        self._gone_lsn = start.catalog.lsn
        """LSN after which the stream has no more changes of dropped and unpublished tables, nor of renamed
        tables under their earlier names."""
        state = folder.state
        self._published = {
            *start.catalog.tables,
            *(one.oid for one in state.gone),
            *(one.oid for one in state.incomplete),
        }
        """OIDs of tables that are published now, or were published before."""
        self._altered: dict[int, int] = {}
        """Maps a table's OID to the LSN of the last reading of the catalogs that showed altered columns."""
        self._following_columns: dict[int, tuple[str, ...]] = {}
        """`Metadata.following_columns`: kept, because a transaction may commit in a later segment."""
        self._reported = {one.oid: one.lsn for one in state.incomplete}
        """Maps a table's OID to the LSN with which it was last recorded as incomplete."""
        self._unread_lsn: int | None = None
        """End of the last segment, if the catalogs could not be read for it."""
        self._partitions: dict[tuple[int, int], int] = {}
        """`Session.partitions` of the segments since the catalogs could be read."""
        self._truncates: dict[int, int] = {}
        """Value of `Session.truncates` at the end of the last segment."""

    @property
    def _unannounced(self) -> tuple[tuple[GoneTable, ...], tuple[RenamedTable, ...]]:
        """Tables that are gone, and renamed tables, that are not yet in the metadata of a segment."""
        gone, renamed = self._folder.state.gone, self._folder.state.renamed
        return (
            tuple(one for one in gone if one not in self._announced),
            tuple(one for one in renamed if one not in self._announced),
        )

    @property
    def must_announce(self) -> bool:
        """Whether some dropped, unpublished or renamed table is not yet in the metadata of a segment.

        Also true if the catalogs could not be read for the last segment.
        """
        return self._unread_lsn is not None or any(self._unannounced)

    def is_due(self, session: Session) -> bool:
        """Return whether the metadata of a segment must name dropped, unpublished or renamed tables now.

        True if the metadata of no segment names them yet, and all their changes were received; or if the
        catalogs could not be read for the last segment, and were read since.
        """
        if self._unread_lsn is not None:
            return (self._watch.wal_lsn or 0) >= self._unread_lsn
        return self.must_announce and session.has_received(self._gone_lsn)

    def for_segment(
        self, session: Session, versions: Sequence[SchemaVersion], described: Sequence[bytes]
    ) -> Remarks:
        """Return incomplete, dropped, renamed tables and changes of publications for a segment's metadata.

        The metadata must name each incomplete table that the segment has changes of. Therefore the catalogs
        are read again first if the segment has one of these:

        - a schema version with other columns or another name than the catalogs as last read,
        - a logical message that describes a DDL statement,
        - a Truncate of a partitioned table,
        - changes of a partition that has another root in the catalogs, or none.

        Args:
            session: The session.
            versions: The schema versions that begin in the segment.
            described: Contents of the segment's logical messages that describe DDL statements.
        """
        catalog = self._folder.catalog
        relations: list[Any] = [from_json(one.relation) for one in versions]
        self._partitions |= session.partitions
        known = _partitions(catalog).keys() - session.alone
        new = {one.oid for one in relations if one.oid not in known and not _is_described(catalog, one)}
        names = {one.oid: (stored_name(one.namespace), stored_name(one.name)) for one in relations}
        truncates, self._truncates = self._truncates, dict(session.truncates)
        truncated = {oid for oid, _ in self._truncates.items() - truncates.items()}
        is_due = bool(
            new
            or described
            or truncated & catalog.roots
            or renamed_tables(catalog, names)
            or self._former_roots
            or self._unread_lsn is not None
        )
        existing = self._watch.read_now(new) if is_due else ()
        if existing is None:
            # Record the tables as incomplete now. A later reading may show the same columns as the last one,
            # and would not reveal the alteration.
            reason = f"altered after {format_lsn(catalog.lsn)}, and the catalogs could not be read"
            self._note_altered(new, reason)
        statements = [parse_statement(one) for one in described]
        self.save_updates(statements)
        self._note_left(statements)
        self._note_decided(contradicted(self._folder.state.pending, versions))
        if existing is not None:
            self._note_following_columns()
        self._note_described(relations)
        self._note_gone(relations, new if existing is None else existing, session.alone)
        lsn = format_lsn(self._folder.catalog.lsn)
        self._note_altered(self._former_roots, f"had changes of another partition before {lsn}")
        self._partitions = self._partitions if existing is None else {}
        self._unread_lsn = session.received_lsn if existing is None else None
        # The stream has shown a name between two readings, or in a transaction that is not committed.
        self._note(renamed=renamed_tables(self._folder.catalog, names))
        state = self._folder.state
        changes = tuple(one for one in state.publication_changes if one not in self._announced)
        # A relation that is not in the catalogs as last read may be a new table.
        is_known = self._unread_lsn is None and session.received_lsn >= self._gone_lsn
        gone, renamed = self._unannounced if is_known else ((), ())
        self._announced.update(changes, gone, renamed)
        incomplete = without_copied(state.incomplete, self.storing)
        return Remarks(incomplete, changes, gone, self._following_columns.copy(), renamed)

    def save_updates(self, statements: Sequence[Statement] = ()) -> bool:
        """Save and report changes found by `CatalogWatch`; return whether a segment must name any of them.

        Args:
            statements: DDL statements from the stream, to name in the reasons of incomplete tables.
        """
        self._folder.check_in_place()
        updates = self._watch.take_updates()
        for catalog, changes in updates:
            before = self._folder.catalog
            self._published |= catalog.tables.keys()
            for oid, table in catalog.tables.items():
                if oid in before.tables and before.tables[oid].columns != table.columns:
                    self._altered[oid] = catalog.lsn
            if changes.publications:
                self._remembered.note(catalog)
            self._save(catalog, _explained(changes, statements))
        return any(one.publications or one.incomplete or one.gone for _, one in updates)

    def settle_truncates(self, session: Session) -> bool:
        """Record as incomplete each table whose TRUNCATE was not sent; return whether a table is undecided.

        Only pending tables with `truncated_by` count. A table is decided when its Truncate was received, or
        when all transactions up to the LSN of the TRUNCATE were received without it.
        """
        pending = [one for one in self._folder.state.pending if one.truncated_by is not None]
        sent = [one for one in pending if session.truncates.get(one.table.oid) == one.truncated_by]
        unsent = [one for one in pending if one not in sent and session.has_received(one.table.lsn)]
        if sent:
            self._folder.update(pending=lambda state: tuple(one for one in state.pending if one not in sent))
        if unsent:
            self._note_decided(unsent)
            session.announce()
        return len(sent) + len(unsent) < len(pending)

    def note_later_alterations(self, copied: CopiedTables) -> None:
        """Record as incomplete each table that was altered after its rows were copied.

        Does nothing unless the event trigger is installed. With the event trigger, the recording describes
        the alteration before the copied rows, but these rows have the values from before the alteration. If
        only rows with some keys of the table were copied, they are discarded, and all rows are copied
        instead.
        """
        if not self._start.catalog.ddl_events:
            return
        self._watch.read_now()
        self.save_updates()
        since = {oid for oid, table in copied.tables.items() if self._altered.get(oid, 0) > table.lsn}
        copied.left_out.update(since - copied.complete.keys())
        self._note_altered(since & copied.complete.keys(), "altered while its rows were copied")

    def _note_altered(self, oids: Collection[int], reason: str) -> None:
        """Record as incomplete the published tables with these OIDs, because existing rows were altered."""
        catalog = self._folder.catalog
        tables = [table for oid, table in catalog.tables.items() if oid in oids]
        self._note(tuple(incomplete_table(one, catalog, reason, altered=True) for one in tables))

    def _note_left(self, statements: Sequence[Statement]) -> None:
        """Record as incomplete each table that DDL in the stream has removed from its only publication.

        The catalogs do not show this if the table was published again before they were read.
        """
        catalog, lsn = self._folder.catalog, self._watch.wal_lsn
        known = {one.oid for one in self._folder.state.incomplete}
        left = {oid: one.text for one in statements for oid in one.left if oid not in known}
        self._note(
            tuple(
                incomplete_table(table, catalog, f"not published for a time, by {left[oid]}", lsn=lsn)
                for oid, table in catalog.tables.items()
                if oid in left and len(table.publications) == 1
            )
        )

    def _note_decided(self, found: Collection[PendingTable]) -> None:
        """Record the pending tables `found` as incomplete, as the stream shows that they are incomplete."""
        if found:
            self._folder.update(pending=lambda state: tuple(one for one in state.pending if one not in found))
            self._note(tuple(one.table for one in found if one.table.oid in self._folder.catalog.tables))

    def _note_following_columns(self) -> None:
        """Note the columns whose values follow from earlier ones, for tables with undescribed alterations."""
        for oid, table in self._folder.catalog.tables.items():
            if table.undescribed is not None:
                self._following_columns.pop(oid, None)
                if names := following_columns(table.undescribed, table.columns):
                    self._following_columns[oid] = names

    def _note_described(self, relations: Sequence[Relation]) -> None:
        """Set `undescribed` of a table to None if its Relation message has the column names of the catalogs.

        `CatalogTable.undescribed` has the columns before the oldest alteration that no Relation message shows
        yet.
        """
        catalog = self._folder.catalog
        described = {
            one.oid
            for one in relations
            if (table := catalog.tables.get(one.oid)) is not None
            and table.undescribed is not None
            and table.columns.keys() == {stored_name(column.name) for column in one.columns}
        }
        if described:
            self._watch.note_described(described)
            self._folder.save_catalog(without_undescribed(catalog, described))

    @property
    def _former_roots(self) -> set[int]:
        """The roots that have lost a partition after changes of it, and were not reported since."""
        partitions, roots = _partitions(self._folder.catalog), self._folder.catalog.roots
        return {
            root
            for (oid, root), lsn in self._partitions.items()
            if root in roots and partitions.get(oid) != root and self._reported.get(root, -1) < lsn
        }

    def _note_gone(
        self, relations: Sequence[Relation], existing: Collection[int], alone: Collection[int]
    ) -> None:
        """Record in `State.gone` each relation of the stream that the catalogs do not show as published.

        Args:
            relations: The Relation messages of the schema versions that begin in a segment.
            existing: OIDs of the relations that still exist, among those that the last read catalogs lack.
            alone: OIDs of the relations that the session has received without a root.
        """
        catalog = self._folder.catalog
        partitions = _partitions(catalog)
        # A partition that was described by itself was published by itself before its root was.
        known = self._published | catalog.tables.keys() | (partitions.keys() - alone)
        gone = {one.oid: one for one in relations if one.oid not in known}
        self._published |= gone.keys()
        tables = tuple(
            GoneTable(
                oid=one.oid,
                namespace=one.namespace,
                name=one.name,
                after_lsn=catalog.lsn,
                time=timestamp_now(),
                is_dropped=one.oid not in existing and one.oid not in partitions,
            )
            for one in gone.values()
        )
        self._note(gone=tables)

    def _note(
        self,
        incomplete: tuple[IncompleteTable, ...] = (),
        gone: tuple[GoneTable, ...] = (),
        renamed: tuple[RenamedTable, ...] = (),
    ) -> None:
        """Save and report incomplete tables, dropped or unpublished tables, and renamed tables."""
        if incomplete or gone or renamed:
            self._save(self._folder.catalog, CatalogChanges((), incomplete, gone, renamed=renamed))

    def _save(self, catalog: Catalog, changes: CatalogChanges) -> None:
        """Save `changes`, with `catalog` as read after them, in the recording's folder, and report them.

        Raises:
            RecordingError: A table became incomplete in strict mode.
        """
        self._folder.save_changes(catalog, changes)
        self._reported |= {one.oid: one.lsn for one in changes.incomplete}
        if changes.gone or changes.renamed:
            self._gone_lsn = max(self._gone_lsn, catalog.lsn)
        self._reporter.report_changes(changes, catalog)
        if refused := self._settings.refused(changes.incomplete, catalog.tables):
            raise self._folder.incomplete_error(refused)


def _explained(changes: CatalogChanges, statements: Sequence[Statement]) -> CatalogChanges:
    """Return a copy of `changes` that adds DDL statements to the reasons why tables are incomplete.

    Each reason gets the text of the last of `statements` that affects its table, if one does.
    """
    texts = {oid: one.text for one in statements for oid in one.tables}
    incomplete = tuple(
        msgspec.structs.replace(one, lost=f"{one.lost} ({texts[one.oid]})")
        if one.lost and one.oid in texts
        else one
        for one in changes.incomplete
    )
    return msgspec.structs.replace(changes, incomplete=incomplete)


def _is_described(catalog: Catalog, relation: Relation) -> bool:
    """Return whether the catalogs have a relation with equal columns."""
    table = catalog.tables.get(relation.oid)
    return table is not None and description_of(relation) == (*catalog.sent_columns(table).values(),)


def _partitions(catalog: Catalog) -> dict[int, int]:
    """Return the OID of the published root of each partition."""
    return {oid: one.oid for one in catalog.tables.values() if one.is_root for oid in one.storages}


def without_copied(
    incomplete: Sequence[IncompleteTable], copied: CopiedTables | None
) -> tuple[IncompleteTable, ...]:
    """Return the incomplete tables that stay incomplete although their rows were copied.

    If `copied` is None, no rows were copied, and all tables are returned.
    """
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
