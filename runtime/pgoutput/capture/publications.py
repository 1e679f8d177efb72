"""What publications publish, and which changes of that a recording lacks.

The stream does not say that a publication was altered, that a table was added to it, or that a column was
dropped and added again. So the recorder looks at the catalogs now and then, and compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from pgoutput.capture.connection import Connection, quote_identifier, quote_literal
from pgoutput.capture.published import published_relations
from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.segments import Incomplete, PublicationChange
from pgoutput.wire import format_lsn, parse_lsn, shown_text

Membership: TypeAlias = tuple[int | str, str | None, str | None]
"""What makes a table a publication's: OIDs of rows of catalogs, column list and row filter."""


class Publication(msgspec.Struct, frozen=True):
    """A row of pg_publication."""

    name: str
    oid: int
    row_version: str
    """xmin: another one whenever the row is updated."""
    settings: dict[str, Any]
    """Its other columns, as far as the server's version has them."""

    @property
    def has_all_tables(self) -> bool:
        """Whether it is FOR ALL TABLES."""
        return bool(self.settings["puballtables"])


class Table(msgspec.Struct, frozen=True):
    """A published table."""

    oid: int
    namespace: str
    name: str
    columns: dict[str, int]
    """pg_attribute.attnum of each column: another one if it is dropped and added again."""
    memberships: dict[str, Membership]
    """For each publication that names the table, its schema, or a table that it is a partition of."""
    publications: tuple[str, ...]
    """All that publish it."""
    never_rewritten: bool
    """Whether it has the file that it was created with (relfilenode)."""

    @property
    def shown(self) -> str:
        """Its name with its schema."""
        return f"{self.namespace}.{self.name}"


class Published(msgspec.Struct, frozen=True):
    """What the recorded publications published at one moment."""

    lsn: int
    """End of the server's WAL before the look."""
    greatest_oid: int
    """Of all relations. Tables that are created later have greater ones, until OIDs begin anew."""
    publications: tuple[Publication, ...]
    tables: dict[int, Table]
    """By OID."""


_LSN: Final = """\
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"""

_PUBLICATIONS: Final = """\
SELECT pubname, oid, xmin::text, to_jsonb(p) - 'oid' - 'pubname' - 'pubowner', pubowner
FROM pg_publication p WHERE pubname = ANY ({names})"""

_TABLES: Final = """\
SELECT c.oid, n.nspname, c.relname, c.relfilenode IN (0, c.oid),
    (SELECT json_object_agg(attname, attnum) FROM pg_attribute
        WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT relid FROM ({published}) p)"""

_MEMBERS: Final = {
    10: "SELECT oid, NULL AS schema, prrelid AS named, prpubid, NULL AS columns, NULL AS filter"
    " FROM pg_publication_rel WHERE prpubid IN ({publications})",
    15: "SELECT oid, NULL AS schema, prrelid AS named, prpubid, prattrs::text AS columns,"
    " pg_get_expr(prqual, prrelid) AS filter FROM pg_publication_rel WHERE prpubid IN ({publications})"
    " UNION ALL SELECT pn.oid, 'schema', c.oid, pnpubid, NULL, NULL FROM pg_publication_namespace pn"
    " JOIN pg_class c ON relnamespace = pnnspid WHERE pnpubid IN ({publications}) AND relkind IN ('r', 'p')",
}
_PARTITIONS: Final = """\
WITH RECURSIVE members AS ({members}), found AS (
    SELECT coalesce(schema || ' ', '') || oid AS rows, named AS relation, prpubid, columns, filter
    FROM members
    UNION ALL
    SELECT rows || ' ' || i.xmin, inhrelid, prpubid, columns, filter
    FROM found JOIN pg_inherits i ON inhparent = relation JOIN pg_class c ON c.oid = inhrelid
    WHERE relispartition
)
SELECT string_agg(rows, ', ' ORDER BY rows), relation, prpubid, string_agg(columns, ', ' ORDER BY rows),
    string_agg(filter, ', ' ORDER BY rows)
FROM found GROUP BY relation, prpubid"""
"""What names a partitioned table publishes its partitions; xmin tells whether one was attached anew."""

_WRITERS: Final = "SELECT 1 FROM pg_locks WHERE relation = {oid} AND mode = 'RowExclusiveLock'"

_PLACE: Final = """\
SELECT format('%I.%I', nspname, relname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE c.oid = {oid}"""

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


def look(connection: Connection, names: Sequence[str]) -> Published:
    """Return what publications publish now.

    Args:
        connection: To the server.
        names: The publications.

    Raises:
        ReplicationError: The server refuses; ConnectionLost if it may be tried again.
    """
    lsn = parse_lsn(str(connection.query(_LSN)[0][0]))
    connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        return _look(connection, names, lsn)
    finally:
        connection.query("COMMIT")


