"""The queries that describe the catalogs of a server, and the rows of its tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final, LiteralString

import msgspec
from psycopg import sql

from logicalrep.errors import ConnectionLost, ReplicationError
from logicalrep.recorder.catalogs.catalog import (
    Catalog,
    CatalogTable,
    Column,
    Membership,
    Publication,
    Storage,
)
from logicalrep.recorder.catalogs.ddl_events import DDL_EVENTS_SINCE, TRIGGERS
from logicalrep.recorder.catalogs.publications import FIRST_CUSTOM_OID, published_relations
from logicalrep.recorder.client import Connection, LockNotAvailable
from logicalrep.wire import parse_lsn, stored_name

_LIMITS: Final = """\
SELECT max(oid::int8), txid_snapshot_xmin(txid_current_snapshot()),
    txid_snapshot_xmax(txid_current_snapshot())
FROM pg_class"""

_LSN: Final = """\
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"""

_INSERT_LSN: Final = _LSN.replace("pg_current_wal_lsn", "pg_current_wal_insert_lsn")

_PAGE: Final = 8192
"""Size of a page of WAL (XLOG_BLCKSZ), in bytes."""
_PAGE_HEADERS: Final = 24, 40
"""Sizes of the headers of WAL pages, in bytes."""

_PUBLICATIONS: Final = """\
SELECT pubname, oid, xmin::text, to_jsonb(p) - 'oid' - 'pubname' - 'pubowner', pubowner
FROM pg_publication p WHERE pubname = ANY (ARRAY[{names}]::name[])"""

_COLUMN_ROWS: Final = """\
SELECT 1 FROM pg_attribute s JOIN pg_attribute a ON a.attrelid = s.attrelid
WHERE s.attrelid = {relation} AND s.attnum = -1 AND a.attnum > 0 AND {negation} (
    a.xmin = s.xmin AND a.xmax::text = '0' AND (a.cmin::text = s.cmin::text OR EXISTS (
        SELECT 1 FROM pg_attrdef d JOIN pg_attrdef e ON e.adrelid = d.adrelid AND e.xmin = d.xmin
        WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND d.xmin = a.xmin
            AND d.cmin::text = a.cmin::text AND e.cmin::text::int8 = s.cmin::text::int8 + 1
            AND d.cmin::text::int8 - e.cmin::text::int8 IN (0, 1)
    ))
)"""
"""Query for rows of columns that are unchanged since CREATE TABLE, or with NOT as `negation` that may not be.

CREATE TABLE writes the rows of system columns, which no statement updates, and of columns in one command. Its
next command updates rows to store inherited defaults, the one after that to store other defaults; without
inherited defaults, the next command stores the others. Later statements have later commands: SET DEFAULT may
come right after CREATE TABLE, but not after an alteration. A row whose update was tried and rolled back has a
transaction ID in xmax, and no usable cmin.
"""

_TABLES: Final = """\
SELECT c.oid, n.nspname, c.relname, c.xmin, c.relnatts,
    (SELECT json_object_agg(attname, json_build_array(attnum, a.xmin::text, atttypid::int8, atttypmod,
            {origin}, CASE WHEN typoutput::oid < {first} THEN typoutput::oid::int8
                ELSE (SELECT CASE prosrc WHEN 'textout' THEN 47 ELSE p.oid::int8 END
                    FROM pg_proc p WHERE p.oid = typoutput) END))
        FROM pg_attribute a JOIN pg_type t ON t.oid = atttypid
        WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
    (WITH RECURSIVE above AS (
        SELECT inhparent AS part FROM pg_inherits WHERE inhrelid = c.oid AND c.relispartition
        UNION ALL SELECT inhparent FROM above JOIN pg_inherits ON inhrelid = part
    ) SELECT string_agg(concat(part, ':', (
        SELECT xmin FROM pg_attribute WHERE attrelid = part AND attnum > 0 ORDER BY age(xmin) DESC LIMIT 1
    )), ' ') FROM above)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT relid FROM ({published}) p)"""

_STORAGES: Final = """\
WITH RECURSIVE found AS (
    SELECT relid AS root, relid AS part, '' AS links FROM (SELECT DISTINCT relid FROM ({published}) p) p
    UNION ALL
    SELECT root, inhrelid, concat(links, ' ', inhrelid, ':', i.xmin, CASE WHEN i.xmin = (
        SELECT xmin FROM pg_attribute WHERE attrelid = inhrelid AND attnum = -1
    ) AND EXISTS ({unaltered}) THEN '+' END)
    FROM found JOIN pg_class c ON c.oid = part JOIN pg_inherits i ON inhparent = part WHERE relkind = 'p'
)
SELECT root, part, nspname || '.' || c.relname,
    CASE c.relkind WHEN 'r' THEN c.relpersistence ELSE c.relkind END, c.relfilenode, c.reltoastrelid,
    c.xmin, EXISTS (
        SELECT 1 FROM pg_class i WHERE i.relfilenode = c.relfilenode::int8 + 1
            AND i.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = part UNION SELECT c.reltoastrelid)
    ), links, c.relreplident IN ('f', r.relreplident), EXISTS (
        SELECT 1 FROM pg_depend d JOIN pg_index ON indrelid = part JOIN pg_class i ON i.oid = indexrelid
        WHERE d.classid = 'pg_class'::regclass AND d.objid = c.reltoastrelid AND d.refobjid = part
            AND i.xmin = d.xmin AND i.xmax::text = '0' AND i.cmin::text::int8 < d.cmin::text::int8
    ), (
        SELECT string_agg(s.relfilenode::text, ' ' ORDER BY s.oid)
        FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
        WHERE d.refclassid = d.classid AND d.refobjid = part AND d.classid = 'pg_class'::regclass
    )
