"""The extended query protocol: statements that are parsed, bound and executed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from pgoutput.standin import protocol
from pgoutput.standin.incoming import Body
from pgoutput.standin.protocol import Refused
from pgoutput.standin.sql.lookups import Result
from pgoutput.standin.sql.rewriting import parameters, statements
from pgoutput.standin.sql.statements import Backend
from pgoutput.standin.sql.values import TEXT, Cell, read_parameter, write_value

_STATEMENTS: Final = 1000
"""Prepared statements, and portals, that a connection may have."""


class Prepared(msgspec.Struct):
    """A prepared statement."""

    sql: str
    parameter_types: Sequence[int]
    described: Result | None = None


class Portal(msgspec.Struct):
    """A statement with its parameters; it is run when it is first looked at."""

    statement: Prepared
    given: Sequence[Cell]
    formats: Sequence[int]
    result: Result | None = None
    rows: Iterator[Sequence[Cell]] = iter(())


class Extended:
    """The statements and portals of a connection.

    Args:
        backend: Of the connection.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._statements: dict[str, Prepared] = {}
        self._portals: dict[str, Portal] = {}
        self._messages: Mapping[bytes, Callable[[Body], bytes]] = {
            b"P": self._parse,
            b"B": self._bind,
            b"D": self._describe,
            b"E": self._execute,
            b"C": self._close,
            b"H": lambda body: b"",
            # What a client still sends when a COPY has failed is ignored (PostgresMain).
            **dict.fromkeys((b"d", b"c", b"f"), lambda body: b""),
        }

    def take(self, tag: bytes, body: bytes) -> bytes:
        """Do what a message asks for; give the answer.

        Raises:
            Refused: It cannot be done.
        """
        if tag not in self._messages:
            raise Refused("08P01", f"a message of type {tag!r} is not expected here", fatal=True)
        return self._messages[tag](Body(body))

    def sync(self) -> None:
        """A sync: outside of a transaction, portals end with it."""
        if self._backend.status == b"I":
            self._portals.clear()

    def _parse(self, body: Body) -> bytes:
        name, sql, oids = body.string(), body.string(), body.oids()
        some = [one for one in statements(sql) if one]
        if len(some) > 1:
            raise Refused("42601", "cannot insert multiple commands into a prepared statement")
        if name and name in self._statements:
            raise Refused("42P05", f'prepared statement "{name}" already exists')
        if len(self._statements) >= _STATEMENTS:
            raise Refused("53000", f"the stand-in keeps no more than {_STATEMENTS} prepared statements")
        statement = some[0] if some else ""
        types = [oid or TEXT for oid in oids]
        types += [TEXT] * (min(parameters(statement), 1000) - len(types))
        self._statements[name] = Prepared(statement, types)
        return protocol.message(b"1")

    def _bind(self, body: Body) -> bytes:
        name, statement = body.string(), self._statement(body.string())
        formats = body.int16s()
        values = [body.value() for _ in range(body.int16())]
        if len(values) != len(statement.parameter_types):
            raise Refused(
                "08P01",
                f"bind message supplies {len(values)} parameters, but the prepared statement requires "
                f"{len(statement.parameter_types)}",
            )
        typed = zip(values, statement.parameter_types, _of_each(formats, len(values)), strict=True)
        given = [read_parameter(*one) for one in typed]
        if len(self._portals) >= _STATEMENTS:
            raise Refused("53000", f"the stand-in keeps no more than {_STATEMENTS} portals")
        self._portals[name] = Portal(statement, given, body.int16s())
        return protocol.message(b"2")

    def _describe(self, body: Body) -> bytes:
        kind, name = body.take(1), body.string()
        if kind == b"S":
            statement = self._statement(name)
            if statement.described is None:
                statement.described = self._backend.describe(statement.sql, len(statement.parameter_types))
            described = protocol.parameter_description(statement.parameter_types)
            return described + _description(statement.described, ())
        portal = self._portal(name)
        return _description(self._run(portal), portal.formats)

    def _execute(self, body: Body) -> bytes:
        portal, most = self._portal(body.string()), body.int32()
        if not portal.statement.sql:
            return protocol.message(b"I")
        result = self._run(portal)
        formats = _of_each(portal.formats, len(result.fields))
        parts: list[bytes] = []
        for row in portal.rows:
            typed = zip(row, result.fields, formats, strict=True)
            parts.append(protocol.data_row([write_value(v, f.type_oid, format_) for v, f, format_ in typed]))
            if len(parts) == most:
                return b"".join(parts) + protocol.message(b"s")
        return b"".join((*parts, self._backend.take_notices(), protocol.command_complete(result.tag)))

    def _close(self, body: Body) -> bytes:
        kind, name = body.take(1), body.string()
        if kind == b"S":
            self._statements.pop(name, None)
        else:
            self._portals.pop(name, None)
        return protocol.message(b"3")

    def _run(self, portal: Portal) -> Result:
        if portal.result is None:
            sql = portal.statement.sql
            portal.result = self._backend.execute(sql, portal.given) if sql else Result("")
            portal.rows = iter(portal.result.rows)
        return portal.result

    def _statement(self, name: str) -> Prepared:
        if name not in self._statements:
            raise Refused("26000", f'prepared statement "{name}" does not exist')
        return self._statements[name]

    def _portal(self, name: str) -> Portal:
        if name not in self._portals:
            raise Refused("34000", f'portal "{name}" does not exist')
        return self._portals[name]


def _description(result: Result, formats: Sequence[int]) -> bytes:
    if not result.fields:
        return protocol.message(b"n")
    return protocol.row_description(result.fields, _of_each(formats, len(result.fields)))


def _of_each(formats: Sequence[int], count: int) -> Sequence[int]:
    """The format of each value, where one stands for all and none for text."""
    if len(formats) <= 1:
        return [*formats, 0][:1] * count
    if len(formats) != count:
        raise Refused("08P01", f"{len(formats)} format codes are given for {count} values")
    return formats
