"""Split the text of SQL statements into tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<string> [eE]'(?:[^'\\]|''|\\.)*' | '(?:[^']|'')*' )
    | (?P<quoted> "(?:[^"]|"")*" )
    | (?P<comment> --[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<semicolon> ; )
    | (?P<rest> \w+ | . )""",
    re.VERBOSE | re.DOTALL,
)


def split_statements(sql: str) -> Iterator[str]:
    """Split the text of a Query message at semicolons outside quotes; yield statements without comments."""
    parts: list[str] = []
    for match in _TOKEN.finditer(sql):
        if match.lastgroup == "semicolon":
            yield "".join(parts).strip()
            parts.clear()
        else:
            parts.append(" " if match.lastgroup == "comment" else match[0])
    if last := "".join(parts).strip():
        yield last


def string_literals(sql: str) -> Iterator[str]:
    """Yield the values of the string literals in a statement. Backslash escapes are not decoded."""
    for match in _TOKEN.finditer(sql):
        if match.lastgroup == "string":
            yield match[0].lstrip("eE")[1:-1].replace("''", "'")