FROM found JOIN pg_class r ON r.oid = root JOIN pg_class c ON c.oid = part
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind <> 'p'"""
"""Query for `CatalogTable.storages`.

`Storage.is_truncated`: TRUNCATE takes successive relfilenodes for the table, its TOAST table and its indexes.
A rewrite also takes OIDs for the type of a transient table, so that relfilenodes are skipped.

`Storage.is_repacked`: REPACK (CONCURRENTLY) exchanges the files of indexes before those of the table. Other
statements build the indexes afterwards.

`+` in `Storage.links`: CREATE TABLE writes the row of pg_inherits too. ATTACH PARTITION writes the rows of
all columns anew.
"""

_TYPES: Final = """\
WITH RECURSIVE reached AS (
    SELECT DISTINCT atttypid AS root, atttypid AS type FROM pg_attribute
    WHERE attrelid IN (SELECT relid FROM ({published}) p) AND attnum > 0 AND atttypid >= {first}
    UNION
    SELECT root, part FROM reached JOIN pg_type t ON t.oid = type CROSS JOIN LATERAL (
        SELECT typelem UNION ALL SELECT typbasetype
        UNION ALL SELECT atttypid FROM pg_attribute WHERE attrelid = typrelid AND attnum > 0
        UNION ALL SELECT rngsubtype FROM pg_range WHERE rngtypid = type {ranges}
    ) parts (part)
    WHERE part >= {first}
)
SELECT root, concat('enum ', e.oid), concat(enumlabel, ' ', e.xmin)
FROM reached JOIN pg_enum e ON enumtypid = type
UNION ALL
SELECT root, concat('attribute ', attrelid, '.', attnum), atttypid::text
FROM reached JOIN pg_type t ON t.oid = type
    JOIN pg_attribute ON attrelid = typrelid AND attnum > 0 AND NOT attisdropped
UNION ALL
SELECT root, '', (array_agg(r.xmin::text ORDER BY age(r.xmin)))[1]
FROM reached JOIN pg_type t ON t.oid = type CROSS JOIN LATERAL (
    SELECT xmin, cmin, xmax FROM pg_enum WHERE enumtypid = type
    UNION ALL SELECT xmin, cmin, xmax FROM pg_attribute WHERE attrelid = typrelid AND attnum > 0
) r WHERE NOT (r.xmin = t.xmin AND r.cmin::text = t.cmin::text AND r.xmax::text = '0') GROUP BY root"""
"""Query for `Catalog.types`, and with an empty place for `Catalog.type_changes`.

