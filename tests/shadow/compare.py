"""Compare the Delta tables of a replica with the tables that publications of a server have.

The server casts each value of a Delta table to the type of its column, so that no code of logicalrep decides
what is equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg import sql

from logicalrep.errors import ReplicaError
from logicalrep.replica import ReplicaTable, replica_tables
from tests.replica.tables import delta_rows
from tests.shadow.results import Result

Rows: TypeAlias = list[tuple[str, ...]]

SETTINGS: Final = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "row_security": "off",
    "lock_timeout": "5s",
    "statement_timeout": "60s",
}

# A partition is covered if one of the publications sends the changes of its root in its place.
PUBLISHED: Final = """
SELECT c.oid, n.nspname, c.relname, c.relkind = 'p', jsonb_agg(DISTINCT coalesce(t.attnames::text[], '{}')),
       CASE WHEN NOT bool_or(t.rowfilter IS NULL) THEN string_agg('(' || t.rowfilter || ')', ' OR ') END,
       bool_and(p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate),
       EXISTS (SELECT FROM pg_partition_ancestors(c.oid) a (oid) JOIN pg_class r USING (oid)
               JOIN pg_namespace s ON s.oid = r.relnamespace
               JOIN pg_publication_tables o ON (o.schemaname, o.tablename) = (s.nspname, r.relname)
               JOIN pg_publication q ON q.pubname = o.pubname AND q.pubviaroot
               WHERE a.oid <> c.oid AND q.pubname = ANY(%(names)s))
FROM pg_publication_tables t JOIN pg_publication p USING (pubname)
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON (c.relnamespace, c.relname) = (n.oid, t.tablename)
WHERE pubname = ANY(%(names)s) GROUP BY c.oid, n.nspname ORDER BY 2, 3"""

# Before PostgreSQL 18 no generated column is published, although the lists name them.
COLUMNS: Final = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
AND (attgenerated = '' OR current_setting('server_version_num')::int >= 180000) ORDER BY attnum"""


class Column(NamedTuple):
    name: str
    type: str


class Published(NamedTuple):
    """A published table, as its publications describe it together."""

    oid: int
    namespace: str
    name: str
    partitioned: bool
    lists: list[list[str]]
    filter: str | None
    complete: bool
    """Whether all operations are published."""
    covered: bool

    @property
    def label(self) -> str:
        return f"{self.namespace}.{self.name}"


def connect(dsn: str) -> psycopg.Connection:
    """Return a connection in autocommit mode, with settings that make texts comparable."""
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    return psycopg.connect(
        dsn,
        autocommit=True,
        client_encoding="utf8",
        application_name="shadow_check",
        connect_timeout=5,
        options=options,
    )


def compare(dsn: str, publications: Iterable[str], target: str, subscriber: str = "") -> Iterator[Result]:
    """Yield a result for each published table, and for each further table of the replica that differs.

    Args:
        dsn: Connection string of the publisher.
        publications: Names of the publications that the replica follows.
        target: Folder of the replica.
        subscriber: Connection string of a subscriber. A table that equals the subscriber's is equal, too.
    """
    try:
        tables = replica_tables(target)
    except ReplicaError:  # no table has been created yet
        tables = {}
    with connect(dsn) as server:
        published = [Published(*row) for row in server.execute(PUBLISHED, {"names": list(publications)})]
        for one in published:
            try:
                yield Result(one.label, *_judge(server, one, tables.pop(one.oid, None), subscriber))
            except psycopg.Error as error:
                yield Result(one.label, "not applicable", f"the server cannot read it: {_line(error)}")
        for table in tables.values():
            if table.place and not table.dropped and not _told(table):
                yield from _unpublished(server, table)


def _judge(server: psycopg.Connection, one: Published, table: ReplicaTable | None, subscriber: str) -> Any:
    """Return the kind of a result, and its reason."""
    if len(one.lists) > 1:
        return "not applicable", "the column lists of its publications differ"
    columns = [c for c in _columns(server, one.oid) if c.name in one.lists[0]]
    expected = _server_rows(server, one.namespace, one.name, columns, one.partitioned, one.filter)
    if table is None or not table.place:
        if not expected:
            return "equal", "no rows, and no table"
        if table is not None:
            return "reported", table.error
        if one.covered:
            return "not applicable", "a partition whose root is published in its place"
        return "SILENT", f"no table, the server has {len(expected)} rows"
    told = _told(table)
    try:
        rows = _replica_rows(server, table, columns)
    except LookupError as error:
        return ("reported", told) if told else ("SILENT", str(error))
    if rows == expected:
        return "equal", f"marked: {told}" if told else ""
    difference = _difference(expected, rows)
    if told:
        return "reported", f"{told} ({difference})"
    if subscriber and _subscriber_rows(subscriber, one, columns) == rows:
        return "equal", "equals the subscriber, not the publisher"
    return ("SILENT", difference) if one.complete else ("not applicable", "not all operations are published")


