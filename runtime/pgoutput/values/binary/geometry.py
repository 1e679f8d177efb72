"""Geometric types: the numbers within the brackets (geo_ops.c)."""

from __future__ import annotations

import re
import struct
from functools import partial
from typing import Final

from pgoutput.values.binary.floats import parse_float8
from pgoutput.values.binary.reading import Input, matched

_N: Final = r"([^][(){}<>,\s]+)"
_POINT: Final = rf"\({_N},{_N}\)"
_POINTS: Final = rf"{_POINT}(?:,{_POINT})*"
_PATH_FORM: Final = re.compile(rf"\[{_POINTS}\]|\({_POINTS}\)")
_POLYGON_FORM: Final = re.compile(rf"\({_POINTS}\)")
_NUMBER: Final = re.compile(_N)


def _shape(text: str, form: re.Pattern[str], example: str) -> bytes:
    return _numbers(matched(form, text, example)[0])


def path_in(text: str) -> bytes:
    """Whether it is closed, a number of points and the points (path_in, path_send)."""
    points = _shape(text, _PATH_FORM, "[(0,1),(2,3)]")
    return struct.pack(">Bi", text[0] == "(", len(points) // 16) + points


def poly_in(text: str) -> bytes:
    """A number of points and the points (poly_in, poly_send)."""
    points = _shape(text, _POLYGON_FORM, "((0,1),(2,3))")
    return struct.pack(">i", len(points) // 16) + points


def _numbers(text: str) -> bytes:
    numbers = [parse_float8(number) for number in _NUMBER.findall(text)]
    return struct.pack(f">{len(numbers)}d", *numbers)


def _form(pattern: str, example: str) -> Input:
    return partial(_shape, form=re.compile(pattern), example=example)


GEOMETRY: Final[dict[str, Input]] = {
    "point_send": _form(_POINT, "(0,1)"),
    "lseg_send": _form(rf"\[{_POINT},{_POINT}\]", "[(0,1),(2,3)]"),
    "box_send": _form(rf"{_POINT},{_POINT}", "(2,3),(0,1)"),
    "line_send": _form(rf"\{{{_N},{_N},{_N}\}}", "{0,1,2}"),
    "circle_send": _form(rf"<{_POINT},{_N}>", "<(0,1),2>"),
    "path_send": path_in,
    "poly_send": poly_in,
}
"""By send function."""
