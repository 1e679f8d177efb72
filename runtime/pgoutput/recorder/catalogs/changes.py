"""Changes of publications and tables between two readings of the catalogs.

The stream does not report that a publication was altered, that a table was added to a publication, or that a
column was dropped and added again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from functools import partial
from typing import Final

import msgspec
from psycopg import sql

from pgoutput.errors import ChangesLost
from pgoutput.recorder.catalogs.catalog import (
    NO_MEMBERSHIP,
    Catalog,
    CatalogTable,
    Description,
    Membership,
    Publication,
    sent_namespace,
)
from pgoutput.recorder.catalogs.column_changes import (
    ATTACHED,
    SET_BACK,
    WITHOUT_ROWS,
    altered_columns,
    altered_types,
    explain_rewrite,
    has_new_column,
    may_be_set_back,
)
from pgoutput.recorder.catalogs.pending_tables import PendingTable, harmless_descriptions
from pgoutput.recorder.catalogs.queries import has_row_from_before, is_empty, wal_insert_end
from pgoutput.recorder.catalogs.storage_changes import (
    MOVED,
    REWRITTEN,
    SET_LOGGED,
    TRUNCATED,
    altered_storages,
    truncating_transaction,
    unidentified_storages,
    unlogged_storages,
)
from pgoutput.recorder.client import Connection
from pgoutput.recording import GoneTable, IncompleteTable, PublicationChange
from pgoutput.wire import format_lsn

FRESH_ROOTS_SINCE: Final = 150_000
"""First server version that sends changes of a newly attached partition as changes of its root at once."""

_PUBLISHED_OPERATIONS: Final = "pubinsert", "pubupdate", "pubdelete", "pubtruncate"
"""Columns of pg_publication that decide which operations (insert, update and so on) are sent."""

_ROW_OPERATIONS: Final = _PUBLISHED_OPERATIONS[:3]

_SETTINGS: Final = {
    "pubinsert": "inserts",
    "pubupdate": "updates",
    "pubdelete": "deletes",
    "pubtruncate": "truncates",
    "pubviaroot": "partitions as their root",
    "pubgencols": "generated columns",
    "puballtables": "all tables",
}
"""For texts about changes: names of the settings that decide what is sent, by column of pg_publication."""


class PublicationRecreated(ChangesLost):
    """A publication was dropped and created again; the stream lacks changes made while it did not exist."""


class CatalogChanges(msgspec.Struct, frozen=True):
    """Differences between two readings of the catalogs."""

    publications: tuple[PublicationChange, ...]
    """Publications that were altered, with texts that describe the changes."""
    incomplete: tuple[IncompleteTable, ...]
    """Tables that became incomplete between the two readings of the catalogs."""
    gone: tuple[GoneTable, ...] = ()
    """Tables that were dropped between the two readings of the catalogs."""
    pending: tuple[PendingTable, ...] = ()
    """Tables that may have become incomplete between the two readings of the catalogs."""


def check_publication_oids(before: Catalog, after: Catalog) -> None:
    """Check that no publication was dropped and created again between two readings of the catalogs.

    Raises:
        PublicationRecreated: A publication has another OID in `after` than in `before`.
    """
    known = {one.name: one for one in before.publications}
    for one in after.publications:
        if (old := known.get(one.name)) is not None and old.oid != one.oid:
            raise PublicationRecreated(
                f"the publication {_quoted(one.name)} was dropped and created anew after "
                f"{format_lsn(before.lsn)} (its OID was {old.oid} and is {one.oid}): changes that were made "
                "meanwhile are not in the stream. Record anew from a new slot and in another folder"
            )


def compare_catalogs(
    before: Catalog,
    after: Catalog,
    time: int,
    connection: Connection,
    copied: frozenset[int] = frozenset(),
) -> CatalogChanges:
    """Return the differences between two readings of the catalogs.

    Args:
        before: The catalogs as read earlier.
        after: The catalogs as read later.
        time: Time at which `after` was read, in microseconds since 2000-01-01 00:00 UTC.
        connection: Connection to the server, to check whether newly published tables are empty.
        copied: OIDs of tables whose rows a snapshot has copied since `before` was read.
    """
    comparison = _Comparison(before, after, connection)
    altered = dict(comparison.altered_tables())
    republished = dict(comparison.republished_tables())
    incomplete = altered | republished
    for oid, table in after.tables.items():
        if oid in incomplete or oid in before.tables or oid in copied:
            continue
        if not comparison.is_complete_since_published(table):
            incomplete[oid] = (
                table,
                f"published since after {format_lsn(before.lsn)}: earlier rows are missing",
            )
    attached = comparison.attached + [
        table.columns.keys()
        for oid, table in after.tables.items()
        if oid > before.greatest_oid and not table.is_original
    ]
    for oid, table in after.tables.items():
        if oid not in table.storages and table.columns.keys() in attached:
            incomplete.setdefault(
                oid, (table, f"may have had another partition for a time after {format_lsn(before.lsn)}")
            )
    gone = {oid: table for oid, table in before.tables.items() if oid not in after.tables}
    for oid in existing_relations(connection, [*gone]):
        incomplete[oid] = gone.pop(oid), f"not published any more since after {format_lsn(before.lsn)}"
    lasting = _lasting_reasons(before)
    for oid, text in _lasting_reasons(after).items():
        if text != lasting.get(oid):
            incomplete.setdefault(oid, (after.tables[oid], ""))
    # What was just found may have happened later than `after.lsn`, and be missing in a copy as of that LSN.
    pending = {oid: one for oid, one in comparison.pending.items() if oid not in incomplete}
    lsn = wal_insert_end(connection) if incomplete or pending else after.lsn
    return CatalogChanges(
        tuple(
            PublicationChange(
                publication=name, after_lsn=before.lsn, before_lsn=after.lsn, time=time, changes=tuple(texts)
            )
            for name, texts in comparison.texts.items()
        ),
        tuple(
            incomplete_table(table, after, reason, lsn=lsn, altered=oid in altered)
            for oid, (table, reason) in incomplete.items()
        ),
        tuple(
            GoneTable(
                oid=oid,
                namespace=sent_namespace(table.namespace),
                name=table.name,
                after_lsn=before.lsn,
                time=time,
            )
            for oid, table in gone.items()
        )
        + _own_partitions(before, after, time, republished),
        tuple(
            PendingTable(
                table=incomplete_table(after.tables[oid], after, reason, lsn=lsn, altered=True),
                descriptions=descriptions,
                truncated_by=xid,
            )
            for oid, found in pending.items()
            for reason, descriptions, xid in found
        ),
    )


def _own_partitions(
    before: Catalog, after: Catalog, time: int, republished: Collection[int]
) -> tuple[GoneTable, ...]:
    """Return the partitions that are published through their root, and may have been published by themselves.

    Such a partition was attached, or the publication of its root was altered: the stream may have changes of
    the partition itself.

    Args:
        before: The catalogs as read earlier.
        after: The catalogs as read later.
        time: Time at which `after` was read.
        republished: OIDs of the tables of which other changes are published.
    """
    links = {oid: one.links for table in before.tables.values() for oid, one in table.storages.items()}
    found = {
        oid: storage.name.partition(".")
        for table in after.tables.values()
        for oid, storage in table.storages.items()
        if oid not in before.tables.keys() | after.tables.keys()
        and (
            table.oid in republished
            or (links.get(oid) != storage.links and not all(link.endswith("+") for link in storage.links))
        )
    }
    return tuple(
        GoneTable(oid=oid, namespace=schema, name=name, after_lsn=before.lsn, time=time, is_dropped=False)
        for oid, (schema, _, name) in found.items()
    )


def tables_with_earlier_rows(catalog: Catalog, connection: Connection) -> tuple[IncompleteTable, ...]:
    """Return the tables that are incomplete because a recording begins without a snapshot.

    A published table is incomplete if it has rows already: the recording lacks these rows.

    Args:
        catalog: The catalogs, read after the slot's consistent point.
        connection: Connection to the server.
    """
    reason = f"recorded without a snapshot: rows from before {format_lsn(catalog.lsn)} are missing"
    found = [
        incomplete_table(table, catalog, "" if is_empty(connection, table.oid) else reason)
        for table in catalog.tables.values()
    ]
    return tuple(one for one in found if one.reason)


def tables_to_copy(catalog: Catalog, lsn: int) -> tuple[IncompleteTable, ...]:
    """Return the published tables as incomplete, because the snapshot of a new recording has just begun.

    Args:
        catalog: The catalogs.
        lsn: Consistent point of the slot, and LSN of the snapshot.
    """
    reason = f"snapshot unfinished: rows from before {format_lsn(lsn)} are missing"
    return tuple(incomplete_table(table, catalog, reason, lsn=lsn) for table in catalog.tables.values())


def tables_without_all_changes(catalog: Catalog) -> tuple[IncompleteTable, ...]:
    """Return the published tables as incomplete of which the server does not send all changes."""
    return tuple(incomplete_table(catalog.tables[oid], catalog, "") for oid in _lasting_reasons(catalog))


def incomplete_table(
    table: CatalogTable, catalog: Catalog, lost: str, *, lsn: int | None = None, altered: bool = False
) -> IncompleteTable:
    """Return why a table is incomplete, for the recording.

    Args:
        table: The table.
        catalog: The catalogs that show it.
        lost: Which rows or changes are missing; empty if a copy of the rows would add none.
        lsn: End of the server's WAL when it was noticed; None for the LSN of `catalog`.
        altered: Whether existing rows were altered without being sent.
    """
    return IncompleteTable(
        oid=table.oid,
        namespace=sent_namespace(table.namespace),
        name=table.name,
        lsn=catalog.lsn if lsn is None else lsn,
        lost=lost,
        lasting=_lasting_reasons(catalog).get(table.oid, ""),
        altered=altered,
    )


def _sends_truncate(catalog: Catalog, table: CatalogTable) -> bool:
    """Return whether the server sends the TRUNCATE of a table."""
    publications = (one for one in catalog.publications if one.name in table.publications)
    return any(one.settings.get("pubtruncate") for one in publications)


def _lasting_reasons(catalog: Catalog) -> dict[int, str]:
    """Return which changes of tables the server never sends, by OID of the table.

    TRUNCATE is absent: the catalogs show it, and a copy of the rows follows it.
    """
    reasons = {}
    for oid, table in catalog.tables.items():
        settings = [one.settings for one in catalog.publications if one.name in table.publications]
        unsent = [_SETTINGS[one] for one in _ROW_OPERATIONS if not any(each[one] for each in settings)]
        texts = [f"its {' and '.join(unsent)} are not published"] if unsent else []
        if unlogged := unlogged_storages(table):
            texts.append(f"changes of unlogged or foreign partitions are not sent ({', '.join(unlogged)})")
        if unidentified := unidentified_storages(table):
            names = ", ".join(unidentified)
            texts.append(f"old values of partitions lack the columns of its replica identity ({names})")
        if texts:
            reasons[oid] = "; ".join(texts)
    return reasons


def existing_relations(connection: Connection, oids: Collection[int]) -> list[int]:
    """Return `oids` without the OIDs of relations that were dropped."""
    if not oids:
        return []
    rows = connection.query(f"SELECT oid FROM pg_class WHERE oid IN ({', '.join(map(str, oids))})")
    return [int(str(oid)) for (oid,) in rows]


class _Comparison:
    """Comparison of two readings of the catalogs.

    Attributes:
        texts: For each altered publication, by name, a list of texts that describe what was altered.
        attached: For each table that may have been attached as a partition for a time, its column names.
        pending: For each table that may be incomplete, by OID, values for `PendingTable`s: the reason, the
            harmless descriptions, and the xid of the transaction that has truncated the table or None.
    """

    def __init__(self, before: Catalog, after: Catalog, connection: Connection) -> None:
        self._before = before
        self._after = after
        self._connection = connection
        self._altered_types = altered_types(before, after)
        self._since = f"after {format_lsn(before.lsn)}"
        self.texts: dict[str, list[str]] = {}
        self.attached: list[Set[str]] = []
        self.pending: dict[int, list[tuple[str, tuple[Description, ...], int | None]]] = {}
        self._compare_memberships()

    def altered_tables(self) -> Iterator[tuple[int, tuple[CatalogTable, str]]]:
        """Yield each table whose existing rows were altered without being sent: OID, table and reason."""
        for oid, table in self._after.tables.items():
            old = self._before.tables.get(oid)
            if old is not None and (reason := self._alteration_reason(old, table)) is not None:
                yield oid, (table, reason)

    def republished_tables(self) -> Iterator[tuple[int, tuple[CatalogTable, str]]]:
        """Yield each table of both readings of which other changes are published: OID, table and reason."""
        reasons = {one.name: self._settings_reason(one) for one in self._after.publications}
        for oid, table in self._after.tables.items():
            old = self._before.tables.get(oid)
            if old is None:
                continue
            reason = (
                next((reasons[name] for name in table.publications if reasons.get(name)), None)
                or self._membership_reason(old, table)
                or self._coverage_reason(old, table)
            )
            if reason is not None:
                yield oid, (table, reason)

    def is_complete_since_published(self, table: CatalogTable) -> bool:
        """Return whether the stream has all changes of a table that was not published before.

        That is so if the table is empty, or if it was created under a publication FOR ALL TABLES, and not
        altered since: it may have been unlogged at first, or its existing rows may have got other values. A
        publication that was altered meanwhile may not have sent all changes.
        """
        versions = {one.name: one.row_version for one in self._before.publications}
        publications = [one for one in self._after.publications if one.name in table.publications]
        if any(versions.get(one.name, one.row_version) != one.row_version for one in publications):
            return False
        is_covered = any(one.has_all_tables and one.name in versions for one in publications)
        is_covered = is_covered and table.oid > self._before.greatest_oid
        is_new = all(
            one.file == oid and all(link.endswith("+") for link in one.links)
            for oid, one in table.storages.items()
        )
        is_truncated = _sends_truncate(self._after, table) and all(
            one.is_truncated for oid, one in table.storages.items() if one.file != oid
        )
        if is_covered and not (is_new or is_truncated):
            return False  # the stream may have rows that it does not remove
        columns = table.columns.values()
        is_unaltered = len({one.row_version for one in columns}) < 2 and not any(
            one.type_oid in self._altered_types for one in columns
        )
        return (is_covered and is_new and is_unaltered and table.is_original) or is_empty(
            self._connection, table.oid
        )

    def _settings_reason(self, publication: Publication) -> str | None:
        """Return a text that describes altered settings of a publication, or None if no setting was altered.

        The text is also added to `texts`.
        """
        old = next((one for one in self._before.publications if one.name == publication.name), None)
        if old is None or old.row_version == publication.row_version:
            return None
        was, now = old.settings, publication.settings
        altered = [
            f"{text}: {_setting(was.get(name))} before, {_setting(now.get(name))} now"
            for name, text in _SETTINGS.items()
            if was.get(name) != now.get(name)
        ]
        if not altered and was != now:  # only the owner changed
            return None
        text = f"altered ({'; '.join(altered) or 'and set back'})"
        self.texts.setdefault(publication.name, []).append(text)
        return f"the publication {publication.name} was {text} {self._since}"

    def _compare_memberships(self) -> None:
        """Add to `texts` which tables were added to, removed from or altered in each publication."""
        before, after = self._before.tables, self._after.tables
        for oid in before.keys() | after.keys():
            old, new = before.get(oid), after.get(oid)
            had, has = set(old.publications if old else ()), set(new.publications if new else ())
            table = (new or old).full_name  # type: ignore[union-attr]
            for name in sorted(has - had):
                self.texts.setdefault(name, []).append(f"publishes {table}")
            for name in sorted(had - has):
                self.texts.setdefault(name, []).append(f"does not publish {table} any more")
            if old is None or new is None:
                continue
            for name in sorted(had & has):
                texts = _membership_changes(old.memberships.get(name), new.memberships.get(name))
                self.texts.setdefault(name, []).extend(f"{table}: {text}" for text in texts)
        self.texts = {name: texts for name, texts in sorted(self.texts.items()) if texts}

    def _membership_reason(self, old: CatalogTable, new: CatalogTable) -> str | None:
        """Return a text that describes altered column lists and row filters of a table; None if unaltered."""
        texts = [
            text
            for name in sorted({*old.publications} & {*new.publications})
            for text in _membership_changes(old.memberships.get(name), new.memberships.get(name))
        ]
        return f"{', '.join(texts)} {self._since}" if texts else None

    def _coverage_reason(self, old: CatalogTable, new: CatalogTable) -> str | None:
        """Return a text that names publications that began or ceased to publish a table; None otherwise.

        A publication is ignored if, in both readings of the catalogs, another recorded publication published
        at least the same columns, rows and operations of the table.
        """
        had, has = {*old.publications}, {*new.publications}
        publications = {one.name: one for one in (*self._after.publications, *self._before.publications)}

        def is_covered(name: str) -> bool:
            columns = (old if name in had else new).memberships.get(name, NO_MEMBERSHIP)[1]
            return any(
                row_filter is None
                and column_list in (None, columns)
                and all(
                    publications[other].settings.get(operation)
                    or not publications[name].settings.get(operation)
                    for operation in _PUBLISHED_OPERATIONS
                )
                for other in had & has
                for _, column_list, row_filter in [new.memberships.get(other, NO_MEMBERSHIP)]
            )

        texts = [
            f"{'not published any more' if name in had else 'published'} by {name}"
            for name in sorted(had ^ has)
            if not is_covered(name)
        ]
        return f"{', '.join(texts)} {self._since}: changes may be missing" if texts else None

    def _alteration_reason(self, old: CatalogTable, new: CatalogTable) -> str | None:
        """Return a text that names altered columns and partitions whose rows were not sent; or else None."""
        storages = altered_storages(
            old,
            new,
            self._is_empty_partition,
            partial(has_row_from_before, self._connection, xid=self._before.xid),
            sends_truncate=_sends_truncate(self._after, new),
        )
        are_described = bool(self._after.ddl_events) and self._before.ddl_events == self._after.ddl_events
        pending: list[tuple[str, tuple[Description, ...], int | None]] = []
        xid = truncating_transaction(new, storages) if _sends_truncate(self._after, new) else None
        if xid is not None:
            pending.append((self._text(storages), (), xid))
            storages = {}
        if not are_described and may_be_set_back(old, new):
            harmless = harmless_descriptions(
                self._before.sent_columns(old),
                self._after.sent_columns(new),
                new.greatest_number - old.greatest_number,
            )
            pending.append((self._text({f"columns {SET_BACK}": []}), harmless, None))
        if pending:
            self.pending[new.oid] = pending
        columns = altered_columns(
            old,
            new,
            self._altered_types,
            lambda column: self._after.publishes(new, column),
            was_rewritten=not storages.keys().isdisjoint((SET_LOGGED, REWRITTEN, TRUNCATED)),
            are_described=are_described,
        )
        is_through_root = any(one.settings.get("pubviaroot") for one in self._after.publications)
        if is_through_root and old.above and old.above != new.above:
            storages[MOVED] = [""]
        if ATTACHED in columns or MOVED in storages:
            self.attached.append(new.columns.keys())
        if columns and columns.keys() <= WITHOUT_ROWS and is_empty(self._connection, new.oid):
            columns = {}
        # The server refuses SET UNLOGGED for a table that a publication names, but not for its partitions.
        is_named = any(identity.isdecimal() for identity, _, _ in new.memberships.values())
        if is_named and new.oid in new.storages:
            is_explained = explain_rewrite(old, new) or not has_new_column(old, new)
        else:
            is_explained = explain_rewrite(old, new) and bool(columns)
        if is_explained:
            for reason in (REWRITTEN, SET_LOGGED):
                storages.pop(reason, None)
        if not (storages or columns):
            return None
        return self._text({reason: list(map(_quoted, names)) for reason, names in columns.items()} | storages)

    def _is_empty_partition(self, oid: int) -> bool:
        is_fresh = self._connection.server_version >= FRESH_ROOTS_SINCE
        return is_fresh and is_empty(self._connection, oid)

    def _text(self, named: dict[str, list[str]]) -> str:
        """Return a text that names columns and partitions, by reason."""
        texts = [f"{', '.join(names)} {reason}".lstrip() for reason, names in named.items()]
        return f"{'; '.join(texts)} {self._since}: values of existing rows were not sent"


def _membership_changes(old: Membership | None, new: Membership | None) -> list[str]:
    texts = ("removed from the publication and added again", "column list changed", "row filter changed")
    pairs = zip(texts, old or NO_MEMBERSHIP, new or NO_MEMBERSHIP, strict=True)
    return [text for text, was, now in pairs if was != now]


def _setting(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string()
