"""Changes of publications and tables between two readings of the catalogs.

The stream does not report that a publication was altered, that a table was added to a publication, or that a
column was dropped and added again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from psycopg import sql

from pgoutput.errors import ChangesLost
from pgoutput.recorder.catalog import Catalog, CatalogTable, Column, Membership, Publication, is_empty
from pgoutput.recorder.column_changes import WITHOUT_ROWS, altered_columns
from pgoutput.recorder.connection import Connection
from pgoutput.recording import IncompleteTable, PublicationChange
from pgoutput.wire import format_lsn

_PUBLISHED_OPERATIONS: Final = "pubinsert", "pubupdate", "pubdelete", "pubtruncate"
"""Columns of pg_publication that decide which operations (insert, update and so on) are sent."""

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
    incomplete = altered | dict(comparison.republished_tables())
    for oid, table in after.tables.items():
        if oid in incomplete or oid in before.tables or oid in copied:
            continue
        if not (_is_published_since_creation(table, before, after) or is_empty(connection, oid)):
            incomplete[oid] = (
                table,
                f"published since after {format_lsn(before.lsn)}: earlier rows are missing",
            )
    unpublished = [oid for oid in before.tables if oid not in after.tables]
    for oid in _existing_relations(connection, unpublished):
        table = before.tables[oid]
        incomplete[oid] = table, f"not published any more since after {format_lsn(before.lsn)}"
    return CatalogChanges(
        tuple(
            PublicationChange(
                publication=name, after_lsn=before.lsn, before_lsn=after.lsn, time=time, changes=tuple(texts)
            )
            for name, texts in comparison.texts.items()
        ),
        tuple(
            incomplete_table(table, after.lsn, reason, altered=oid in altered)
            for oid, (table, reason) in incomplete.items()
        ),
    )


def tables_with_earlier_rows(catalog: Catalog, connection: Connection) -> tuple[IncompleteTable, ...]:
    """Return the tables that are incomplete because a recording begins without a snapshot.

    A published table is incomplete if it has rows already: the recording lacks these rows.

    Args:
        catalog: The catalogs, read after the slot's consistent point.
        connection: Connection to the server.
    """
    reason = f"recorded without a snapshot: rows from before {format_lsn(catalog.lsn)} are missing"
    return tuple(
        incomplete_table(table, catalog.lsn, reason)
        for table in catalog.tables.values()
        if not is_empty(connection, table.oid)
    )


def tables_to_copy(catalog: Catalog, lsn: int) -> tuple[IncompleteTable, ...]:
    """Return the published tables as incomplete, because the snapshot of a new recording has just begun.

    Args:
        catalog: The catalogs.
        lsn: Consistent point of the slot, and LSN of the snapshot.
    """
    reason = f"snapshot unfinished: rows from before {format_lsn(lsn)} are missing"
    return tuple(incomplete_table(table, lsn, reason) for table in catalog.tables.values())


def incomplete_table(table: CatalogTable, lsn: int, reason: str, *, altered: bool = False) -> IncompleteTable:
    """Return why a table is incomplete, for the recording.

    Args:
        table: The table.
        lsn: End of the server's WAL before the catalogs were read that show it.
        reason: Why the table is incomplete.
        altered: Whether existing rows were altered without being sent.
    """
    namespace = "" if table.namespace == "pg_catalog" else table.namespace
    return IncompleteTable(
        oid=table.oid, namespace=namespace, name=table.name, lsn=lsn, reason=reason, altered=altered
    )


def _is_published_since_creation(table: CatalogTable, before: Catalog, after: Catalog) -> bool:
    """Return whether a table was published since it was created, so that the stream has all its changes.

    The result is True for a new table of a publication FOR ALL TABLES, unless the table's relfilenode has
    changed since its creation: the table may have been unlogged at first.
    """
    all_tables = {one.name for one in before.publications if one.has_all_tables}
    is_covered = any(one.has_all_tables and one.name in all_tables for one in after.publications)
    return is_covered and table.file in (0, table.oid) and table.oid > before.greatest_oid


def _existing_relations(connection: Connection, oids: Sequence[int]) -> list[int]:
    """Return `oids` without the OIDs of relations that were dropped."""
    if not oids:
        return []
    rows = connection.query(f"SELECT oid FROM pg_class WHERE oid IN ({', '.join(map(str, oids))})")
    return [int(str(oid)) for (oid,) in rows]


class _Comparison:
    """Comparison of two readings of the catalogs.

    Attributes:
        texts: For each altered publication, by name, a list of texts that describe what was altered.
    """

    def __init__(self, before: Catalog, after: Catalog, connection: Connection) -> None:
        self._before = before
        self._after = after
        self._connection = connection
        self._renamed_enums = {
            oid
            for oid, labels in before.enums.items()
            if any(after.enums.get(oid, {}).get(row, label) != label for row, label in labels.items())
        }
        self._since = f"after {format_lsn(before.lsn)}"
        self.texts: dict[str, list[str]] = {}
        self._compare_memberships()

    def altered_tables(self) -> Iterator[tuple[int, tuple[CatalogTable, str]]]:
        """Yield each table whose existing rows were altered without being sent: OID, table and reason."""
        for oid, table in self._after.tables.items():
            old = self._before.tables.get(oid)
            if old is not None and (reason := self._columns_reason(old, table)) is not None:
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
            columns = (old if name in had else new).memberships.get(name, _NO_MEMBERSHIP)[1]
            return any(
                row_filter is None
                and column_list in (None, columns)
                and all(
                    publications[other].settings.get(operation)
                    or not publications[name].settings.get(operation)
                    for operation in _PUBLISHED_OPERATIONS
                )
                for other in had & has
                for _, column_list, row_filter in [new.memberships.get(other, _NO_MEMBERSHIP)]
            )

        texts = [
            f"{'not published any more' if name in had else 'published'} by {name}"
            for name in sorted(had ^ has)
            if not is_covered(name)
        ]
        return f"{', '.join(texts)} {self._since}: changes may be missing" if texts else None

    def _columns_reason(self, old: CatalogTable, new: CatalogTable) -> str | None:
        """Return a text that names columns whose existing values changed without being sent; or else None."""
        reasons = altered_columns(
            old,
            new,
            self._renamed_enums,
            lambda column: self._publishes(new, column),
            are_described=bool(self._after.ddl_events) and self._before.ddl_events == self._after.ddl_events,
        )
        if not reasons or (reasons.keys() <= WITHOUT_ROWS and is_empty(self._connection, new.oid)):
            return None
        texts = [f"{', '.join(map(_quoted, names))} {reason}" for reason, names in reasons.items()]
        return f"{'; '.join(texts)} {self._since}: values of existing rows were not sent"

    def _publishes(self, table: CatalogTable, column: Column) -> bool:
        """Return whether a publication publishes a column of a table."""
        for one in self._after.publications:
            if one.name in table.publications:
                listed = table.memberships.get(one.name, _NO_MEMBERSHIP)[1]
                is_generated = column.origin == "generated" and one.settings.get("pubgencols") != "s"
                if str(column.number) in listed.split() if listed else not is_generated:
                    return True
        return False


_NO_MEMBERSHIP: Final = None, None, None
"""Membership of a table that its publication does not name, as in FOR ALL TABLES.

A table that was published while the catalogs were read has this membership too: the queries' snapshot lacks
the table's row in pg_publication_rel, but pg_get_publication_tables reads the newer caches of the server.
"""


def _membership_changes(old: Membership | None, new: Membership | None) -> list[str]:
    texts = ("removed from the publication and added again", "column list changed", "row filter changed")
    pairs = zip(texts, old or _NO_MEMBERSHIP, new or _NO_MEMBERSHIP, strict=True)
    return [text for text, was, now in pairs if was != now]


def _setting(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string()
