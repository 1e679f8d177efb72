"""Columns of cells as the server's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TypeAlias

from pgoutput.messages import Cell
from pgoutput.values.outputs import output
from pgoutput.values.reader import ILLEGAL
from pgoutput.wire import UNCHANGED, is_utf8, shown_text

Rescued: TypeAlias = dict[int, str | None]
"""What a column could not hold: rows, and their values as text; None where the value was never sent."""


def to_text(cells: Sequence[Cell], type_oid: int) -> list[str | None]:
    r"""A column of cells as the server's own text, whether it was sent as text or in binary format.

    Binary values become what the type's output function writes under the recorder's settings (DateStyle ISO,
    IntervalStyle postgres, TimeZone UTC, bytea_output hex, shortest floating-point numbers), so text and
    binary captures of the same changes give the same, but for what is not on the wire:

    - money: the amount in its smallest unit, a plain number such as `1234`. Neither the currency nor how many
      digits stand behind its point is sent (cash_send), so `$12.34` would be a guess.
    - regclass and the like: the object's OID, `-` where there is none. Names are not sent (regclasssend).
    - "char" of 128 and more: `\ooo`, as since PostgreSQL 15.
    - types that are not built in: text if the bytes are that (enums), else an array or a record if they are
      exactly one; a domain inside those counts as not built in.

    Text that is not UTF-8 has its other bytes as `\xff`. Bytes that are no value of the type, or of a type
    that cannot be told, become hex: `\x00ff`.

    Args:
        cells: Values in text or binary format, NULLs and unchanged ones; the last two become None.
        type_oid: OID of the column's type.

    Raises:
        TypeError: `cells` is not a sequence of cells.
    """
    require_cells(cells)
    texts, rescued = read(cells, type_oid)
    for row, text in rescued.items():
        texts[row] = text
    return texts


def require_cells(cells: Sequence[Cell]) -> None:
    """Check that the cells are in a sequence such as a list: the items of others would pass for cells.

    Raises:
        TypeError: They are not.
    """
    if isinstance(cells, str | bytes | bytearray | memoryview | Mapping | Set):
        raise TypeError(f"a sequence of cells is expected, not {type(cells).__name__}")


def read(cells: Sequence[Cell], type_oid: int) -> tuple[list[str | None], Rescued]:
    """A column of cells as the server's text, and apart from it what is no text or no value of the type.

    Args:
        cells: Values in text or binary format, NULLs and unchanged ones.
        type_oid: OID of the column's type.

    Raises:
        TypeError: A cell is none of these.
    """
    convert = output(type_oid)
    rescued: Rescued = {}
    texts: list[str | None] = []
    for row, cell in enumerate(cells):
        text = None
        if isinstance(cell, str):
            text = cell
        elif isinstance(cell, bytes):
            try:
                text = convert(cell)
            except ILLEGAL:
                rescued[row] = "\\x" + cell.hex()
        elif cell is UNCHANGED:
            rescued[row] = None
        elif cell is not None:
            kind = type(cell).__name__  # type: ignore[unreachable]
            raise TypeError(f"cells[{row}]: str, bytes, None or UNCHANGED is expected, not {kind}")
        if text is not None and not text.isascii() and not is_utf8(text):
            rescued[row] = shown_text(text)
            text = None
        texts.append(text)
    return texts, rescued
