"""What the publications publish now, as the server says it: tables, columns, row filters, keys, partitions.

The recorder decides by queries of its own which tables are copied again. This module shares nothing with
them, because the self-check must not repeat their mistakes: `pg_publication_tables` and `pg_partition_tree`
answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from logicalrep.errors import ReplicaError
from logicalrep.verification.comparable import check_columns
from logicalrep.views import Column
from logicalrep.wire import stored_name


class Server(Protocol):
    """A connection to the server; `logicalrep.recorder.Connection` is one."""

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


class PublishedColumn(msgspec.Struct, frozen=True, array_like=True):
    """A published column of a table."""

    name: str
    type_oid: int
    """OID of the type; of the base type for a domain."""
    type_modifier: int
    is_key: bool
    type: str
    """SQL name of the type."""
    quoted: str
    """Quoted name."""


class Leaf(msgspec.Struct, frozen=True, array_like=True):
    """A table that stores rows of a published table."""

    place: str
    """Quoted name for a FROM clause."""
    pages: int
    rows: float
    """Estimated number of rows; -1 if it is not known."""
    size: int
    """Size in bytes, with TOAST."""


class PublishedTable(msgspec.Struct):
    """A published table, as the server describes it."""

    oid: int
    namespace: str
    name: str
    state: str
    """Digest of the catalog rows of the table, its partitions, types and publications."""
    refusal: str
    """Why the table is not compared; empty if it is."""
    place: str = ""
    """Quoted name for a FROM clause."""
    columns: tuple[PublishedColumn, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    """The tables that store its rows."""
    has_identity: bool = False
    """Whether the key is the replica identity, by which the recorder can copy single rows."""
    condition: str = ""
    """SQL of the row filters; `true` if all rows are published."""

    @property
    def full_name(self) -> str:
        """Name of the table with its schema."""
        return f"{self.namespace}.{self.name}"

    @property
    def stored_columns(self) -> list[Column]:
        """The columns, as a replica names them."""
        return [Column(stored_name(one.name), one.type_oid, one.type_modifier) for one in self.columns]

    @property
    def key(self) -> list[int]:
        """Indices of the columns of the key."""
        return [at for at, one in enumerate(self.columns) if one.is_key]


SETTINGS: Final = """\
SET lock_timeout = '100ms'; SET statement_timeout = '2s'; SET search_path = pg_catalog;
SET default_transaction_read_only = on; SET max_parallel_workers_per_gather = 0;
SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'jit';
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"""
"""Settings of the connection: no migration waits for a look, and keys are looked up by their index."""

_MEMBERS: Final = "SELECT p.oid AS member, true AS isleaf WHERE p.relkind = 'r'"
_MEMBERS_SINCE_12: Final = f"""\
{_MEMBERS} UNION ALL SELECT relid, isleaf FROM pg_partition_tree(p.oid) WHERE p.relkind <> 'r'"""

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
), types AS (
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
    FROM listed WHERE oid NOT IN (SELECT member FROM listed p, LATERAL ({members}) m
        WHERE p.via_root AND member <> p.oid)
    GROUP BY oid, relkind, nspname, relname
), described AS (
    SELECT p.*, md5(concat(publications, (SELECT string_agg(format('%s %s %s', c.oid, c.xmin, c.ctid), ','
            ORDER BY c.oid) FROM ({members}) m JOIN pg_class c ON c.oid = member),
        a.versions, CASE WHEN a.type >= 16384 THEN (SELECT digest FROM types) END)) AS state
    FROM published p, LATERAL (SELECT max(atttypid::int8) AS type, string_agg(format('%s %s', a.xmin, a.ctid),
            ',' ORDER BY attrelid, attnum) AS versions
        FROM ({members}) m JOIN pg_attribute a ON attrelid = member AND attnum > 0) a
)"""
"""The published tables. A table below a root that a publication publishes in its place is left out."""

_STATES: Final = "SELECT oid, nspname, relname, state FROM described"

