"""Published tables, with the messages that describe them and the SQL that copies their rows.

The queries follow the server's own initial synchronization (fetch_table_list and fetch_remote_table_info in
src/backend/replication/logical/tablesync.c). Relation and Type messages equal those of logicalrep (proto.c,
logicalrep_write_rel and logicalrep_write_typ).

The server quotes the names: a name of a SQL_ASCII database need not be valid UTF-8, which psycopg.sql
requires.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, LiteralString

import msgspec
from psycopg import sql

from logicalrep._text import listed, qualified_name
from logicalrep.errors import ReplicationError
from logicalrep.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity, Type
from logicalrep.recorder.catalogs.catalog import sent_namespace
from logicalrep.recorder.client import Connection, PermissionDenied, Row


class Leaf(msgspec.Struct, frozen=True):
    """A table that stores rows: a published table itself, or one of its partitions."""

    oid: int
    """OID of the table or partition."""
    place: str
    """Quoted name for a FROM clause, with ONLY: tables that inherit from this one are excluded."""
    storage: str | None
    """relfilenode; changes with a rewrite or TRUNCATE, after which earlier snapshots may see no rows."""


class PublishedTable(msgspec.Struct):
    """A published table: the messages that describe it, and the SQL that copies its rows."""

    relation: Relation
    """Relation message of the table."""
    types: tuple[Type, ...]
    """Type messages of the columns whose types are not built in."""
    leaves: tuple[Leaf, ...]
    """The table itself, or the partitions that store its rows."""
    has_ranges: bool
    """Whether the role may read each leaf by itself, with system columns, so that ranges can be copied."""
    lock: str
    """SQL that locks the table against changes of its columns."""
    place: str
    """Quoted name for a FROM clause, with ONLY unless the table is partitioned."""
    values: str
    """Published columns, as a SQL list of expressions."""
    filters: tuple[str, ...]
    """SQL of the row filters, of which one must be true; empty if all rows are published."""
    binary: tuple[bool, ...] | None
    """For each column, whether COPY writes its cells in binary format; None for a COPY in text format."""
    columns: tuple[Row, ...]
    """Result of the query `_COLUMNS`: all columns, also unpublished ones. Published columns do not show every
    alteration: pg_get_publication_tables() leaves out a column that was dropped after the snapshot."""

    @property
    def name(self) -> str:
        """Name of the table with its schema."""
        return qualified_name(self.relation.namespace, self.relation.name)

    @property
    def has_key(self) -> bool:
        """Whether each change of a row contains the row's key, and the key is not the whole row."""
        flags = [column.flags & ColumnFlag.KEY for column in self.relation.columns]
        return any(flags) and self.relation.replica_identity != ReplicaIdentity.FULL

    @property
    def unpublished_generated(self) -> tuple[str, ...]:
        """Names of the generated columns that are not published; the stream and replicas lack them."""
        published = {column.name for column in self.relation.columns}
        return tuple(
            name
            for _, is_generated, name, *_ in self.columns
            if is_generated == "t" and name not in published
        )

    def copy_statement(self, place: str, conditions: Sequence[str] = ()) -> str:
        """Return the COPY statement that reads the published columns and rows.

        Args:
            place: Quoted name for the FROM clause: `PublishedTable.place`, or the `place` of one of the
                leaves.
            conditions: SQL conditions which the rows must meet, in addition to the row filters.
        """
        options = "" if self.binary is None else " (FORMAT binary)"
        return f"COPY ({self._select(place, conditions)}) TO STDOUT{options}"

    @property
    def select(self) -> str:
        """SELECT statement that reads the published columns and rows."""
        return self._select(self.place)

    def _select(self, place: str, conditions: Sequence[str] = ()) -> str:
        published = " OR ".join(f"({one})" for one in self.filters)
        where = " AND ".join([*conditions, *([f"({published})"] if published else [])])
        return f"SELECT {self.values} FROM {place}{f' WHERE {where}' if where else ''}"


