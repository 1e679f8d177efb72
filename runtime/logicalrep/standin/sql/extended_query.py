"""Extended query protocol: parse, bind, describe and execute statements in separate messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from logicalrep.standin import protocol
from logicalrep.standin.backend import Backend, Portal, PreparedStatement, TransactionStatus
from logicalrep.standin.frontend import MessageReader
from logicalrep.standin.protocol import ServerError
from logicalrep.standin.sql.statements import StatementExecutor
from logicalrep.standin.sql.tokens import split_statements
from logicalrep.standin.values import TEXT, Result, decode_parameter, encode_value

_MAX_STATEMENTS: Final = 1000
"""Maximum number of prepared statements, and of portals, that a connection may have."""


class ExtendedQuery:
    """Handles the extended query messages of one connection.

    Args:
        executor: Executes the statements.
        backend: State of the connection, which keeps the prepared statements and portals.
    """

    def __init__(self, executor: StatementExecutor, backend: Backend) -> None:
        self._executor = executor
        self._backend = backend
        self._handlers: Mapping[bytes, Callable[[MessageReader], bytes]] = {
            b"P": self._parse,
            b"B": self._bind,
            b"D": self._describe,
            b"E": self._execute,
            b"C": self._close,
            b"H": lambda body: b"",
            # Ignore CopyData, CopyDone and CopyFail: clients send them after a failed COPY (PostgresMain).
            **dict.fromkeys((b"d", b"c", b"f"), lambda body: b""),
        }

    def handle(self, tag: bytes, body: bytes) -> bytes:
        """Handle a frontend message and return the encoded response.

        Raises:
            ServerError: The message is not part of the extended query protocol, or its statement failed.
        """
        if tag not in self._handlers:
            raise ServerError("08P01", f"{tag!r} is not a message type of the query protocols", fatal=True)
        return self._handlers[tag](MessageReader(body))

    def sync(self) -> None:
        """Handle a Sync message: close all portals, unless a transaction is open."""
        if self._backend.transaction_status is TransactionStatus.IDLE:
            self._backend.portals.clear()

    def _parse(self, body: MessageReader) -> bytes:
        name, sql, oids = body.string(), body.string(), body.oids()
        statements = [statement for statement in split_statements(sql) if statement]
        if len(statements) > 1:
            raise ServerError("42601", "cannot insert multiple commands into a prepared statement")
        if name and name in self._backend.statements:
            raise ServerError("42P05", f'prepared statement "{name}" already exists')
        if name not in self._backend.statements and len(self._backend.statements) >= _MAX_STATEMENTS:
            raise ServerError(
                "53000",
                f"the stand-in server keeps no more than {_MAX_STATEMENTS} prepared statements",
                "Close prepared statements that are no longer used.",
            )
        statement = statements[0] if statements else ""
        inferred = self._executor.parameter_types(statement)
        types = [
            oid or (inferred[number] if number < len(inferred) else TEXT) for number, oid in enumerate(oids)
        ]
        types += inferred[len(types) :]
        self._backend.statements[name] = PreparedStatement(statement, types)
        return protocol.encode_message(b"1")

    def _bind(self, body: MessageReader) -> bytes:
        name, statement = body.string(), self._statement(body.string())
        formats = body.int16s()
        values = [body.value() for _ in range(body.int16())]
        if len(values) != len(statement.parameter_types):
            raise ServerError(
                "08P01",
                f"bind message supplies {len(values)} parameters, but the prepared statement requires "
                f"{len(statement.parameter_types)}",
            )
        value_formats = _expand_formats(formats, len(values))
        parameters = list(map(decode_parameter, values, statement.parameter_types, value_formats))
        if name and name in self._backend.portals:
            raise ServerError("42P03", f'cursor "{name}" already exists')
        if name not in self._backend.portals and len(self._backend.portals) >= _MAX_STATEMENTS:
            raise ServerError(
                "53000",
                f"the stand-in server keeps no more than {_MAX_STATEMENTS} portals",
                "Close portals that are no longer used.",
            )
        self._backend.portals[name] = Portal(statement, parameters, body.int16s())
        return protocol.encode_message(b"2")

    def _describe(self, body: MessageReader) -> bytes:
        kind, name = body.raw(1), body.string()
        if kind == b"S":
            statement = self._statement(name)
            if statement.description is None:
                count = len(statement.parameter_types)
                statement.description = self._executor.describe(statement.sql, count)
            parameters = protocol.parameter_description(statement.parameter_types)
            return parameters + _describe_result(statement.description, ())
        portal = self._portal(name)
        return _describe_result(self._run(portal), portal.formats)

    def _execute(self, body: MessageReader) -> bytes:
        portal, limit = self._portal(body.string()), body.int32()
        if not portal.statement.sql:
            return protocol.encode_message(b"I")
        result = self._run(portal)
        formats = _expand_formats(portal.formats, len(result.fields))
        type_oids = [field.type_oid for field in result.fields]
        parts: list[bytes] = []
        for row in portal.rows:
            parts.append(protocol.data_row(list(map(encode_value, row, type_oids, formats))))
            if len(parts) == limit:
                return b"".join(parts) + protocol.encode_message(b"s")
        return b"".join((*parts, self._backend.take_notifications(), protocol.command_complete(result.tag)))

    def _close(self, body: MessageReader) -> bytes:
        kind, name = body.raw(1), body.string()
        if kind == b"S":
            self._backend.statements.pop(name, None)
        else:
            self._backend.portals.pop(name, None)
        return protocol.encode_message(b"3")

    def _run(self, portal: Portal) -> Result:
        if portal.result is None:
            sql = portal.statement.sql
            portal.result = self._executor.execute(sql, portal.parameters) if sql else Result("")
            portal.rows = iter(portal.result.rows)
        return portal.result

    def _statement(self, name: str) -> PreparedStatement:
        if name not in self._backend.statements:
            raise ServerError("26000", f'prepared statement "{name}" does not exist')
        return self._backend.statements[name]

    def _portal(self, name: str) -> Portal:
        if name not in self._backend.portals:
            raise ServerError("34000", f'portal "{name}" does not exist')
        return self._backend.portals[name]


def _describe_result(result: Result, formats: Sequence[int]) -> bytes:
    if not result.fields:
        return protocol.encode_message(b"n")
    return protocol.row_description(result.fields, _expand_formats(formats, len(result.fields)))


def _expand_formats(formats: Sequence[int], count: int) -> Sequence[int]:
    """Return a format code for each of `count` values. A single code applies to all; no code means text.

    Raises:
        ServerError: There are several format codes, but not `count`.
    """
    if len(formats) <= 1:
        return [*formats, 0][:1] * count
    if len(formats) != count:
        raise ServerError(
            "08P01",
            f"{len(formats)} format codes for {count} values: give none, one, or one for each value",
        )
    return formats