def _look(connection: Connection, names: Sequence[str], lsn: int) -> Published:
    listed = f"ARRAY[{', '.join(map(quote_literal, names))}]::name[]"
    publications = tuple(
        Publication(
            str(name), int(str(oid)), str(version), {"owner": owner, **msgspec.json.decode(str(settings))}
        )
        for name, oid, version, settings, owner in connection.query(_PUBLICATIONS.format(names=listed))
    )
    by_oid = {one.oid: one.name for one in publications}
    publishing: dict[int, list[str]] = {}
    for one in publications:
        for (oid,) in connection.query(
            f"SELECT relid FROM ({published_relations(connection, [one.name])}) p"
        ):
            publishing.setdefault(int(str(oid)), []).append(one.name)
    members: dict[int, dict[str, Membership]] = {}
    query = _MEMBERS[15 if connection.server_version >= 150_000 else 10]
    query = _PARTITIONS.format(members=query.format(publications=", ".join(map(str, by_oid)) or "NULL"))
    for catalog_rows, relation, publication, columns, rows in connection.query(query):
        of = str(catalog_rows)
        member = int(of) if of.isdecimal() else of, columns, rows
        members.setdefault(int(str(relation)), {})[by_oid[int(str(publication))]] = member
    tables = {
        int(str(oid)): Table(
            int(str(oid)),
            shown_text(str(namespace)),
            shown_text(str(name)),
            _columns(columns),
            members.get(int(str(oid)), {}),
            tuple(publishing.get(int(str(oid)), ())),
            own_file == "t",
        )
        for oid, namespace, name, own_file, columns in connection.query(
            _TABLES.format(published=published_relations(connection, names))
        )
    }
    (greatest,) = connection.query("SELECT max(oid::int8) FROM pg_class")[0]
    return Published(lsn, int(str(greatest)), publications, tables)


class PublicationReplaced(ReplicationError):
    """A publication was dropped and created anew; the stream lacks what was changed meanwhile."""


class Difference(msgspec.Struct, frozen=True):
    """What became different between two looks."""

    changes: tuple[PublicationChange, ...]
    incomplete: tuple[Incomplete, ...]


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


def without_snapshot(published: Published, connection: Connection) -> tuple[Incomplete, ...]:
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


def is_empty(connection: Connection, oid: int) -> bool:
    """Whether a table has no rows. Then the stream has all of them that it ever gets.

    False where another transaction is at work on it, the role may not read it, or it was dropped meanwhile.
    """
    try:
        if connection.query(_WRITERS.format(oid=oid)):
            return False
        # Only now: rows of those who wrote before, and have ended, are seen.
        ((place,),) = connection.query(_PLACE.format(oid=oid)) or ((None,),)
        return place is not None and not connection.query(f"SELECT 1 FROM {place} LIMIT 1")
    except ConnectionLost:
        raise
    except ReplicationError:
        return False


def _incomplete(table: Table, lsn: int, reason: str) -> Incomplete:
    namespace = "" if table.namespace == "pg_catalog" else table.namespace
    return Incomplete(oid=table.oid, namespace=namespace, name=table.name, lsn=lsn, reason=reason)


def _is_new(table: Table, before: Published, after: Published) -> bool:
    """Whether a table was published since it was created: all its changes are in the stream.

    So it is with FOR ALL TABLES, unless the table was unlogged at first: then it has another file.
    """
    all_before = {one.name for one in before.publications if one.has_all_tables}
    always = any(one.has_all_tables and one.name in all_before for one in after.publications)
    return always and table.never_rewritten and table.oid > before.greatest_oid


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

    def altered(self) -> Iterator[tuple[int, tuple[Table, str]]]:
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
                or self._columns(old.columns, table.columns)
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

    def _membership(self, old: Table, new: Table) -> str | None:
        texts = [
            text
            for name in sorted({*old.publications} & {*new.publications})
            for text in _member_changes(old.memberships.get(name), new.memberships.get(name))
        ]
        return f"{', '.join(texts)} {self._since}" if texts else None

    def _coverage(self, old: Table, new: Table) -> str | None:
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

    def _columns(self, old: Mapping[str, int], new: Mapping[str, int]) -> str | None:
        names = [name for name in old.keys() & new.keys() if old[name] != new[name]]
        if not names:
            return None
        listed = ", ".join(map(quote_identifier, sorted(names)))
        return f"{listed} dropped and added again {self._since}: values of existing rows were not sent"


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


def _columns(text: str | None) -> dict[str, int]:
    """The columns of a table, of JSON; bytes of names that are not valid UTF-8 are replaced."""
    valid = (text or "{}").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return msgspec.json.decode(valid, type=dict[str, int])
