"""Assign numbers to the keys of rows, the same number to equal keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import Numbers
from logicalrep.values import Rescued, default_type, from_arrow, read_fixed_texts

NEVER_SENT: Final = -1
"""Number that `number_values` gives to a value that was never sent."""
NULL: Final = -2
"""Number that `number_values` gives to NULL."""


def number_keys(columns: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Number keys from 0; return the number of each key, and for each number the index of its first key.

    Args:
        columns: For each key column the numbers that `number_values` returns; at least one column.
    """
    numbers = columns[0]
    for column in columns[1:]:
        values = column - NULL
        numbers = _renumber(numbers) * (values.max(initial=0) + 1) + values
    if len(columns) > 1 or numbers.min(initial=0) < 0:
        numbers = _renumber(numbers)
    first = np.zeros(numbers.max(initial=-1) + 1, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return numbers, first


def _renumber(numbers: Numbers) -> Numbers:
    return np.asarray(pa.array(numbers).dictionary_encode().indices, np.int64)


def number_values(array: pa.Array, rescued: Rescued | Mapping[int, str | None]) -> Numbers:
    """Return a number for each value, the same number for equal values (for floats: with equal text).

    Args:
        array: The values.
        rescued: Rescued values by row. A rescued value is unequal to every value of the array's type; None
            is a value that was never sent.
    """
    numbers = _number_integers(array)
    if numbers is None:
        encoded = _comparable(array).dictionary_encode()
        numbers = np.array(encoded.indices.fill_null(NULL), np.int64)
    free = numbers.max(initial=-1) + 1
    texts: dict[str, int] = {}
    for row, text in rescued.items():
        own = texts.setdefault(text, len(texts)) if text is not None else 0
        numbers[row] = NEVER_SENT if text is None else free + own
    return numbers


def _number_integers(array: pa.Array) -> Numbers | None:
    """Number integers, or texts of integers, as `number_values` does; return None for other values."""
    if pa.types.is_string(array.type) and (read := read_fixed_texts(array, pa.int64())) is not None:
        array, unread = read
        if len(unread):
            return None
    if not pa.types.is_integer(array.type):
        return None
    known = np.asarray(array.is_valid())
    values = np.asarray(array.drop_null(), np.int64)
    order = np.argsort(values)  # a sort is faster than a dictionary encoding
    ordered = values[order]
    ranks = np.zeros(len(values), np.int64)
    ranks[order[1:]] = np.cumsum(ordered[1:] != ordered[:-1])
    numbers = np.full(len(known), NULL, np.int64)
    numbers[known] = ranks
    return numbers


def _comparable(array: pa.Array) -> pa.Array:
    """Convert values to a type that Arrow can dictionary-encode; values with equal texts become equal."""
    if pa.types.is_nested(array.type):
        return from_arrow(array, *default_type(array.type))
    if pa.types.is_floating(array.type):
        single = pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)
        return single.view({32: pa.int32(), 64: pa.int64()}[array.type.bit_width])
    return array
