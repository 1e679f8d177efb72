"""Translate catalog queries of clients from PostgreSQL's SQL dialect to SQLite's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pgoutput.standin.sql.catalogs import json_object_of_row

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
    | (?P<row> \b(?:to_jsonb?|row_to_json)\s*\(\s*(?P<alias>\w+)\s*\)(?P<excluded>(?:\s*-\s*'\w+')*) )
    | (?P<any> =\s*ANY\s*\(\s*ARRAY\s*\[ )
    | (?P<json> \b(?:json_object_agg|json_build_array)\b )
    | (?P<bracket> \] )
    | (?P<semicolon> ; )
    | (?P<rest> \w+ | . )""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def split_statements(sql: str) -> Iterator[str]:
    """Split the text of a Query message into statements, at semicolons outside quotes. Remove comments."""
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
"""Sub-select without rows that replaces a call of pg_get_publication_tables: the server has no tables."""

_JSON_FUNCTIONS: Final = {"json_object_agg": "json_group_object", "json_build_array": "json_array"}
"""Names of JSON functions in SQLite, by their names in PostgreSQL."""


def to_sqlite(sql: str, *, is_nested: bool = False) -> str:
    """Return a statement in SQLite's dialect.

    Casts and the schema pg_catalog are removed. A call of pg_create_logical_replication_slot in FROM becomes
    a sub-select, and = ANY (ARRAY[…]) becomes IN (…).

    Args:
        sql: One statement in PostgreSQL's dialect.
        is_nested: Whether `sql` is the argument list of a function call in FROM. Functions inside an argument
            list do not become sub-selects.
    """
    parts: list[str] = []
    position = 0
    while match := _TOKEN.match(sql, position):
        position = match.end()
        kind, text = match.lastgroup, match[0]
        if kind == "row":
            excluded = frozenset(re.findall(r"\w+", match["excluded"]))
            parts.append(json_object_of_row(sql, match["alias"], excluded))
        elif kind == "tables":
            position = _end_of_parentheses(sql, position)
            parts.append(_NO_TABLES)
        elif kind == "any":
            parts.append("IN (")
        elif kind == "json":
            parts.append(_JSON_FUNCTIONS[text.lower()])
        elif kind == "string" and text[0] in "eE":
            parts.append(_unescape(text))
        elif kind == "parameter":
            parts.append("?" + text[1:])
        elif kind == "nullary":
            parts.append(f"{text}()")
        elif kind == "function" and not is_nested:
            end = _end_of_parentheses(sql, position)
            arguments = to_sqlite(sql[position:end], is_nested=True)
            columns = f"created_slot_name{arguments} AS slot_name, created_slot_lsn{arguments} AS lsn"
            parts.append(f"FROM (SELECT {columns})")
            position = end
        elif kind not in ("cast", "catalog", "comment", "bracket"):
            parts.append(text)
    return "".join(parts)


def count_parameters(sql: str) -> int:
    """Return the number of a statement's parameters, which is the highest number N in $N."""
    numbers = (int(match[0][1:]) for match in _TOKEN.finditer(sql) if match.lastgroup == "parameter")
    return max(numbers, default=0)


def string_literals(sql: str) -> Iterator[str]:
    """Yield the values of the string literals in a statement."""
    for match in _TOKEN.finditer(sql):
        if match.lastgroup == "string":
            literal = match[0] if match[0][0] == "'" else _unescape(match[0])
            yield literal[1:-1].replace("''", "'")


def _end_of_parentheses(sql: str, position: int) -> int:
    """Return the position after the parenthesis that matches the opening parenthesis at `position`."""
    depth = 0
    while match := _TOKEN.match(sql, position):
        position = match.end()
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            break
    return position


def _unescape(literal: str) -> str:
    """Return the literal E'…' as '…', with its backslash escapes replaced."""
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), literal[1:], flags=re.DOTALL)


_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "'": "''"}