_WITHOUT_PARTITIONS: Final[LiteralString] = (
    "WITH RECURSIVE p AS ({published}), below AS ("
    "SELECT inhrelid FROM p JOIN pg_inherits ON inhparent = relid"
    " JOIN pg_class c ON c.oid = relid AND relkind = 'p'"
    " UNION SELECT i.inhrelid FROM below b JOIN pg_inherits i ON inhparent = b.inhrelid)"
    " SELECT relid, attrs, qual FROM p WHERE relid NOT IN (SELECT inhrelid FROM below)"
)
"""Query that leaves out of a query in `_PUBLISHED` the partitions below other tables in its result.

Their changes are sent as changes of the topmost table that any publication publishes (get_rel_sync_entry).
"""

_PUBLISHED: Final[dict[int, LiteralString]] = {
    10: "SELECT relid, NULL AS attrs, NULL::pg_node_tree AS qual"
    " FROM pg_publication, pg_get_publication_tables(pubname) AS relid WHERE pubname = ANY (ARRAY[{names}])",
    15: "SELECT relid, CASE WHEN cardinality(attrs::int2[]) < relnatts THEN attrs END AS attrs, qual"
    " FROM pg_publication, pg_get_publication_tables(pubname) JOIN pg_class c ON c.oid = relid"
    " WHERE pubname = ANY (ARRAY[{names}])",
    16: "SELECT relid, attrs, qual FROM pg_get_publication_tables(VARIADIC ARRAY[{names}])",
}
"""Queries for published relations, by the first major server version that supports the query.

The result has a row for each publication of a table. The column list (attrs) is NULL if all columns are
published and the server does not list them. PostgreSQL 15 takes a list with as many columns as the table ever
had for no list (pgoutput_column_list_init). Since PostgreSQL 16, the server itself leaves out partitions.
"""

_TABLES: Final = """\
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relreplident, format('%I.%I', n.nspname, c.relname),
    p.attrs, pg_get_expr(p.qual, p.relid)
FROM ({published}) p JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY c.relpages DESC, c.oid"""

_LEAVES: Final = """\
WITH RECURSIVE parts AS (
    SELECT DISTINCT relid AS root, relid AS part FROM ({published}) p
    UNION ALL
    SELECT root, inhrelid FROM parts JOIN pg_class c ON c.oid = part JOIN pg_inherits ON inhparent = part
    WHERE relkind = 'p'
)
SELECT root, c.oid, format('ONLY %I.%I', nspname, relname), relfilenode,
    relkind = 'r' AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
        AND NOT row_security_active(c.oid)
FROM parts JOIN pg_class c ON c.oid = part JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind <> 'p'
ORDER BY 1, 2"""

MISSING_PRIVILEGES: Final = """\
WITH tables AS (
    SELECT c.oid, nspname, relname, n.oid AS schema
    FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
    WHERE c.oid IN ({oids})
)
SELECT 'schema privilege' AS lacks,
    format('the role %I may not use the schema %I', current_user, nspname) AS found,
    format('GRANT USAGE ON SCHEMA %I TO %I', nspname, current_user) AS statement
FROM tables WHERE NOT has_schema_privilege(schema, 'USAGE')
UNION SELECT 'table privilege',
    format('the role %I may not read %I.%I', current_user, nspname, relname),
    format('GRANT SELECT ON %I.%I TO %I', nspname, relname, current_user)
FROM tables WHERE NOT has_table_privilege(oid, 'SELECT')
UNION SELECT 'row security',
    format('row-level security hides rows of %I.%I from the role %I', nspname, relname, current_user),
    format('ALTER ROLE %I BYPASSRLS', current_user)
FROM tables WHERE row_security_active(oid)
ORDER BY statement DESC"""
"""Query for the privileges that the role lacks to read all rows of tables, and the SQL that grants them."""

_COLUMNS: Final = """\
SELECT c.oid, a.attnum, {is_generated}, a.attname, quote_ident(a.attname), a.atttypid, a.atttypmod,
    coalesce(a.attnum = ANY ({key}), false), t.typsend <> 0
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
WHERE c.oid IN (SELECT relid FROM ({published}) p) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum"""