CREATE TYPE writes the rows of a type, its labels and its attributes in one command.
"""

_RANGES: Final = {14: "UNION ALL SELECT rngtypid FROM pg_range WHERE rngmultitypid = type", 10: ""}
"""Part of `_TYPES` that reads the range type of a multirange type, by first major server version with it."""

_ORIGINS: Final[dict[int, LiteralString]] = {
    12: "WHEN attgenerated <> '' THEN 'generated'",
    11: "WHEN atthasmissing THEN 'missing'",
    10: "WHEN atthasdef OR attidentity <> '' OR typdefault IS NOT NULL THEN 'default'",
}
"""Branches of an SQL CASE for `Column.origin`, by lowest major server version for the branch."""

_MEMBERSHIPS: Final[dict[int, LiteralString]] = {
    10: "SELECT oid::text, NULL AS schema, prrelid AS named, prpubid, NULL AS columns, NULL AS condition"
    " FROM pg_publication_rel WHERE prpubid IN ({publications})",
    15: "SELECT oid::text, NULL AS schema, prrelid AS named, prpubid, prattrs::text AS columns,"
    " pg_get_expr(prqual, prrelid) AS condition FROM pg_publication_rel WHERE prpubid IN ({publications})"
    " UNION ALL SELECT concat(pn.oid, ' ', d.xmin), 'schema', c.oid, pnpubid, NULL, NULL"
    " FROM pg_publication_namespace pn JOIN pg_class c ON relnamespace = pnnspid"
    " LEFT JOIN pg_depend d ON classid = 'pg_class'::regclass AND objid = c.oid AND objsubid = 0"
    " AND refclassid = 'pg_namespace'::regclass"
    " WHERE pnpubid IN ({publications}) AND relkind IN ('r', 'p')",
}
_MEMBERSHIPS[19] = _MEMBERSHIPS[15].replace(
    "pg_publication_rel WHERE",
    "pg_publication_rel r WHERE (to_jsonb(r) ->> 'prexcept') IS DISTINCT FROM 'true' AND",
)
"""Queries for the tables that publications name, by lowest major server version for the query.

For a table of a published schema, the identity has the xmin of the row in pg_depend that names the schema: no
statement other than SET SCHEMA updates this row.
"""

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
"""Query that adds, to the result of a query in `_MEMBERSHIPS`, a row for each partition below its tables.

The identity in a partition's row contains an xmin of pg_inherits, which changes if the partition is detached
and attached again.
"""

_LOCK_TIMEOUT: Final = 5
"""Seconds to wait for a lock on a published table.

Since PostgreSQL 16, pg_get_publication_tables opens, and therefore locks, each table.
"""

_ATTEMPTS: Final = 5
"""Largest number of readings of the catalogs until one is consistent (`_has_memberships`)."""

_SAMPLE: Final = 1000
"""Number of rows of a table in which `has_row_from_before` looks for an old row."""

_WRITERS: Final = """\
SELECT 1 FROM pg_locks WHERE relation = {oid} AND mode = 'RowExclusiveLock'
UNION ALL SELECT 1 WHERE pg_is_in_recovery()"""
"""Query that returns a row if a transaction may be writing to a table.

On a standby, the query always returns a row: a standby does not know the locks of its primary.
"""

DDL_EVENTS: Final = f"""\
SELECT string_agg(oid || ' ' || xmin, ' ' ORDER BY oid) FROM pg_event_trigger
WHERE evtname IN {TRIGGERS} AND evtenabled = 'A' HAVING count(*) = {len(TRIGGERS)}"""
"""Query that returns a row if the event triggers are installed: their OIDs and xmins, which show changes."""

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
    lsn = wal_end(connection)
    connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.query(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}s'")
        return query_catalog(connection, publications, lsn)
    except LockNotAvailable:
        raise ConnectionLost(
            "the catalogs cannot be read: a transaction has locked a published table exclusively (VACUUM "
            "FULL, or an ALTER TABLE that has not ended or is prepared): end this transaction"
        ) from None
    finally:
        connection.query("COMMIT")


def wal_end(connection: Connection) -> int:
    """Return the LSN of the end of the server's WAL; on a standby, the end of the replayed WAL."""
    return parse_lsn(connection.query(_LSN)[0][0])


