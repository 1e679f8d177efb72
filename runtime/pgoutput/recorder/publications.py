"""What publications publish, as a server's catalogs say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.recorder.connection import Connection, quote_literal
from pgoutput.recorder.failures import LockNotAvailable
from pgoutput.recorder.published import published_relations
from pgoutput.wire import parse_lsn, shown_text

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


class Column(msgspec.Struct, frozen=True, array_like=True):
    """A column of a published table: its row of pg_attribute."""

    number: int
    """attnum: another one if the column is dropped and added again."""
    row_version: str
    """xmin: another one whenever the row is updated."""
    type_oid: int
    type_modifier: int
    base_type_oid: int
    """The type of a domain or of an array's elements; else the type itself."""


class CatalogTable(msgspec.Struct, frozen=True):
    """A published table."""

    oid: int
    namespace: str
    name: str
    columns: dict[str, Column]
    memberships: dict[str, Membership]
    """For each publication that names the table, its schema, or a table that it is a partition of."""
    publications: tuple[str, ...]
    """All that publish it."""
    file: int
    """relfilenode: another one if the table was rewritten or truncated."""

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
    tables: dict[int, CatalogTable]
    """By OID."""
    enums: dict[int, dict[int, str]]
    """Labels of the enums in the database, by OID of the type and of the row in pg_enum."""


_LSN: Final = """\
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"""

_PUBLICATIONS: Final = """\
SELECT pubname, oid, xmin::text, to_jsonb(p) - 'oid' - 'pubname' - 'pubowner', pubowner
FROM pg_publication p WHERE pubname = ANY ({names})"""

_TABLES: Final = """\
SELECT c.oid, n.nspname, c.relname, c.relfilenode,
    (SELECT json_object_agg(attname, json_build_array(attnum, a.xmin::text, atttypid::int8, atttypmod,
            coalesce(nullif(typbasetype, 0), nullif(typelem, 0), t.oid)::int8))
        FROM pg_attribute a JOIN pg_type t ON t.oid = atttypid
        WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT relid FROM ({published}) p)"""

_MEMBERS: Final = {
    10: "SELECT oid, NULL AS schema, prrelid AS named, prpubid, NULL AS columns, NULL AS condition"
    " FROM pg_publication_rel WHERE prpubid IN ({publications})",
    15: "SELECT oid, NULL AS schema, prrelid AS named, prpubid, prattrs::text AS columns,"
    " pg_get_expr(prqual, prrelid) AS condition FROM pg_publication_rel WHERE prpubid IN ({publications})"
    " UNION ALL SELECT pn.oid, 'schema', c.oid, pnpubid, NULL, NULL FROM pg_publication_namespace pn"
    " JOIN pg_class c ON relnamespace = pnnspid WHERE pnpubid IN ({publications}) AND relkind IN ('r', 'p')",
}
_PARTITIONS: Final = """\
WITH RECURSIVE found AS (
    SELECT coalesce(schema || ' ', '') || oid AS place, named, prpubid, columns, condition FROM ({members}) m
    UNION ALL
    SELECT place || ' ' || i.xmin, inhrelid, prpubid, columns, condition
    FROM found JOIN pg_inherits i ON inhparent = named JOIN pg_class c ON c.oid = inhparent
    WHERE relkind = 'p'
)
SELECT place, named, prpubid, columns, condition FROM found ORDER BY place"""
"""What names a partitioned table publishes its partitions; xmin tells whether one was attached anew."""

_LOCK_SECONDS: Final = 5
"""How long a look waits for a table: since PostgreSQL 16, pg_get_publication_tables opens each."""

_WRITERS: Final = """\
SELECT 1 FROM pg_locks WHERE relation = {oid} AND mode = 'RowExclusiveLock'
UNION ALL SELECT 1 WHERE pg_is_in_recovery()"""
"""Whether somebody writes to a table; a standby does not know the locks of its primary."""

_PLACE: Final = """\
SELECT format('%I.%I', nspname, relname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE c.oid = {oid}"""


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
        connection.query(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        return _look(connection, names, lsn)
    except LockNotAvailable:
        raise ConnectionLost(
            "the catalogs cannot be read: a transaction holds a published table exclusively (VACUUM FULL, or "
            "an ALTER TABLE that has not ended or is prepared)"
        ) from None
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
    for place, relation, publication, columns, rows in connection.query(query):
        of = members.setdefault(int(str(relation)), {})
        name, known = by_oid[int(str(publication))], str(place)
        if name in of:  # by its schema as well
            known = f"{of[name][0]}, {known}"
            columns, rows = (one or other for one, other in zip(of[name][1:], (columns, rows), strict=True))
        of[name] = int(known) if known.isdecimal() else known, columns, rows
    tables = {
        int(str(oid)): CatalogTable(
            int(str(oid)),
            shown_text(str(namespace)),
            shown_text(str(name)),
            _columns(columns),
            members.get(int(str(oid)), {}),
            tuple(publishing.get(int(str(oid)), ())),
            int(str(file)),
        )
        for oid, namespace, name, file, columns in connection.query(
            _TABLES.format(published=published_relations(connection, names))
        )
    }
    (greatest,) = connection.query("SELECT max(oid::int8) FROM pg_class")[0]
    enums: dict[int, dict[int, str]] = {}
    for type_oid, row, label in connection.query("SELECT enumtypid, oid, enumlabel FROM pg_enum"):
        enums.setdefault(int(str(type_oid)), {})[int(str(row))] = shown_text(str(label))
    return Published(lsn, int(str(greatest)), publications, tables, enums)


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


def _columns(text: str | None) -> dict[str, Column]:
    """The columns of a table, of JSON; bytes of names that are not valid UTF-8 are replaced."""
    valid = (text or "{}").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return msgspec.json.decode(valid, type=dict[str, Column])
