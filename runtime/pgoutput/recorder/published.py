"""Which tables publications publish, and what of them.

It follows the server's own initial synchronization (fetch_table_list and fetch_remote_table_info in
src/backend/replication/logical/tablesync.c). Relation and Type messages are as pgoutput would send them
(proto.c, logicalrep_write_rel and logicalrep_write_typ).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pgoutput.errors import ReplicationError
from pgoutput.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity, Type
from pgoutput.recorder.connection import Connection, Row, quote_identifier, quote_literal


class PublishedTable(msgspec.Struct):
    """A published table."""

    relation: Relation
    types: tuple[Type, ...]
    """Those of its columns that are not built in."""
    storage: str | None
    """Where its rows are (relfilenode): a table that was rewritten has none for earlier snapshots."""
    lock: str
    """The SQL that keeps others from changing it."""
    query: str
    """The COPY that reads the published rows and columns."""
    binary: tuple[bool, ...] | None
    """Which of the columns it gives in binary format; None if it is a COPY in text format."""

    @property
    def name(self) -> str:
        """The table's name with its schema."""
        return f"{self.relation.namespace or 'pg_catalog'}.{self.relation.name}"


_PUBLISHED: Final = {
    10: "SELECT relid, NULL AS attrs, NULL::pg_node_tree AS qual"
    " FROM pg_publication, pg_get_publication_tables(pubname) AS relid WHERE pubname = ANY ({names})",
    15: "SELECT relid, attrs, qual"
    " FROM pg_publication, pg_get_publication_tables(pubname) WHERE pubname = ANY ({names})",
    16: "SELECT relid, attrs, qual FROM pg_get_publication_tables(VARIADIC {names})",
}
"""What publications publish, from servers of these versions on; a table of several publications comes several
times. The column list is NULL for all columns where the server does not list them."""

_TABLES: Final = """\
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relreplident, p.attrs, pg_get_expr(p.qual, p.relid),
    c.relfilenode
FROM ({published}) p JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY c.relpages DESC, c.oid"""

_COLUMNS: Final = """\
SELECT a.attname, a.atttypid, a.atttypmod, coalesce(a.attnum = ANY ({key}), false), t.typsend <> 0
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
WHERE c.oid = {oid} AND a.attnum > 0 AND NOT a.attisdropped AND {published}
ORDER BY a.attnum"""

_KEY: Final = {10: "i.indkey", 11: "(i.indkey::int2[])[0:i.indnkeyatts - 1]"}
"""The key of an index, from servers of these versions on: since then an index may INCLUDE other columns."""

_TYPES: Final = """\
WITH RECURSIVE bases AS (
    SELECT oid AS type, oid AS base FROM pg_type WHERE oid IN ({oids})
    UNION ALL
    SELECT type, typbasetype FROM bases JOIN pg_type ON oid = base WHERE typtype = 'd'
)
SELECT type, nspname, typname
FROM bases JOIN pg_type t ON t.oid = base JOIN pg_namespace n ON n.oid = typnamespace WHERE typtype <> 'd'"""

_FIRST_DESCRIBED: Final = 10_000
"""Types with lower OIDs are built in, and have no Type message (FirstGenbkiObjectId)."""


def published_tables(
    connection: Connection, publications: Sequence[str], *, binary: bool
) -> list[PublishedTable]:
    """The tables that some publications publish, the large ones first.

    Args:
        connection: To the server.
        publications: Their names.
        binary: Whether values are to be read in binary format, as far as pgoutput would send them so.

    Raises:
        ReplicationError: The publications do not go together, or the tables cannot be read.
    """
    published = published_relations(connection, publications)
    found: dict[str, list[Row]] = {}
    for row in connection.query(_TABLES.format(published=published)):
        found.setdefault(str(row[0]), []).append(row)
    return [_table(connection, rows, binary) for rows in found.values()]


def published_relations(connection: Connection, publications: Sequence[str]) -> str:
    """Return SQL that gives relid, attrs and qual of the tables that some publications publish."""
    names = f"ARRAY[{', '.join(map(quote_literal, publications))}]"
    return _of_version(connection, _PUBLISHED).format(names=names)


def _table(connection: Connection, rows: list[Row], binary: bool) -> PublishedTable:
    """A table, of which each publication says something."""
    oid, namespace, name, kind, identity = map(str, rows[0][:5])
    place = f"{quote_identifier(namespace)}.{quote_identifier(name)}"
    lists = {row[5] for row in rows}
    if len(lists) > 1:
        raise ReplicationError(
            f"the publications have different column lists for the table {namespace}.{name}, "
            "and the server refuses to publish it so: record them separately"
        )
    filters = {row[6] for row in rows}
    only = "ONLY " if kind == "r" else ""  # what inherits from it is published, and copied, by itself
    lock = f"LOCK TABLE {only}{place} IN ACCESS SHARE MODE"
    described = _columns(connection, oid, identity, lists.pop())
    columns = tuple(column for column, _ in described)
    listed = ", ".join(_value(column.name, binary and not sends) for column, sends in described)
    where = (
        "" if None in filters else " WHERE " + " OR ".join(f"({one})" for one in sorted(map(str, filters)))
    )
    return PublishedTable(
        Relation(
            int(oid), "" if namespace == "pg_catalog" else namespace, name, ReplicaIdentity(identity), columns
        ),
        _types(connection, columns),
        rows[0][7],
        lock,
        f"COPY (SELECT {listed} FROM {only}{place}{where}) TO STDOUT{' (FORMAT binary)' if binary else ''}",
        tuple(sends for _, sends in described) if binary else None,
    )


def _value(name: str, as_text: bool) -> str:
    """A column; as text where its type has no binary format (logicalrep_write_tuple does so too)."""
    name = quote_identifier(name)
    return f"CASE WHEN {name} IS NOT NULL THEN pg_catalog.format('%s', {name}) END" if as_text else name


def _of_version(connection: Connection, since: Mapping[int, str]) -> str:
    """What holds for the server's version."""
    return since[max(version for version in since if version <= connection.server_version // 10_000)]


def _columns(
    connection: Connection, oid: str, identity: str, attrs: str | None
) -> list[tuple[RelationColumn, bool]]:
    """The columns, and whether their types have a binary format."""
    if attrs is not None:
        published = f"a.attnum IN ({', '.join(attrs.split()) or 'NULL'})"
    elif connection.server_version >= 120_000:
        published = "a.attgenerated = ''"
    else:
        published = "true"
    rows = connection.query(_COLUMNS.format(oid=oid, published=published, key=_of_version(connection, _KEY)))
    full = identity == ReplicaIdentity.FULL
    return [
        (
            RelationColumn(
                ColumnFlag.KEY if full or key == "t" else ColumnFlag(0),
                str(name),
                int(str(type_)),
                int(str(modifier)),
            ),
            sends == "t",
        )
        for name, type_, modifier, key, sends in rows
    ]


def _types(connection: Connection, columns: Sequence[RelationColumn]) -> tuple[Type, ...]:
    """The Type messages, one for each column whose type is not built in (send_relation_and_attrs)."""
    oids = [column.type_oid for column in columns if column.type_oid >= _FIRST_DESCRIBED]
    if not oids:
        return ()
    rows = connection.query(_TYPES.format(oids=", ".join(map(str, set(oids)))))
    types = {
        int(str(oid)): Type(int(str(oid)), "" if namespace == "pg_catalog" else str(namespace), str(name))
        for oid, namespace, name in rows
    }
    return tuple(types[oid] for oid in oids)