def _unpublished(server: psycopg.Connection, table: ReplicaTable) -> Iterator[Result]:
    """Yield a result for a table that is not published any more, not marked, and different."""
    label = f"{table.namespace}.{table.name}"
    row = server.execute(
        "SELECT nspname, relname, relkind = 'p' FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = %s",
        [table.oid],
    ).fetchone()
    if row is None:
        yield Result(label, "SILENT", "dropped on the server, and not marked")
        return
    columns = _columns(server, table.oid)
    expected = _server_rows(server, row[0], row[1], columns, row[2], None)
    try:
        difference = _difference(expected, _replica_rows(server, table, columns))
    except LookupError as error:
        difference = str(error)
    if difference:
        yield Result(label, "SILENT", f"not published any more, and not marked: {difference}")


def _told(table: ReplicaTable) -> str:
    """Return what the replica says about a table that may differ; empty if nothing."""
    return table.error or "; ".join(difference.reason for difference in table.may_differ)


def _columns(server: psycopg.Connection, oid: int) -> list[Column]:
    return [Column(*row) for row in server.execute(COLUMNS, [oid])]


def _server_rows(
    server: psycopg.Connection,
    namespace: str,
    name: str,
    columns: list[Column],
    partitioned: bool,
    where: str | None,
) -> Rows:
    query = sql.SQL("SELECT {} FROM {} {} {}").format(
        sql.SQL(", ").join(sql.SQL("format('%L', {})").format(sql.Identifier(c.name)) for c in columns),
        sql.SQL("" if partitioned else "ONLY"),
        sql.Identifier(namespace, name),
        sql.SQL(f"WHERE {where}" if where else ""),
    )
    return sorted(server.execute(query.as_string(server).encode()))


def _subscriber_rows(dsn: str, one: Published, columns: list[Column]) -> Rows | None:
    """Return the rows of the same table of the subscriber; None if it has none with these columns."""
    try:
        with connect(dsn) as server:
            return _server_rows(server, one.namespace, one.name, columns, True, None)
    except psycopg.Error:
        return None


def _replica_rows(server: psycopg.Connection, table: ReplicaTable, columns: list[Column]) -> Rows:
    """Return the rows of a Delta table; raise LookupError if columns are missing, or it cannot be read."""
    try:
        rows = delta_rows(table.place)
    except Exception as error:
        raise LookupError(f"cannot be read: {_line(error)}") from None
    names = _delta_names(columns)
    if missing := [name for name in names if name not in rows.column_names]:
        raise LookupError(f"no column {', '.join(missing)}")
    if not columns:
        return [()] * len(rows)
    rescued = [json.loads(text) if isinstance(text, str) else dict(text or ()) for text in _rescued(rows)]
    cells = [
        [
            _text(rest.get(column.name) if value is None else value)
            for value, rest in zip(rows[name].to_pylist(), rescued, strict=True)
        ]
        for name, column in zip(names, columns, strict=True)
    ]
    try:
        return _cast(server, cells, [column.type for column in columns])
    except psycopg.Error:  # a type that has no input, or a value that the type refuses now
        return _cast(server, cells, ["text"] * len(columns))


def _rescued(rows: Any) -> list[Any]:
    name = "_rescued_data"
    return list(rows[name].to_pylist()) if name in rows.column_names else [None] * len(rows)


def _delta_names(columns: list[Column]) -> list[str]:
    """Return the names that columns have in Delta, where names that differ in case only are equal."""
    used: dict[str, str] = {}
    for column in columns:
        name = column.name or "_"
        while name.lower() in used:
            name += "_"
        used[name.lower()] = name
    return list(used.values())


def _cast(server: psycopg.Connection, cells: list[list[str | None]], types: list[str]) -> Rows:
    numbers = range(len(types))
    query = "SELECT {} FROM unnest({}) u({})".format(
        ", ".join(f"format('%%L', c{n}::{types[n]})" for n in numbers),
        ", ".join("%s::text[]" for _ in numbers),
        ", ".join(f"c{n}" for n in numbers),
    )
    return sorted(server.execute(query.encode(), cells))


def _text(value: Any) -> str | None:
    """Return the text of a value of a Delta table, as PostgreSQL reads it."""
    match value:
        case None | str():
            return value
        case bool():
            return "t" if value else "f"
        case bytes():
            return "\\x" + value.hex()
        case date():  # and datetime
            return value.isoformat()
        case list():
            return "{" + ",".join(map(_element, value)) + "}"
    return str(value)


def _element(value: Any) -> str:
    text = _text(value)
    if text is None:
        return "NULL"
    return text if isinstance(value, list) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _difference(expected: Rows, rows: Rows) -> str:
    """Return how many rows there are, and examples of different ones; empty if the rows are equal."""
    if expected == rows:
        return ""
    only = [sorted(set(a) - set(b))[:1] for a, b in ((expected, rows), (rows, expected))]
    text = f"the server has {len(expected)} rows, the replica {len(rows)}; only in the server {only[0]}"
    return f"{text}, only in the replica {only[1]}"[:400]


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
