"""Read and parse frontend messages, the messages that clients send (pqformat.c)."""

from __future__ import annotations

import asyncio
from typing import Final

from logicalrep.standin.protocol import HEADER, INT16, INT32, UINT32, EncodedValue, ServerError
from logicalrep.wire import read_string

_MAX_STARTUP_BYTES: Final = 10_000
"""Maximum size of a startup packet, in bytes (MAX_STARTUP_PACKET_LENGTH)."""

_MAX_MESSAGE_BYTES: Final = 1 << 16
"""Maximum size of a frontend message after the startup packet, in bytes. Real servers accept more."""


async def read_startup_packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read the first packet of a connection (ProcessStartupPacket) and return its code and body.

    The code is a protocol version, or identifies an SSLRequest, GSSENCRequest or CancelRequest.

    Raises:
        ServerError: The packet's length is invalid.
        IncompleteReadError: The connection ended.
    """
    (length,) = UINT32.unpack(await reader.readexactly(4))
    if not 8 <= length <= _MAX_STARTUP_BYTES:
        raise ServerError("08P01", "invalid length of startup packet", fatal=True)
    body = await reader.readexactly(length - 4)
    return UINT32.unpack_from(body)[0], body[4:]


def parse_startup_options(body: bytes) -> dict[str, str]:
    """Parse the body of a StartupMessage and return the values of the startup options by name.

    Raises:
        ServerError: The body is not a list of zero-terminated strings in UTF-8.
    """
    options: dict[str, str] = {}
    position = 0
    try:
        while body[position]:
            name, position = read_string(body, position)
            options[name], position = read_string(body, position)
    except (IndexError, ValueError):
        raise ServerError(
            "08P01", "invalid startup packet layout: expected terminator as last byte", fatal=True
        ) from None
    for part in (*options, *options.values()):
        _check_encoding(part, fatal=True)
    return options


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read the next frontend message and return its tag and body.

    Raises:
        ServerError: The tag or the length of the message is invalid.
        IncompleteReadError: The connection ended.
    """
    tag, length = HEADER.unpack(await reader.readexactly(5))
    if tag not in _FRONTEND_TAGS:
        raise ServerError("08P01", f"invalid frontend message type {tag[0]}", fatal=True)
    if not 4 <= length <= _MAX_MESSAGE_BYTES:
        raise ServerError("08P01", f"invalid message length {length}", fatal=True)
    return tag, await reader.readexactly(length - 4)


_FRONTEND_TAGS: Final = frozenset(bytes([tag]) for tag in b"QPBDECSHFXdcfp")


class MessageReader:
    """Reads the body of a frontend message field by field.

    Raises:
        ServerError: Each method raises it if the rest of the body is too short for the field.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0

    def string(self) -> str:
        """Read a zero-terminated string."""
        try:
            text, self._position = read_string(self._body, self._position)
        except ValueError:
            raise _too_short() from None
        _check_encoding(text)
        return text

    def raw(self, size: int) -> bytes:
        """Read the next `size` bytes."""
        data = self._body[self._position : self._position + size]
        if size < 0 or len(data) < size:
            raise _too_short()
        self._position += size
        return data

    def int16(self) -> int:
        """Read a signed 16-bit integer in network byte order (Int16)."""
        value: int = INT16.unpack(self.raw(2))[0]
        return value

    def int32(self) -> int:
        """Read a signed 32-bit integer in network byte order (Int32)."""
        value: int = INT32.unpack(self.raw(4))[0]
        return value

    def int16s(self) -> list[int]:
        """Read an Int16 count, then a list of as many Int16 numbers."""
        return [self.int16() for _ in range(self.int16())]

    def oids(self) -> list[int]:
        """Read an Int16 count, then a list of as many OIDs."""
        return [self.int32() & 0xFFFFFFFF for _ in range(self.int16())]

    def value(self) -> EncodedValue:
        """Read an Int32 length, then a value of as many bytes. Return None for the length -1 (NULL)."""
        size = self.int32()
        return None if size == -1 else self.raw(size)


def _check_encoding(text: str, *, fatal: bool = False) -> None:
    """Check that `text` was decoded from valid UTF-8, and so has no lone surrogates (pg_verifymbstr).

    `fatal` is passed on to the ServerError for invalid UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ServerError("22021", 'invalid byte sequence for encoding "UTF8"', fatal=fatal) from None


def _too_short() -> ServerError:
    return ServerError("08P01", "insufficient data left in message", fatal=True)
