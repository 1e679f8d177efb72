"""Values of results and of parameters, in text and in binary format, as far as look-ups have them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from pgoutput.standin.protocol import Refused, Value
from pgoutput.wire import parse_lsn

Cell: TypeAlias = int | float | str | bytes | None
"""A value as the look-ups give it; a bool is 0 or 1."""

BOOL: Final = 16
INT8: Final = 20
INT4: Final = 23
TEXT: Final = 25
OID: Final = 26
FLOAT8: Final = 701
NAME: Final = 19
XID: Final = 28
PG_LSN: Final = 3220
JSONB: Final = 3802


def type_of(value: Cell) -> int:
    """The type of a value whose column says nothing."""
    if isinstance(value, int):
        return INT4 if -(1 << 31) <= value < 1 << 31 else INT8
    return FLOAT8 if isinstance(value, float) else TEXT


def write_value(value: Cell, type_oid: int, format_: int) -> Value:
    """A value on the wire.

    Args:
        value: The value.
        type_oid: Its type.
        format_: 0 for text, 1 for binary format.

    Raises:
        Refused: It cannot be written in binary format.
    """
    if value is None:
        return None
    if format_ and type_oid in _BINARY:
        try:
            return _BINARY[type_oid](value)
        except (struct.error, ValueError, TypeError):
            raise Refused("22P03", f"{value!r} has no binary format of type {type_oid}") from None
    if isinstance(value, bytes):
        return value
    if type_oid == BOOL:
        return b"t" if value else b"f"
    return str(value).encode("utf-8", "surrogateescape")


_BINARY: Final[Mapping[int, Callable[[Cell], bytes]]] = {
    BOOL: lambda value: b"\1" if value else b"\0",
    INT4: lambda value: struct.pack(">i", value),
    INT8: lambda value: struct.pack(">q", value),
    OID: lambda value: struct.pack(">I", value),
    XID: lambda value: struct.pack(">I", value),
    FLOAT8: lambda value: struct.pack(">d", value),
    PG_LSN: lambda value: struct.pack(">Q", parse_lsn(str(value))),
    JSONB: lambda value: b"\1" + str(value).encode(),
}
"""Types whose binary format is not their text."""


def read_parameter(data: Value, type_oid: int, format_: int) -> Cell:
    """A parameter of a query.

    Raises:
        Refused: It cannot be read.
    """
    if data is None:
        return None
    try:
        if format_ and type_oid in _NUMBERS:
            number: int | float = struct.unpack(_NUMBERS[type_oid], data)[0]
            return number
        return data.decode()
    except (struct.error, UnicodeDecodeError):
        raise Refused("22P03", f"a parameter of type {type_oid} cannot be read") from None


_NUMBERS: Final = {BOOL: ">?", 21: ">h", INT4: ">i", INT8: ">q", OID: ">I", FLOAT8: ">d"}
