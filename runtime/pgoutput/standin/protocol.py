"""The frontend/backend protocol, version 3.0: messages of the server as bytes, messages of the client read.

A message is a tag, an Int32 that counts itself and what follows, and a body
(src/include/libpq/protocol.h, src/backend/libpq/pqcomm.c).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from pgoutput.wire import read_string

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
_HEAD: Final = Struct(">ci")
_UINT32: Final = Struct(">I")
_TWO_UINT32: Final = Struct(">II")

PROTOCOL_3_0: Final = 3 << 16
CANCEL_REQUEST: Final = 80877102
SSL_REQUEST: Final = 80877103
GSSENC_REQUEST: Final = 80877104

_STARTUP_BYTES: Final = 10_000
"""A startup packet may have, at most (MAX_STARTUP_PACKET_LENGTH)."""

_MESSAGE_BYTES: Final = 1 << 16
"""Any other message of a client may have. Servers take more; what clients ask of this one is short."""

Value: TypeAlias = bytes | None
"""A column's value on the wire; None is NULL."""


class Refused(Exception):
    """What a client is told in an ErrorResponse.

    Args:
        state: The SQLSTATE.
        text: What is wrong.
        hint: What to do.
        fatal: Whether the connection ends with it.
    """

    def __init__(self, state: str, text: str, hint: str = "", *, fatal: bool = False) -> None:
        super().__init__(text)
        self.state = state
        self.text = text
        self.hint = hint
        self.fatal = fatal


class Field(msgspec.Struct, frozen=True):
    """A column of a result."""

    name: str
    type_oid: int = 25


class Startup(msgspec.Struct, frozen=True):
    """The first packet of a connection: a code, or a protocol version, and what follows it."""

    code: int
    body: bytes


def message(tag: bytes, body: bytes = b"") -> bytes:
    """A message of either side."""
    return _HEAD.pack(tag, len(body) + 4) + body


def text(value: str) -> bytes:
    """Text with its zero byte; a zero inside of it ends it, as in C."""
    return value.encode("utf-8", "surrogateescape").partition(b"\0")[0] + b"\0"


def authentication(kind: int, data: bytes = b"") -> bytes:
    """AuthenticationOk (0), SASL (10), SASLContinue (11) and SASLFinal (12)."""
    return message(b"R", INT32.pack(kind) + data)


def parameter_status(name: str, value: str) -> bytes:
    """ParameterStatus: a setting that clients want to know."""
    return message(b"S", text(name) + text(value))


def backend_key(pid: int, secret: int) -> bytes:
    """BackendKeyData: what a CancelRequest must show."""
    return message(b"K", _TWO_UINT32.pack(pid, secret))


def negotiate_version(unknown: Sequence[str]) -> bytes:
    """NegotiateProtocolVersion: 3.0 it is, and these options are not known."""
    options = b"".join(map(text, unknown))
    return message(b"v", INT32.pack(PROTOCOL_3_0) + INT32.pack(len(unknown)) + options)


def ready(status: bytes = b"I") -> bytes:
    """ReadyForQuery: outside a transaction (I), inside one (T), or inside one that has failed (E)."""
    return message(b"Z", status)


def row_description(fields: Sequence[Field], formats: Sequence[int] = ()) -> bytes:
    """RowDescription."""
    parts = [INT16.pack(len(fields))]
    for place, field in enumerate(fields):
        format_ = formats[place] if formats else 0
        parts.append(text(field.name) + _COLUMN.pack(0, 0, field.type_oid, -1, -1, format_))
    return message(b"T", b"".join(parts))


_COLUMN: Final = Struct(">IhIhih")


def parameter_description(oids: Sequence[int]) -> bytes:
    """ParameterDescription."""
    return message(b"t", INT16.pack(len(oids)) + b"".join(map(_UINT32.pack, oids)))


def data_row(values: Sequence[Value]) -> bytes:
    """DataRow."""
    parts = [INT16.pack(len(values))]
    for value in values:
        parts.append(INT32.pack(-1) if value is None else INT32.pack(len(value)) + value)
    return message(b"D", b"".join(parts))


def command_complete(tag: str) -> bytes:
    """CommandComplete."""
    return message(b"C", text(tag))


