"""SQL values and results: the types that the stand-in server uses, in text and binary format."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from logicalrep.catalog import TYPES
from logicalrep.standin.protocol import EncodedValue, Field, ServerError
from logicalrep.values import decode_binary, encode_binary

SqlValue: TypeAlias = int | float | str | bytes | None
"""A value of a query result or a query parameter. A boolean is 0 or 1, NULL is None."""


class Result(msgspec.Struct, frozen=True):
    """Result of an SQL statement."""

    tag: str
    """Command tag, such as SELECT 1."""
    fields: Sequence[Field] = ()
    """Columns of the result; empty if the statement returns no rows."""
    rows: Sequence[Sequence[SqlValue]] = ()
    """Rows of the result."""
    copied: bytes | None = None
    """Output of COPY … TO STDOUT; None for other statements."""


BOOL: Final = 16
BYTEA: Final = 17
INT2: Final = 21
INT8: Final = 20
INT4: Final = 23
TEXT: Final = 25
OID: Final = 26
FLOAT8: Final = 701
UNKNOWN: Final = 705
NAME: Final = 19
XID: Final = 28
RECORD: Final = 2249
VOID: Final = 2278
PG_LSN: Final = 3220
JSONB: Final = 3802


_SLOT: Final = re.compile(r"\((\w+),([0-9A-F]+/[0-9A-F]+)\)")
"""Matches the text of a record of slot name and LSN. Other records cannot be sent in binary format."""


def encode_value(value: SqlValue, type_oid: int, format_: int) -> EncodedValue:
    """Encode a value of a query result.

    Args:
        value: The value.
        type_oid: OID of the column's type.
        format_: 0 for text format, 1 for binary format.

    Raises:
        ServerError: The value cannot be represented in the binary format of the type.
    """
    if value is None:
        return None
    if isinstance(value, bytes):
        return value
    text = ("t" if value else "f") if type_oid == BOOL else str(value)
    if not format_ or type_oid == VOID:
        return text.encode("utf-8", "surrogateescape")
    if type_oid == RECORD and (cells := _SLOT.fullmatch(text)):
        pairs = zip((NAME, PG_LSN), map(encode_binary, cells.groups(), (NAME, PG_LSN)), strict=True)
        return struct.pack(">i", 2) + b"".join(
            struct.pack(">Ii", oid, len(cell)) + cell for oid, cell in pairs
        )
    try:
        return encode_binary(text, type_oid)
    except ValueError:
        raise ServerError(
            "22P03", f"{value!r} cannot be sent in binary format as type OID {type_oid}: request text format"
        ) from None


def decode_parameter(data: EncodedValue, type_oid: int, format_: int) -> SqlValue:
    """Decode a query parameter. A binary value of a type that the server does not know is decoded as UTF-8.

    Raises:
        ServerError: The value is invalid for the type and format.
    """
    if data is None:
        return None
    try:
        if format_ and type_oid in _NUMBER_FORMATS:
            number: int | float = struct.unpack(_NUMBER_FORMATS[type_oid], data)[0]
            return number
        return decode_binary(data, type_oid) if format_ and type_oid in _TYPES else data.decode()
    except (struct.error, ValueError):
        raise ServerError(
            "22P03",
            f"invalid parameter value {data[:50]!r} for type OID {type_oid} and format code {format_}",
        ) from None


_TYPES: Final = {oid for builtin in TYPES for oid in (builtin.oid, builtin.array_oid) if oid}
_NUMBER_FORMATS: Final = {BOOL: ">?", 21: ">h", INT4: ">i", INT8: ">q", OID: ">I", FLOAT8: ">d"}
