"""What the publications publish now, as the server says it: tables, columns, row filters, keys, partitions.

The recorder decides by queries of its own which tables are copied again. This module shares nothing with
them, because the self-check must not repeat their mistakes: `pg_publication_tables` and `pg_partition_tree`
answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from pgoutput.errors import ReplicaError
from pgoutput.messages import ColumnFlag, Relation, RelationColumn, ReplicaIdentity
from pgoutput.verification.comparable import check_columns


class Server(Protocol):
    """A connection to the server; `pgoutput.recorder.Connection` is one."""

    @property
    def server_version(self) -> int:
        """Version of the server as server_version_num."""

    def query(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, with values as text."""

    def close(self) -> None:
        """Close the connection."""


def quoted(value: str) -> str:
    """Return a text as a string constant."""
    doubled = value.replace("\\", "\\\\").replace("'", "''")
    return f"E'{doubled}'"


class PublishedTable(msgspec.Struct, frozen=True):
    """A published table, as the server describes it."""

    relation: Relation
    """Description with base types in place of domains; the columns of the key have the flag KEY."""
    state: str
    """Digest of the catalog rows of the table, its partitions, types and publications."""
    place: str
    """Quoted name for a FROM clause."""
    names: tuple[str, ...]
    """Quoted names of the columns."""
    key_types: tuple[str, ...]
    """SQL names of the types of the key's columns; empty without a key."""
    has_identity: bool
    """Whether the key is the replica identity, by which the recorder can copy single rows."""
    condition: str
    """SQL of the row filters; `true` if all rows are published."""
    leaves: tuple[tuple[str, int, float], ...]
    """Quoted name, number of pages and estimated number of rows of each table that stores rows."""
    size: int
    """Size in bytes, with TOAST."""
    refusal: str
    """Why the table is not compared; empty if it is."""

    @property
    def name(self) -> str:
        """Name of the table with its schema."""
        return f"{self.relation.namespace}.{self.relation.name}"

    @property
    def key(self) -> list[int]:
        """Indices of the columns of the key."""
        return [at for at, one in enumerate(self.relation.columns) if one.flags & ColumnFlag.KEY]


SETTINGS: Final = """\
SET lock_timeout = '100ms'; SET statement_timeout = '2s'; SET search_path = pg_catalog;
SET default_transaction_read_only = on; SET max_parallel_workers_per_gather = 0;
SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'jit';
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"""
"""Settings of the connection: no migration waits for a look, and keys are looked up by their index."""

_TREE: Final = """\
SELECT oid AS root, oid AS member, true AS isleaf FROM listed WHERE relkind = 'r'"""
_TREE_SINCE_12: Final = f"""\
{_TREE} UNION
SELECT l.oid, m.relid, m.isleaf FROM (SELECT DISTINCT oid FROM listed) l, pg_partition_tree(l.oid) m"""

