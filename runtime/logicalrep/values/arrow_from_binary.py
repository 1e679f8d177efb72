"""Fast conversion of cells in binary format to Arrow arrays for common types, without text in between."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from logicalrep import catalog
from logicalrep.messages import Cell
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS, UNIX_YEAR_1, UNIX_YEAR_10000

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
"""Format character of the module `struct` for the binary form of a value, by name of the send function."""

_DAY: Final = 86_400_000_000
_UNITS: Final = {"date_send": _DAY, "timestamp_send": 1, "timestamptz_send": 1}
"""Microseconds in one unit of a date's or timestamp's binary form, by name of the send function."""

_TEXTS: Final = ("textsend", "varcharsend", "bpcharsend", "namesend", "json_send")
"""Names of the send functions whose binary form is the value's text."""


def convert_directly(cells: Sequence[Cell], type_oid: int, type_: pa.DataType) -> pa.Array | None:
    """Return a column of binary cells as an Arrow array, the same array as by conversion through text.

    Args:
        cells: Cells of the column.
        type_oid: OID of the column's type.
        type_: Arrow type of the array.

    Returns:
        The array, or None if the column must be converted through text: the type has no direct conversion, a
        cell is text or UNCHANGED, or a value may be invalid or not representable.
    """
    builtin = catalog.FORMS.get(type_oid)
    if builtin is None or not set(map(type, cells)) <= {bytes, type(None)}:
        return None
    values = [cell for cell in cells if isinstance(cell, bytes)]
    if builtin.send in _NUMBERS:
        numbers = _unpack_numbers(values, builtin.send)
        return None if numbers is None else pa.array(_insert_nulls(numbers, cells), type_)
    if builtin.send == "byteasend":
        return pa.array(cells, type_)
    if builtin.send in _TEXTS and not any(0 in value for value in values):
        try:
            return pa.array(cells, pa.binary()).cast(type_)
        except pa.ArrowInvalid:  # not UTF-8
            return None
    return None


def _unpack_numbers(values: Sequence[bytes], send: str) -> Iterable[int | float] | None:
    number_format = struct.Struct(">" + _NUMBERS[send])
    if not set(map(len, values)) <= {number_format.size}:
        return None
    numbers = [number for (number,) in number_format.iter_unpack(b"".join(values))]
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
    if send in ("float4send", "float8send"):  # NaN has many bit patterns, but one text
        return [math.nan if number != number else number for number in numbers]
    return numbers


def _insert_nulls(numbers: Iterable[int | float], cells: Sequence[Cell]) -> list[int | float | None]:
    remaining = iter(numbers)
    return [None if cell is None else next(remaining) for cell in cells]
