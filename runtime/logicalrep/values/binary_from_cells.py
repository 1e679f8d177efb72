"""Conversion of texts and cells to binary format."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from logicalrep.messages import Cell
from logicalrep.values.builtin_types import describe_type
from logicalrep.values.forms import input_function
from logicalrep.values.forms.parsing import InputFunction

_MAX_SHOWN: Final = 60
"""Number of characters of a value that an error message shows."""


def encode_binary(text: str, type_oid: int) -> bytes:
    r"""Return a value's binary form, as the server sends it (the type's send function).

    Args:
        text: The value's text with DateStyle ISO, IntervalStyle postgres and bytea_output hex. Times may be
            in any time zone. A money value is its amount in the smallest unit, and a value of a reg* type
            (regclass, …) its OID, as `to_text` returns them.
        type_oid: OID of a built-in type. For a domain, pass the OID of its base type; an enum's binary form
            is its text.

    Raises:
        ValueError: The text is not a value of the type, or binary values of the type cannot be made from text
            (types that are not built in, extended statistics, BRIN summaries, aclitem).
    """
    return _encoder(type_oid)(text)


def to_binary(cells: Sequence[Cell], type_oid: int) -> list[Cell]:
    """Return a column's cells with text values converted to binary format.

    Cells that are bytes, None or UNCHANGED are returned as they are.

    Args:
        cells: Cells of a column. Texts must have DateStyle ISO, IntervalStyle postgres and bytea_output hex.
        type_oid: OID of the column's type, a built-in type.

    Raises:
        ValueError: A text is not a value of the type, or binary values of the type cannot be made from text
            (types that are not built in, extended statistics, BRIN summaries, aclitem).
    """
    encode = _encoder(type_oid)
    return [encode(cell) if isinstance(cell, str) else cell for cell in cells]


def _encoder(type_oid: int) -> InputFunction:
    convert, name = input_function(type_oid), describe_type(type_oid)

    def encode(text: str) -> bytes:
        try:
            return convert(text)
        except (ValueError, OverflowError, struct.error) as error:
            shown = repr(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…")
            raise ValueError(f"{shown} is not what a server writes for {name} ({error})") from None

    return encode
