"""Geometric values (geo_ops.c)."""

from __future__ import annotations

import re
import struct
from functools import partial
from typing import Final

from logicalrep.values.forms.floats import format_float8, parse_float8
from logicalrep.values.forms.parsing import Form, match_whole

_PATH: Final = struct.Struct(">Bi")
_POLYGON: Final = struct.Struct(">i")
_POINT_SIZE: Final = 16

_N: Final = r"([^][(){}<>,\s]+)"
_POINTS: Final = rf"\({_N},{_N}\)(?:,\({_N},{_N}\))*"
_PATH_FORM: Final = re.compile(rf"\[{_POINTS}\]|\({_POINTS}\)")
_POLYGON_FORM: Final = re.compile(rf"\({_POINTS}\)")
_NUMBER_FORM: Final = re.compile(_N)


def _shape(pattern: str, *example: int) -> Form:
    """Return the conversions of a geometric type with a fixed number of coordinates.

    Args:
        pattern: The shape's text, with `{}` for each coordinate.
        example: Coordinates of an example of a valid text, for error messages.
    """
    form = re.compile(re.escape(pattern.format(*"N" * len(example))).replace("N", _N))
    return Form(
        partial(_format_numbers, pattern=pattern, count=len(example)),
        partial(_encode_shape, form=form, example=pattern.format(*example)),
    )


def _format_numbers(data: bytes, pattern: str, count: int) -> str:
    return pattern.format(*map(format_float8, struct.unpack(f">{count}d", data)))


def _encode_shape(text: str, form: re.Pattern[str], example: str) -> bytes:
    numbers = [parse_float8(number) for number in _NUMBER_FORM.findall(match_whole(form, text, example)[0])]
    return struct.pack(f">{len(numbers)}d", *numbers)


def _format_points(data: bytes, count: int) -> str:
    if count < 1 or len(data) != count * _POINT_SIZE:
        raise ValueError(f"a path or polygon of {count} points cannot have {len(data)} bytes")
    return _format_numbers(data, ",".join(["({},{})"] * count), 2 * count)


def path_out(data: bytes) -> str:
    """Return a path's text: `((0,1),(2,3))` if closed, `[(0,1),(2,3)]` if open (path_send, path_out)."""
    closed, count = _PATH.unpack_from(data)
    return ("[{}]", "({})")[closed].format(_format_points(data[_PATH.size :], count))


def path_in(text: str) -> bytes:
    """Return a path's binary form: closed flag, number of points, points (path_in, path_send)."""
    points = _encode_shape(text, _PATH_FORM, "[(0,1),(2,3)]")
    return _PATH.pack(text[0] == "(", len(points) // _POINT_SIZE) + points


def poly_out(data: bytes) -> str:
    """Return a polygon's text, `((0,1),(2,3))` (poly_send, poly_out)."""
    (count,) = _POLYGON.unpack_from(data)
    return f"({_format_points(data[_POLYGON.size :], count)})"


def poly_in(text: str) -> bytes:
    """Return a polygon's binary form: number of points, points (poly_in, poly_send)."""
    points = _encode_shape(text, _POLYGON_FORM, "((0,1),(2,3))")
    return _POLYGON.pack(len(points) // _POINT_SIZE) + points


GEOMETRY: Final = {
    "point_send": _shape("({},{})", 0, 1),
    "lseg_send": _shape("[({},{}),({},{})]", 0, 1, 2, 3),
    "box_send": _shape("({},{}),({},{})", 2, 3, 0, 1),
    "line_send": _shape("{{{},{},{}}}", 0, 1, 2),
    "circle_send": _shape("<({},{}),{}>", 0, 1, 2),
    "path_send": Form(path_out, path_in),
    "poly_send": Form(poly_out, poly_in),
}
"""Conversions between binary and text form, by name of the type's send function."""
