"""Text of numeric values, which are sent as base-10000 digits."""

from __future__ import annotations

import struct
from typing import Final

_HEAD: Final = struct.Struct(">HhHH")
_SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_SIGNS: Final = {0x0000: "", 0x4000: "-"}
_MAX_SCALE: Final = 0x3FFF
"""Largest number of digits after the decimal point (NUMERIC_DSCALE_MASK)."""
_BASE: Final = 10_000
"""Base of the digits on the wire (NBASE)."""


def numeric_out(data: bytes) -> str:
    """Return a numeric's text with as many fractional digits as its scale (numeric_send, numeric_out).

    The text has at most 131072 digits before the decimal point, and 16383 after it.
    """
    count, weight, sign, scale = _HEAD.unpack_from(data)
    digits = struct.unpack(f">{count}H", data[_HEAD.size :])
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    if sign not in _SIGNS or scale > _MAX_SCALE or (digits and max(digits) >= _BASE):
        raise ValueError("not a numeric")
    text = "".join([f"{digit:04d}" for digit in digits])
    point = 4 * (weight + 1)
    if point > 0:
        whole, fraction = text[:point].ljust(point, "0").lstrip("0") or "0", text[point:]
    else:
        whole, fraction = "0", "0" * -point + text
    if scale:
        whole += "." + fraction[:scale].ljust(scale, "0")
    return _SIGNS[sign] + whole if whole.strip("0.") else whole  # zero has no sign (make_result)