_PUBLISHED: Final = """\
WITH listed AS (
    SELECT c.oid, c.relkind, nspname, relname, p.pubname, p.xmin AS version,
        to_jsonb(p) ->> 'pubviaroot' = 'true' AS via_root, to_jsonb(t) -> 'attnames' AS names,
        to_jsonb(t) ->> 'rowfilter' AS filter,
        pubinsert AND pubupdate AND pubdelete AND coalesce(to_jsonb(p) ->> 'pubtruncate', 'true') = 'true'
            AS is_whole
    FROM pg_publication p JOIN pg_publication_tables t ON t.pubname = p.pubname
    JOIN pg_namespace n ON nspname = schemaname
    JOIN pg_class c ON relnamespace = n.oid AND relname = tablename
    WHERE p.pubname = ANY ({publications})
), tree AS ({tree}), types AS (
    SELECT md5(string_agg(one, ',' ORDER BY one)) AS digest FROM (
        SELECT format('%s %s', t.oid, t.xmin) AS one FROM pg_type t LEFT JOIN pg_class c ON c.oid = typrelid
        WHERE t.oid >= 16384 AND typtype IN ('c', 'd', 'e', 'r') AND coalesce(relkind, 'c') = 'c'
        UNION ALL SELECT format('%s %s', oid, xmin) FROM pg_enum
        UNION ALL SELECT format('%s %s %s', attrelid, attnum, a.xmin) FROM pg_attribute a
        JOIN pg_class c ON c.oid = attrelid WHERE relkind = 'c' OR (relkind IN ('r', 'p') AND
            reltype IN (SELECT atttypid FROM pg_attribute WHERE atttypid >= 16384))
    ) all_types
), published AS (
    SELECT oid, relkind, nspname, relname, bool_and(is_whole) AS is_whole, min(names::text)::jsonb AS names,
        min(names::text) IS DISTINCT FROM max(names::text) AS has_lists,
        CASE WHEN bool_and(filter IS NOT NULL) THEN string_agg(DISTINCT format('(%s)', filter), ' OR ') END
            AS filter, string_agg(format('%s %s %s %s', pubname, version, names, filter), ','
            ORDER BY pubname) AS publications
    FROM listed l WHERE NOT EXISTS (SELECT FROM listed r JOIN tree ON root = r.oid
        WHERE r.via_root AND member = l.oid AND r.oid <> l.oid)
    GROUP BY oid, relkind, nspname, relname
), described AS (
    SELECT p.*, md5(concat(publications, (SELECT string_agg(format('%s %s %s', c.oid, c.xmin, c.ctid), ','
            ORDER BY c.oid) FROM tree JOIN pg_class c ON c.oid = member WHERE root = p.oid),
        a.versions, CASE WHEN a.type >= 16384 THEN (SELECT digest FROM types) END)) AS state
    FROM published p, LATERAL (SELECT max(atttypid::int8) AS type, string_agg(format('%s %s', a.xmin, a.ctid),
            ',' ORDER BY attrelid, attnum) AS versions
        FROM tree JOIN pg_attribute a ON attrelid = member WHERE root = p.oid AND attnum > 0) a
)"""
"""The published tables. A table below a root that a publication publishes in its place is left out."""

_STATES: Final = "SELECT oid, nspname, relname, state FROM described"

_DESCRIBED: Final = """\
SELECT d.oid, d.nspname, d.relname, state,
    format('%s%I.%I', CASE d.relkind WHEN 'r' THEN 'ONLY ' END, d.nspname, d.relname),
    jsonb_build_object('columns', (SELECT coalesce(jsonb_agg(jsonb_build_array(attname, base::int8, atttypmod,
            coalesce(attnum = ANY (k.key), false), format_type(base, -1), quote_ident(attname))
            ORDER BY attnum), '[]') FROM pg_attribute a,
            LATERAL (WITH RECURSIVE bases AS (SELECT a.atttypid AS oid UNION ALL
                SELECT typbasetype FROM bases JOIN pg_type t ON t.oid = bases.oid WHERE typtype = 'd')
                SELECT t.oid AS base FROM bases JOIN pg_type t ON t.oid = bases.oid WHERE typtype <> 'd') b
        WHERE attrelid = d.oid AND attnum > 0 AND NOT attisdropped AND coalesce(names ? attname::text, true)
            AND ({generated} OR coalesce(to_jsonb(a) ->> 'attgenerated', '') = '')),
    'leaves', m.leaves), c.relreplident, coalesce(filter, 'true'), m.size, CASE
        WHEN NOT is_whole THEN 'a publication leaves out operations'
        WHEN has_lists THEN 'its publications have different column lists'
        WHEN NOT has_schema_privilege(c.relnamespace, 'USAGE') THEN 'the role may not use its schema'
        WHEN NOT m.is_readable THEN 'the role may not read the table or its partitions'
        WHEN m.has_policy THEN 'row-level security hides rows from the role' ELSE '' END
FROM described d JOIN pg_class c ON c.oid = d.oid
LEFT JOIN LATERAL (SELECT (indkey::int2[])[0:coalesce((to_jsonb(i) ->> 'indnkeyatts')::int, indnatts) - 1]
    AS key FROM pg_index i WHERE indrelid = d.oid AND indisvalid AND indimmediate AND
        CASE c.relreplident WHEN 'i' THEN indisreplident ELSE indisprimary END LIMIT 1) k ON true,
LATERAL (SELECT coalesce(jsonb_agg(jsonb_build_array(format('ONLY %I.%I', n.nspname, l.relname),
        pg_relation_size(member) / current_setting('block_size')::int, greatest(l.reltuples, 0)))
        FILTER (WHERE isleaf), '[]') AS leaves, sum(pg_table_size(member)) AS size,
    bool_or(row_security_active(member)) AS has_policy,
    bool_and(has_table_privilege(member, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE')) AS is_readable
    FROM tree JOIN pg_class l ON l.oid = member JOIN pg_namespace n ON n.oid = l.relnamespace
    WHERE root = d.oid) m
WHERE d.oid = ANY ({oids})"""


