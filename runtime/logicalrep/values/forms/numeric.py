"""Numeric values, which are sent as base-10000 digits."""

from __future__ import annotations

import re
import struct
from typing import Final

from logicalrep.values.forms.parsing import match_whole

_HEAD: Final = struct.Struct(">HhHH")
_SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_BINARY_SPECIAL: Final = {
    text: _HEAD.pack(0, 0, sign, 0 if text == "NaN" else 0x20) for sign, text in _SPECIAL.items()
}
"""Binary form of NaN and infinity, by text. Infinity is sent with the scale 0x20, which the server's macro
NUMERIC_DSCALE returns."""
_SIGNS: Final = {0x0000: "", 0x4000: "-"}
_NEGATIVE: Final = 0x4000
_MAX_SCALE: Final = 0x3FFF
"""Largest number of digits after the decimal point (NUMERIC_DSCALE_MASK)."""
_BASE: Final = 10_000
"""Base of the digits on the wire (NBASE)."""
_DIGITS: Final = 4
"""Number of decimal digits in a base-10000 digit (DEC_DIGITS)."""
_NUMBER_FORM: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?")


def numeric_out(data: bytes) -> str:
    """Return a numeric's text with as many fractional digits as its scale (numeric_send, numeric_out).

    The text has at most 131072 digits before the decimal point, and 16383 after it.
    """
    count, weight, sign, scale = _HEAD.unpack_from(data)
    digits = struct.unpack(f">{count}H", data[_HEAD.size :])
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    if sign not in _SIGNS or scale > _MAX_SCALE or (digits and max(digits) >= _BASE):
        raise ValueError(
            f"invalid numeric: sign {sign:#06x}, scale {scale} (at most {_MAX_SCALE}), greatest digit "
            f"{max(digits, default=0)} (at most {_BASE - 1})"
        )
    text = "".join([f"{digit:04d}" for digit in digits])
    point = _DIGITS * (weight + 1)
    if point > 0:
        whole, fraction = text[:point].ljust(point, "0").lstrip("0") or "0", text[point:]
    else:
        whole, fraction = "0", "0" * -point + text
    if scale:
        whole += "." + fraction[:scale].ljust(scale, "0")
    return _SIGNS[sign] + whole if whole.strip("0.") else whole  # zero has no sign (make_result)


def numeric_in(text: str) -> bytes:
    """Return a numeric's binary form: digit count, weight, sign, scale, digits (numeric_send).

    Leading and trailing base-10000 digits that are zero are not sent.
    """
    if text in _BINARY_SPECIAL:
        return _BINARY_SPECIAL[text]
    sign, whole, fraction = match_whole(_NUMBER_FORM, text, "-12.50, NaN or Infinity").groups(default="")
    if len(fraction) > _MAX_SCALE:
        raise ValueError(
            f"a numeric has at most {_MAX_SCALE} digits after the decimal point, not {len(fraction)}"
        )
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
