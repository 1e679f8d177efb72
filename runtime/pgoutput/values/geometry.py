"""Geometric types: floating-point coordinates and the brackets around them (geo_ops.c)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Final

from pgoutput.values.floats import format_float8
from pgoutput.values.reader import Output

_PATH: Final = struct.Struct(">Bi")
_POLYGON: Final = struct.Struct(">i")
_POINT_SIZE: Final = 16


def _shape(data: bytes, pattern: str, count: int) -> str:
    return pattern.format(*map(format_float8, struct.unpack(f">{count}d", data)))


def _points(data: bytes, count: int) -> str:
    if count < 1 or len(data) != count * _POINT_SIZE:
        raise ValueError(f"{count} points in {len(data)} bytes")
    numbers: Sequence[str] = [format_float8(number) for number in struct.unpack(f">{2 * count}d", data)]
    return ",".join([f"({x},{y})" for x, y in zip(numbers[::2], numbers[1::2], strict=True)])


def path_out(data: bytes) -> str:
    """Round brackets around a closed path, square ones around an open one (path_send, path_out)."""
    closed, count = _PATH.unpack_from(data)
    return ("[{}]", "({})")[closed].format(_points(data[_PATH.size :], count))


def poly_out(data: bytes) -> str:
    """From a number of points and the points (poly_send, poly_out)."""
    (count,) = _POLYGON.unpack_from(data)
    return f"({_points(data[_POLYGON.size :], count)})"


GEOMETRY: Final[dict[str, Output]] = {
    "point_send": partial(_shape, pattern="({},{})", count=2),
    "lseg_send": partial(_shape, pattern="[({},{}),({},{})]", count=4),
    "box_send": partial(_shape, pattern="({},{}),({},{})", count=4),
    "line_send": partial(_shape, pattern="{{{},{},{}}}", count=3),
    "circle_send": partial(_shape, pattern="<({},{}),{}>", count=3),
    "path_send": path_out,
    "poly_send": poly_out,
}
"""By send function."""
