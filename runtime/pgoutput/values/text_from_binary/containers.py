"""Text of container values: arrays, vectors, ranges, multiranges and records (composites).

Each function takes `find_output`, which returns the output function of the inner values' type.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from pgoutput.values.builtin_types import element_delimiter
from pgoutput.values.literals import quote_array_element, quote_range_bound, quote_record_field
from pgoutput.values.text_from_binary.reader import OutputFunction, Reader

FindOutput: TypeAlias = Callable[[int], OutputFunction]
"""A function that returns the output function of a type OID, or raises ValueError if there is none."""

_ARRAY: Final = struct.Struct(">iiI")
_DIMENSION: Final = struct.Struct(">ii")
_COUNT: Final = struct.Struct(">i")
_OID: Final = struct.Struct(">I")
_FLAGS: Final = struct.Struct(">B")

_MAX_DIMENSIONS: Final = 6
"""Largest number of dimensions of an array (MAXDIM)."""
_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16
"""Flag bits of a range: RANGE_EMPTY, RANGE_LB_INC, RANGE_UB_INC, RANGE_LB_INF, RANGE_UB_INF."""


def array_out(data: bytes, find_output: FindOutput, inner_oid: int | None = None) -> str:
    """Return an array's text: `{1,2}`, or `[0:1]={1,2}` if a lower bound is not 1 (array_send, array_out).

    Args:
        data: Number of dimensions, NULL flag, element type; size and lower bound of each dimension; elements.
        find_output: Returns the output function of the element type.
        inner_oid: OID that the element type must have, or None if any type is valid.

    Raises:
        ValueError: The bytes are not an array of this type.
        struct.error: The bytes end too early.
    """
    oid, dimensions, elements = _read_array(Reader(data), find_output, inner_oid)
    if not elements:
        return "{}"
    delimiter = element_delimiter(oid)
    items = ["NULL" if item is None else quote_array_element(item, delimiter) for item in elements]
    for size, _ in reversed(dimensions):
        items = [
            "{" + delimiter.join(items[start : start + size]) + "}" for start in range(0, len(items), size)
        ]
    bounds = "".join(f"[{lower}:{lower + size - 1}]" for size, lower in dimensions)
    return f"{bounds}={items[0]}" if any(lower != 1 for _, lower in dimensions) else items[0]


def vector_out(data: bytes, find_output: FindOutput, inner_oid: int) -> str:
    """Return a vector's text, `1 2 3` (int2vectorsend, int2vectorout; oidvectorsend, oidvectorout)."""
    _, dimensions, elements = _read_array(Reader(data), find_output, inner_oid)
    if len(dimensions) > 1 or None in elements:
        raise ValueError("not a vector")
    return " ".join(map(str, elements))


def _read_array(
    reader: Reader, find_output: FindOutput, inner_oid: int | None
) -> tuple[int, list[tuple[int, int]], list[str | None]]:
    """Return an array's element type OID, dimensions (size, lower bound) and elements (array_recv)."""
    count, flags, oid = reader.unpack(_ARRAY)
    if not 0 <= count <= _MAX_DIMENSIONS or flags not in (0, 1) or oid != (inner_oid or oid):
        raise ValueError("not an array header")
    output = find_output(oid)
    dimensions: list[tuple[int, int]] = []
    for _ in range(count):
        size, lower = reader.unpack(_DIMENSION)
        if size < 0 or lower + size > 2**31:
            raise ValueError("not a dimension")
        dimensions.append((size, lower))
    count = math.prod(size for size, _ in dimensions) if dimensions else 0
    elements = [None if (value := reader.value()) is None else output(value) for _ in range(count)]
    reader.end()
    return oid, dimensions, elements


def range_out(data: bytes, find_output: FindOutput, inner_oid: int) -> str:
    """Return a range's text, `[1,5)` or `empty` (range_send, range_out)."""
    reader = Reader(data)
    (flags,) = reader.unpack(_FLAGS)
    if flags >= 2 * _UPPER_INFINITE:
        raise ValueError("unknown flags")
    output = find_output(inner_oid)
    text = "empty"
    if not flags & _EMPTY:
        lower = "" if flags & _LOWER_INFINITE else _read_bound(reader, output)
        upper = "" if flags & _UPPER_INFINITE else _read_bound(reader, output)
        opening = "[" if flags & _LOWER_INCLUSIVE else "("
        text = f"{opening}{lower},{upper}{']' if flags & _UPPER_INCLUSIVE else ')'}"
    reader.end()
    return text


def _read_bound(reader: Reader, output: OutputFunction) -> str:
    value = reader.value()
    if value is None:
        raise ValueError("a bound is not NULL")
    return quote_range_bound(output(value))


def multirange_out(data: bytes, find_output: FindOutput, inner_oid: int) -> str:
    """Return a multirange's text, `{[1,5),[7,9)}` (multirange_send, multirange_out)."""
    reader = Reader(data)
    (count,) = reader.unpack(_COUNT)
    output = find_output(inner_oid)
    ranges: list[str] = []
    while len(ranges) < count:
        value = reader.value()
        if value is None:
            raise ValueError("a range is not NULL")
        ranges.append(output(value))
    reader.end()
    return "{" + ",".join(ranges) + "}"


def record_out(data: bytes, find_output: FindOutput) -> str:
    """Return a record's text, `(1,two,)` with nothing for NULL (record_send, record_out)."""
    reader = Reader(data)
    (count,) = reader.unpack(_COUNT)
    if count < 1:  # valid, but four zero bytes are more likely a value of another type
        raise ValueError("a record without columns")
    fields: list[str] = []
    while len(fields) < count:
        (oid,) = reader.unpack(_OID)
        output = find_output(oid)
        value = reader.value()
        fields.append("" if value is None else quote_record_field(output(value)))
    reader.end()
    return "(" + ",".join(fields) + ")"
