"""Binary form of geometric values (geo_ops.c)."""

from __future__ import annotations

import re
import struct
from functools import partial
from typing import Final

from pgoutput.values.binary_from_text.floats import parse_float8
from pgoutput.values.binary_from_text.parsing import InputFunction, match_whole

_N: Final = r"([^][(){}<>,\s]+)"
_POINT: Final = rf"\({_N},{_N}\)"
_POINTS: Final = rf"{_POINT}(?:,{_POINT})*"
_PATH_FORM: Final = re.compile(rf"\[{_POINTS}\]|\({_POINTS}\)")
_POLYGON_FORM: Final = re.compile(rf"\({_POINTS}\)")
_NUMBER: Final = re.compile(_N)


def _encode_shape(text: str, form: re.Pattern[str], example: str) -> bytes:
    return _encode_numbers(match_whole(form, text, example)[0])


def path_in(text: str) -> bytes:
    """Return a path's binary form: closed flag, number of points, points (path_in, path_send)."""
    points = _encode_shape(text, _PATH_FORM, "[(0,1),(2,3)]")
    return struct.pack(">Bi", text[0] == "(", len(points) // 16) + points


def poly_in(text: str) -> bytes:
    """Return a polygon's binary form: number of points, points (poly_in, poly_send)."""
    points = _encode_shape(text, _POLYGON_FORM, "((0,1),(2,3))")
    return struct.pack(">i", len(points) // 16) + points


def _encode_numbers(text: str) -> bytes:
    numbers = [parse_float8(number) for number in _NUMBER.findall(text)]
    return struct.pack(f">{len(numbers)}d", *numbers)


def _shape_input(pattern: str, example: str) -> InputFunction:
    return partial(_encode_shape, form=re.compile(pattern), example=example)


GEOMETRY: Final[dict[str, InputFunction]] = {
    "point_send": _shape_input(_POINT, "(0,1)"),
    "lseg_send": _shape_input(rf"\[{_POINT},{_POINT}\]", "[(0,1),(2,3)]"),
    "box_send": _shape_input(rf"{_POINT},{_POINT}", "(2,3),(0,1)"),
    "line_send": _shape_input(rf"\{{{_N},{_N},{_N}\}}", "{0,1,2}"),
    "circle_send": _shape_input(rf"<{_POINT},{_N}>", "<(0,1),2>"),
    "path_send": path_in,
    "poly_send": poly_in,
}
"""Input functions of geometric types, by name of the send function."""
