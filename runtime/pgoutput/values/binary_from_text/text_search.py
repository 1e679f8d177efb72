"""Binary form of text search values: tsvector and tsquery."""

from __future__ import annotations

import re
import struct
from typing import Final, TypeAlias

from pgoutput.values.binary_from_text.parsing import InputFunction
from pgoutput.values.text_from_binary.text_search import (
    OPERAND,
    OPERATOR,
    OPERATORS,
    PHRASE,
    QUERY_WEIGHTS,
    WEIGHTS,
)
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
"""Largest distance of a phrase operator; positions of lexemes are less (MAXENTRYPOS)."""

_Node: TypeAlias = "bytes | tuple[bytes, _Node] | tuple[bytes, _Node, _Node]"
"""A tsquery operand, or an operator followed by its operands, the right operand first."""


def tsvector_in(text: str) -> bytes:
    """Return a tsvector's binary form: number of lexemes, then lexemes and positions (tsvectorsend)."""
    lexemes: list[bytes] = []
    pos = 0
    while pos < len(text):
        match = _IN_VECTOR.match(text, pos)
        if match is None:
            raise ValueError(f"no lexeme at character {pos}")
        entries = [_encode_position(entry) for entry in (match[2] or "").split(",") if entry]
        lexemes.append(_encode_lexeme(match[1]) + struct.pack(f">H{len(entries)}H", len(entries), *entries))
        pos = match.end()
    return struct.pack(">i", len(lexemes)) + b"".join(lexemes)


def _encode_position(text: str) -> int:
    weight = text[-1] if text[-1] in "ABC" else ""
    position = int(text.removesuffix(weight))
    if not 0 < position < _MAX_DISTANCE:
        raise ValueError("out of range")
    return WEIGHTS.index(weight) << 14 | position


def _encode_lexeme(quoted: str) -> bytes:
    return write_string(_DOUBLED.sub(lambda match: match[0][0], quoted))


def tsquery_in(text: str) -> bytes:
    """Return a tsquery's binary form: number of items, then items in prefix order (tsquerysend).

    Binary operators of the same priority associate to the left. The function does not recurse, because a
    query can be nested as deep as it is long.
    """
    nodes: list[_Node] = []
    pending: list[
        tuple[str, int]
    ] = []  # operators and parentheses without all operands yet, with their distances
    count = pos = 0
    expects_operand = True
    end = len(text.rstrip())
    while pos < end:
        match = _IN_QUERY.match(text, pos)
        if match is None:
            raise ValueError(f"no operand or operator at character {pos}")
        pos, sign = match.end(), match["sign"]
        if expects_operand != (sign in (None, "(", _NOT)):
            raise ValueError(f"not an expression, before character {pos}")
        if sign is None:
            nodes.append(_encode_operand(match[3], match["flags"] or ""))
            expects_operand = False
        elif sign == ")":
            _attach_operands(nodes, pending, 0)
            if not pending:
                raise ValueError(f"a parenthesis that was not opened, at character {pos}")
            pending.pop()
        elif sign in ("(", _NOT):
            pending.append((sign, 0))
        else:
            kind = _PHRASE if sign[0] == "<" else sign
            _attach_operands(nodes, pending, _PRIORITIES[kind])
            pending.append((kind, int(match["distance"] or kind == _PHRASE)))
            expects_operand = True
        count += sign not in ("(", ")")
    if expects_operand and text:
        raise ValueError("an operand is missing")
    _attach_operands(nodes, pending, 0)
    if pending:
        raise ValueError("a parenthesis is not closed")
    return struct.pack(">i", count) + _flatten(nodes)


def _encode_operand(lexeme: str, flags: str) -> bytes:
    weights = sum(bit for bit, letter in QUERY_WEIGHTS if letter in flags)
    return bytes((OPERAND, weights, "*" in flags)) + _encode_lexeme(lexeme)


def _attach_operands(nodes: list[_Node], pending: list[tuple[str, int]], priority: int) -> None:
    """Move the last pending operators, down to `(` or a lower priority, to `nodes` with their operands."""
    while pending and pending[-1][0] != "(" and _PRIORITIES[pending[-1][0]] >= priority:
        sign, distance = pending.pop()
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


def _flatten(nodes: list[_Node]) -> bytes:
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


TEXT_SEARCH: Final[dict[str, InputFunction]] = {"tsvectorsend": tsvector_in, "tsquerysend": tsquery_in}
"""Input functions, by name of the send function."""
