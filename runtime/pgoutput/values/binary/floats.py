"""Floating-point numbers: decimal text to the nearest number."""

from __future__ import annotations

import math
import re
import struct
from fractions import Fraction
from typing import Final

from pgoutput.values.binary.reading import matched

_FLOAT4: Final = struct.Struct(">f")
_FLOAT8: Final = struct.Struct(">d")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|NaN|-?Infinity")


def parse_float8(text: str) -> float:
    """A double (float8in).

    Raises:
        ValueError: The text is no number.
        OverflowError: It is too large or too small for a double.
    """
    matched(_NUMBER, text, "1.5e-07, NaN or -Infinity")
    return _in_range(float(text), text)


def float4_in(text: str) -> bytes:
    """4 bytes, IEEE 754 single (float4in, float4send)."""
    value = parse_float8(text)
    if value and math.isfinite(value):
        low, high = (_single(math.nextafter(value, end)) for end in (-math.inf, math.inf))
        if low != high and low + high == 2 * value:
            # The double is the midpoint of two singles. The number itself may lie beside it.
            exact, nearest = Fraction(text), Fraction(value)
            if exact != nearest:
                value = high if exact > nearest else low
    _in_range(_single(value), text)
    return _FLOAT4.pack(value)


def float8_in(text: str) -> bytes:
    """8 bytes, IEEE 754 double (float8in, float8send)."""
    return _FLOAT8.pack(parse_float8(text))


def _single(value: float) -> float:
    (rounded,) = _FLOAT4.unpack(_FLOAT4.pack(value))
    return float(rounded)


def _in_range(value: float, text: str) -> float:
    digits = text.partition("e")[0]
    if (math.isinf(value) and "y" not in text) or (value == 0 and digits.strip("-0.")):
        raise OverflowError("out of range")
    return value
