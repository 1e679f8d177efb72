"""Execute queries on the catalogs with DuckDB.

A server has one DuckDB database in memory, with a table for each catalog. Before a query is executed, the
rows of the catalogs that the query reads are replaced if the state of the server has changed. The run time,
memory and result size of a query are limited.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import duckdb
import msgspec

from logicalrep.standin.protocol import Field, ServerError
from logicalrep.standin.sql.catalogs import CatalogContext, catalog_rows
from logicalrep.standin.sql.changes import read_changes
from logicalrep.standin.sql.functions import MACROS, OBJECT_NAMES, TABLE_MACROS, SideEffects
from logicalrep.standin.sql.query import Query, not_supported
from logicalrep.standin.sql.system_catalogs import (
    ELEMENT_OIDS,
    OBJECT_TYPES,
    RELATIONS,
    TYPE_OIDS,
    VECTORS,
    duckdb_type,
)
from logicalrep.standin.values import JSONB, TEXT, UNKNOWN, Result, SqlValue
from logicalrep.values import format_float8, format_jsonb, parse_array, quote_array_element
from logicalrep.wire import format_lsn

_MAX_ROWS: Final = 10_000
_MAX_SECONDS: Final = 2.0
_MAX_ANALYZED: Final = 500
_MAX_MEMORY: Final = "128MB"
_MAX_RESULT_BYTES: Final = 1 << 20

_DYNAMIC: Final = (
    *("pg_database", "pg_publication", "pg_publication_tables", "pg_replication_slots", "pg_roles"),
    *("pg_settings", "pg_stat_replication"),
)
"""Catalogs whose rows may differ from one query to the next."""

_READ_BY_MACROS: Final = (
    *("pg_attribute", "pg_class", "pg_constraint", "pg_index", "pg_namespace", "pg_proc", "pg_publication"),
    *("pg_roles", "pg_settings", "pg_type"),
)
"""Catalogs that the macros in `functions` read."""

_SESSION: Final = {
    "version": "VARCHAR",
    "database": "VARCHAR",
    "username": "VARCHAR",
    "pid": "INTEGER",
    "in_recovery": "BOOLEAN",
    "started": "VARCHAR",
    "wal_end": "VARCHAR",
}
"""DuckDB types of the table `session`, by column name. Its only row has values that functions return."""

_CHANGES: Final = {"lsn": "VARCHAR", "xid": "UINTEGER", "data": "VARCHAR"}
"""DuckDB types of the table `changes`, by column name. Its rows are changes of a slot that a query reads."""

_SETTINGS: Final = (
    "SET threads = 1",
    "SET integer_division = true",
    "SET default_null_order = 'nulls_last_on_asc_first_on_desc'",
    f"SET memory_limit = '{_MAX_MEMORY}'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)

_PARSE: Final = (
    "SELECT json_serialize_sql($1::VARCHAR, skip_null := true, skip_empty := true, skip_default := true)"
)
_UNPARSE: Final = "SELECT json_deserialize_sql($1::JSON)"


_VARIADIC: Final = re.compile(r"\bVARIADIC\s", re.IGNORECASE)
_EXPANDED: Final = re.compile(r"\((pg_get_publication_tables\(.*?\))\)\.\*", re.IGNORECASE | re.DOTALL)
"""Matches `(pg_get_publication_tables(…)).*`, as PostgreSQL 16's subscriber sends it (fetch_table_list)."""


