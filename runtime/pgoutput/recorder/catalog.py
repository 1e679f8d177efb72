"""The catalogs of a server: which tables, columns and rows its publications send at one time.

The stream itself does not describe publications. The recorder reads the catalogs repeatedly, and finds
differences with `compare_catalogs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, LiteralString, TypeAlias

import msgspec
from psycopg import sql

from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.recorder.connection import Connection
from pgoutput.recorder.ddl_events import DDL_EVENTS_SINCE, TRIGGER
from pgoutput.recorder.published_tables import published_relations
from pgoutput.recorder.server_errors import LockNotAvailable
from pgoutput.wire import parse_lsn, shown_text

Membership: TypeAlias = tuple[int | str, str | None, str | None]
"""How a publication names a table: identity, column list (None for all) and row filter (None for none).

The identity contains the OIDs of the catalog rows that name the table. The identity changes when the table is
removed from the publication and added again.
"""


class Publication(msgspec.Struct, frozen=True):
    """A publication, as its row in pg_publication describes it."""

    name: str
    """Name of the publication."""
    oid: int
    """OID of the publication; a publication that is dropped and created again has another OID."""
    row_version: str
    """xmin of the publication's row in pg_publication; changes whenever the row is updated."""
    settings: dict[str, Any]
    """Values of all pg_publication columns except oid and pubname, by column name (`owner` for pubowner)."""

    @property
    def has_all_tables(self) -> bool:
        """Whether the publication is FOR ALL TABLES."""
        return bool(self.settings["puballtables"])


class Column(msgspec.Struct, frozen=True, array_like=True):
    """A column of a published table, as its row in pg_attribute describes it."""

    number: int
    """Number of the column (attnum); changes if the column is dropped and added again."""
    row_version: str
    """xmin of the column's row in pg_attribute; changes whenever the row is updated."""
    type_oid: int
    """OID of the column's type."""
    type_modifier: int
    """Type modifier of the column (atttypmod), or -1 for none."""
    base_type_oid: int
    """OID of a domain's base type or an array's element type; for other types, the same as `type_oid`."""
    origin: Literal["", "missing", "default", "generated"] = ""
    """What may have given values to the rows that existed when the column was added.

    `missing`: the constant that the server returns for these rows (attmissingval). `default`: a default
    or identity, which rewrites the table if it is volatile. `generated`: an expression. Empty: nothing.
    """


class CatalogTable(msgspec.Struct, frozen=True):
    """A published table, as the catalogs describe it."""

    oid: int
    """OID of the table."""
    namespace: str
    """Schema of the table."""
    name: str
    """Name of the table, without its schema."""
    columns: dict[str, Column]
    """Columns of the table, by column name."""
    memberships: dict[str, Membership]
    """How each publication names the table, by name of the publication.

    Contains only publications that name the table, its schema, or a partitioned table above the table:
    none that is FOR ALL TABLES.
    """
    publications: tuple[str, ...]
    """Names of all publications that publish the table."""
    file: int
    """Number of the table's file (relfilenode); changes if the table is rewritten or truncated."""

    @property
    def full_name(self) -> str:
        """Name of the table with its schema."""
        return f"{self.namespace}.{self.name}"


class Catalog(msgspec.Struct, frozen=True):
    """The server's catalogs at one time: the recorded publications, and the tables that they send."""

    lsn: int
    """End of the server's WAL just before the catalogs were read."""
    greatest_oid: int
    """Greatest OID of all relations. Relations created later have greater OIDs, until OIDs wrap around."""
    publications: tuple[Publication, ...]
    """The recorded publications."""
    tables: dict[int, CatalogTable]
    """Published tables, by OID."""
    enums: dict[int, dict[int, str]]
    """Labels of the database's enum types, by OID of the type, then by OID of the label's row in pg_enum."""
    ddl_events: str = ""
    """OID and xmin of the event trigger that describes each ALTER TABLE in the stream.

    Empty if there is no such trigger, or if it is not always enabled. Also empty in a catalog that was read
    while the recorder did not receive logical messages.
    """


_LSN: Final = """\
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"""

_PUBLICATIONS: Final = """\
SELECT pubname, oid, xmin::text, to_jsonb(p) - 'oid' - 'pubname' - 'pubowner', pubowner
FROM pg_publication p WHERE pubname = ANY (ARRAY[{names}]::name[])"""

_TABLES: Final = """\
SELECT c.oid, n.nspname, c.relname, c.relfilenode,
    (SELECT json_object_agg(attname, json_build_array(attnum, a.xmin::text, atttypid::int8, atttypmod,
            coalesce(nullif(typbasetype, 0), nullif(typelem, 0), t.oid)::int8, {origin}))
        FROM pg_attribute a JOIN pg_type t ON t.oid = atttypid
        WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT relid FROM ({published}) p)"""

