"""What clients send: startup packets and messages, read and taken apart (pqformat.c)."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from pgoutput.standin.protocol import HEAD, INT16, INT32, UINT32, Refused, Value
from pgoutput.wire import read_string

_STARTUP_BYTES: Final = 10_000
"""A startup packet may have, at most (MAX_STARTUP_PACKET_LENGTH)."""

_MESSAGE_BYTES: Final = 1 << 16
"""Any other message of a client may have. Servers take more; what clients ask of this one is short."""


class Startup(msgspec.Struct, frozen=True):
    """The first packet of a connection: a code, or a protocol version, and what follows it."""

    code: int
    body: bytes


async def read_startup(reader: asyncio.StreamReader) -> Startup:
    """The first packet of a connection (ProcessStartupPacket).

    Raises:
        Refused: It is none.
        IncompleteReadError: The connection ended.
    """
    (length,) = UINT32.unpack(await reader.readexactly(4))
    if not 8 <= length <= _STARTUP_BYTES:
        raise Refused("08P01", "invalid length of startup packet", fatal=True)
    body = await reader.readexactly(length - 4)
    return Startup(UINT32.unpack_from(body)[0], body[4:])


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
    tag, length = HEAD.unpack(await reader.readexactly(5))
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