_DESCRIBED: Final = """\
SELECT p.oid, p.nspname, p.relname, state, CASE
        WHEN NOT is_whole THEN 'a publication leaves out operations'
        WHEN has_lists THEN 'its publications have different column lists'
        WHEN NOT has_schema_privilege(c.relnamespace, 'USAGE') THEN 'the role may not use its schema'
        WHEN NOT m.is_readable THEN 'the role may not read the table or its partitions'
        WHEN m.has_policy THEN 'row-level security hides rows from the role' ELSE '' END,
    CASE WHEN {is_described} THEN jsonb_build_object(
    'place', format('%s%I.%I', CASE p.relkind WHEN 'r' THEN 'ONLY ' END, p.nspname, p.relname),
    'columns', (SELECT coalesce(jsonb_agg(jsonb_build_array(attname, base::int8, atttypmod,
            coalesce(attnum = ANY (k.key), false), format_type(base, -1), quote_ident(attname))
            ORDER BY attnum), '[]') FROM pg_attribute a,
            LATERAL (WITH RECURSIVE bases AS (SELECT a.atttypid AS oid UNION ALL
                SELECT typbasetype FROM bases JOIN pg_type t ON t.oid = bases.oid WHERE typtype = 'd')
                SELECT t.oid AS base FROM bases JOIN pg_type t ON t.oid = bases.oid WHERE typtype <> 'd') b
        WHERE attrelid = p.oid AND attnum > 0 AND NOT attisdropped AND coalesce(names ? attname::text, true)
            AND ({generated} OR coalesce(to_jsonb(a) ->> 'attgenerated', '') = '')),
    'leaves', m.leaves, 'has_identity', c.relreplident IN ('d', 'i'), 'condition', coalesce(filter, 'true'))
    ELSE '{{}}' END
FROM described p JOIN pg_class c ON c.oid = p.oid
LEFT JOIN LATERAL (SELECT (indkey::int2[])[0:coalesce((to_jsonb(i) ->> 'indnkeyatts')::int, indnatts) - 1]
    AS key FROM pg_index i WHERE indrelid = p.oid AND indisvalid AND indimmediate AND
        CASE c.relreplident WHEN 'i' THEN indisreplident ELSE indisprimary END LIMIT 1) k ON true,
LATERAL (SELECT coalesce(jsonb_agg(jsonb_build_array(format('ONLY %I.%I', n.nspname, l.relname),
        pg_relation_size(member) / current_setting('block_size')::int, l.reltuples, pg_table_size(member)))
        FILTER (WHERE isleaf), '[]') AS leaves,
    bool_or(row_security_active(member)) AS has_policy,
    bool_and(has_table_privilege(member, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE'))
        AS is_readable
    FROM ({members}) m JOIN pg_class l ON l.oid = member JOIN pg_namespace n ON n.oid = l.relnamespace) m
WHERE p.oid = ANY ('{{{oids}}}')"""

_NO_SPACES: Final = "\u00e0\u0085\u00a0"
"""Characters whose bytes are white space in some locales; record_out asks isspace() for each byte."""


class Publications:
    """The publications of a recording on a server, and the connection to it.

    Attributes:
        seconds: How long all queries took.

    Args:
        server: Connection to the server.
        names: Names of the publications.
        binary: Whether the recording has values in binary format.
    """

    def __init__(self, server: Server, names: Sequence[str], *, binary: bool = False) -> None:
        self._server, self._binary = server, binary
        self._names = f"ARRAY[{', '.join(map(quoted, names))}]"
        self.seconds: float = 0.0
        ((encoding, text),) = self.query(f"SELECT getdatabaseencoding(), ROW('{_NO_SPACES}')::text")
        self.refusal: str = ""
        """Why no table of the database is compared; empty if tables are."""
        if encoding == "SQL_ASCII":
            self.refusal = "the database has the encoding SQL_ASCII, so texts need not be UTF-8"
        elif encoding == "UTF8" and text != f"({_NO_SPACES})":
            self.refusal = "the locale of the database changes the server's text of rows"

    def query(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, with values as text."""
        began = time.monotonic()
        try:
            return self._server.query(query)
        finally:
            self.seconds += time.monotonic() - began

    def states(self) -> dict[int, tuple[str, str]]:
        """Return name and `PublishedTable.state` of each published table, by OID."""
        return {
            int(oid): (stored_name(f"{namespace}.{name}"), state)
            for oid, namespace, name, state in self._query(_STATES)
        }

    def tables(self, oids: Iterable[int]) -> list[PublishedTable]:
        """Return the published ones of these tables."""
        return [self._table(*row) for row in self._query(_DESCRIBED, ",".join(map(str, oids)))]

    def _query(self, query: str, oids: str = "") -> list[tuple[Any, ...]]:
        version = self._server.server_version
        # Before PostgreSQL 18, `attnames` has generated columns, which are not sent.
        parts = {
            "members": _MEMBERS_SINCE_12 if version >= 120_000 else _MEMBERS,
            "publications": self._names,
            "oids": oids,
            "generated": str(version >= 180_000 and "names IS NOT NULL"),
            "is_described": str(not self.refusal),
        }
        return self.query(f"{_PUBLISHED}\n{query}".format_map(parts))

    def _table(
        self, oid: str, namespace: str, name: str, state: str, refusal: str, described: str
    ) -> PublishedTable:
        known = {"oid": int(oid), "namespace": stored_name(namespace), "name": stored_name(name)}
        table = msgspec.convert(
            msgspec.json.decode(described) | known | {"state": state, "refusal": self.refusal or refusal},
            PublishedTable,
        )
        version = self._server.server_version
        try:
            check_columns(table.stored_columns, binary=self._binary, server_version=version)
        except ReplicaError as error:
            table.refusal = table.refusal or str(error)
        return table
