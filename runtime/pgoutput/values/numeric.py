"""numeric: digits to base 10000 as decimal text."""

from __future__ import annotations

import struct
from typing import Final

_HEAD: Final = struct.Struct(">HhHH")
_SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_SIGNS: Final = {0x0000: "", 0x4000: "-"}
_MAX_SCALE: Final = 0x3FFF
"""NUMERIC_DSCALE_MASK."""
_BASE: Final = 10_000
"""NBASE."""


def numeric_out(data: bytes) -> str:
    """A number with as many digits behind the point as its scale says (numeric_send, numeric_out).

    The weight is at most 32767, so text has at most 131072 digits before the point, and 16383 behind it.
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
