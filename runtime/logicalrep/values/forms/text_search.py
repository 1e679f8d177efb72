"""Text search values: tsvector and tsquery."""

from __future__ import annotations

import re
import struct
from typing import Final, TypeAlias

import msgspec

from logicalrep.values.forms.parsing import Form, Reader
from logicalrep.wire import write_string

_COUNT: Final = struct.Struct(">i")
_INT8: Final = struct.Struct(">B")
_INT16: Final = struct.Struct(">H")
_OPERAND_FORM: Final = struct.Struct(">BB")

_WEIGHTS: Final = ("", "C", "B", "A")
"""Letters of the weights 0 to 3 of a tsvector position; the letter D of weight 0 is not written."""
_QUERY_WEIGHTS: Final = ((8, "A"), (4, "B"), (2, "C"), (1, "D"))
"""Pairs of a weight bit of a tsquery operand and its letter."""
_OPERAND, _OPERATOR = 1, 2
"""Kinds of tsquery items (QI_VAL, QI_OPR)."""
_OPERATORS: Final = {1: (4, "!"), 2: (2, " & "), 3: (1, " | "), 4: (3, " <-> ")}
"""Priority and sign of tsquery operators, by operator code (OP_NOT, OP_AND, OP_OR, OP_PHRASE)."""
_PHRASE: Final = 4
"""Operator code of the phrase operator `<->` (OP_PHRASE)."""

_LEXEME: Final = r"'((?:[^'\\]|''|\\\\)*)'"
_IN_VECTOR: Final = re.compile(rf"{_LEXEME}(?::([0-9]+[ABC]?(?:,[0-9]+[ABC]?)*))?(?: (?=')|\Z)", re.DOTALL)
_IN_QUERY: Final = re.compile(
    rf"\s*(?:(?P<sign>[()!&|]|<->|<(?P<distance>[0-9]{{1,5}})>)|{_LEXEME}(?::(?P<flags>\*?A?B?C?D?))?)",
    re.DOTALL,
)
_DOUBLED: Final = re.compile(r"''|\\\\")

_NOT, _PHRASE_SIGN = "!", "<>"
_CODES: Final = {sign.strip().replace("-", ""): code for code, (_, sign) in _OPERATORS.items()}
_PRIORITIES: Final = {sign.strip().replace("-", ""): priority for priority, sign in _OPERATORS.values()}
_MAX_DISTANCE: Final = 16_384
"""Largest distance of a phrase operator. Positions of lexemes must be lower (MAXENTRYPOS)."""


def tsvector_out(data: bytes) -> str:
    """Return a tsvector's text, `'cat':3A 'fat':2,4` (tsvectorsend, tsvectorout)."""
    reader = Reader(data)
    (count,) = reader.unpack(_COUNT)
    lexemes: list[str] = []
    while len(lexemes) < count:
        text = _quoted(reader.string())
        (positions,) = reader.unpack(_INT16)
        entries = struct.unpack(f">{positions}H", reader.take(2 * positions))
        if entries:
            text += ":" + ",".join([f"{entry & 0x3FFF}{_WEIGHTS[entry >> 14]}" for entry in entries])
        lexemes.append(text)
    reader.end()
    return " ".join(lexemes)


class _Operator(msgspec.Struct):
    """An operator of a tsquery."""

    priority: int
    """Operator precedence; a higher number binds tighter (QO_PRIORITY)."""
    sign: str
    phrase: bool
    left: int = 0
    """Index of the left operand's first item among all items of the query; 0 for NOT. The right operand
    follows the operator directly."""


_Item: TypeAlias = str | _Operator
_Node: TypeAlias = "bytes | tuple[bytes, _Node] | tuple[bytes, _Node, _Node]"
"""A tsquery operand, or an operator followed by its operands, the right operand first."""


def tsquery_out(data: bytes) -> str:
    """Return a tsquery's text with as few parentheses as necessary (tsquerysend, tsqueryout).

    The function does not recurse, because a query can be nested as deep as it is long.
    """
    reader = Reader(data)
    (count,) = reader.unpack(_COUNT)
    items: list[_Item] = []
    while len(items) < count:
        items.append(_read_item(reader))
    reader.end()
    _find_operands(items)
    return _infix(items) if items else ""


def _read_item(reader: Reader) -> _Item:
    (kind,) = reader.unpack(_INT8)
    if kind == _OPERAND:
        weights, prefix = reader.unpack(_OPERAND_FORM)
        flags = "*" * prefix + "".join(letter for bit, letter in _QUERY_WEIGHTS if weights & bit)
        if weights > 15 or prefix > 1:
            raise ValueError(
                f"expected operand weights up to 15 and a prefix flag 0 or 1, found {weights} and {prefix}"
            )
        return _quoted(reader.string()) + (f":{flags}" if flags else "")
    (code,) = reader.unpack(_INT8)
    if kind != _OPERATOR or code not in _OPERATORS:
        raise ValueError(f"expected an operand or operator, found kind {kind} and code {code}")
    priority, sign = _OPERATORS[code]
    if code == _PHRASE:
        (distance,) = reader.unpack(_INT16)
        sign = sign if distance == 1 else f" <{distance}> "
    return _Operator(priority, sign, code == _PHRASE)