def wal_insert_end(connection: Connection) -> int:
    """Return an LSN at or after the end of each transaction whose effects the connection has seen.

    With synchronous_commit = off, a transaction is visible before its WAL is written: `wal_end` can be before
    its end. If the last record fills a page, the server returns the position behind the header of the next
    page; this function returns the start of that page.
    """
    lsn = parse_lsn(connection.query(_INSERT_LSN)[0][0])
    return lsn - lsn % _PAGE if lsn % _PAGE in _PAGE_HEADERS else lsn


def _has_memberships(catalog: Catalog) -> bool:
    """Return whether a catalog is consistent: it has a `Membership` wherever a publication names a table.

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
            publishing.setdefault(int(oid), []).append(one.name)
    memberships = _read_memberships(connection, {one.oid: one.name for one in publications})
    # pg_get_publication_tables returns the current tables, not those of the transaction. A second call could
    # return other tables than the first. Therefore the next queries get the OIDs that were found above.
    published = sql.SQL("SELECT unnest(ARRAY[{}]::oid[]) AS relid").format(
        sql.SQL(", ").join(map(sql.Literal, publishing))
    )
    origins = [branch for since, branch in _ORIGINS.items() if since <= connection.server_version // 10_000]
    tables_query = sql.SQL(_TABLES).format(
        published=published,
        first=sql.Literal(FIRST_CUSTOM_OID),
        origin=sql.SQL("CASE {} ELSE '' END").format(sql.SQL(" ").join(map(sql.SQL, origins))),
    )
    storages = _read_storages(connection, published)
    tables = {
        int(oid): CatalogTable(
            int(oid),
            stored_name(namespace),
            stored_name(name),
            version,
            int(greatest_number),
            _parse_columns(columns),
            memberships.get(int(oid), {}),
            tuple(publishing.get(int(oid), ())),
            storages.get(int(oid), {}),
            above=above or "",
        )
        for oid, namespace, name, version, greatest_number, columns, above in connection.query(tables_query)
    }
    types = _read_types(connection, published)
    # Changes of a partition are sent as those of the topmost table that any of the publications publishes.
    tables = {
        oid: one
        for oid, one in tables.items()
        if not any(int(part.partition(":")[0]) in tables for part in one.above.split())
    }
    greatest_oid, xid, next_xid = connection.query(_LIMITS)[0]
    ddl_events = (
        connection.query(DDL_EVENTS) if connection.server_version // 10_000 >= DDL_EVENTS_SINCE else []
    )
    return Catalog(
        lsn,
        int(greatest_oid),
        publications,
        tables,
        types,
        int(xid),
        "".join(one for (one,) in ddl_events),
        int(next_xid),
        {oid: int(xid) for oid, one in types.items() if (xid := one.pop("", None))},
    )


def _read_publications(connection: Connection, names: Sequence[str]) -> tuple[Publication, ...]:
    listed = sql.SQL(", ").join(map(sql.Literal, names))
    return tuple(
        Publication(name, int(oid), version, {"owner": owner, **msgspec.json.decode(settings)})
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
    query = _MEMBERSHIPS[max(one for one in _MEMBERSHIPS if one <= connection.server_version // 10_000)]
    query = _PARTITIONS.format(
        memberships=query.format(publications=", ".join(map(str, publications)) or "NULL")
    )
    for identity, relation, publication, columns, condition in connection.query(query):
        of_table = memberships.setdefault(int(relation), {})
        name, rows = publications[int(publication)], identity
        if name in of_table:  # the publication names both the table and its schema
            known = of_table[name]
            rows = f"{known[0]}, {rows}"
            columns, condition = known[1] or columns, known[2] or condition
        of_table[name] = rows, columns, condition
    return memberships


def _read_storages(connection: Connection, published: sql.Composed) -> dict[int, dict[int, Storage]]:
    """Return the tables that store rows of published tables, by OID of the published table, then by OID."""
    storages: dict[int, dict[int, Storage]] = {}
    unaltered = sql.SQL(_COLUMN_ROWS.format(relation="inhrelid", negation=""))
    query = sql.SQL(_STORAGES).format(published=published, unaltered=unaltered)
    for row in connection.query(query):
        (
            root,
            part,
            name,
            kind,
            file,
            toast,
            version,
            is_truncated,
            links,
            identifies,
            is_repacked,
            sequences,
        ) = row
        storages.setdefault(int(root), {})[int(part)] = Storage(
            stored_name(name),
            kind,
            int(file),
            int(toast),
            version,
            is_truncated == "t",
            tuple(links.split()),
            identifies == "t",
            is_repacked == "t",
            sequences or "",
        )
    return storages


def _read_types(connection: Connection, published: sql.Composed) -> dict[int, dict[str, str]]:
    """Return what `Catalog.types` contains, and for the key "" what `Catalog.type_changes` contains.

    Args:
        connection: Connection to the server.
        published: Query for the OIDs (relid) of the published tables.
    """
    types: dict[int, dict[str, str]] = {}
    version = connection.server_version // 10_000
    query = sql.SQL(_TYPES).format(
        published=published,
        first=sql.Literal(FIRST_CUSTOM_OID),
        ranges=sql.SQL(next(part for since, part in _RANGES.items() if since <= version)),
    )
    for type_oid, place, value in connection.query(query):
        types.setdefault(int(type_oid), {})[place] = stored_name(value)
    return types


def _parse_columns(text: str | None) -> dict[str, Column]:
    """Parse the columns of a table from JSON, by name."""
    columns = json.loads(text or "{}")  # msgspec refuses bytes that are not UTF-8
    return msgspec.convert({stored_name(name): one for name, one in columns.items()}, dict[str, Column])


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
    if _has_row(connection, _WRITERS.format(oid=oid)) is not False:
        return False
    # Look for rows only after pg_locks shows no writer: the query then sees the rows of writers that have
    # just ended.
    place = _quoted_name(connection, oid)
    return place is not None and _has_row(connection, f"SELECT 1 FROM {place} LIMIT 1") is False


def is_unaltered(connection: Connection, oid: int) -> bool:
    """Return whether the catalogs prove that no column of a table was altered since CREATE TABLE."""
    return _has_row(connection, _COLUMN_ROWS.format(relation=oid, negation="NOT")) is False


def has_row_from_before(connection: Connection, oid: int, xid: int) -> bool:
    """Return whether one of the first rows of a table was written by a transaction before `xid`.

    Given the `Catalog.xid` of an earlier reading, such a row proves that since then neither ALTER TABLE has
    rewritten the table nor TRUNCATE has emptied it. (VACUUM FULL and CLUSTER keep the xmin of rows.)

    Args:
        connection: Connection to the server.
        oid: OID of a table that stores rows.
        xid: The transaction ID, with its epoch.

    Raises:
        ConnectionLost: The connection was lost.
    """
    return _has_first_row(connection, oid, f"age(xmin) > age('{xid % 2**32}'::xid)") is True


def has_row_of(connection: Connection, oid: int, xid: str) -> bool:
    """Return whether one of the first rows of a table was written by the transaction `xid`, or is unknown."""
    return _has_first_row(connection, oid, f"xmin = '{xid}'::xid") is not False


def _has_first_row(connection: Connection, oid: int, condition: str) -> bool | None:
    """Return whether one of the first rows of a table meets a condition; None if they cannot be read."""
    if (place := _quoted_name(connection, oid)) is None:
        return None
    rows = f"SELECT xmin FROM ONLY {place} LIMIT {_SAMPLE}"
    return _has_row(connection, f"SELECT 1 FROM ({rows}) r WHERE {condition} LIMIT 1")


def existing_relations(connection: Connection, oids: Collection[int]) -> list[int]:
    """Return `oids` without the OIDs of relations that were dropped."""
    if not oids:
        return []
    rows = connection.query(f"SELECT oid FROM pg_class WHERE oid IN ({', '.join(map(str, oids))})")
    return [int(oid) for (oid,) in rows]


def _quoted_name(connection: Connection, oid: int) -> str | None:
    """Return the quoted name of a table, with its schema; None if the table was dropped."""
    ((name,),) = connection.query(_QUOTED_NAME.format(oid=oid)) or ((None,),)
    return name


def _has_row(connection: Connection, query: str) -> bool | None:
    """Return whether a query returns a row; None if the server refuses the query."""
    try:
        return bool(connection.query(query))
    except ConnectionLost:
        raise
    except ReplicationError:
        return None
