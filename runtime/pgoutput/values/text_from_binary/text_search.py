"""Text of text search values: tsvector and tsquery."""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

import msgspec

from pgoutput.values.text_from_binary.reader import OutputFunction, Reader

_COUNT: Final = struct.Struct(">i")
_INT8: Final = struct.Struct(">B")
_INT16: Final = struct.Struct(">H")
_OPERAND_FORM: Final = struct.Struct(">BB")

WEIGHTS: Final = ("", "C", "B", "A")
"""Letters of the weights 0 to 3 of a tsvector position; the letter D of weight 0 is not written."""
QUERY_WEIGHTS: Final = ((8, "A"), (4, "B"), (2, "C"), (1, "D"))
"""Pairs of a weight bit of a tsquery operand and its letter."""
OPERAND, OPERATOR = 1, 2
"""Kinds of tsquery items (QI_VAL, QI_OPR)."""


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
            text += ":" + ",".join([f"{entry & 0x3FFF}{WEIGHTS[entry >> 14]}" for entry in entries])
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


OPERATORS: Final = {1: (4, "!"), 2: (2, " & "), 3: (1, " | "), 4: (3, " <-> ")}
"""Priority and sign of tsquery operators, by operator code (OP_NOT, OP_AND, OP_OR, OP_PHRASE)."""
PHRASE: Final = 4
"""Operator code of the phrase operator `<->` (OP_PHRASE)."""

_Item: TypeAlias = str | _Operator


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
    if kind == OPERAND:
        weights, prefix = reader.unpack(_OPERAND_FORM)
        flags = "*" * prefix + "".join(letter for bit, letter in QUERY_WEIGHTS if weights & bit)
        if weights > 15 or prefix > 1:
            raise ValueError("unknown weights")
        return _quoted(reader.string()) + (f":{flags}" if flags else "")
    (code,) = reader.unpack(_INT8)
    if kind != OPERATOR or code not in OPERATORS:
        raise ValueError("neither an operand nor an operator")
    priority, sign = OPERATORS[code]
    if code == PHRASE:
        (distance,) = reader.unpack(_INT16)
        sign = sign if distance == 1 else f" <{distance}> "
    return _Operator(priority, sign, code == PHRASE)


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
        raise ValueError("more than one expression")


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
        # The phrase operator is not associative.
        if item.priority < outer or (item.phrase and right_of_phrase):
            inner = ["( ", *inner, " )"]
        todo.extend(reversed(inner))
    return "".join(parts)


def _quoted(lexeme: str) -> str:
    doubled = lexeme.replace("'", "''").replace("\\", "\\\\")
    return f"'{doubled}'"


TEXT_SEARCH: Final[dict[str, OutputFunction]] = {"tsvectorsend": tsvector_out, "tsquerysend": tsquery_out}
"""Output functions, by name of the send function."""
