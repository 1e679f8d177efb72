"""What was altered between two looks at a server's catalogs, and which tables a recording lacks rows of then.

The stream does not say that a publication was altered, that a table was added to it, or that a column was
dropped and added again. So the recorder looks at the catalogs now and then, and compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from pgoutput.errors import ReplicationError
from pgoutput.recorder.connection import Connection, quote_identifier
from pgoutput.recorder.publications import (
    CatalogTable,
    Column,
    Membership,
    Publication,
    Published,
    is_empty,
)
from pgoutput.recording import IncompleteTable, PublicationChange
from pgoutput.wire import format_lsn

_SENT: Final = "pubinsert", "pubupdate", "pubdelete", "pubtruncate"
_OPERATIONS: Final = {
    "pubinsert": "inserts",
    "pubupdate": "updates",
    "pubdelete": "deletes",
    "pubtruncate": "truncates",
    "pubviaroot": "partitions as their root",
    "pubgencols": "generated columns",
    "puballtables": "all tables",
}


class PublicationReplaced(ReplicationError):
    """A publication was dropped and created anew; the stream lacks what was changed meanwhile."""


class Difference(msgspec.Struct, frozen=True):
    """What became different between two looks."""

    changes: tuple[PublicationChange, ...]
    incomplete: tuple[IncompleteTable, ...]


def check_identity(before: Published, after: Published) -> None:
    """See that publications are the ones that were recorded before.

    Raises:
        PublicationReplaced: One was dropped and created anew.
    """
    known = {one.name: one for one in before.publications}
    for one in after.publications:
        if (old := known.get(one.name)) is not None and old.oid != one.oid:
            raise PublicationReplaced(
                f"the publication {quote_identifier(one.name)} was dropped and created anew after "
                f"{format_lsn(before.lsn)} (its OID was {old.oid} and is {one.oid}): changes that were made "
                "meanwhile are not in the stream. Record anew from a new slot and in another folder"
            )


def compare(
    before: Published,
    after: Published,
    time: int,
    connection: Connection,
    copied: frozenset[int] = frozenset(),
) -> Difference:
    """Return what was altered between two looks, and which tables the recording lacks rows of because of it.

    Args:
        before: The look before.
        after: The look now.
        time: Of the look now, in microseconds since 2000.
        connection: To the server: whether new tables are empty is asked there.
        copied: OIDs of tables whose rows a snapshot has, taken after the look before.
    """
    changes = _Changes(before, after)
    incomplete = dict(changes.altered())
    for oid, table in after.tables.items():
        if oid in incomplete or oid in before.tables or oid in copied:
            continue
        if not (_is_new(table, before, after) or is_empty(connection, oid)):
            incomplete[oid] = (
                table,
                f"published since after {format_lsn(before.lsn)}: earlier rows are missing",
            )
    there = _existing(connection, [oid for oid in before.tables if oid not in after.tables])
    for oid in there:
        table = before.tables[oid]
        incomplete[oid] = table, f"not published any more since after {format_lsn(before.lsn)}"
    return Difference(
        tuple(
            PublicationChange(
                publication=name, after_lsn=before.lsn, before_lsn=after.lsn, time=time, changes=tuple(texts)
            )
            for name, texts in changes.texts.items()
        ),
        tuple(_incomplete(table, after.lsn, reason) for table, reason in incomplete.values()),
    )


def without_snapshot(published: Published, connection: Connection) -> tuple[IncompleteTable, ...]:
    """Return the tables that lack rows because a recording begins without a snapshot: those that have some.

    Args:
        published: What is published, seen after the slot's consistent point.
        connection: To the server.
    """
    reason = f"recorded without a snapshot: rows from before {format_lsn(published.lsn)} are missing"
    return tuple(
        _incomplete(table, published.lsn, reason)
        for table in published.tables.values()
        if not is_empty(connection, table.oid)
    )


def _incomplete(table: CatalogTable, lsn: int, reason: str) -> IncompleteTable:
    namespace = "" if table.namespace == "pg_catalog" else table.namespace
    return IncompleteTable(oid=table.oid, namespace=namespace, name=table.name, lsn=lsn, reason=reason)


def _is_new(table: CatalogTable, before: Published, after: Published) -> bool:
    """Whether a table was published since it was created: all its changes are in the stream.

    So it is with FOR ALL TABLES, unless the table was unlogged at first: then it has another file.
    """
    all_before = {one.name for one in before.publications if one.has_all_tables}
    always = any(one.has_all_tables and one.name in all_before for one in after.publications)
    return always and table.file in (0, table.oid) and table.oid > before.greatest_oid


def _existing(connection: Connection, oids: Sequence[int]) -> list[int]:
    if not oids:
        return []
    rows = connection.query(f"SELECT oid FROM pg_class WHERE oid IN ({', '.join(map(str, oids))})")
    return [int(str(oid)) for (oid,) in rows]


class _Changes:
    """Compares two looks.

    Attributes:
        texts: What is different, by publication.
    """

    def __init__(self, before: Published, after: Published) -> None:
        self._before = before
        self._after = after
        self._since = f"after {format_lsn(before.lsn)}"
        self.texts: dict[str, list[str]] = {}
        self._memberships()

    def altered(self) -> Iterator[tuple[int, tuple[CatalogTable, str]]]:
        """Yield the tables that were published before and lack changes, with the reason."""
        settings = {one.name: self._settings(one) for one in self._after.publications}
        for oid, table in self._after.tables.items():
            old = self._before.tables.get(oid)
            if old is None:
                continue
            reason = (
                next((settings[name] for name in table.publications if settings.get(name)), None)
                or self._membership(old, table)
                or self._coverage(old, table)
                or self._columns(old, table)
            )
            if reason is not None:
                yield oid, (table, reason)

    def _settings(self, now: Publication) -> str | None:
        """What changed in a publication itself; None if nothing that matters."""
        old = next((one for one in self._before.publications if one.name == now.name), None)
        if old is None or old.row_version == now.row_version:
            return None
        different = [
            f"{shown}: {_shown(old.settings.get(name))} before, {_shown(now.settings.get(name))} now"
            for name, shown in _OPERATIONS.items()
            if old.settings.get(name) != now.settings.get(name)
        ]
        if not different and old.settings != now.settings:  # its owner
            return None
        text = f"altered ({'; '.join(different) or 'and set back'})"
        self.texts.setdefault(now.name, []).append(text)
        return f"the publication {now.name} was {text} {self._since}"

    def _memberships(self) -> None:
        before, after = self._before.tables, self._after.tables
        for oid in before.keys() | after.keys():
            old, new = before.get(oid), after.get(oid)
            had, has = set(old.publications if old else ()), set(new.publications if new else ())
            shown = (new or old).shown  # type: ignore[union-attr]
            for name in sorted(has - had):
                self.texts.setdefault(name, []).append(f"publishes {shown}")
            for name in sorted(had - has):
                self.texts.setdefault(name, []).append(f"does not publish {shown} any more")
            if old is None or new is None:
                continue
            for name in sorted(had & has):
                texts = _member_changes(old.memberships.get(name), new.memberships.get(name))
                self.texts.setdefault(name, []).extend(f"{shown}: {text}" for text in texts)
        self.texts = {name: texts for name, texts in sorted(self.texts.items()) if texts}

    def _membership(self, old: CatalogTable, new: CatalogTable) -> str | None:
        texts = [
            text
            for name in sorted({*old.publications} & {*new.publications})
            for text in _member_changes(old.memberships.get(name), new.memberships.get(name))
        ]
        return f"{', '.join(texts)} {self._since}" if texts else None

    def _coverage(self, old: CatalogTable, new: CatalogTable) -> str | None:
        """Say which publications of a table came or went, unless another one published the same always."""
        had, has = {*old.publications}, {*new.publications}
        publications = {one.name: one for one in (*self._after.publications, *self._before.publications)}

        def is_covered(name: str) -> bool:
            columns = (old if name in had else new).memberships.get(name, _NO_MEMBER)[1]
            return any(
                filter_ is None
                and listed in (None, columns)
                and all(
                    publications[other].settings.get(operation)
                    or not publications[name].settings.get(operation)
                    for operation in _SENT
                )
                for other in had & has
                for _, listed, filter_ in [new.memberships.get(other, _NO_MEMBER)]
            )

        texts = [
            f"{'not published any more' if name in had else 'published'} by {name}"
            for name in sorted(had ^ has)
            if not is_covered(name)
        ]
        return f"{', '.join(texts)} {self._since}: changes may be missing" if texts else None

    def _columns(self, old: CatalogTable, new: CatalogTable) -> str | None:
        """Say which columns may have other values in existing rows than were sent, and why."""
        reasons: dict[str, list[str]] = {}
        for name in sorted(old.columns.keys() & new.columns.keys()):
            was, now = old.columns[name], new.columns[name]
            if was.number != now.number:
                reason = "dropped and added again"
            elif self._renamed_label(now.base_type_oid):
                reason = "of an enum of which a value was renamed"
            elif old.file != new.file and _is_retyped(was, now):
                reason = "rewritten (ALTER COLUMN … USING)"
            else:
                continue
            reasons.setdefault(reason, []).append(quote_identifier(name))
        texts = [f"{', '.join(names)} {reason}" for reason, names in reasons.items()]
        if not texts:
            return None
        return f"{'; '.join(texts)} {self._since}: values of existing rows were not sent"

    def _renamed_label(self, type_oid: int) -> bool:
        old, new = (look.enums.get(type_oid, {}) for look in (self._before, self._after))
        return any(new.get(row, label) != label for row, label in old.items())


def _is_retyped(was: Column, now: Column) -> bool:
    """Whether ALTER COLUMN … TYPE named the type that the column had: nothing in the stream tells of that.

    It updates the column's row and rewrites the table. A table may also be rewritten by VACUUM FULL, CLUSTER
    and TRUNCATE, and the row updated by SET NOT NULL and the like, but one alone is not reported.
    """
    same = (was.type_oid, was.type_modifier) == (now.type_oid, now.type_modifier)
    return same and was.row_version != now.row_version


_NO_MEMBER: Final = None, None, None
"""The membership of a table that is published without a row of its own.

It also stands for one that was added during a look. The look's snapshot lacks that row, whereas
pg_get_publication_tables has the table: it reads the server's caches, which are newer.
"""


def _member_changes(old: Membership | None, new: Membership | None) -> list[str]:
    names = ("removed from the publication and added again", "column list changed", "row filter changed")
    pairs = zip(names, old or _NO_MEMBER, new or _NO_MEMBER, strict=True)
    return [name for name, one, other in pairs if one != other]


def _shown(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