class Engine:
    """Executes the queries of a server's clients, one at a time."""

    def __init__(self) -> None:
        self._database = duckdb.connect(":memory:")
        self._analyzed: dict[str, Query] = {}
        """Recently analyzed queries, by their text."""
        self._stored: dict[str, object] = {}
        """By table name: what the table was last filled from, its rows or `CatalogContext.tables`."""
        self._run("CREATE SCHEMA pg; SET schema = 'pg'")
        for name, relation in RELATIONS.items():
            columns = {column: duckdb_type(abs(oid)) for column, oid in relation.columns.items()}
            self._create_table(name, columns)
        self._create_table("session", _SESSION)
        self._create_table("changes", _CHANGES)
        for name, (_, macro) in MACROS.items():
            self._run(f"CREATE MACRO {name}{macro}")
        for name, (_, macro) in TABLE_MACROS.items():
            self._run(f"CREATE MACRO {name}{macro}")
        for catalog, column in set(OBJECT_TYPES.values()):
            self._run(
                f"CREATE MACRO {catalog}_oid(a) AS {_FIND_OBJECT.format(catalog=catalog, column=column)}"
            )
        for catalog, macro in OBJECT_NAMES.items():
            self._run(f"CREATE MACRO {catalog}_name_or_null{macro}")
            self._run(f"CREATE MACRO {catalog}_name(a) AS {_OBJECT_NAME.format(catalog=catalog)}")
        for setting in _SETTINGS:
            self._run(setting)

    def close(self) -> None:
        """Free the memory of the database."""
        self._database.close()

    def analyze(self, sql: str) -> Query:
        """Parse a query and rewrite it for DuckDB.

        Raises:
            ServerError: The query is not supported.
        """
        if sql in self._analyzed:
            return self._analyzed[sql]
        try:
            (tree,) = self._run(
                _PARSE, [_EXPANDED.sub(r"unnest(\1, recursive := true)", _VARIADIC.sub("", sql))]
            )[0]
            parsed = msgspec.json.decode(tree)
            if parsed["error"]:
                raise not_supported(f"DuckDB cannot parse it: {parsed['error_message']}")
            query = Query(sql, parsed)
            (query.sql,) = self._run(_UNPARSE, [msgspec.json.encode(query.tree).decode()])[0]
            query.bound = sorted(query.parameters.keys() & set(map(int, re.findall(r"\$(\d+)", query.sql))))
        except (duckdb.Error, LookupError, TypeError, ValueError, RecursionError) as error:
            raise not_supported(f"its syntax is not understood: {error}") from None
        if len(self._analyzed) >= _MAX_ANALYZED:
            self._analyzed.clear()
        self._analyzed[sql] = query
        return query

    def execute(
        self, query: Query, parameters: Sequence[SqlValue], context: CatalogContext, *, execute: bool
    ) -> Result:
        """Execute a query.

        Args:
            query: The query.
            parameters: Values of the query's parameters.
            context: State of the server and connection that the catalogs show.
            execute: Whether functions with side effects are executed. If false, they return NULL instead.

        Raises:
            ServerError: The stand-in server cannot execute the query, or a function failed.
        """
        missing = max(query.parameters, default=0) - len(parameters)
        if missing > 0:
            raise ServerError("42P02", f"there is no parameter ${len(parameters) + 1}")
        self._fill(query.catalogs, context)
        if query.changes is not None:
            state = context.server, context.backend
            changes = read_changes(*query.changes, parameters, *state) if execute else []
            self._store("changes", _CHANGES, msgspec.to_builtins(changes), changes)
        values = {str(n): _bound(parameters[n - 1], query.parameters[n]) for n in query.bound}
        timer = threading.Timer(_MAX_SECONDS, self._database.interrupt)
        timer.start()
        try:
            cursor = self._database.execute(query.sql, values or None)
            description = cursor.description or []
            rows = cursor.fetchall() if query.changes is not None else cursor.fetchmany(_MAX_ROWS + 1)
            cursor.abort()
        except (duckdb.Error, RuntimeError, OverflowError, ValueError) as error:
            raise _server_error(str(error)) from None
        finally:
            timer.cancel()
        fields = _fields(query.columns, description)
        effects = SideEffects(context.server, context.backend) if execute else None
        texts = [
            [self._output(value, field.type_oid, effects) for value, field in zip(row, fields, strict=True)]
            for row in rows
        ]
        size = sum(len(text) for row in texts for text in row if isinstance(text, str))
        is_large = len(rows) > _MAX_ROWS or size > _MAX_RESULT_BYTES
        if is_large and query.changes is None:  # `read_changes` limits the size of changes
            raise not_supported(
                f"its result is larger than {_MAX_ROWS} rows or {_MAX_RESULT_BYTES >> 20} MB: "
                "select fewer rows"
            )
        return Result(f"SELECT {len(rows)}", fields, texts)

    def _run(self, sql: str, parameters: Sequence[str] | None = None) -> list[Any]:
        return self._database.execute(sql, parameters).fetchall()

    def _create_table(self, name: str, columns: Mapping[str, str]) -> None:
        self._run(
            f"CREATE TABLE {name} ({', '.join(f'{_quoted(one)} {kind}' for one, kind in columns.items())})"
        )

    def _fill(self, catalogs: Iterable[str], context: CatalogContext) -> None:
        """Store the current rows of the catalogs that a query reads in the DuckDB database.

        `catalogs` are the catalogs that the query names. The catalogs that the macros in `functions` read are
        stored too. So is the table `session`, with the values that functions such as current_user return.
        Rows that have not changed are not stored again.
        """
        server, backend = context.server, context.backend
        session = {
            "version": f"PostgreSQL {server.source.server_version} (stand-in server of logicalrep)",
            "database": backend.database,
            "username": backend.user,
            "pid": backend.pid,
            "in_recovery": backend.settings["in_hot_standby"] == "on",
            "started": server.started,
            "wal_end": format_lsn(server.source.end_lsn),
        }
        self._store("session", _SESSION, [session], session)
        for name in {*catalogs, *_READ_BY_MACROS}:
            if name not in _DYNAMIC and self._stored.get(name) == context.tables:
                continue
            columns = RELATIONS[name].columns
            defaults = {column: _default(oid) for column, oid in columns.items()}
            rows = [{**defaults, **row} for row in catalog_rows(name, context)]
            types = {column: duckdb_type(abs(oid)) for column, oid in columns.items()}
            self._store(name, types, rows, rows if name in _DYNAMIC else context.tables)

    def _store(
        self, name: str, types: Mapping[str, str], rows: Sequence[Mapping[str, object]], version: object
    ) -> None:
        """Replace the rows of a DuckDB table, unless its rows were stored with an equal `version`.

        Args:
            name: Name of the table.
            types: DuckDB types of the columns, by column name.
            rows: The rows.
            version: Object that is unequal to the previous one if the rows have changed, such as the rows
                themselves. `_stored` keeps it until the next call.
        """
        if name in self._stored and self._stored[name] == version:
            return
        self._run(f"DELETE FROM {name}")
        structure = {
            column: [kind.removesuffix("[]")] if kind.endswith("[]") else kind
            for column, kind in types.items()
        }
        names = ", ".join(map(_quoted, types))
        self._run(
            f"INSERT INTO {name} SELECT {names} FROM (SELECT unnest(from_json($1, $2), recursive := true))",
            [msgspec.json.encode(rows).decode(), msgspec.json.encode([structure]).decode()],
        )
        self._stored[name] = version

    def _output(self, value: object, type_oid: int, effects: SideEffects | None) -> SqlValue:
        """Return a value as the output function of its type writes it.

        A value may describe a call with side effects (see `functions._call`). `effects` executes such a call,
        and its result is returned. Without `effects`, the call is not executed, and None is returned.
        """
        if isinstance(value, dict) and "call" in value:
            return None if effects is None else effects.execute(value)
        if type_oid in OBJECT_TYPES and value is not None:
            return self._object_name(int(str(value)), type_oid)
        if isinstance(value, list):
            element = ELEMENT_OIDS.get(type_oid, TEXT)
            texts = [self._element(one, element) for one in value]
            return _array(texts, is_vector=type_oid in VECTORS)
        if type_oid == JSONB and value is not None:
            try:
                return format_jsonb(msgspec.json.decode(str(value)))
            except ValueError as error:
                raise ServerError("22P05", f"{str(value)[:50]!r} is not a jsonb value: {error}") from None
        return _text(value)

    def _element(self, value: object, type_oid: int) -> SqlValue:
        text = self._output(value, type_oid, None)
        return ("t" if value else "f") if isinstance(value, bool) else text

    def _object_name(self, oid: int, type_oid: int) -> str:
        catalog, _ = OBJECT_TYPES[type_oid]
        return str(self._run(f"SELECT {catalog}_name({oid})")[0][0])