def _find_operands(items: list[_Item]) -> None:
    """Set `left` of each operator, in one pass from the last item to the first (findoprnd)."""
    starts: list[int] = []
    for at in range(len(items) - 1, -1, -1):
        item = items[at]
        if isinstance(item, _Operator):
            starts.pop()
            if item.sign != "!":
                item.left = starts.pop()
        starts.append(at)
    if len(starts) > 1:
        raise ValueError("expected one expression, found more: an operator is missing")


def _infix(items: list[_Item]) -> str:
    """Return the infix expression of items in prefix order (infix in tsquery.c)."""
    parts: list[str] = []
    todo: list[str | tuple[int, int, bool]] = [(0, -1, False)]
    while todo:
        step = todo.pop()
        if isinstance(step, str):
            parts.append(step)
            continue
        at, outer, right_of_phrase = step
        item = items[at]
        if isinstance(item, str):
            parts.append(item)
            continue
        operand = (at + 1, item.priority, item.phrase)
        inner: list[str | tuple[int, int, bool]]
        inner = [(item.left, item.priority, False), item.sign, operand] if item.left else [item.sign, operand]
        # The phrase operator is not associative: a phrase as its right operand needs parentheses.
        if item.priority < outer or (item.phrase and right_of_phrase):
            inner = ["( ", *inner, " )"]
        todo.extend(reversed(inner))
    return "".join(parts)


def _quoted(lexeme: str) -> str:
    doubled = lexeme.replace("'", "''").replace("\\", "\\\\")
    return f"'{doubled}'"


def tsvector_in(text: str) -> bytes:
    """Return a tsvector's binary form: number of lexemes, then lexemes and positions (tsvectorsend)."""
    lexemes: list[bytes] = []
    pos = 0
    while pos < len(text):
        match = _IN_VECTOR.match(text, pos)
        if match is None:
            raise ValueError(f"expected a lexeme at character {pos}")
        entries = [_encode_position(entry) for entry in (match[2] or "").split(",") if entry]
        lexemes.append(_encode_lexeme(match[1]) + struct.pack(f">H{len(entries)}H", len(entries), *entries))
        pos = match.end()
    return struct.pack(">i", len(lexemes)) + b"".join(lexemes)


def _encode_position(text: str) -> int:
    weight = text[-1] if text[-1] in "ABC" else ""
    position = int(text.removesuffix(weight))
    if not 0 < position < _MAX_DISTANCE:
        raise ValueError(f"the position of a lexeme must be from 1 to {_MAX_DISTANCE - 1}, not {position}")
    return _WEIGHTS.index(weight) << 14 | position


def _encode_lexeme(quoted: str) -> bytes:
    return write_string(_DOUBLED.sub(lambda match: match[0][0], quoted))


def tsquery_in(text: str) -> bytes:
    """Return a tsquery's binary form: number of items, then items in prefix order (tsquerysend).

    Binary operators of the same priority associate to the left. The function does not recurse, because a
    query can be nested as deep as it is long.
    """
    nodes: list[_Node] = []
    # Stack of (sign, distance). The sign is an open parenthesis, or an operator that still lacks an operand.
    # The distance is that of a phrase operator, 0 for other signs.
    pending: list[tuple[str, int]] = []
    count = pos = 0
    expects_operand = True
    end = len(text.rstrip())
    while pos < end:
        match = _IN_QUERY.match(text, pos)
        if match is None:
            raise ValueError(f"expected an operand or operator at character {pos}")
        pos, sign = match.end(), match["sign"]
        if expects_operand != (sign in (None, "(", _NOT)):
            raise ValueError(f"misplaced operand, operator or parenthesis before character {pos}")
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
            kind = _PHRASE_SIGN if sign[0] == "<" else sign
            _attach_operands(nodes, pending, _PRIORITIES[kind])
            pending.append((kind, int(match["distance"] or kind == _PHRASE_SIGN)))
            expects_operand = True
        count += sign not in ("(", ")")
    if expects_operand and text:
        raise ValueError("an operand is missing")
    _attach_operands(nodes, pending, 0)
    if pending:
        raise ValueError("a parenthesis is not closed")
    return struct.pack(">i", count) + _flatten(nodes)


def _encode_operand(lexeme: str, flags: str) -> bytes:
    weights = sum(bit for bit, letter in _QUERY_WEIGHTS if letter in flags)
    return bytes((_OPERAND, weights, "*" in flags)) + _encode_lexeme(lexeme)


def _attach_operands(nodes: list[_Node], pending: list[tuple[str, int]], priority: int) -> None:
    """Pop operators from `pending` down to `(` or a lower priority; give each its operands from `nodes`."""
    while pending and pending[-1][0] != "(" and _PRIORITIES[pending[-1][0]] >= priority:
        sign, distance = pending.pop()
        head = bytes((_OPERATOR, _CODES[sign]))
        if sign == _NOT:
            nodes.append((head, nodes.pop()))
            continue
        if _CODES[sign] == _PHRASE:
            if distance > _MAX_DISTANCE:
                raise ValueError(f"the distance N of <N> is at most {_MAX_DISTANCE}, not {distance}")
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


TEXT_SEARCH: Final = {
    "tsvectorsend": Form(tsvector_out, tsvector_in),
    "tsquerysend": Form(tsquery_out, tsquery_in),
}
"""Conversions between binary and text form, by name of the type's send function."""
