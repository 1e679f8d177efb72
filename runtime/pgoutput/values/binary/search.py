"""Text search: tsvector and tsquery."""

from __future__ import annotations

import re
import struct
from typing import Final, TypeAlias

from pgoutput.values.binary.reading import Input
from pgoutput.values.search import OPERAND, OPERATOR, OPERATORS, PHRASE, QUERY_WEIGHTS, WEIGHTS
from pgoutput.wire import write_string

_LEXEME: Final = r"'((?:[^'\\]|''|\\\\)*)'"
_IN_VECTOR: Final = re.compile(rf"{_LEXEME}(?::([0-9]+[ABC]?(?:,[0-9]+[ABC]?)*))?(?: (?=')|\Z)", re.DOTALL)
_IN_QUERY: Final = re.compile(
    rf"\s*(?:(?P<sign>[()!&|]|<->|<(?P<distance>[0-9]{{1,5}})>)|{_LEXEME}(?::(?P<flags>\*?A?B?C?D?))?)",
    re.DOTALL,
)
_DOUBLED: Final = re.compile(r"''|\\\\")

_NOT, _AND, _OR, _PHRASE = "!", "&", "|", "<>"
_CODES: Final = {sign.strip().replace("-", ""): code for code, (_, sign) in OPERATORS.items()}
_PRIORITIES: Final = {sign.strip().replace("-", ""): priority for priority, sign in OPERATORS.values()}
_MAX_DISTANCE: Final = 16_384
"""MAXENTRYPOS, and as well the bits of a position."""

_Node: TypeAlias = "bytes | tuple[bytes, _Node] | tuple[bytes, _Node, _Node]"
"""An operand, or an operator and what it stands before: the right operand first."""


def tsvector_in(text: str) -> bytes:
    """A number of lexemes, and each with its positions and their weights (tsvectorin, tsvectorsend)."""
    lexemes: list[bytes] = []
    pos = 0
    while pos < len(text):
        match = _IN_VECTOR.match(text, pos)
        if match is None:
            raise ValueError(f"no lexeme at character {pos}")
        entries = [_entry(entry) for entry in (match[2] or "").split(",") if entry]
        lexemes.append(_lexeme(match[1]) + struct.pack(f">H{len(entries)}H", len(entries), *entries))
        pos = match.end()
    return struct.pack(">i", len(lexemes)) + b"".join(lexemes)


def _entry(text: str) -> int:
    weight = text[-1] if text[-1] in "ABC" else ""
    position = int(text.removesuffix(weight))
    if not 0 < position < _MAX_DISTANCE:
        raise ValueError("out of range")
    return WEIGHTS.index(weight) << 14 | position


def _lexeme(quoted: str) -> bytes:
    return write_string(_DOUBLED.sub(lambda match: match[0][0], quoted))


def tsquery_in(text: str) -> bytes:
    """A number of items, each operator before its operands (tsqueryin, tsquerysend).

    Of operators that bind alike the first binds closer, but for not. Nothing here recurses.
    """
    nodes: list[_Node] = []
    open_: list[tuple[str, int]] = []  # operators and brackets that wait for what follows, and distances
    count = pos = 0
    awaited = True  # whether an operand comes next
    end = len(text.rstrip())
    while pos < end:
        match = _IN_QUERY.match(text, pos)
        if match is None:
            raise ValueError(f"no operand or operator at character {pos}")
        pos, sign = match.end(), match["sign"]
        if awaited != (sign in (None, "(", _NOT)):
            raise ValueError(f"not an expression, before character {pos}")
        if sign is None:
            nodes.append(_operand(match[3], match["flags"] or ""))
            awaited = False
        elif sign == ")":
            _close(nodes, open_, 0)
            if not open_:
                raise ValueError(f"a bracket that was not opened, at character {pos}")
            open_.pop()
        elif sign in ("(", _NOT):
            open_.append((sign, 0))
        else:
            kind = _PHRASE if sign[0] == "<" else sign
            _close(nodes, open_, _PRIORITIES[kind])
            open_.append((kind, int(match["distance"] or kind == _PHRASE)))
            awaited = True
        count += sign not in ("(", ")")
    if awaited and text:
        raise ValueError("an operand is missing")
    _close(nodes, open_, 0)
    if open_:
        raise ValueError("a bracket is not closed")
    return struct.pack(">i", count) + _flat(nodes)


def _operand(lexeme: str, flags: str) -> bytes:
    weights = sum(bit for bit, letter in QUERY_WEIGHTS if letter in flags)
    return bytes((OPERAND, weights, "*" in flags)) + _lexeme(lexeme)


def _close(nodes: list[_Node], open_: list[tuple[str, int]], priority: int) -> None:
    """Give operators that bind at least so close their operands, back to the last bracket."""
    while open_ and open_[-1][0] != "(" and _PRIORITIES[open_[-1][0]] >= priority:
        sign, distance = open_.pop()
        head = bytes((OPERATOR, _CODES[sign]))
        if sign == _NOT:
            nodes.append((head, nodes.pop()))
            continue
        if _CODES[sign] == PHRASE:
            if distance > _MAX_DISTANCE:
                raise ValueError(f"a distance is at most {_MAX_DISTANCE}")
            head += struct.pack(">H", distance)
        right = nodes.pop()
        nodes.append((head, right, nodes.pop()))


def _flat(nodes: list[_Node]) -> bytes:
    parts: list[bytes] = []
    todo: list[_Node] = nodes[::-1]
    while todo:
        node = todo.pop()
        if isinstance(node, bytes):
            parts.append(node)
        else:
            todo.extend(node[:0:-1])
            todo.append(node[0])
    return b"".join(parts)


SEARCH: Final[dict[str, Input]] = {"tsvectorsend": tsvector_in, "tsquerysend": tsquery_in}
"""By send function."""