_KEY: Final = {10: "i.indkey", 11: "(i.indkey::int2[])[0:i.indnkeyatts - 1]"}
"""SQL for an index's key columns, without INCLUDE columns, by first major server version."""

_TYPES: Final = """\
WITH RECURSIVE bases AS (
    SELECT oid AS type, oid AS base FROM pg_type WHERE oid IN ({oids})
    UNION ALL
    SELECT type, typbasetype FROM bases JOIN pg_type ON oid = base WHERE typtype = 'd'
)
SELECT type, nspname, typname
FROM bases JOIN pg_type t ON t.oid = base JOIN pg_namespace n ON n.oid = typnamespace WHERE typtype <> 'd'"""

FIRST_CUSTOM_OID: Final = 10_000
"""Lowest OID of a type with a Type message; types with lower OIDs are built in (FirstGenbkiObjectId)."""


def published_tables(
    connection: Connection, publications: Sequence[str], *, binary: bool, oids: Collection[int] = ()
) -> list[PublishedTable]:
    """Return the tables that publications publish, large tables first.

    Args:
        connection: Connection to the server.
        publications: Names of the publications.
        binary: Whether the SQL of the tables copies values in binary format. Values of a type without binary
            format are then copied as text.
        oids: OIDs of the tables to return; empty for all tables.

    Raises:
        ReplicationError: The publications have different column lists for a table, or the server refuses the
            queries.
    """
    published = published_relations(connection, publications)
    if oids:
        published = sql.SQL("SELECT * FROM ({}) p WHERE relid IN ({})").format(
            published, sql.SQL(", ").join(map(sql.Literal, oids))
        )
    is_generated: LiteralString = "a.attgenerated <> ''" if connection.server_version >= 120_000 else "false"
    parts = {"is_generated": sql.SQL(is_generated), "key": sql.SQL(_of_version(connection, _KEY))}
    rows, leaves, columns = (
        _by_oid(connection.query(sql.SQL(query).format(published=published, **parts)))
        for query in (_TABLES, _LEAVES, _COLUMNS)
    )
    return [_table(connection, oid, one, leaves[oid], columns[oid], binary) for oid, one in rows.items()]


def _by_oid(rows: Iterable[Row]) -> defaultdict[str, list[Row]]:
    """Group the rows of a query by the first column, the OID, which is removed from the rows."""
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for oid, *row in rows:
        found[oid].append(tuple(row))
    return found


def may_read_any(connection: Connection, publications: Sequence[str]) -> bool:
    """Return whether the role may read all rows of at least one published table."""
    query = sql.SQL(
        "SELECT 1 FROM ({}) p JOIN pg_class ON oid = relid WHERE has_schema_privilege(relnamespace, 'USAGE')"
        " AND has_table_privilege(relid, 'SELECT') AND NOT row_security_active(relid)"
    )
    return bool(connection.query(query.format(published_relations(connection, publications))))


def check_privileges(connection: Connection, oids: Iterable[int]) -> None:
    """Check that the role may read all rows of the tables with these OIDs.

    Raises:
        PermissionDenied: The role lacks privileges; the text has the statements that grant them.
    """
    query = sql.SQL(MISSING_PRIVILEGES).format(oids=sql.SQL(", ").join(map(sql.Literal, [0, *oids])))
    if missing := list(dict.fromkeys(str(row[-1]) for row in connection.query(query))):
        raise PermissionDenied(
            f"the role may not read all rows: a superuser has to run: {listed(missing, '; ')}"
        )


def published_relations(connection: Connection, publications: Sequence[str]) -> sql.Composed:
    """Return a query for OID (relid), column list (attrs) and row filter (qual) of published tables."""
    names = sql.SQL(", ").join(map(sql.Literal, publications))
    published = sql.SQL(_of_version(connection, _PUBLISHED)).format(names=names)
    if connection.server_version >= 160_000:
        return published
    return sql.SQL(_WITHOUT_PARTITIONS).format(published=published)


