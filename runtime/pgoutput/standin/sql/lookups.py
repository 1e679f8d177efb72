"""SELECT: catalogs and functions that clients look things up in, answered by SQLite.

Each query meets a database of its own, in memory, with the catalogs as they are now. It can read them, and
nothing else; work and results are limited.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import msgspec

from pgoutput.standin.protocol import Field, Refused
from pgoutput.standin.sql import rewriting
from pgoutput.standin.sql.catalogs import CATALOGS, COLUMN_TYPES, View, row_as_json
from pgoutput.standin.sql.values import BOOL, INT4, JSONB, NAME, PG_LSN, TEXT, Cell, type_of

Functions = Mapping[str, tuple[int, Callable[..., Cell]]]
"""Functions that SQL can call: the type of what they give, and what they do."""

_ROWS: Final = 10_000
_SECONDS: Final = 0.5
_STEPS: Final = 200
"""Instructions of SQLite's machine between two looks at the clock."""

_VALUE_BYTES: Final = 1 << 16
"""A value may have, so that no single instruction takes long."""

_RESULT_BYTES: Final = 1 << 20
_ALLOWED: Final = (
    *(sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION),
    sqlite3.SQLITE_RECURSIVE,
)


class Result(msgspec.Struct, frozen=True):
    """What a statement gives. Without fields it gives no rows."""

    tag: str
    fields: Sequence[Field] = ()
    rows: Sequence[Sequence[Cell]] = ()


def select(sql: str, given: Sequence[Cell], view: View, functions: Functions) -> Result:
    """Answer a query.

    Args:
        sql: One statement.
        given: Its parameters.
        view: What the catalogs show.
        functions: What it can call.

    Raises:
        Refused: It is none that the stand-in can answer.
    """
    failures: list[Refused] = []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        try:
            _fill(database, view)
            for name, (_, function) in functions.items():
                database.create_function(name, -1, _guarded(function, failures))
            database.set_authorizer(_authorize)
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES)
            deadline = time.monotonic() + _SECONDS
            database.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            cursor = database.execute(rewriting.rewrite(sql, row_as_json), given)
            rows = _fetched(cursor)
        except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
            raise failures[0] if failures else _not_answered(str(error)) from None
    columns = [column[0] for column in cursor.description or ()]
    fields = [_field(name, place, rows, functions) for place, name in enumerate(columns)]
    return Result(f"SELECT {len(rows)}", fields, rows)


def _fetched(cursor: sqlite3.Cursor) -> list[Sequence[Cell]]:
    rows: list[Sequence[Cell]] = []
    size = 0
    for row in cursor:
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, (str, bytes)))
        if len(rows) > _ROWS or size > _RESULT_BYTES:
            raise _not_answered(f"it gives more than {_ROWS} rows, or {_RESULT_BYTES >> 20} MB")
    return rows


def _fill(database: sqlite3.Connection, view: View) -> None:
    for name, (columns, rows) in CATALOGS.items():
        kinds = (f"{column} {'TEXT' if _is_text(oid) else 'INTEGER'}" for column, oid in columns.items())
        database.execute(f"CREATE TABLE {name} ({', '.join(kinds)})")
        database.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows(view))


def _is_text(type_oid: int) -> bool:
    return type_oid in (TEXT, NAME, PG_LSN, 18)


def _guarded(function: Callable[..., Cell], failures: list[Refused]) -> Callable[..., Cell]:
    """The function as SQLite calls it, which does not say why one has failed."""

    def call(*given: Cell) -> Cell:
        try:
            return function(*given)
        except Refused as refused:
            failures.append(refused)
            raise
        except TypeError:
            failures.append(Refused("42883", f"no function {function.__name__} takes {len(given)} arguments"))
            raise

    return call


def _authorize(action: int, *_: Any) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _field(name: str, place: int, rows: Sequence[Sequence[Cell]], functions: Functions) -> Field:
    """A column as PostgreSQL names and types it (FigureColname)."""
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
    known = functions[name][0] if name in functions else COLUMN_TYPES.get(name, _SPECIAL.get(name))
    value = next((row[place] for row in rows if row[place] is not None), None)
    return Field(name, type_of(value) if known is None else known)


_SPECIAL: Final = {"exists": BOOL, "lsn": PG_LSN, "count": 20, "pid": INT4}


def _not_answered(reason: str) -> Refused:
    return Refused(
        "0A000",
        f"a stand-in answers only look-ups, and not this query ({reason})",
        f"It knows the catalogs {', '.join(CATALOGS)}.",
    )
