"""Text of arrays, ranges and records: quoting of the values in them, and parsing of arrays."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

import msgspec

_DELIMITERS: Final = (",", ";")
_SPACE: Final = r" \t\n\r\v\f"
_QUOTED_IN_ARRAY: Final = {
    delimiter: re.compile(rf'[{_SPACE}"\\{{}}{delimiter}]|^(null)?\Z', re.IGNORECASE)
    for delimiter in _DELIMITERS
}
_QUOTED_IN_RANGE: Final = re.compile(rf'[{_SPACE}"\\()\[\],]|^\Z')
_QUOTED_IN_RECORD: Final = re.compile(rf'[{_SPACE}"\\(),]|^\Z')
_SPECIAL: Final = re.compile(r'["\\]')
_QUOTED: Final = r'"(?P<quoted>(?:[^"\\]|\\.)*)"'
_ELEMENT: Final = {
    delimiter: re.compile(rf'{_QUOTED}|(?P<plain>(?:[^"\\{{}}{delimiter}]|\\.)+)', re.DOTALL)
    for delimiter in _DELIMITERS
}
_TOKEN: Final = {
    delimiter: re.compile(rf"(?P<sign>[{{}}{delimiter}])|{element.pattern}", re.DOTALL)
    for delimiter, element in _ELEMENT.items()
}
_ONE_DIMENSION: Final = {
    delimiter: re.compile(rf"\{{((?:{element.pattern})({delimiter}(?!\}})|(?=\}}\Z)))*\}}", re.DOTALL)
    for delimiter, element in _ELEMENT.items()
}
_BOUNDS: Final = re.compile(r"((?:\[-?[0-9]{1,10}:-?[0-9]{1,10}\])+)=")
_BOUND_PAIR: Final = re.compile(r"(-?[0-9]+):(-?[0-9]+)")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
MAX_DIMENSIONS: Final = 6
"""Largest number of dimensions of an array (MAXDIM)."""


def format_jsonb(value: Any) -> str:
    """Return a parsed JSON value as jsonb text (jsonb_out): keys sorted by length, then by bytes.

    Numbers of the class Decimal are written without exponent.

    Raises:
        ValueError: A string contains U+0000, which jsonb cannot store.
    """
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return "{" + ", ".join(f"{format_jsonb(key)}: {format_jsonb(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(format_jsonb, value)) + "]"
    if isinstance(value, Decimal):
        return format(value if value else abs(value), "f")
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"jsonb cannot contain U+0000: {value[:20]!r}")
    return json.dumps(value, ensure_ascii=False)


def quote_array_element(text: str, delimiter: str = ",") -> str:
    r"""Return an array element. If necessary, put it in double quotes and escape `"` and `\` (array_out)."""
    if not _QUOTED_IN_ARRAY[delimiter].search(text):
        return text
    return '"' + _SPECIAL.sub(r"\\\g<0>", text) + '"'


def quote_range_bound(text: str) -> str:
    r"""Return a range bound. If necessary, put it in `"` and double each `"` and `\` (range_bound_escape)."""
    return _quote_doubled(text) if _QUOTED_IN_RANGE.search(text) else text


def quote_record_field(text: str) -> str:
    r"""Return a record field. If necessary, put it in `"` and double each `"` and `\` (record_out)."""
    return _quote_doubled(text) if _QUOTED_IN_RECORD.search(text) else text


def _quote_doubled(text: str) -> str:
    return '"' + _SPECIAL.sub(r"\g<0>\g<0>", text) + '"'


def parse_array(text: str, delimiter: str = ",") -> list[str | None] | None:
    """Return the elements of a one-dimensional array in text format (array_out).

    Args:
        text: The array's text, `{1,NULL,"a b"}`.
        delimiter: Delimiter between elements: `;` for box[], otherwise `,`.

    Returns:
        The elements' texts, None for NULL. None instead of a list if the text is not a one-dimensional array
        with lower bound 1: it has several dimensions, explicit bounds (`[2:4]={…}`), or is not an array.
    """
    if not _ONE_DIMENSION[delimiter].fullmatch(text):
        return None
    return [_element_text(quoted, plain) for quoted, plain in _ELEMENT[delimiter].findall(text)]


class ArrayLiteral(msgspec.Struct, frozen=True):
    """A parsed array of any number of dimensions."""

    elements: list[str | None]
    """Texts of all elements in row-major order; None for NULL."""
    sizes: list[int]
    """Number of elements along each dimension; an empty list for an empty array."""
    lower_bounds: list[int]
    """Lower bound of each dimension; an empty list for an empty array."""


def parse_array_literal(text: str, delimiter: str = ",") -> ArrayLiteral:
    """Parse an array in text format with any dimensions and bounds, `[0:1][1:2]={{1,2},{3,4}}` (array_in).

    Raises:
        ValueError: The text is not an array.
    """
    bounds = _BOUNDS.match(text)
    elements, sizes = _parse_elements(text, bounds.end() if bounds else 0, delimiter)
    lower_bounds = [1] * len(sizes)
    if bounds:
        pairs = [(int(lower), int(upper)) for lower, upper in _BOUND_PAIR.findall(bounds[1])]
        if [upper - lower + 1 for lower, upper in pairs] != sizes:
            raise ValueError(f"the bounds {bounds[1]} do not match the numbers of elements {sizes}")
        lower_bounds = [lower for lower, _ in pairs]
    return ArrayLiteral(elements, sizes, lower_bounds)


def _parse_elements(text: str, pos: int, delimiter: str) -> tuple[list[str | None], list[int]]:
    """Return the elements of the array at `text[pos:]`, and the size of each dimension (ReadArrayStr)."""
    if text[pos:] == "{}":
        return [], []
    elements: list[str | None] = []
    sizes: list[int] = []
    counts: list[int] = []  # number of items in each open brace
    expects_item = True  # an element or an opening brace must follow, not a delimiter or a closing brace
    while pos < len(text):
        match = _TOKEN[delimiter].match(text, pos)
        if match is None:
            break
        pos, sign = match.end(), match["sign"]
        if not counts and (sign != "{" or sizes):
            break
        if expects_item != (sign not in (delimiter, "}")):
            break
        if sign == "{":
            counts.append(0)
            if len(counts) > MAX_DIMENSIONS or (sizes and len(counts) > len(sizes)):
                break
        elif sign == delimiter:
            expects_item = True
        else:
            if sign is None:
                sizes = sizes or [-1] * len(counts)
                if len(counts) != len(sizes):
                    break
                elements.append(_element_text(match["quoted"], match["plain"]))
            elif not _close_brace(counts, sizes):
                break
            expects_item = False
            if counts:
                counts[-1] += 1
            elif pos == len(text) and math.prod(sizes) == len(elements):
                return elements, sizes
    raise ValueError(f"malformed array literal near character {pos}")


def _close_brace(counts: list[int], sizes: list[int]) -> bool:
    """Close the innermost brace; return whether it has as many items as those closed at its depth before.

    Args:
        counts: Number of items that each open brace has so far. The last number is removed.
        sizes: Number of items of the closed braces at each depth; -1 if no brace was closed there.
    """
    depth, count = len(counts), counts.pop()
    if sizes[depth - 1] not in (-1, count):
        return False
    sizes[depth - 1] = count
    return True


def _element_text(quoted: str | None, plain: str | None) -> str | None:
    """Return the text of an array element without quotes and escapes; None for NULL.

    Args:
        quoted: The text between the quotes of a quoted element, otherwise None or empty.
        plain: The text of an element without quotes, otherwise None or empty.
    """
    if plain and plain.upper() == "NULL":
        return None
    text = plain or quoted or ""
    return _ESCAPED.sub(r"\1", text) if "\\" in text else text
