"""Binary form of floating-point numbers: the number nearest to a decimal text."""

from __future__ import annotations

import math
import re
import struct
from fractions import Fraction
from typing import Final

from pgoutput.values.binary_from_text.parsing import match_whole

_FLOAT4: Final = struct.Struct(">f")
_FLOAT8: Final = struct.Struct(">d")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|NaN|-?Infinity")


def parse_float8(text: str) -> float:
    """Return the double nearest to a decimal text (float8in).

    Raises:
        ValueError: The text is not a number.
        OverflowError: The number is too large or too small for a double.
    """
    match_whole(_NUMBER, text, "1.5e-07, NaN or -Infinity")
    return _require_in_range(float(text), text)


def float4_in(text: str) -> bytes:
    """Return a float4's binary form: 4 bytes, IEEE 754 single precision (float4in, float4send)."""
    value = parse_float8(text)
    if value and math.isfinite(value):
        low, high = (_round_to_single(math.nextafter(value, end)) for end in (-math.inf, math.inf))
        if low != high and low + high == 2 * value:
            # The double is the midpoint of two singles; the exact number may be nearer to one of them.
            exact, nearest = Fraction(text), Fraction(value)
            if exact != nearest:
                value = high if exact > nearest else low
    _require_in_range(_round_to_single(value), text)
    return _FLOAT4.pack(value)


def float8_in(text: str) -> bytes:
    """Return a float8's binary form: 8 bytes, IEEE 754 double precision (float8in, float8send)."""
    return _FLOAT8.pack(parse_float8(text))


def _round_to_single(value: float) -> float:
    (rounded,) = _FLOAT4.unpack(_FLOAT4.pack(value))
    return float(rounded)


def _require_in_range(value: float, text: str) -> float:
    digits = text.partition("e")[0]
    if (math.isinf(value) and "y" not in text) or (value == 0 and digits.strip("-0.")):
        raise OverflowError("out of range")
    return value
