"""Values that hold values: arrays, vectors, ranges and multiranges.

Each is given `convert`, the input of the values inside, and `inner`, their type.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Final

from pgoutput import catalog
from pgoutput.values.binary.reading import Input, matched

_ARRAY: Final = struct.Struct(">iiI")
_DIMENSION: Final = struct.Struct(">ii")
_LENGTH: Final = struct.Struct(">i")

_MAX_DIMENSIONS: Final = 6
"""MAXDIM."""
_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16
"""RANGE_EMPTY, RANGE_LB_INC and their neighbours."""

_BOUNDS: Final = re.compile(r"((?:\[-?[0-9]{1,10}:-?[0-9]{1,10}\])+)=")
_BOUND_PAIR: Final = re.compile(r"(-?[0-9]+):(-?[0-9]+)")
_TOKENS: Final = {
    delimiter: re.compile(
        rf'(?P<sign>[{{}}{delimiter}])|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>(?:[^"\\{{}}{delimiter}]|\\.)+)',
        re.DOTALL,
    )
    for delimiter in (",", ";")
}
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_DOUBLED: Final = re.compile(r'\\(.)|"(")', re.DOTALL)
_BOUND: Final = r'((?:"(?:[^"\\]|\\.)*"|[^"\\()\[\],]|\\.)*)'
_RANGE: Final = re.compile(rf"([\[(]){_BOUND},{_BOUND}([\])])", re.DOTALL)
_IN_MULTIRANGE: Final = re.compile(rf"(?:empty|[\[(]{_BOUND},{_BOUND}[\])])(?=,[\[(]|}}\Z)", re.DOTALL)


def array_in(text: str, convert: Input, inner: catalog.BuiltinType) -> bytes:
    """Dimensions, whether there are NULLs, type of the elements, and the elements (array_in, array_send)."""
    bounds = _BOUNDS.match(text)
    elements, sizes = _elements(text, bounds.end() if bounds else 0, ";" if inner.name == "box" else ",")
    lowers = [1] * len(sizes)
    if bounds:
        pairs = [(int(lower), int(upper)) for lower, upper in _BOUND_PAIR.findall(bounds[1])]
        if [upper - lower + 1 for lower, upper in pairs] != sizes:
            raise ValueError("the bounds are not those of the elements")
        lowers = [lower for lower, _ in pairs]
    return _array(elements, sizes, lowers, convert, inner)


def vector_in(text: str, convert: Input, inner: catalog.BuiltinType) -> bytes:
    """An array whose lower bound is 0 (int2vectorin, int2vectorsend; oidvectorin, oidvectorsend)."""
    elements = text.split(" ") if text else []
    return _array(elements, [len(elements)], [0], convert, inner)


def _array(
    elements: list[str] | list[str | None],
    sizes: list[int],
    lowers: list[int],
    convert: Input,
    inner: catalog.BuiltinType,
) -> bytes:
    dimensions = [_DIMENSION.pack(*pair) for pair in zip(sizes, lowers, strict=True)]
    values = [None if element is None else convert(element) for element in elements]
    head = _ARRAY.pack(len(sizes), None in values, inner.oid)
    return b"".join([head, *dimensions, *map(_sized, values)])


def _sized(value: bytes | None) -> bytes:
    return _LENGTH.pack(-1) if value is None else _LENGTH.pack(len(value)) + value


def _elements(text: str, pos: int, delimiter: str) -> tuple[list[str | None], list[int]]:
    """The elements of an array, and its sizes: none if it is empty (ReadArrayStr)."""
    if text[pos:] == "{}":
        return [], []
    elements: list[str | None] = []
    sizes: list[int] = []
    counts: list[int] = []  # of what stands in each bracket that is open
    awaited = True  # whether an element or a bracket comes next, and no delimiter or end
    while pos < len(text):
        match = _TOKENS[delimiter].match(text, pos)
        if match is None:
            break
        pos, sign = match.end(), match["sign"]
        if not counts and (sign != "{" or sizes):
            break
        if awaited != (sign not in (delimiter, "}")):
            break
        if sign == "{":
            counts.append(0)
            if len(counts) > _MAX_DIMENSIONS or (sizes and len(counts) > len(sizes)):
                break
        elif sign == delimiter:
            awaited = True
        else:
            if sign is None:
                sizes = sizes or [-1] * len(counts)
                if len(counts) != len(sizes):
                    break
                elements.append(_element(match))
            elif not _close(counts, sizes):
                break
            awaited = False
            if counts:
                counts[-1] += 1
            elif pos == len(text) and math.prod(sizes) == len(elements):
                return elements, sizes
    raise ValueError(f"not an array, at character {pos}")


def _close(counts: list[int], sizes: list[int]) -> bool:
    """End the innermost bracket; whether as many stand in it as in the others of that depth."""
    depth, count = len(counts), counts.pop()
    if sizes[depth - 1] not in (-1, count):
        return False
    sizes[depth - 1] = count
    return True


def _element(match: re.Match[str]) -> str | None:
    if match["plain"] is None:
        return _ESCAPED.sub(r"\1", match["quoted"])
    return None if match["plain"].upper() == "NULL" else _ESCAPED.sub(r"\1", match["plain"])


def range_in(text: str, convert: Input, inner: catalog.BuiltinType) -> bytes:
    """Flags, and the bounds that there are (range_in, range_send)."""
    del inner  # it is not sent
    if text == "empty":
        return bytes([_EMPTY])
    opening, lower, upper, closing = matched(_RANGE, text, "[1,5) or empty").groups()
    flags = _LOWER_INFINITE if not lower else _LOWER_INCLUSIVE if opening == "[" else 0
    flags |= _UPPER_INFINITE if not upper else _UPPER_INCLUSIVE if closing == "]" else 0
    bounds = [_sized(convert(_bound(bound))) for bound in (lower, upper) if bound]
    return bytes([flags]) + b"".join(bounds)


def _bound(text: str) -> str:
    if text.startswith('"') and text.endswith('"'):
        text = text[1:-1]
    return _DOUBLED.sub(r"\1\2", text)


def multirange_in(text: str, convert: Input, inner: catalog.BuiltinType) -> bytes:
    """A number of ranges, and the ranges (multirange_in, multirange_send)."""
    del inner  # it is not sent
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("expected is such as {[1,5),[7,9)}")
    ranges: list[bytes] = []
    pos = 1
    while pos < len(text) - 1:
        match = _IN_MULTIRANGE.match(text, pos)
        if match is None:
            raise ValueError(f"no range at character {pos}")
        ranges.append(_sized(convert(match[0])))
        pos = match.end() + 1
    return _LENGTH.pack(len(ranges)) + b"".join(ranges)