def _table(
    connection: Connection, oid: str, rows: list[Row], leaves: list[Row], columns: list[Row], binary: bool
) -> PublishedTable:
    """Build a `PublishedTable`.

    Args:
        connection: Connection to the server.
        oid: OID of the table.
        rows: The table's rows in the result of `_TABLES`, one row for each publication.
        leaves: The table's rows in the result of `_LEAVES`.
        columns: The table's rows in the result of `_COLUMNS`.
        binary: Whether the SQL of the table copies values in binary format. Values of a type without binary
            format are then copied as text.
    """
    namespace, name, kind, identity, quoted_name = rows[0][:5]
    column_lists = {row[5] for row in rows}
    if len(column_lists) > 1:
        raise ReplicationError(
            f"the publications have different column lists for the table {namespace}.{name}, which the "
            "server refuses: record each publication with its own slot and folder"
        )
    filters = {row[6] for row in rows}
    only = "ONLY " if kind == "r" else ""  # tables that inherit from this one are published by themselves
    published = _published_columns(columns, identity, column_lists.pop())
    values = ", ".join(
        _as_text(quoted) if binary and not has_binary else quoted for _, quoted, has_binary in published
    )
    relation_columns = tuple(column for column, _, _ in published)
    return PublishedTable(
        Relation(
            oid=int(oid),
            namespace=sent_namespace(namespace),
            name=name,
            replica_identity=ReplicaIdentity(identity),
            columns=relation_columns,
        ),
        _types(connection, relation_columns),
        tuple(Leaf(int(leaf), place, storage) for leaf, place, storage, _ in leaves),
        all(is_readable == "t" for *_, is_readable in leaves),
        f"LOCK TABLE {only}{quoted_name} IN ACCESS SHARE MODE",
        f"{only}{quoted_name}",
        values,
        () if None in filters else tuple(sorted(map(str, filters))),
        tuple(has_binary for _, _, has_binary in published) if binary else None,
        tuple(columns),
    )


def _as_text(quoted: str) -> str:
    """Return SQL that casts a quoted column to text, as the plugin does for types without binary format."""
    return f"CASE WHEN {quoted} IS NOT NULL THEN pg_catalog.format('%s', {quoted}) END"


def _of_version(connection: Connection, by_version: Mapping[int, LiteralString]) -> LiteralString:
    """Return the value for the server's major version, or else for the next older version in `by_version`."""
    return by_version[max(one for one in by_version if one <= connection.server_version // 10_000)]


def _published_columns(
    rows: list[Row], identity: str, attrs: str | None
) -> list[tuple[RelationColumn, str, bool]]:
    """Return published columns of a table, each with quoted name and True if its type has a binary format.

    Args:
        rows: The table's rows in the result of `_COLUMNS`.
        identity: The replica identity.
        attrs: Numbers of the published columns; None for all columns that are not generated.
    """
    numbers = None if attrs is None else {*attrs.split()}
    full = identity == ReplicaIdentity.FULL
    return [
        (
            RelationColumn(
                flags=ColumnFlag.KEY if full or key == "t" else ColumnFlag(0),
                name=name,
                type_oid=int(type_),
                type_modifier=int(modifier),
            ),
            quoted,
            has_binary == "t",
        )
        for number, is_generated, name, quoted, type_, modifier, key, has_binary in rows
        if (is_generated == "f" if numbers is None else number in numbers)
    ]


def _types(connection: Connection, columns: Sequence[RelationColumn]) -> tuple[Type, ...]:
    """Return the Type messages, one for each column whose type is not built in (send_relation_and_attrs)."""
    oids = [column.type_oid for column in columns if column.type_oid >= FIRST_CUSTOM_OID]
    if not oids:
        return ()
    rows = connection.query(_TYPES.format(oids=", ".join(map(str, set(oids)))))
    types = {
        int(oid): Type(
            oid=int(oid),
            namespace=sent_namespace(namespace),
            name=name,
        )
        for oid, namespace, name in rows
    }
    return tuple(types[oid] for oid in oids)
