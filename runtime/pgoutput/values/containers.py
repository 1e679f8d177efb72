"""Values that hold values: arrays, vectors, ranges, multiranges and records.

Each is given `find`, which knows the output of the values inside by the OID of their type.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from pgoutput import catalog
from pgoutput.values.literals import array_element, range_bound, record_field
from pgoutput.values.reader import Output, Reader

Find: TypeAlias = Callable[[int], Output]
"""The output of a type, by its OID. Raises ValueError where there is none."""

_ARRAY: Final = struct.Struct(">iiI")
_DIMENSION: Final = struct.Struct(">ii")
_COUNT: Final = struct.Struct(">i")
_OID: Final = struct.Struct(">I")
_FLAGS: Final = struct.Struct(">B")

_MAX_DIMENSIONS: Final = 6
"""MAXDIM."""
_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16
"""RANGE_EMPTY, RANGE_LB_INC and their neighbours."""


def array_out(data: bytes, find: Find, inner_oid: int | None = None) -> str:
    """Elements in braces, behind the bounds if any is not 1 (array_send, array_out).

    Args:
        data: Number of dimensions, whether there are NULLs, type of the elements; size and lower bound of
            each dimension; then the elements.
        find: Gives the output of the elements.
        inner_oid: The type that the elements must have; None where it is not known.
    """
    oid, dimensions, elements = _elements(Reader(data), find, inner_oid)
    if not elements:
        return "{}"
    delimiter = ";" if oid == catalog.BY_NAME["box"].oid else ","
    items = ["NULL" if item is None else array_element(item, delimiter) for item in elements]
    for size, _ in reversed(dimensions):
        items = [
            "{" + delimiter.join(items[start : start + size]) + "}" for start in range(0, len(items), size)
        ]
    bounds = "".join(f"[{lower}:{lower + size - 1}]" for size, lower in dimensions)
    return f"{bounds}={items[0]}" if any(lower != 1 for _, lower in dimensions) else items[0]


def vector_out(data: bytes, find: Find, inner_oid: int) -> str:
    """Numbers with a space between them (int2vectorsend, int2vectorout; oidvectorsend, oidvectorout)."""
    _, dimensions, elements = _elements(Reader(data), find, inner_oid)
    if len(dimensions) > 1 or None in elements:
        raise ValueError("not a vector")
    return " ".join(map(str, elements))


def _elements(
    reader: Reader, find: Find, inner_oid: int | None
) -> tuple[int, list[tuple[int, int]], list[str | None]]:
    """What an array holds: type, dimensions as size and lower bound, elements (array_recv)."""
    count, flags, oid = reader.unpack(_ARRAY)
    if not 0 <= count <= _MAX_DIMENSIONS or flags not in (0, 1) or oid != (inner_oid or oid):
        raise ValueError("not the head of an array")
    output = find(oid)
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


def range_out(data: bytes, find: Find, inner_oid: int) -> str:
    """Bounds in brackets that say whether they belong to it (range_send, range_out)."""
    reader = Reader(data)
    (flags,) = reader.unpack(_FLAGS)
    if flags >= 2 * _UPPER_INFINITE:
        raise ValueError("unknown flags")
    bound = find(inner_oid)
    text = "empty"
    if not flags & _EMPTY:
        lower = "" if flags & _LOWER_INFINITE else _bound(reader, bound)
        upper = "" if flags & _UPPER_INFINITE else _bound(reader, bound)
        opening = "[" if flags & _LOWER_INCLUSIVE else "("
        text = f"{opening}{lower},{upper}{']' if flags & _UPPER_INCLUSIVE else ')'}"
    reader.end()
    return text


def _bound(reader: Reader, output: Output) -> str:
    value = reader.value()
    if value is None:
        raise ValueError("a bound is not NULL")
    return range_bound(output(value))


def multirange_out(data: bytes, find: Find, inner_oid: int) -> str:
    """Ranges in braces (multirange_send, multirange_out)."""
    reader = Reader(data)
    (count,) = reader.unpack(_COUNT)
    output = find(inner_oid)
    ranges: list[str] = []
    while len(ranges) < count:
        value = reader.value()
        if value is None:
            raise ValueError("a range is not NULL")
        ranges.append(output(value))
    reader.end()
    return "{" + ",".join(ranges) + "}"


def record_out(data: bytes, find: Find) -> str:
    """Columns in round brackets, nothing for a NULL (record_send, record_out)."""
    reader = Reader(data)
    (count,) = reader.unpack(_COUNT)
    if count < 1:  # legal, but four zero bytes are rather something else
        raise ValueError("a record without columns")
    fields: list[str] = []
    while len(fields) < count:
        (oid,) = reader.unpack(_OID)
        output = find(oid)
        value = reader.value()
        fields.append("" if value is None else record_field(output(value)))
    reader.end()
    return "(" + ",".join(fields) + ")"
