"""Text of geometric values (geo_ops.c)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Final

from pgoutput.values.text_from_binary.floats import format_float8
from pgoutput.values.text_from_binary.reader import OutputFunction

_PATH: Final = struct.Struct(">Bi")
_POLYGON: Final = struct.Struct(">i")
_POINT_SIZE: Final = 16


def _format_numbers(data: bytes, pattern: str, count: int) -> str:
    return pattern.format(*map(format_float8, struct.unpack(f">{count}d", data)))


def _format_points(data: bytes, count: int) -> str:
    if count < 1 or len(data) != count * _POINT_SIZE:
        raise ValueError(f"{count} points in {len(data)} bytes")
    numbers: Sequence[str] = [format_float8(number) for number in struct.unpack(f">{2 * count}d", data)]
    return ",".join([f"({x},{y})" for x, y in zip(numbers[::2], numbers[1::2], strict=True)])


def path_out(data: bytes) -> str:
    """Return a path's text: `((0,1),(2,3))` if closed, `[(0,1),(2,3)]` if open (path_send, path_out)."""
    closed, count = _PATH.unpack_from(data)
    return ("[{}]", "({})")[closed].format(_format_points(data[_PATH.size :], count))


def poly_out(data: bytes) -> str:
    """Return a polygon's text, `((0,1),(2,3))` (poly_send, poly_out)."""
    (count,) = _POLYGON.unpack_from(data)
    return f"({_format_points(data[_POLYGON.size :], count)})"


GEOMETRY: Final[dict[str, OutputFunction]] = {
    "point_send": partial(_format_numbers, pattern="({},{})", count=2),
    "lseg_send": partial(_format_numbers, pattern="[({},{}),({},{})]", count=4),
    "box_send": partial(_format_numbers, pattern="({},{}),({},{})", count=4),
    "line_send": partial(_format_numbers, pattern="{{{},{},{}}}", count=3),
    "circle_send": partial(_format_numbers, pattern="<({},{}),{}>", count=3),
    "path_send": path_out,
    "poly_send": poly_out,
}
"""Output functions of geometric types, by name of the send function."""
