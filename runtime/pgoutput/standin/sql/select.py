"""Execute SELECT: answer queries on catalogs and functions with SQLite.

Each query runs in its own in-memory database, which contains the current rows of the catalogs. The query can
only read. Its run time and the size of its result are limited.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final

from pgoutput.standin.protocol import Field, ServerError
from pgoutput.standin.sql.catalogs import CATALOGS, COLUMN_TYPES, CatalogContext
from pgoutput.standin.sql.functions import FunctionTable
from pgoutput.standin.sql.sqlite_dialect import to_sqlite
from pgoutput.standin.values import BOOL, INT4, JSONB, NAME, PG_LSN, TEXT, Result, SqlValue, infer_type_oid

_MAX_ROWS: Final = 10_000
_MAX_SECONDS: Final = 0.5
_STEPS: Final = 200
"""Number of SQLite virtual machine instructions between two checks of the time limit."""

_MAX_VALUE_BYTES: Final = 1 << 16
"""Maximum size of a value in a query, in bytes. This bounds the run time of one SQLite instruction."""

_MAX_RESULT_BYTES: Final = 1 << 20
_ALLOWED_ACTIONS: Final = (
    *(sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION),
    sqlite3.SQLITE_RECURSIVE,
)


def execute_select(
    sql: str, parameters: Sequence[SqlValue], context: CatalogContext, functions: FunctionTable
) -> Result:
    """Execute a query on the catalogs.

    Args:
        sql: One statement in PostgreSQL's dialect.
        parameters: Values of the statement's parameters.
        context: State of the server and connection that the catalogs show.
        functions: Functions that the query can call.

    Raises:
        ServerError: The stand-in server cannot execute the query, or a function raised an error.
    """
    failures: list[ServerError] = []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        try:
            _fill(database, context)
            for name, (_, function) in functions.items():
                database.create_function(name, -1, _record_errors(function, failures))
            database.set_authorizer(_authorize)
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
            deadline = time.monotonic() + _MAX_SECONDS
            database.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            cursor = database.execute(to_sqlite(sql), parameters)
            rows = _fetch(cursor)
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            raise failures[0] if failures else _not_supported(str(error)) from None
    columns = [column[0] for column in cursor.description or ()]
    fields = [_field(name, number, rows, functions) for number, name in enumerate(columns)]
    return Result(f"SELECT {len(rows)}", fields, rows)


def _fetch(cursor: sqlite3.Cursor) -> list[Sequence[SqlValue]]:
    rows: list[Sequence[SqlValue]] = []
    size = 0
    for row in cursor:
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, (str, bytes)))
        if len(rows) > _MAX_ROWS or size > _MAX_RESULT_BYTES:
            limit = f"{_MAX_ROWS} rows or {_MAX_RESULT_BYTES >> 20} MB"
            raise _not_supported(f"its result is larger than {limit}")
    return rows


def _fill(database: sqlite3.Connection, context: CatalogContext) -> None:
    for name, (columns, rows) in CATALOGS.items():
        kinds = (f"{column} {'TEXT' if _is_text(oid) else 'INTEGER'}" for column, oid in columns.items())
        database.execute(f"CREATE TABLE {name} ({', '.join(kinds)})")
        database.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows(context))


def _is_text(type_oid: int) -> bool:
    return type_oid in (TEXT, NAME, PG_LSN, 18)


def _record_errors(function: Callable[..., SqlValue], failures: list[ServerError]) -> Callable[..., SqlValue]:
    """Wrap `function` to append its errors to `failures`, because SQLite hides the text of the errors."""

    def call(*arguments: SqlValue) -> SqlValue:
        try:
            return function(*arguments)
        except ServerError as error:
            failures.append(error)
            raise
        except TypeError:
            failures.append(
                ServerError("42883", f"no function {function.__name__} takes {len(arguments)} arguments")
            )
            raise

    return call


def _authorize(action: int, *_: Any) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED_ACTIONS else sqlite3.SQLITE_DENY


def _field(name: str, number: int, rows: Sequence[Sequence[SqlValue]], functions: FunctionTable) -> Field:
    """Return a result column with the name and type that PostgreSQL would give it (FigureColname)."""
    call = re.match(r"(\w+)\s*\(", name)
    if call is not None:
        name = call[1].lower()
    elif re.match(r"case\b", name, re.IGNORECASE):
        name = "case"
    elif re.fullmatch(r"\w+\.\w+", name):
        name = name.partition(".")[2]
    elif not re.fullmatch(r"[A-Za-z_]\w*", name):
        name = "?column?"
    if name == "json_object":
        return Field("to_jsonb", JSONB)
    type_oid = functions[name][0] if name in functions else COLUMN_TYPES.get(name, _OTHER_TYPES.get(name))
    value = next((row[number] for row in rows if row[number] is not None), None)
    return Field(name, infer_type_oid(value) if type_oid is None else type_oid)


_OTHER_TYPES: Final = {"exists": BOOL, "lsn": PG_LSN, "count": 20, "pid": INT4}


def _not_supported(reason: str) -> ServerError:
    return ServerError(
        "0A000",
        f"a stand-in server executes only look-ups in catalogs, not this query ({reason})",
        f"It has the catalogs {', '.join(CATALOGS)}.",
    )
