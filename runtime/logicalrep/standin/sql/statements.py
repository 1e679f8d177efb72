"""Execute SQL statements: match each statement with a pattern, and run the function for the pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from logicalrep.standin.backend import Backend, TransactionStatus
from logicalrep.standin.protocol import Field, ServerError
from logicalrep.standin.server_state import ServerState
from logicalrep.standin.sql.catalogs import CatalogContext
from logicalrep.standin.sql.engine import Engine
from logicalrep.standin.sql.tokens import string_literals
from logicalrep.standin.values import TEXT, Result, SqlValue


class StatementExecutor(msgspec.Struct, frozen=True, eq=False):
    """Executes the SQL statements of one connection."""

    server: ServerState
    """State of the server."""
    backend: Backend
    """State of the connection."""
    engine: Engine
    """Executes the queries of all connections of the server."""

    def execute(self, sql: str, parameters: Sequence[SqlValue] = ()) -> Result:
        """Execute an SQL statement and return its result.

        Args:
            sql: The statement.
            parameters: Values of the statement's parameters.

        Raises:
            ServerError: The statement is not supported, or its execution failed.
        """
        for pattern, run in _STATEMENTS.items():
            match = re.match(pattern, sql, re.IGNORECASE | re.DOTALL)
            if match is not None:
                if pattern not in (_COMMIT, _ROLLBACK):
                    self.backend.check_transaction()
                return run(self, match, parameters)
        keyword = sql.split(None, 1)[0][:30] if sql.strip() else ""
        if keyword.upper() in ("START_REPLICATION", "CREATE_REPLICATION_SLOT", "IDENTIFY_SYSTEM"):
            raise ServerError(
                "0A000",
                f"{keyword} needs a replication connection and the simple query protocol",
                "Connect with replication=database, as psycopg and pg_recvlogical can; asyncpg has no "
                "replication protocol.",
            )
        raise ServerError(
            "0A000",
            f"a stand-in server executes only SELECT, SHOW, SET and transaction control, not {keyword}",
            "It serves a stream and has no tables.",
        )

    def parameter_types(self, sql: str) -> Sequence[int]:
        """Return the type OIDs of a statement's parameters, in the order of their numbers.

        Raises:
            ServerError: The statement is a query that is not supported.
        """
        if not re.match(_SELECT, sql, re.IGNORECASE):
            return ()
        types = self.engine.analyze(sql).parameters
        return [types.get(number, TEXT) for number in range(1, max(types, default=0) + 1)]

    def describe(self, sql: str, parameter_count: int) -> Result:
        """Return the result of a statement without its side effects, to describe the result's columns.

        Args:
            sql: The statement.
            parameter_count: Number of the statement's parameters. All parameters are treated as NULL.

        Raises:
            ServerError: The statement is not supported.
        """
        if re.match(_SELECT, sql, re.IGNORECASE):
            return self.select(sql, [None] * parameter_count, execute=False)
        return self.execute(sql) if re.match("SHOW", sql, re.IGNORECASE) else Result("")

    def select(self, sql: str, parameters: Sequence[SqlValue], *, execute: bool) -> Result:
        """Execute a query on the catalogs.

        If the source accepts any publication name, the catalogs show a publication for every string literal
        and string parameter of the query.

        Args:
            sql: The query.
            parameters: Values of the query's parameters.
            execute: Whether functions with side effects are executed.

        Raises:
            ServerError: The query is not supported, or its execution failed.
        """
        strings = (*string_literals(sql), *(value for value in parameters if isinstance(value, str)))
        context = CatalogContext(self.server, self.backend, self.server.publications(strings))
        return self.engine.execute(self.engine.analyze(sql), parameters, context, execute=execute)


Statement: TypeAlias = Callable[[StatementExecutor, "re.Match[str]", Sequence[SqlValue]], Result]
"""Function that executes a statement, given the executor, the match of the pattern, and the parameters."""


def _select(executor: StatementExecutor, match: re.Match[str], parameters: Sequence[SqlValue]) -> Result:
    return executor.select(match.string, parameters, execute=True)


def _begin(executor: StatementExecutor, match: re.Match[str], _: Sequence[SqlValue]) -> Result:
    executor.backend.transaction_status = TransactionStatus.IN_TRANSACTION
    return Result("BEGIN" if match[1].upper() == "BEGIN" else "START TRANSACTION")


def _commit(executor: StatementExecutor, match: re.Match[str], _: Sequence[SqlValue]) -> Result:
    is_failed = executor.backend.transaction_status is TransactionStatus.FAILED
    executor.backend.transaction_status = TransactionStatus.IDLE
    return Result("ROLLBACK" if is_failed else "COMMIT")


def _rollback(executor: StatementExecutor, match: re.Match[str], _: Sequence[SqlValue]) -> Result:
    backend, to_savepoint = executor.backend, match[1] is not None
    if not to_savepoint:
        backend.transaction_status = TransactionStatus.IDLE
    elif backend.transaction_status is TransactionStatus.IDLE:
        raise ServerError("25P01", "ROLLBACK TO SAVEPOINT can only be used in transaction blocks")
    else:
        backend.transaction_status = TransactionStatus.IN_TRANSACTION
    return Result("ROLLBACK")


def _show(executor: StatementExecutor, match: re.Match[str], _: Sequence[SqlValue]) -> Result:
    name = "transaction_isolation" if " " in match[1] else match[1].strip('"')
    value = executor.backend.settings[name]
    if name.lower() == "wal_sender_timeout" and value.endswith("000ms"):
        value = value.removesuffix("000ms") + "s"
    return Result("SHOW", [Field(name)], [[value]])


def _set(executor: StatementExecutor, match: re.Match[str], _: Sequence[SqlValue]) -> Result:
    value = match[2].strip()
    if value[:1] == "'":
        value = value[1:-1].replace("''", "'")
    name = match[1].strip('"')
    executor.backend.change_setting("TimeZone" if name.lower() == "time" else name, value)
    return Result("SET")


def _set_snapshot(executor: StatementExecutor, match: re.Match[str], _: Sequence[SqlValue]) -> Result:
    raise ServerError(
        "0A000",
        "a stand-in server has no tables, and so no snapshots of tables",
        "Begin with the stream: create the slot without a snapshot.",
    )


def _create_publication(executor: StatementExecutor, match: re.Match[str], _: Sequence[SqlValue]) -> Result:
    executor.server.create_publication(_identifier(match[1]))
    return Result("CREATE PUBLICATION")


def _copy(executor: StatementExecutor, match: re.Match[str], _: Sequence[SqlValue]) -> Result:
    """Execute COPY … TO STDOUT. It returns no rows: all rows of a published table come in the stream."""
    executor.select(f"SELECT 1 FROM {match['table']}", (), execute=True)  # fails if there is no such table
    is_binary = "binary" in match["options"].lower()
    return Result("COPY 0", copied=_EMPTY_BINARY_COPY if is_binary else b"")


def _no_effect(tag: str) -> Statement:
    """Return a function that does nothing and returns a result with the command tag `tag`."""
    return lambda executor, match, parameters: Result(tag)


def _identifier(text: str) -> str:
    return text[1:-1].replace('""', '"') if text[0] == '"' else text.lower()


_EMPTY_BINARY_COPY: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\xff\xff"
"""Header and trailer of COPY's binary format."""