_ORIGINS: Final[dict[int, LiteralString]] = {
    12: "WHEN attgenerated <> '' THEN 'generated'",
    11: "WHEN atthasmissing THEN 'missing'",
    10: "WHEN atthasdef OR attidentity <> '' OR typdefault IS NOT NULL THEN 'default'",
}
"""Branches of an SQL CASE for `Column.origin`, by lowest major server version for the branch."""

_MEMBERSHIPS: Final[dict[int, LiteralString]] = {
    10: "SELECT oid, NULL AS schema, prrelid AS named, prpubid, NULL AS columns, NULL AS condition"
    " FROM pg_publication_rel WHERE prpubid IN ({publications})",
    15: "SELECT oid, NULL AS schema, prrelid AS named, prpubid, prattrs::text AS columns,"
    " pg_get_expr(prqual, prrelid) AS condition FROM pg_publication_rel WHERE prpubid IN ({publications})"
    " UNION ALL SELECT pn.oid, 'schema', c.oid, pnpubid, NULL, NULL FROM pg_publication_namespace pn"
    " JOIN pg_class c ON relnamespace = pnnspid WHERE pnpubid IN ({publications}) AND relkind IN ('r', 'p')",
}
"""Queries for the tables that publications name, by lowest major server version for the query."""

_PARTITIONS: Final = """\
WITH RECURSIVE found AS (
    SELECT coalesce(schema || ' ', '') || oid AS identity, named, prpubid, columns, condition
    FROM ({memberships}) m
    UNION ALL
    SELECT identity || ' ' || i.xmin, inhrelid, prpubid, columns, condition
    FROM found JOIN pg_inherits i ON inhparent = named JOIN pg_class c ON c.oid = inhparent
    WHERE relkind = 'p'
)
SELECT identity, named, prpubid, columns, condition FROM found ORDER BY identity"""
"""Query that returns the rows of a query of `_MEMBERSHIPS`, and a row for each partition of their tables.

The identity in a partition's row contains an xmin of pg_inherits, which changes if the partition is detached
and attached again.
"""

_LOCK_TIMEOUT: Final = 5
"""Seconds to wait for a lock on a published table.

Since PostgreSQL 16, pg_get_publication_tables opens, and therefore locks, each table.
"""

_ATTEMPTS: Final = 5
"""Number of readings of the catalogs at most, until one has a `Membership` for each published table."""

_WRITERS: Final = """\
SELECT 1 FROM pg_locks WHERE relation = {oid} AND mode = 'RowExclusiveLock'
UNION ALL SELECT 1 WHERE pg_is_in_recovery()"""
"""Query that returns a row if a transaction may be writing to a table.

On a standby, the query always returns a row: a standby does not know the locks of its primary.
"""

_DDL_EVENTS: Final = f"""\
SELECT oid || ' ' || xmin FROM pg_event_trigger WHERE evtname = '{TRIGGER}' AND evtenabled = 'A'"""

_QUOTED_NAME: Final = """\
SELECT format('%I.%I', nspname, relname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE c.oid = {oid}"""


def read_catalog(connection: Connection, publications: Sequence[str]) -> Catalog:
    """Read the catalogs: publications, and the tables that they publish now.

    Args:
        connection: Connection to the server.
        publications: Names of the publications.

    Raises:
        ConnectionLost: A transaction has locked a published table exclusively, or the connection was lost.
        ReplicationError: The server refuses the queries.
    """
    for _ in range(_ATTEMPTS):
        catalog = _read_once(connection, publications)
        if _has_memberships(catalog):
            break
    return catalog


def _read_once(connection: Connection, publications: Sequence[str]) -> Catalog:
    lsn = parse_lsn(str(connection.query(_LSN)[0][0]))
    connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.query(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}s'")
        return query_catalog(connection, publications, lsn)
    except LockNotAvailable:
        raise ConnectionLost(
            "the catalogs cannot be read: a transaction holds a published table exclusively (VACUUM FULL, or "
            "an ALTER TABLE that has not ended or is prepared)"
        ) from None
    finally:
        connection.query("COMMIT")


def _has_memberships(catalog: Catalog) -> bool:
    """Return whether each publication that publishes a table also names that table.

    pg_get_publication_tables sees tables that were added after the transaction's snapshot was taken; the
    queries of catalog tables do not.
    """
    naming = {one.name for one in catalog.publications if not one.has_all_tables}
    return all(
        table.publications and naming.intersection(table.publications) <= table.memberships.keys()
        for table in catalog.tables.values()
    )


