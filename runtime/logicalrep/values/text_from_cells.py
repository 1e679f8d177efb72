"""Conversion of cells to the server's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TypeAlias

from logicalrep.messages import Cell
from logicalrep.values.builtin_types import describe_type
from logicalrep.values.forms import output_function
from logicalrep.values.forms.parsing import INVALID_VALUE_ERRORS
from logicalrep.wire import UNCHANGED, hex_text, stored_text

Rescued: TypeAlias = dict[int, str | None]
"""By row (from 0), the cells that are NULL in a column's array but not in the tuple: the text of a rescued
value, or None for UNCHANGED."""


def to_text(cells: Sequence[Cell], type_oid: int) -> list[str | None]:
    r"""Return a column of cells as the server's text.

    A binary value becomes the text that the type's output function writes with DateStyle ISO, IntervalStyle
    postgres, TimeZone UTC, bytea_output hex and extra_float_digits 1. It equals the value in text format,
    except for information that is not on the wire:

    - money: the amount in its smallest unit, as a plain number such as `1234`. Currency and number of
      fractional digits are not sent (cash_send).
    - regclass and the other reg* types: the object's OID, or `-` for OID 0. Names are not sent.
    - "char" of 128 and more: `\ooo`, as in PostgreSQL 15+.
    - types that are not built in: the bytes as text if they are text (enums), otherwise the text of an array
      or a record if they are a complete array or record. Domains in an array or record count as not built
      in.

    If the text is not UTF-8, or the bytes are not a value of the type, the result is U+0000, which no text
    has, and the bytes in hex: `\x00ff`. So different values have different results.

    Args:
        cells: Cells of the column. None and UNCHANGED become None.
        type_oid: OID of the column's type.

    Raises:
        TypeError: `cells` is not a sequence of cells.
    """
    require_sequence(cells)
    return read_cells(cells, type_oid)[0]


def decode_binary(data: bytes, type_oid: int) -> str:
    r"""Return the text of a value in binary format, as the type's output function writes it.

    Settings are DateStyle ISO, IntervalStyle postgres, TimeZone UTC and bytea_output hex. `to_text` documents
    the types whose text has more information than their binary form. Bytes that are not UTF-8 become lone
    surrogates (PEP 383).

    Args:
        data: The bytes of the value.
        type_oid: OID of the type.

    Raises:
        ValueError: The bytes are not a value of the type.
    """
    try:
        return output_function(type_oid)(data)
    except INVALID_VALUE_ERRORS as error:
        raise ValueError(
            f"{data[:20]!r} is not a binary value of {describe_type(type_oid)} ({error})"
        ) from None


def require_sequence(cells: Sequence[Cell]) -> None:
    """Check that `cells` is a sequence, not a single value, mapping or set.

    Raises:
        TypeError: `cells` is a str, bytes-like object, mapping or set.
    """
    if isinstance(cells, str | bytes | bytearray | memoryview | Mapping | Set):
        raise TypeError(f"expected a sequence of cells, found {type(cells).__name__}")


def read_cells(cells: Sequence[Cell], type_oid: int) -> tuple[list[str | None], Rescued]:
    """Return the texts of cells as `to_text` does, and a dict with None for each UNCHANGED cell, by row."""
    convert = output_function(type_oid)
    rescued: Rescued = {}
    texts: list[str | None] = []
    for row, cell in enumerate(cells):
        text = None
        if isinstance(cell, str):
            text = stored_text(cell)
        elif isinstance(cell, bytes):
            try:
                text = stored_text(convert(cell))
            except INVALID_VALUE_ERRORS:
                text = hex_text(cell)
        elif cell is UNCHANGED:
            rescued[row] = None
        elif cell is not None:
            kind = type(cell).__name__  # type: ignore[unreachable]
            raise TypeError(f"cells[{row}]: expected str, bytes, None or UNCHANGED, found {kind}")
        texts.append(text)
    return texts, rescued