def error(refused: Refused) -> bytes:
    """ErrorResponse."""
    severity = "FATAL" if refused.fatal else "ERROR"
    fields = {"S": severity, "V": severity, "C": refused.state, "M": refused.text, "H": refused.hint}
    return message(b"E", fields_of(fields))


def fields_of(fields: Mapping[str, str]) -> bytes:
    """The fields of an ErrorResponse, without those that are empty."""
    return b"".join(name.encode() + text(value) for name, value in fields.items() if value) + b"\0"


def copy_both_response() -> bytes:
    """CopyBothResponse of a walsender, which names no columns."""
    return message(b"W", b"\0\0\0")


async def read_startup(reader: asyncio.StreamReader) -> Startup:
    """The first packet of a connection (ProcessStartupPacket).

    Raises:
        Refused: It is none.
        IncompleteReadError: The connection ended.
    """
    (length,) = _UINT32.unpack(await reader.readexactly(4))
    if not 8 <= length <= _STARTUP_BYTES:
        raise Refused("08P01", "invalid length of startup packet", fatal=True)
    body = await reader.readexactly(length - 4)
    return Startup(_UINT32.unpack_from(body)[0], body[4:])


def startup_options(body: bytes) -> dict[str, str]:
    """The names and values of a StartupMessage.

    Raises:
        Refused: They are not laid out so.
    """
    options: dict[str, str] = {}
    position = 0
    try:
        while body[position]:
            name, position = read_string(body, position)
            options[name], position = read_string(body, position)
    except (IndexError, ValueError):
        raise Refused(
            "08P01", "invalid startup packet layout: expected terminator as last byte", fatal=True
        ) from None
    for part in (*options, *options.values()):
        _check_encoding(part, fatal=True)
    return options


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The tag and the body of the client's next message.

    Raises:
        Refused: It is none, or too long.
        IncompleteReadError: The connection ended.
    """
    tag, length = _HEAD.unpack(await reader.readexactly(5))
    if tag not in _FRONTEND:
        raise Refused("08P01", f"invalid frontend message type {tag[0]}", fatal=True)
    if not 4 <= length <= _MESSAGE_BYTES:
        raise Refused("08P01", f"invalid message length {length}", fatal=True)
    return tag, await reader.readexactly(length - 4)


_FRONTEND: Final = frozenset(bytes([tag]) for tag in b"QPBDECSHFXdcfp")


class Body:
    """Reads the body of a message, field by field.

    Raises:
        Refused: By any of its methods: the body is too short.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def string(self) -> str:
        """A zero-terminated string."""
        try:
            found, self._position = read_string(self._data, self._position)
        except ValueError:
            raise _too_short() from None
        _check_encoding(found)
        return found

    def take(self, size: int) -> bytes:
        """So many bytes."""
        taken = self._data[self._position : self._position + size]
        if size < 0 or len(taken) < size:
            raise _too_short()
        self._position += size
        return taken

    def int16(self) -> int:
        """An Int16."""
        found: int = INT16.unpack(self.take(2))[0]
        return found

    def int32(self) -> int:
        """An Int32."""
        found: int = INT32.unpack(self.take(4))[0]
        return found

    def int16s(self) -> list[int]:
        """A number of Int16, counted by another."""
        return [self.int16() for _ in range(self.int16())]

    def oids(self) -> list[int]:
        """A number of OIDs, counted by an Int16."""
        return [self.int32() & 0xFFFFFFFF for _ in range(self.int16())]

    def value(self) -> Value:
        """A value with its length, which is -1 for NULL."""
        size = self.int32()
        return None if size == -1 else self.take(size)

    def rest(self) -> bytes:
        """All that is left."""
        return self._data[self._position :]


def _check_encoding(found: str, *, fatal: bool = False) -> None:
    """See that a client's text was UTF-8 (pg_verifymbstr)."""
    try:
        found.encode()
    except UnicodeEncodeError:
        raise Refused("22021", 'invalid byte sequence for encoding "UTF8"', fatal=fatal) from None


def _too_short() -> Refused:
    return Refused("08P01", "insufficient data left in message", fatal=True)