def query_catalog(connection: Connection, names: Sequence[str], lsn: int) -> Catalog:
    """Read the catalogs in the transaction that the connection is in.

    Args:
        connection: Connection in a transaction with isolation level REPEATABLE READ.
        names: Names of the publications.
        lsn: End of the server's WAL before the transaction.
    """
    publications = _read_publications(connection, names)
    publishing: dict[int, list[str]] = {}
    for one in publications:
        query = sql.SQL("SELECT relid FROM ({}) p").format(published_relations(connection, [one.name]))
        for (oid,) in connection.query(query):
            publishing.setdefault(int(str(oid)), []).append(one.name)
    memberships = _read_memberships(connection, {one.oid: one.name for one in publications})
    origins = [branch for since, branch in _ORIGINS.items() if since <= connection.server_version // 10_000]
    tables_query = sql.SQL(_TABLES).format(
        published=published_relations(connection, names),
        origin=sql.SQL("CASE {} ELSE '' END").format(sql.SQL(" ").join(map(sql.SQL, origins))),
    )
    tables = {
        int(str(oid)): CatalogTable(
            int(str(oid)),
            shown_text(str(namespace)),
            shown_text(str(name)),
            _parse_columns(columns),
            memberships.get(int(str(oid)), {}),
            tuple(publishing.get(int(str(oid)), ())),
            int(str(file)),
        )
        for oid, namespace, name, file, columns in connection.query(tables_query)
    }
    (greatest_oid,) = connection.query("SELECT max(oid::int8) FROM pg_class")[0]
    enums: dict[int, dict[int, str]] = {}
    for type_oid, row, label in connection.query("SELECT enumtypid, oid, enumlabel FROM pg_enum"):
        enums.setdefault(int(str(type_oid)), {})[int(str(row))] = shown_text(str(label))
    ddl_events = (
        connection.query(_DDL_EVENTS) if connection.server_version // 10_000 >= DDL_EVENTS_SINCE else []
    )
    return Catalog(
        lsn, int(str(greatest_oid)), publications, tables, enums, "".join(str(one) for (one,) in ddl_events)
    )


def _read_publications(connection: Connection, names: Sequence[str]) -> tuple[Publication, ...]:
    listed = sql.SQL(", ").join(map(sql.Literal, names))
    return tuple(
        Publication(
            str(name), int(str(oid)), str(version), {"owner": owner, **msgspec.json.decode(str(settings))}
        )
        for name, oid, version, settings, owner in connection.query(
            sql.SQL(_PUBLICATIONS).format(names=listed)
        )
    )


def _read_memberships(
    connection: Connection, publications: dict[int, str]
) -> dict[int, dict[str, Membership]]:
    """Return the `Membership` of each table in publications, by OID of the table, then by publication name.

    Args:
        connection: Connection to the server.
        publications: Names of the publications, by OID.
    """
    memberships: dict[int, dict[str, Membership]] = {}
    query = _MEMBERSHIPS[15 if connection.server_version >= 150_000 else 10]
    query = _PARTITIONS.format(
        memberships=query.format(publications=", ".join(map(str, publications)) or "NULL")
    )
    for identity, relation, publication, columns, condition in connection.query(query):
        of_table = memberships.setdefault(int(str(relation)), {})
        name, rows = publications[int(str(publication))], str(identity)
        if name in of_table:  # the publication names both the table and its schema
            known = of_table[name]
            rows = f"{known[0]}, {rows}"
            columns, condition = known[1] or columns, known[2] or condition
        of_table[name] = int(rows) if rows.isdecimal() else rows, columns, condition
    return memberships


def _parse_columns(text: str | None) -> dict[str, Column]:
    """Return the columns of a table by name, parsed from JSON; replace bytes that are not valid UTF-8."""
    valid = (text or "{}").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return msgspec.json.decode(valid, type=dict[str, Column])


def is_empty(connection: Connection, oid: int) -> bool:
    """Return whether a table has no rows yet, so that the stream will contain all its rows.

    The result is False if another transaction writes to the table, if the role may not read the table, or if
    the table was dropped.

    Args:
        connection: Connection to the server.
        oid: OID of the table.

    Raises:
        ConnectionLost: The connection was lost.
    """
    try:
        if connection.query(_WRITERS.format(oid=oid)):
            return False
        # Check for rows after the locks: this query sees rows of writers that have ended since.
        ((name,),) = connection.query(_QUOTED_NAME.format(oid=oid)) or ((None,),)
        return name is not None and not connection.query(f"SELECT 1 FROM {name} LIMIT 1")
    except ConnectionLost:
        raise
    except ReplicationError:
        return False
