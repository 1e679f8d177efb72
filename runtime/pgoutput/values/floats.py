"""Floating-point numbers as the server writes them since PostgreSQL 12: the shortest digits that read back.

The server wants digits strictly between the midpoints to the neighbours (d2s.c and f2s.c, where
STRICTLY_SHORTEST is 0), `repr` also takes a midpoint that rounds to even. So what `repr` gives is looked at
again where it can be a midpoint at all.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Final

_FLOAT4: Final = struct.Struct(">f")
_FLOAT8: Final = struct.Struct(">d")
_BITS: Final = struct.Struct(">I")

_FLOAT4_NORMAL: Final = 2.0**-126
_FLOAT4_DIGITS: Final = (6, 7, 8, 9)
"""Digits that can be needed: what has 6 or fewer survives the way to a single and back (FLT_DIG)."""
_FLOAT4_FIXED: Final = 6
_FLOAT8_FIXED: Final = 15
"""Decimal exponents from which on the number is written with one (double_to_shortest_decimal_bufn)."""
_ALL_INTEGERS: Final = 2.0**53
"""Below, a midpoint between two doubles has more digits than the doubles themselves need."""


def float4_out(data: bytes) -> str:
    """From 4 bytes, IEEE 754 single (float4send, float4out)."""
    (value,) = _FLOAT4.unpack(data)
    return format_float4(value)


def float8_out(data: bytes) -> str:
    """From 8 bytes, IEEE 754 double (float8send, float8out)."""
    (value,) = _FLOAT8.unpack(data)
    return format_float8(value)


def format_float8(value: float) -> str:
    """A double (double_to_shortest_decimal_buf)."""
    size = abs(value)
    if 1e-4 <= size < 1e15:
        return repr(value).removesuffix(".0")
    if not 0 < size < math.inf:
        return _special(value)
    sign = "-" if value < 0 else ""
    digits, exponent = _split(repr(size))
    if size >= _ALL_INTEGERS:
        # The neighbour below a power of two is only half as far.
        below = size - math.nextafter(size, 0)
        low, high = Fraction(size) - Fraction(below) / 2, Fraction(size) + Fraction(math.ulp(size)) / 2
        if not low < int(digits) * Fraction(10) ** (exponent - len(digits) + 1) < high:
            digits, exponent = _shortest(Fraction(size), low, high)
    return sign + _written(digits, exponent, _FLOAT8_FIXED)


def format_float4(value: float) -> str:
    """A single, given as the double that equals it (float_to_shortest_decimal_buf)."""
    size = abs(value)
    if not 0 < size < math.inf:
        return _special(value)
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
                return sign + _written(*_split(text), _FLOAT4_FIXED)
            if read in (low, high):  # which may be rounded
                break
    digits, exponent = _shortest(Fraction(size), Fraction(low), Fraction(high))
    return sign + _written(digits, exponent, _FLOAT4_FIXED)


def _special(value: float) -> str:
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _split(text: str) -> tuple[str, int]:
    """The digits of `1.25e+17` or `1250.0`, and the decimal exponent of the first."""
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).rstrip("0")
    return digits, int(exponent or 0) + len(whole) - 1


def _written(digits: str, exponent: int, fixed: int) -> str:
    if not -4 <= exponent < fixed:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{digits[0]}{fraction}e{exponent:+03d}"
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole, fraction = digits[: exponent + 1], digits[exponent + 1 :]
    return whole.ljust(exponent + 1, "0") + (f".{fraction}" if fraction else "")


def _shortest(value: Fraction, low: Fraction, high: Fraction) -> tuple[str, int]:
    """The fewest digits strictly between two bounds; of several, those nearest to the value."""
    exponent = len(str(value.numerator)) - len(str(value.denominator))  # of the last digit; or one too much
    while True:
        unit = Fraction(10) ** exponent
        floor = value // unit
        inside = [number for number in (floor, floor + 1) if number and low < number * unit < high]
        if inside:
            number = min(inside, key=lambda number: (abs(number * unit - value), number % 2))
            digits = str(number)
            return digits.rstrip("0"), exponent + len(digits) - 1
        exponent -= 1
