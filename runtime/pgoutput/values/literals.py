"""Arrays, ranges and records as text: when values in them are quoted, and how."""

from __future__ import annotations

import re
from typing import Final

_DELIMITERS: Final = (",", ";")
_SPACE: Final = r" \t\n\r\v\f"
_QUOTED_IN_ARRAY: Final = {
    delimiter: re.compile(rf'[{_SPACE}"\\{{}}{delimiter}]|^(null)?\Z', re.IGNORECASE)
    for delimiter in _DELIMITERS
}
_QUOTED_IN_RANGE: Final = re.compile(rf'[{_SPACE}"\\()\[\],]|^\Z')
_QUOTED_IN_RECORD: Final = re.compile(rf'[{_SPACE}"\\(),]|^\Z')
_DOUBLED: Final = re.compile(r'["\\]')


def array_element(text: str, delimiter: str = ",") -> str:
    """An element of an array (array_out); backslashes before quotes and backslashes."""
    if not _QUOTED_IN_ARRAY[delimiter].search(text):
        return text
    return '"' + _DOUBLED.sub(r"\\\g<0>", text) + '"'


def range_bound(text: str) -> str:
    """A bound of a range (range_bound_escape); quotes and backslashes are doubled."""
    return _doubled(text) if _QUOTED_IN_RANGE.search(text) else text


def record_field(text: str) -> str:
    """A column of a record (record_out); quotes and backslashes are doubled."""
    return _doubled(text) if _QUOTED_IN_RECORD.search(text) else text


def _doubled(text: str) -> str:
    return '"' + _DOUBLED.sub(r"\g<0>\g<0>", text) + '"'


_ELEMENT: Final = {
    delimiter: re.compile(rf'"((?:[^"\\]|\\.)*)"|([^"\\{{}}{delimiter}]|\\.)+', re.DOTALL)
    for delimiter in _DELIMITERS
}


def parse_array(text: str, delimiter: str = ",") -> list[str | None] | None:
    """The elements of a one-dimensional array in text format (array_out).

    None where the text is of another kind: several dimensions, bounds of its own (`[2:4]={…}`), or no array
    at all.
    """
    if not (text.startswith("{") and text.endswith("}")):
        return None
    if text == "{}":
        return []
    items: list[str | None] = []
    pos = 1
    while True:
        match = _ELEMENT[delimiter].match(text, pos)
        if match is None:
            return None
        raw = match[0] if match[1] is None else match[1]
        quoted = match[1] is not None
        items.append(
            None if raw.upper() == "NULL" and not quoted else re.sub(r"\\(.)", r"\1", raw, flags=re.DOTALL)
        )
        pos = match.end()
        if pos == len(text) - 1:
            return items
        if not text.startswith(delimiter, pos, -1):
            return None
        pos += 1
