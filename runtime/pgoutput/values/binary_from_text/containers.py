"""Binary form of container values: arrays, vectors, ranges and multiranges.

Each function takes `convert`, the input function of the inner values, and `inner`, the inner values' type.
"""

from __future__ import annotations

import re
import struct
from typing import Final

from pgoutput import catalog
from pgoutput.values.binary_from_text.parsing import InputFunction, match_whole
from pgoutput.values.builtin_types import element_delimiter
from pgoutput.values.literals import ArrayLiteral, parse_array_literal

_ARRAY: Final = struct.Struct(">iiI")
_DIMENSION: Final = struct.Struct(">ii")
_LENGTH: Final = struct.Struct(">i")

_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16
"""Flag bits of a range: RANGE_EMPTY, RANGE_LB_INC, RANGE_UB_INC, RANGE_LB_INF, RANGE_UB_INF."""

_DOUBLED: Final = re.compile(r'\\(.)|"(")', re.DOTALL)
_BOUND: Final = r'((?:"(?:[^"\\]|\\.)*"|[^"\\()\[\],]|\\.)*)'
_RANGE: Final = re.compile(rf"([\[(]){_BOUND},{_BOUND}([\])])", re.DOTALL)
_IN_MULTIRANGE: Final = re.compile(rf"(?:empty|[\[(]{_BOUND},{_BOUND}[\])])(?=,[\[(]|}}\Z)", re.DOTALL)


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
    return _LENGTH.pack(-1) if value is None else _LENGTH.pack(len(value)) + value


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
        raise ValueError("a text such as {[1,5),[7,9)} is expected")
    ranges: list[bytes] = []
    pos = 1
    while pos < len(text) - 1:
        match = _IN_MULTIRANGE.match(text, pos)
        if match is None:
            raise ValueError(f"no range at character {pos}")
        ranges.append(_with_length(convert(match[0])))
        pos = match.end() + 1
    return _LENGTH.pack(len(ranges)) + b"".join(ranges)
