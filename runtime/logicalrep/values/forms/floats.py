"""Floating-point numbers, as PostgreSQL 12+ writes them: the shortest digits that round-trip.

The server's digits lie strictly between the midpoints to the neighbouring numbers (d2s.c and f2s.c with
STRICTLY_SHORTEST 0). Python's `repr` also accepts a midpoint that rounds to even. Numbers whose `repr` can be
a midpoint are therefore checked, and formatted anew with exact arithmetic if necessary.
"""

from __future__ import annotations

import math
import re
import struct
from fractions import Fraction
from typing import Final

from logicalrep.values.forms.parsing import match_whole

_FLOAT4: Final = struct.Struct(">f")
_FLOAT8: Final = struct.Struct(">d")
_BITS: Final = struct.Struct(">I")
_NUMBER_FORM: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|NaN|-?Infinity")

_FLOAT4_NORMAL: Final = 2.0**-126
_FLOAT4_DIGITS: Final = (6, 7, 8, 9)
"""Numbers of significant digits that `format_float4` tries; every decimal with 6 or fewer digits round-trips
through a float4 (FLT_DIG)."""
_FLOAT4_FIXED: Final = 6
_FLOAT8_FIXED: Final = 15
"""Decimal exponent from which a float8 (`_FLOAT4_FIXED`: a float4) is written in exponent notation
(double_to_shortest_decimal_bufn)."""
_ALL_INTEGERS: Final = 2.0**53
"""2**53. Only from this number on can the shortest text of a double be the midpoint of two neighbouring
doubles; below, a midpoint has more digits."""


def float4_out(data: bytes) -> str:
    """Return the text of a float4 from its 4 bytes, IEEE 754 single precision (float4send, float4out)."""
    (value,) = _FLOAT4.unpack(data)
    return format_float4(value)


def float8_out(data: bytes) -> str:
    """Return the text of a float8 from its 8 bytes, IEEE 754 double precision (float8send, float8out)."""
    (value,) = _FLOAT8.unpack(data)
    return format_float8(value)


def format_float8(value: float) -> str:
    """Return a double's text as the server writes a float8 (double_to_shortest_decimal_buf)."""
    size = abs(value)
    if 1e-4 <= size < 1e15:
        return repr(value).removesuffix(".0")
    if not 0 < size < math.inf:
        return _format_special(value)
    sign = "-" if value < 0 else ""
    digits, exponent = _split_digits(repr(size))
    if size >= _ALL_INTEGERS:
        # The neighbour below a power of two is half as far away as the neighbour above.
        below = size - math.nextafter(size, 0)
        low, high = Fraction(size) - Fraction(below) / 2, Fraction(size) + Fraction(math.ulp(size)) / 2
        if not low < int(digits) * Fraction(10) ** (exponent - len(digits) + 1) < high:
            digits, exponent = _shortest_digits(Fraction(size), low, high)
    return sign + _format_digits(digits, exponent, _FLOAT8_FIXED)


def format_float4(value: float) -> str:
    """Return a number's text as the server writes a float4 (float_to_shortest_decimal_buf).

    Args:
        value: A double that equals a single-precision number.
    """
    size = abs(value)
    if not 0 < size < math.inf:
        return _format_special(value)
    sign = "-" if value < 0 else ""
    (bits,) = _BITS.unpack(_FLOAT4.pack(size))
    (before,) = _FLOAT4.unpack(_BITS.pack(bits - 1))
    step = math.ldexp(1.0, max(bits >> 23, 1) - 150)
    low, high = (before + size) / 2, size + step / 2  # exact, as doubles
    if size >= _FLOAT4_NORMAL and bits & 0x7FFFFF:
        for count in _FLOAT4_DIGITS:
            text = f"{size:.{count - 1}e}"
            read = float(text)
            if low < read < high:
                return sign + _format_digits(*_split_digits(text), _FLOAT4_FIXED)
            if read in (low, high):  # `read` may be rounded: decide with exact arithmetic
                break
    digits, exponent = _shortest_digits(Fraction(size), Fraction(low), Fraction(high))
    return sign + _format_digits(digits, exponent, _FLOAT4_FIXED)


def _format_special(value: float) -> str:
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _split_digits(text: str) -> tuple[str, int]:
    """Return the significant digits of a number's text, and the decimal exponent of the first digit."""
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).rstrip("0")
    return digits, int(exponent or 0) + len(whole) - 1


def _format_digits(digits: str, exponent: int, fixed: int) -> str:
    if not -4 <= exponent < fixed:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{digits[0]}{fraction}e{exponent:+03d}"
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole, fraction = digits[: exponent + 1], digits[exponent + 1 :]
    return whole.ljust(exponent + 1, "0") + (f".{fraction}" if fraction else "")


def _shortest_digits(value: Fraction, low: Fraction, high: Fraction) -> tuple[str, int]:
    """Return the shortest decimal in (low, high) nearest to `value`: digits, and first digit's exponent."""
    exponent = len(str(value.numerator)) - len(str(value.denominator))  # of the first digit, or one higher
    while True:
        unit = Fraction(10) ** exponent
        floor = value // unit
        inside = [number for number in (floor, floor + 1) if number and low < number * unit < high]
        if inside:
            number = min(inside, key=lambda number: (abs(number * unit - value), number % 2))
            digits = str(number)
            return digits.rstrip("0"), exponent + len(digits) - 1
        exponent -= 1


def parse_float8(text: str) -> float:
    """Return the double nearest to a decimal text (float8in).

    Raises:
        ValueError: The text is not a number.
        OverflowError: The number is too large or too small for a double.
    """
    match_whole(_NUMBER_FORM, text, "1.5e-07, NaN or -Infinity")
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
        raise OverflowError(f"the number {text} is too large or too small for the floating-point type")
    return value
