"""Python values as column values in text format, as the server's output functions write them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final
from uuid import UUID

from pgoutput import catalog
from pgoutput.errors import ScenarioError
from pgoutput.synth.objects import written
from pgoutput.synth.types import ColumnType
from pgoutput.values import encode_binary, format_float4, format_float8
from pgoutput.wire import is_utf8

_INTEGERS: Final = {"int2": 15, "int4": 31, "int8": 63}
_EXACT: Final = Context(prec=200_000)
_LENGTH_HEADER: Final = 4
_FLOAT4: Final = struct.Struct(">f")  # which, unlike "f", refuses what is too large
_NOT_IN_TEXT: Final = frozenset(("none", "cash_send"))
"""Sent as no binary, or as other binary in other currencies."""
_BOOLS: Final = {"t": "t", "true": "t", "f": "f", "false": "f"}


def to_text(value: Any, type_: ColumnType) -> str | None:
    """A value as the server writes it.

    Text is taken as it is, and refused if the server writes none such; numbers are given the scale of their
    column, and char(n) is padded. None is NULL.

    Args:
        value: None, text, or the Python value that psycopg gives for the type.
        type_: The type of the column.

    Raises:
        ScenarioError: The type does not have this value.
    """
    if value is None:
        return None
    element = catalog.BY_ARRAY_OID.get(type_.base_oid)
    if element is not None and isinstance(value, list | tuple):
        inner = ColumnType(element.oid, type_.modifier, element.oid, type_.base_modifier)
        if 0 in _dimensions(value):
            return "{}"
        return "{" + ",".join(_element(item, inner) for item in value) + "}"
    name = "text" if element is not None else catalog.BY_OID[type_.base_oid].name
    try:
        given = written(value, name, type_.base_modifier)
        text = _EXACTLY[name](given, type_) if name in _EXACTLY else _plain(given)
    except (ArithmeticError, TypeError, ValueError, struct.error) as error:
        raise ScenarioError(f"{value!r} is no {name}: {error}") from None
    if "\0" in text or not is_utf8(text):
        raise ScenarioError(f"{value!r} holds a zero byte, or what is not UTF-8: no text of PostgreSQL does")
    if name not in _EXACTLY:
        _check(text, type_.base_oid)
    return text


def _check(text: str, type_oid: int) -> None:
    """See that a server writes this text, by making it binary, where its text says all that is sent so."""
    builtin = catalog.BY_ARRAY_OID.get(type_oid) or catalog.BY_OID[type_oid]
    if builtin.send in _NOT_IN_TEXT or builtin.name.startswith("reg"):
        return
    try:
        encode_binary(text, type_oid)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def _plain(value: Any) -> str:
    for kind, write in _WRITERS.items():
        if isinstance(value, kind):
            return write(value)
    raise ValueError(f"{type(value).__name__} is not a value that a scenario can write; give text")


def _datetime(value: datetime) -> str:
    offset = value.utcoffset()
    text = value.replace(tzinfo=None).isoformat(" ")
    head, dot, fraction = text.partition(".")
    text = f"{head}.{fraction.rstrip('0')}" if dot else text
    if offset is None:
        return text
    minutes = int(offset.total_seconds()) // 60
    hours, rest = divmod(abs(minutes), 60)
    return f"{text}{'-' if minutes < 0 else '+'}{hours:02}" + (f":{rest:02}" if rest else "")


_WRITERS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: str,
    bool: lambda value: "t" if value else "f",
    int: str,
    float: format_float8,
    Decimal: lambda value: format(value, "f"),
    UUID: str,
    datetime: _datetime,
    date: date.isoformat,
    time: time.isoformat,
    bytes: lambda value: "\\x" + value.hex(),
    dict: lambda value: json.dumps(value, ensure_ascii=False),
    list: lambda value: json.dumps(value, ensure_ascii=False),
}
"""By type; bool stands before int, of which it is one, and so does datetime before date."""


def _digits(value: Any) -> Any:
    """A number, or text that is one for PostgreSQL too; Python takes more."""
    if isinstance(value, bool):
        raise ValueError("a boolean is no number")
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        raise ValueError("write it in digits")
    return value


def _dimensions(value: Any) -> tuple[int, ...]:
    """The lengths of an array.

    Raises:
        ScenarioError: Its parts have different ones.
    """
    if not isinstance(value, list | tuple):
        return ()
    inside = {_dimensions(item) for item in value}
    if len(inside) > 1:
        raise ScenarioError(f"{value!r} is no array: its parts have different dimensions")
    return (len(value), *(inside.pop() if inside else ()))


def _integer(value: Any, type_: ColumnType) -> str:
    bits = _INTEGERS[catalog.BY_OID[type_.base_oid].name]
    number = int(_digits(value))
    if not isinstance(value, str) and number != value:
        raise ValueError("not a whole number")
    if not -(1 << bits) <= number < 1 << bits:
        raise ValueError("out of range")
    return str(number)


def _bool(value: Any, type_: ColumnType) -> str:
    text = str(value).lower()
    if text not in _BOOLS:
        raise ValueError("give True or False")
    return _BOOLS[text]


def _numeric(value: Any, type_: ColumnType) -> str:
    """numeric_out, after apply_typmod."""
    number = Decimal(repr(value) if isinstance(value, float) else _digits(value))
    if number.is_infinite() and type_.base_modifier >= 0:
        raise ValueError("a column with a precision has no infinity")
    if not number.is_finite():
        return "NaN" if number.is_nan() else "Infinity" if number > 0 else "-Infinity"
    if type_.base_modifier < 0:
        return format(number, "f").removeprefix("-") if number == 0 else format(number, "f")
    packed = type_.base_modifier - _LENGTH_HEADER
    precision, scale = packed >> 16, ((packed & 0x7FF) ^ 1024) - 1024
    number = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, context=_EXACT)
    if number and number.adjusted() >= precision - scale:
        raise ValueError(f"it has more than {precision - scale} digits before the point")
    return format(abs(number) if number == 0 else number, "f")


def _varchar(value: Any, type_: ColumnType) -> str:
    """Varchar's modifier is the number of characters, and no limit if negative."""
    text = _plain(value)
    length = type_.base_modifier - _LENGTH_HEADER
    if 0 <= length < len(text):
        raise ValueError(f"it has more than {length} characters")
    return text


def _bpchar(value: Any, type_: ColumnType) -> str:
    return _varchar(value, type_).ljust(max(0, type_.base_modifier - _LENGTH_HEADER))


_EXACTLY: Final[Mapping[str, Callable[[Any, ColumnType], str]]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    "bool": _bool,
    "numeric": _numeric,
    "varchar": _varchar,
    "bpchar": _bpchar,
    "float4": lambda value, _: format_float4(_FLOAT4.unpack(_FLOAT4.pack(float(_digits(value))))[0]),
    "float8": lambda value, _: format_float8(float(_digits(value))),
}
"""Types whose values are checked, or written in one way only."""


def _element(value: Any, type_: ColumnType) -> str:
    """An element as array_out writes it."""
    if isinstance(value, list | tuple):
        return "{" + ",".join(_element(item, type_) for item in value) + "}"
    text = to_text(value, type_)
    if text is None:
        return "NULL"
    if text and text.upper() != "NULL" and not set(text) & set('{}",\\ \t\n\r\v\f'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
