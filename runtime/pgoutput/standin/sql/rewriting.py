"""PostgreSQL's SQL, as clients write it in look-ups, in SQLite's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<string> [eE]?'(?:[^']|'')*' )
    | (?P<quoted> "(?:[^"]|"")*" )
    | (?P<comment> --[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<cast> ::\s*(?:\w+\s*\.\s*)?\w+(?:\s*\(\s*[\d,\s]*\))?(?:\s*\[\s*\])* )
    | (?P<catalog> \bpg_catalog\s*\.\s* )
    | (?P<parameter> \$\d+ )
    | (?P<nullary> \b(?:current_user|session_user|current_role|current_catalog|current_schema)\b(?!\s*\() )
    | (?P<function> \bFROM\s+(?:pg_catalog\s*\.\s*)?pg_create_logical_replication_slot\s*(?=\() )
    | (?P<tables> \bpg_get_publication_tables\s*(?=\() )
    | (?P<row> \b(?:to_jsonb?|row_to_json)\s*\(\s*(?P<alias>\w+)\s*\)(?P<without>(?:\s*-\s*'\w+')*) )
    | (?P<any> =\s*ANY\s*\(\s*ARRAY\s*\[ )
    | (?P<json> \b(?:json_object_agg|json_build_array)\b )
    | (?P<bracket> \] )
    | (?P<semicolon> ; )
    | (?P<rest> \w+ | . )""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def statements(sql: str) -> Iterator[str]:
    """The statements of a simple query, without comments; semicolons in quotes separate none."""
    parts: list[str] = []
    for match in _TOKEN.finditer(sql):
        if match.lastgroup == "semicolon":
            yield "".join(parts).strip()
            parts.clear()
        else:
            parts.append(" " if match.lastgroup == "comment" else match[0])
    if last := "".join(parts).strip():
        yield last


_NO_TABLES: Final = "(SELECT NULL AS relid, NULL AS attrs, NULL AS qual WHERE 0)"
"""What pg_get_publication_tables gives: a stand-in has no tables."""


_JSON: Final = {"json_object_agg": "json_group_object", "json_build_array": "json_array"}
"""Functions that SQLite has under other names."""


def rewrite(sql: str, row: Callable[[str, str, frozenset[str]], str], *, nested: bool = False) -> str:
    """A statement for SQLite.

    Casts go, and so does the schema pg_catalog; a function in FROM becomes a SELECT, = ANY (ARRAY[…]) an IN.

    Args:
        sql: One statement.
        row: Returns what stands for to_jsonb(s): called with the statement, the alias, and the keys that are
            taken out of it.
        nested: Whether it is the arguments of such a function, where no other stands.
    """
    parts: list[str] = []
    position = 0
    while match := _TOKEN.match(sql, position):
        position = match.end()
        kind, text = match.lastgroup, match[0]
        if kind == "row":
            parts.append(row(sql, match["alias"], frozenset(re.findall(r"\w+", match["without"]))))
        elif kind == "tables":
            position = _closing(sql, position)
            parts.append(_NO_TABLES)
        elif kind == "any":
            parts.append("IN (")
        elif kind == "json":
            parts.append(_JSON[text.lower()])
        elif kind == "string" and text[0] in "eE":
            parts.append(_unescaped(text))
        elif kind == "parameter":
            parts.append("?" + text[1:])
        elif kind == "nullary":
            parts.append(f"{text}()")
        elif kind == "function" and not nested:
            end = _closing(sql, position)
            given = rewrite(sql[position:end], row, nested=True)
            parts.append(
                f"FROM (SELECT created_slot_name{given} AS slot_name, created_slot_lsn{given} AS lsn)"
            )
            position = end
        elif kind not in ("cast", "catalog", "comment", "bracket"):
            parts.append(text)
    return "".join(parts)


def parameters(sql: str) -> int:
    """How many parameters a statement has."""
    numbers = (int(match[0][1:]) for match in _TOKEN.finditer(sql) if match.lastgroup == "parameter")
    return max(numbers, default=0)


def literals(sql: str) -> Iterator[str]:
    """The texts that stand in a statement."""
    for match in _TOKEN.finditer(sql):
        if match.lastgroup == "string":
            literal = match[0] if match[0][0] == "'" else _unescaped(match[0])
            yield literal[1:-1].replace("''", "'")


def _closing(sql: str, position: int) -> int:
    """The place behind the parenthesis that closes the one at `position`."""
    depth = 0
    while match := _TOKEN.match(sql, position):
        position = match.end()
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            break
    return position


def _unescaped(literal: str) -> str:
    """E'…' without its escapes; those of C that stand for one character are known."""
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), literal[1:], flags=re.DOTALL)


_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "'": "''"}