_FIND_OBJECT: Final = (
    "coalesce(try_cast(a AS UINTEGER), (SELECT min(_o.oid) FROM {catalog} _o WHERE _o.{column} ="
    " trim(split_part(a::VARCHAR, '.', -1), '\"')), error('42704|object \"' || a || '\" does not exist'))"
)
_OBJECT_NAME: Final = "CASE WHEN a = 0 THEN '-' ELSE coalesce({catalog}_name_or_null(a), a::VARCHAR) END"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _default(type_oid: int) -> object:
    """Return the value that a catalog's column has in a row without a value for the column.

    The value is None, or an empty value if the column is NOT NULL. `type_oid` is the OID of the column's
    type, and negative if the column is NOT NULL, as in `SystemRelation.columns`.
    """
    if type_oid >= 0:
        return None
    kind = duckdb_type(-type_oid)
    return [] if kind.endswith("[]") else {"BOOLEAN": False, "VARCHAR": ""}.get(kind, 0)


def _bound(value: SqlValue, type_oid: int) -> Any:
    """Convert a parameter's value to the Python value that DuckDB needs for the type `type_oid`.

    Raises:
        ServerError: The type is an integer type, and the value is not an integer.
    """
    if not isinstance(value, str):
        return value
    kind = duckdb_type(type_oid)
    if kind.endswith("[]"):
        elements = parse_array(value) or []
        return [_bound(one, ELEMENT_OIDS[type_oid]) for one in elements]
    if kind == "BOOLEAN":
        return value.lower() in ("t", "true", "on", "1")
    if kind.endswith(("INT", "INTEGER")) and type_oid not in OBJECT_TYPES:
        try:
            return int(value)
        except ValueError:
            raise ServerError("22P02", f'invalid input syntax for type integer: "{value}"') from None
    return value