_SELECT: Final = r"(?:SELECT|WITH|VALUES)\b"
_NAME: Final = r'("(?:[^"]|"")+"|\w+)'
_SETTING: Final = r'("?[\w.]+"?|transaction isolation level)'
_COMMIT: Final = r"(?:COMMIT|END)\b(?!\s+PREPARED)"
_ROLLBACK: Final = r"(?:ROLLBACK|ABORT)\b(?!\s+PREPARED)(?:\s+(?:WORK|TRANSACTION))?(\s+TO\b.*)?"

_STATEMENTS: Final[Mapping[str, Statement]] = {
    _SELECT: _select,
    rf"SHOW\s+{_SETTING}\s*$": _show,
    r"SET\s+(?:TRANSACTION\s+SNAPSHOT)\b": _set_snapshot,
    r"SET\s+(?:SESSION\s+CHARACTERISTICS|(?:LOCAL\s+)?TRANSACTION)\b": _no_effect("SET"),
    rf"SET\s+(?:SESSION\s+|LOCAL\s+)?{_SETTING}\s*(?:=|\bTO\b)\s*(.*)$": _set,
    r"SET\s+(?:SESSION\s+|LOCAL\s+)?(TIME)\s+ZONE\s+(.*)$": _set,
    r"RESET\s": _no_effect("RESET"),
    r"CLOSE\s": _no_effect("CLOSE CURSOR"),
    r"DISCARD\s": _no_effect("DISCARD ALL"),
    r"DEALLOCATE\s": _no_effect("DEALLOCATE"),
    r"UNLISTEN\s": _no_effect("UNLISTEN"),
    r"(BEGIN|START\s+TRANSACTION)\b": _begin,
    _COMMIT: _commit,
    _ROLLBACK: _rollback,
    r"SAVEPOINT\s": _no_effect("SAVEPOINT"),
    r"RELEASE\s": _no_effect("RELEASE"),
    rf"COPY\s+(?P<table>{_NAME}(?:\.{_NAME})?)\s*(?:\(.*\)\s*)?TO\s+STDOUT\b(?P<options>.*)$": _copy,
    rf"CREATE\s+PUBLICATION\s+{_NAME}": _create_publication,
}
"""Functions that execute statements, by a regular expression that matches the start of a statement."""