class Publications:
    """The publications of a recording on a server.

    Args:
        server: Connection to the server.
        names: Names of the publications.
        binary: Whether the recording has values in binary format.
    """

    def __init__(self, server: Server, names: Sequence[str], *, binary: bool = False) -> None:
        self._server, self._binary = server, binary
        self._names = f"ARRAY[{', '.join(map(quoted, names))}]"
        ((encoding, text),) = server.query("SELECT getdatabaseencoding(), ROW('\u00e0\u0085\u00a0')::text")
        self.refusal: str = ""
        """Why no table of the database is compared; empty if tables are."""
        if encoding == "SQL_ASCII":
            self.refusal = "the database has the encoding SQL_ASCII, so texts need not be UTF-8"
        elif encoding == "UTF8" and text != "(\u00e0\u0085\u00a0)":
            self.refusal = "the locale of the database changes the server's text of rows"

    def states(self) -> dict[int, tuple[str, str]]:
        """Return name and `PublishedTable.state` of each published table, by OID."""
        rows = self._query(_STATES)
        return {int(oid): (f"{namespace}.{name}", state) for oid, namespace, name, state in rows}

    def tables(self, oids: Iterable[int]) -> list[PublishedTable]:
        """Return the published ones of these tables."""
        return [
            self._table(row)
            for row in self._query(_DESCRIBED, oids=f"ARRAY[{', '.join(map(str, oids))}]::oid[]")
        ]

    def _query(self, query: str, oids: str = "") -> list[tuple[Any, ...]]:
        tree = _TREE_SINCE_12 if self._server.server_version >= 120_000 else _TREE
        # Before PostgreSQL 18, `attnames` has generated columns, which are not sent.
        generated = str(self._server.server_version >= 180_000 and "names IS NOT NULL")
        parts = {"tree": tree, "publications": self._names, "oids": oids, "generated": generated}
        return self._server.query(f"{_PUBLISHED}\n{query}".format_map(parts))

    def _table(self, row: tuple[Any, ...]) -> PublishedTable:
        oid, namespace, name, state, place, described, identity, condition, size, refusal = row
        parts = msgspec.json.decode(described)
        columns = tuple(
            RelationColumn(
                flags=ColumnFlag.KEY if is_key else ColumnFlag(0),
                name=column,
                type_oid=type_,
                type_modifier=modifier,
            )
            for column, type_, modifier, is_key, *_ in parts["columns"]
        )
        relation = Relation(
            oid=int(oid),
            namespace=namespace,
            name=name,
            replica_identity=ReplicaIdentity(identity),
            columns=columns,
        )
        try:
            check_columns(relation, binary=self._binary, server_version=self._server.server_version)
        except ReplicaError as error:
            refusal = refusal or str(error)
        return PublishedTable(
            relation,
            state,
            place,
            tuple(name for *_, name in parts["columns"]),
            tuple(type_ for *_, is_key, type_, _ in parts["columns"] if is_key),
            identity in "di",
            condition,
            tuple((leaf, pages, rows) for leaf, pages, rows in parts["leaves"]),
            int(size or 0),
            self.refusal or refusal,
        )
