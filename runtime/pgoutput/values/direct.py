"""Binary columns of common types to Arrow without a way through text, where all of a column allows it."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from pgoutput import catalog
from pgoutput.messages import Cell
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS, UNIX_YEAR_1, UNIX_YEAR_10000

_NUMBERS: Final = {
    "int2send": "h",
    "int4send": "i",
    "int8send": "q",
    "oidsend": "I",
    "xidsend": "I",
    "cidsend": "I",
    "float4send": "f",
    "float8send": "d",
    "date_send": "i",
    "timestamp_send": "q",
    "timestamptz_send": "q",
}
"""How a number is sent, by send function."""

_DAY: Final = 86_400_000_000
_UNITS: Final = {"date_send": _DAY, "timestamp_send": 1, "timestamptz_send": 1}
"""Microseconds that the number counts since 2000-01-01."""

_TEXTS: Final = ("textsend", "varcharsend", "bpcharsend", "namesend", "json_send")


def convert_directly(cells: Sequence[Cell], type_oid: int, type_: pa.DataType) -> pa.Array | None:
    """A column of binary cells as Arrow, the same as it is by way of text.

    Args:
        cells: The values.
        type_oid: OID of the column's type.
        type_: The Arrow type for it.

    Returns:
        None where the type is none of these, or a cell is neither NULL nor bytes, or what it holds needs a
        closer look.
    """
    builtin = catalog.BY_OID.get(type_oid)
    if builtin is None or not set(map(type, cells)) <= {bytes, type(None)}:
        return None
    values = [cell for cell in cells if isinstance(cell, bytes)]
    if builtin.send in _NUMBERS:
        numbers = _numbers(values, builtin.send)
        return None if numbers is None else pa.array(_spread(numbers, cells), type_)
    if builtin.send == "byteasend":
        return pa.array(cells, type_)
    if builtin.send in _TEXTS and not any(0 in value for value in values):
        try:
            return pa.array(cells, pa.binary()).cast(type_)
        except pa.ArrowInvalid:  # not UTF-8
            return None
    return None


def _numbers(values: Sequence[bytes], send: str) -> Iterable[int | float] | None:
    form = struct.Struct(">" + _NUMBERS[send])
    if not set(map(len, values)) <= {form.size}:
        return None
    numbers = [number for (number,) in form.iter_unpack(b"".join(values))]
    if send in _UNITS and numbers:
        unit = _UNITS[send]
        epoch = EPOCH_UNIX_MICROSECONDS // unit
        if (
            not UNIX_YEAR_1
            <= (min(numbers) + epoch) * unit
            <= (max(numbers) + epoch) * unit
            < UNIX_YEAR_10000
        ):
            return None
        return [number + epoch for number in numbers]
    if send in ("float4send", "float8send"):  # in text there is one NaN only
        return [math.nan if number != number else number for number in numbers]
    return numbers


def _spread(numbers: Iterable[int | float], cells: Sequence[Cell]) -> list[int | float | None]:
    left = iter(numbers)
    return [None if cell is None else next(left) for cell in cells]
