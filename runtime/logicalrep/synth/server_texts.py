"""Texts that the input function of a type accepts and its output function gives back unchanged.

`logicalrep.values` checks this for the types whose binary format has another form than their text. Here are
the others, and the rules that neither form shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NoReturn
from xml.parsers import expat

from logicalrep.synth.identifiers import MAX_NAME_BYTES
from logicalrep.values import format_jsonb
from logicalrep.wire import is_utf8


def check_text(text: str, type_name: str) -> None:
    """Check a text of a built-in type, as far as the text shows whether the server writes it.

    Args:
        text: The text.
        type_name: Name of the type in pg_type; types that this module does not know accept all texts.

    Raises:
        ValueError: The server refuses the text, or writes another one.
    """
    check = _CHECKS.get(type_name)
    if check is not None:
        check(text)


def is_checked(type_name: str) -> bool:
    """Return whether `check_text` checks texts of a type."""
    return type_name in _CHECKS


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _load(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=_no_constant)


def _json(text: str) -> None:
    try:
        _load(text)
    except RecursionError:
        pass  # deeper than Python reads; a server reads about 6,000 levels
    except ValueError as error:
        raise ValueError(f"invalid input syntax for type json: {error}") from None


def _jsonb(text: str) -> None:
    try:
        canonical = format_jsonb(_load(text))
    except RecursionError:
        return
    except ValueError as error:
        raise ValueError(f"invalid input syntax for type json: {error}") from None
    if "\0" in canonical or not is_utf8(canonical) or re.search(r"(?<!\\)(\\\\)*\\u0000", canonical):
        raise ValueError("unsupported Unicode escape sequence: jsonb has no \\u0000 and no single surrogates")
    _same(text, canonical)


def _same(text: str, canonical: str) -> None:
    if text != canonical:
        raise ValueError(f"the server writes {canonical!r} for {text!r}: give that text")


def _xml(text: str) -> None:
    if re.match(r"<\?xml(?![\w.:-])", text):
        declared = re.match(r'<\?xml version="(?:(?!1\.0")[^"]*"|[^"]*" standalone="(?:yes|no)")\?>', text)
        if not declared:  # see print_xml_decl
            raise ValueError(
                "the server writes no XML declaration of version 1.0 without standalone: leave it out"
            )
        text = text[declared.end() :]
    parser = expat.ParserCreate()
    try:  # XMLOPTION content: a document, or what an element can contain
        if re.match(r"\s*<!DOCTYPE", text):
            parser.Parse(text, True)
        else:
            parser.Parse(f"<content>{text}</content>", True)
    except expat.ExpatError as error:
        raise ValueError(f"invalid XML content: {error}") from None


def _name(text: str) -> None:
    if len(text.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"{text!r} has more than {MAX_NAME_BYTES} bytes: the server cuts off the rest")


def _matches(pattern: str, example: str) -> Callable[[str], None]:
    compiled = re.compile(pattern)

    def check(text: str) -> None:
        if not compiled.fullmatch(text):
            raise ValueError(f"{text!r} is not what a server writes (expected a text such as {example})")

    return check


def _never(text: str) -> None:
    raise ValueError("cannot accept a value of type gtsvector")


_RANGE: Final = re.compile(r'([\[(])("(?:[^"]|"")*"|[^,"]*),("(?:[^"]|"")*"|[^,"]*?)([\])])')
_DISCRETE: Final = ("int4", "int8", "date")
_TIME: Final = re.compile(r'"?(\d+)-([^" ]+)(?: ([\d:.]+))?( BC)?"?')


def _bound(element: str, text: str, infinite: str) -> Any:
    """Return a bound of a range so that bounds sort as on the server; None if the text does not tell."""
    if element in ("int4", "int8", "num"):
        return None if text == "NaN" else Decimal(text or infinite)
    if element == "tstz":
        return None
    text = text or infinite
    if "infinity" in text.lower():
        return (-1 if text.startswith("-") else 1,)
    match = _TIME.fullmatch(text)
    return match and (0, 1 - int(match[1]) if match[4] else int(match[1]), match[2], match[3] or "")


def _ranges(element: str) -> Callable[[str], None]:
    """Return a check of the texts of ranges and multiranges of an element type."""

    def check(text: str) -> None:
        last = None
        for left, low, high, right in _RANGE.findall(text):
            if (not low and left == "[") or (not high and right == "]"):
                raise ValueError(f"{text!r}: the server writes a parenthesis at an end without a bound")
            if element in _DISCRETE and (
                (low and left == "(" and "infinity" not in low) or (right == "]" and "infinity" not in high)
            ):
                raise ValueError(f"{text!r}: the server writes discrete ranges as [first,end)")
            begin, end = _bound(element, low, "-Infinity"), _bound(element, high, "Infinity")
            if begin is None or end is None:
                continue
            if begin > end:
                raise ValueError("range lower bound must be less than or equal to range upper bound")
            if begin == end and left + right != "[]":
                raise ValueError(f"{text!r}: the server writes `empty` for a range without values")
            if last is not None and (begin < last or (begin == last and element in _DISCRETE)):
                raise ValueError(f"{text!r}: the server sorts and joins the ranges of a multirange")
            last = end

    return check


def _box(text: str) -> None:
    corners = [float(number) for number in re.findall(r"[^(),\s]+", text)]
    if len(corners) == 4 and (corners[0] < corners[2] or corners[1] < corners[3]):
        raise ValueError(f"{text!r}: the server writes the upper right corner first")


def _circle(text: str) -> None:
    if re.search(r",-[^,]*>$", text):
        raise ValueError('invalid value in external "circle" value: the radius is negative')


def _tsvector(text: str) -> None:
    lexemes = [one.encode() for one in re.findall(r"'((?:[^']|'')*)'", text)]
    if b"" in lexemes or lexemes != sorted({*lexemes}):
        raise ValueError(f"{text!r}: the server writes lexemes sorted, each once, and none is empty")


def _tsquery(text: str) -> None:
    if "" in re.findall(r"'((?:[^']|'')*)'", text):
        raise ValueError(f"{text!r}: the server drops empty operands")


_ROLE: Final = r'(?:"(?:[^"]|"")+"|[^"=/]+)'
_REG: Final = _matches(r'-|\d+|(?:"(?:[^"]|"")+"|[^"\sA-Z])(?:"(?:[^"]|"")*"|[^"])*', "public.orders")

_CHECKS: Final[Mapping[str, Callable[[str], None]]] = {
    "json": _json,
    "jsonb": _jsonb,
    "xml": _xml,
    "name": _name,
    "gtsvector": _never,
    "box": _box,
    "circle": _circle,
    "tsvector": _tsvector,
    "tsquery": _tsquery,
    "money": _matches(r"-?\W{0,3}\d[\d.,'\s]*\W{0,3}", "$1,234.56"),
    "aclitem": _matches(rf"(?:{_ROLE})?=(?:[arwdDxtXUCTcsAm]\*?)*/{_ROLE}", "miriam=r/postgres"),
    "jsonpath": _matches(r"(?:strict )?[$@(\"\d\-+!a-z].*(?<![.\s&|=<>])|\$", '$."a"'),
    **{f"reg{one}": _REG for one in (
        "proc", "procedure", "oper", "operator", "class", "type", "config", "dictionary", "namespace", "role",
        "collation", "database",
    )},
    **{f"{element}{kind}": _ranges(element) for element in ("int4", "int8", "num", "date", "ts", "tstz")
       for kind in ("range", "multirange")},
}  # fmt: skip
"""Functions that check a text, by type name."""
