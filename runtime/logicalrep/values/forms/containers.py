"""Container values: arrays, vectors, ranges, multiranges and records (composites).

Each output function takes `find_output`, which returns the output function of the inner values' type. Each
input function takes `convert`, the input function of the inner values, and `inner`, the inner values' type.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from logicalrep import catalog
from logicalrep.values.builtin_types import element_delimiter
from logicalrep.values.forms.parsing import InputFunction, OutputFunction, Reader, match_whole
from logicalrep.values.literals import (
    MAX_DIMENSIONS,
    ArrayLiteral,
    parse_array_literal,
    quote_array_element,
    quote_range_bound,
    quote_record_field,
)

FindOutput: TypeAlias = Callable[[int], OutputFunction]
"""A function that returns the output function of a type OID, or raises ValueError if there is none."""

_ARRAY: Final = struct.Struct(">iiI")
_DIMENSION: Final = struct.Struct(">ii")
_COUNT: Final = struct.Struct(">i")
_OID: Final = struct.Struct(">I")
_FLAGS: Final = struct.Struct(">B")

_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16
"""Flag bits of a range: RANGE_EMPTY, RANGE_LB_INC, RANGE_UB_INC, RANGE_LB_INF, RANGE_UB_INF."""

_DOUBLED: Final = re.compile(r'\\(.)|"(")', re.DOTALL)
_BOUND: Final = r'((?:"(?:[^"\\]|\\.)*"|[^"\\()\[\],]|\\.)*)'
_RANGE: Final = re.compile(rf"([\[(]){_BOUND},{_BOUND}([\])])", re.DOTALL)
_IN_MULTIRANGE: Final = re.compile(rf"(?:empty|[\[(]{_BOUND},{_BOUND}[\])])(?=,[\[(]|}}\Z)", re.DOTALL)


def array_out(data: bytes, find_output: FindOutput, inner_oid: int | None = None) -> str:
    """Return an array's text: `{1,2}`, or `[0:1]={1,2}` if a lower bound is not 1 (array_send, array_out).

    Args:
        data: The array: dimension count, NULL flag, element type, dimensions (size, lower bound), elements.
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
        raise ValueError(
            "expected at most one dimension and no NULL in an int2vector or oidvector, found "
            f"{len(dimensions)} dimensions and {elements.count(None)} NULLs"
        )
    return " ".join(map(str, elements))


def _read_array(
    reader: Reader, find_output: FindOutput, inner_oid: int | None
) -> tuple[int, list[tuple[int, int]], list[str | None]]:
    """Return an array's element type OID, dimensions (size, lower bound) and elements (array_recv)."""
    count, flags, oid = reader.unpack(_ARRAY)
    if not 0 <= count <= MAX_DIMENSIONS or flags not in (0, 1) or oid != (inner_oid or oid):
        raise ValueError(
            f"invalid array header: expected 0 to {MAX_DIMENSIONS} dimensions, flags 0 or 1 and the element "
            f"type OID {inner_oid or 'of any type'}, found {count}, {flags} and {oid}"
        )
    output = find_output(oid)
    dimensions: list[tuple[int, int]] = []
    for _ in range(count):
        size, lower = reader.unpack(_DIMENSION)
        if size < 0 or lower + size > 2**31:
            raise ValueError(f"invalid array dimension: size {size}, lower bound {lower}")
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
        raise ValueError(f"expected range flags below {2 * _UPPER_INFINITE:#04x}, found {flags:#04x}")
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
        raise ValueError("expected the value of a range bound, found NULL; a flag marks a missing bound")
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
            raise ValueError("expected a range in the multirange, found NULL")
        ranges.append(output(value))
    reader.end()
    return "{" + ",".join(ranges) + "}"


def record_out(data: bytes, find_output: FindOutput) -> str:
    """Return a record's text, `(1,two,)` with nothing for NULL (record_send, record_out)."""
    reader = Reader(data)
    (count,) = reader.unpack(_COUNT)
    if count < 1:  # valid, but four zero bytes are more likely a value of another type
        raise ValueError(f"expected a record of at least 1 column, found {count}")
    fields: list[str] = []
    while len(fields) < count:
        (oid,) = reader.unpack(_OID)
        output = find_output(oid)
        value = reader.value()
        fields.append("" if value is None else quote_record_field(output(value)))
    reader.end()
    return "(" + ",".join(fields) + ")"


def array_in(text: str, convert: InputFunction, inner: catalog.BuiltinType) -> bytes:
    """Return an array's binary form (array_in, array_send)."""
    return _encode_array(parse_array_literal(text, element_delimiter(inner.oid)), convert, inner)


def vector_in(text: str, convert: InputFunction, inner: catalog.BuiltinType) -> bytes:
    """Return a vector's binary form: an array with lower bound 0 (int2vectorin, int2vectorsend)."""
    elements: list[str | None] = [*text.split(" ")] if text else []
    return _encode_array(ArrayLiteral(elements, [len(elements)], [0]), convert, inner)


def _encode_array(array: ArrayLiteral, convert: InputFunction, inner: catalog.BuiltinType) -> bytes:
    dimensions = [_DIMENSION.pack(*pair) for pair in zip(array.sizes, array.lower_bounds, strict=True)]
    values = [None if element is None else convert(element) for element in array.elements]
    head = _ARRAY.pack(len(array.sizes), None in values, inner.oid)
    return b"".join([head, *dimensions, *map(_with_length, values)])


def _with_length(value: bytes | None) -> bytes:
    return _COUNT.pack(-1) if value is None else _COUNT.pack(len(value)) + value


def range_in(text: str, convert: InputFunction, inner: catalog.BuiltinType) -> bytes:
    """Return a range's binary form: flags, then the finite bounds (range_in, range_send)."""
    del inner  # the element type is not sent
    if text == "empty":
        return bytes([_EMPTY])
    opening, lower, upper, closing = match_whole(_RANGE, text, "[1,5) or empty").groups()
    flags = _LOWER_INFINITE if not lower else _LOWER_INCLUSIVE if opening == "[" else 0
    flags |= _UPPER_INFINITE if not upper else _UPPER_INCLUSIVE if closing == "]" else 0
    bounds = [_with_length(convert(_unquote_bound(bound))) for bound in (lower, upper) if bound]
    return bytes([flags]) + b"".join(bounds)


def _unquote_bound(text: str) -> str:
    if text.startswith('"') and text.endswith('"'):
        text = text[1:-1]
    return _DOUBLED.sub(r"\1\2", text)


def multirange_in(text: str, convert: InputFunction, inner: catalog.BuiltinType) -> bytes:
    """Return a multirange's binary form: the number of ranges, then the ranges (multirange_send)."""
    del inner  # the element type is not sent
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(f"expected a text such as {{[1,5),[7,9)}}, found {text[:20]!r}")
    ranges: list[bytes] = []
    pos = 1
    while pos < len(text) - 1:
        match = _IN_MULTIRANGE.match(text, pos)
        if match is None:
            raise ValueError(f"expected a range such as [1,5) at character {pos}")
        ranges.append(_with_length(convert(match[0])))
        pos = match.end() + 1
    return _COUNT.pack(len(ranges)) + b"".join(ranges)
