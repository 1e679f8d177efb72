"""Binary form of numeric values: base-10000 digits."""

from __future__ import annotations

import re
import struct
from typing import Final

from pgoutput.values.binary_from_text.parsing import match_whole

_HEAD: Final = struct.Struct(">HhHH")
_NEGATIVE: Final = 0x4000
_SPECIAL: Final = {
    "NaN": _HEAD.pack(0, 0, 0xC000, 0),
    "Infinity": _HEAD.pack(0, 0, 0xD000, 0x20),
    "-Infinity": _HEAD.pack(0, 0, 0xF000, 0x20),
}
"""Binary form of NaN and infinity, by text. Infinity is sent with the scale 0x20, which the server's macro
NUMERIC_DSCALE returns."""
_MAX_SCALE: Final = 0x3FFF
"""Largest number of digits after the decimal point (NUMERIC_DSCALE_MASK)."""
_DIGITS: Final = 4
"""Number of decimal digits in a base-10000 digit (DEC_DIGITS)."""
_NUMBER: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?")


def numeric_in(text: str) -> bytes:
    """Return a numeric's binary form: digit count, weight, sign, scale, digits (numeric_send).

    Leading and trailing base-10000 digits that are zero are not sent.
    """
    if text in _SPECIAL:
        return _SPECIAL[text]
    sign, whole, fraction = match_whole(_NUMBER, text, "-12.50, NaN or Infinity").groups(default="")
    if len(fraction) > _MAX_SCALE:
        raise ValueError(f"a numeric has at most {_MAX_SCALE} digits after the decimal point")
    whole = whole.lstrip("0")
    before = -(-len(whole) // _DIGITS)
    after = -(-len(fraction) // _DIGITS)
    decimal = whole.rjust(before * _DIGITS, "0") + fraction.ljust(after * _DIGITS, "0")
    digits = [int(decimal[at : at + _DIGITS]) for at in range(0, len(decimal), _DIGITS)]
    weight = before - 1
    first = next((at for at, digit in enumerate(digits) if digit), len(digits))
    last = next((at for at in range(len(digits), first, -1) if digits[at - 1]), first)
    digits = digits[first:last]
    if not digits:  # zero has no weight and no sign
        return _HEAD.pack(0, 0, 0, len(fraction))
    head = _HEAD.pack(len(digits), weight - first, _NEGATIVE if sign else 0, len(fraction))
    return head + struct.pack(f">{len(digits)}H", *digits)
