"""Type modifiers (`atttypmod`), which hold the length, precision or scale of a type such as `numeric(12,2)`.

`logicalrep.catalog` gives the kind of type modifier of each built-in type.
"""

from __future__ import annotations

from typing import Final

_HEADER: Final = 4
"""VARHDRSZ, which the server adds to the type modifiers of strings and numeric."""
_NO_PRECISION: Final = 0xFFFF
"""INTERVAL_FULL_PRECISION: lower half of the type modifier of an interval without a precision."""
_SECOND_DIGITS: Final = 6


def declared_modifier(kind: str, first: int, second: int = 0) -> int | None:
    """Return the type modifier of a type that is declared with one or two numbers in parentheses.

    Args:
        kind: Kind of type modifier in `logicalrep.catalog`, such as `length` or `numeric`.
        first: The first number, such as a length.
        second: The second number, such as a scale; 0 if it is missing.

    Returns:
        The type modifier; None if types of this kind are not declared with numbers.
    """
    if kind == "numeric":
        return numeric_modifier(first, second)
    if kind == "length":
        return first + _HEADER
    return first if kind in ("bits", "precision") else None


def modifier_suffix(kind: str, modifier: int) -> str:
    """Return what a type modifier adds to the name of its type in SQL, such as `(12,2)`; empty if nothing."""
    if kind == "numeric" and (numeric := numeric_precision(modifier)) is not None:
        return "({},{})".format(*numeric)
    if kind == "interval":  # intervaltypmodout: the lower half is the precision
        modifier = -1 if modifier & 0xFFFF == _NO_PRECISION else modifier & 0xFFFF
    elif kind == "length":
        modifier = string_length(modifier)
    return "" if kind in ("none", "numeric") or modifier < 0 else f"({modifier})"


def numeric_modifier(precision: int, scale: int) -> int:
    """Return the type modifier of numeric(precision, scale), as make_numeric_typmod does."""
    return (precision << 16 | scale & 0x7FF) + _HEADER


def numeric_precision(modifier: int) -> tuple[int, int] | None:
    """Return (precision, scale) in a type modifier of numeric; None for numeric without a precision."""
    packed = modifier - _HEADER
    if packed < 0:  # is_valid_numeric_typmod
        return None
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


def string_length(modifier: int) -> int:
    """Return the length in a type modifier of varchar or char, in characters; negative if unlimited."""
    return modifier - _HEADER


def round_to_precision(microseconds: int, modifier: int) -> int:
    """Round microseconds to the precision of a time or timestamp, half away from zero (AdjustTimeForTypmod).

    Args:
        microseconds: A time of day, or the time since 2000-01-01.
        modifier: Number of decimal places of a second; no rounding if it is negative or more than 6.
    """
    if not 0 <= modifier <= _SECOND_DIGITS:
        return microseconds
    unit: int = 10 ** (_SECOND_DIGITS - modifier)
    size = (abs(microseconds) + unit // 2) // unit * unit
    return size if microseconds >= 0 else -size