def _fields(columns: Sequence[Field], description: Sequence[Any]) -> list[Field]:
    """Return `columns`, in which each unknown type is replaced by the type in DuckDB's `description`."""
    if len(columns) != len(description):
        columns = [Field(str(one[0]), UNKNOWN) for one in description]
    return [
        column if column.type_oid != UNKNOWN else Field(column.name, _equivalent(str(one[1])))
        for column, one in zip(columns, description, strict=True)
    ]


def _equivalent(kind: str) -> int:
    """Return the OID of the PostgreSQL type for a DuckDB type."""
    if kind.endswith("[]"):
        return TYPE_OIDS.get(f"_{_EQUIVALENTS.get(kind[:-2], 'text')}", TEXT)
    if kind.startswith("STRUCT"):
        return 2249
    return TYPE_OIDS[_EQUIVALENTS.get(kind.partition("(")[0], "text")]


_EQUIVALENTS: Final = {
    "BIGINT": "int8",
    "BOOLEAN": "bool",
    "DECIMAL": "numeric",
    "DOUBLE": "float8",
    "FLOAT": "float4",
    "HUGEINT": "int8",
    "INTEGER": "int4",
    "JSON": "json",
    "SMALLINT": "int2",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "UBIGINT": "xid8",
    "UINTEGER": "oid",
}


def _array(texts: Sequence[SqlValue], *, is_vector: bool) -> str:
    if is_vector:
        return " ".join(map(str, texts))
    return "{" + ",".join("NULL" if one is None else quote_array_element(str(one)) for one in texts) + "}"


def _text(value: object) -> SqlValue:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return format_float8(value)
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, dict):
        return "(" + ",".join("" if one is None else str(_text(one)) for one in value.values()) + ")"
    return str(value)


def _server_error(text: str) -> ServerError:
    """Return the ServerError for an error text of DuckDB. Macros raise errors as `SQLSTATE|message`."""
    own = re.search(r"(\w{5})\|(.*)", text)
    return ServerError(own[1], own[2]) if own is not None else not_supported(text.partition("\n")[0])
