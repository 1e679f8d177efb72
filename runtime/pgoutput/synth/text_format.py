"""Convert Python values to the text format that the server's output functions write."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final
from uuid import UUID

from pgoutput import catalog
from pgoutput._type_modifiers import numeric_precision, string_length
from pgoutput.errors import ScenarioError
from pgoutput.synth.column_types import ColumnType
from pgoutput.synth.output_functions import output_text
from pgoutput.values import encode_binary, format_float4, format_float8
from pgoutput.wire import is_utf8

_INTEGERS: Final = {"int2": 15, "int4": 31, "int8": 63}
_CONTEXT: Final = Context(prec=200_000)
_FLOAT4: Final = struct.Struct(">f")  # unlike "f", raises OverflowError for too large values
_UNCHECKED_SEND: Final = frozenset(("none", "cash_send"))
"""Names of the send functions of types whose text is not checked: types without a binary format, and money,
whose binary value depends on the currency."""
_BOOLS: Final = {"t": "t", "true": "t", "f": "f", "false": "f"}


def to_text(value: Any, type_: ColumnType) -> str | None:
    """Return a Python value in text format, as the server would write the value.

    A string must be text that the server could write for the type. Numbers get the scale of the type, and
    char(n) values are padded. None stays None (NULL).

    Args:
        value: None, text, or the Python value that psycopg returns for the type.
        type_: The type of the column.

    Raises:
        ScenarioError: The type cannot represent the value.
    """
    if value is None:
        return None
    element = catalog.BY_ARRAY_OID.get(type_.base_oid)
    if element is not None and isinstance(value, list | tuple):
        inner = ColumnType(element.oid, type_.modifier, element.oid, type_.base_modifier)
        if 0 in _array_lengths(value):
            return "{}"
        return "{" + ",".join(_array_element(item, inner) for item in value) + "}"
    name = "text" if element is not None else catalog.FORMS[type_.base_oid].name
    try:
        converted = output_text(value, name, type_.base_modifier)
        text = _TYPE_WRITERS[name](converted, type_) if name in _TYPE_WRITERS else _from_python(converted)
    except (ArithmeticError, TypeError, ValueError, struct.error) as error:
        raise ScenarioError(f"{value!r} is not a valid {name}: {error}") from None
    if "\0" in text or not is_utf8(text):
        raise ScenarioError(f"{value!r} contains a zero byte or invalid UTF-8, which PostgreSQL text cannot")
    if name not in _TYPE_WRITERS:
        _check_text(text, type_.base_oid)
    return text


def _check_text(text: str, type_oid: int) -> None:
    """Check that a server could write the text, by encoding the text in binary format.

    Text of money, of `reg` types such as regclass and of types without a binary format is not checked.

    Raises:
        ScenarioError: The type's input function would refuse the text.
    """
    builtin = catalog.BY_ARRAY_OID.get(type_oid) or catalog.FORMS[type_oid]
    if builtin.send in _UNCHECKED_SEND or builtin.name.startswith("reg"):
        return
    try:
        encode_binary(text, type_oid)
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def _from_python(value: Any) -> str:
    for kind, write in _PYTHON_WRITERS.items():
        if isinstance(value, kind):
            return write(value)
    raise ValueError(f"Python type {type(value).__name__} is not supported; pass text in PostgreSQL's format")


_PYTHON_WRITERS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: str,
    bool: lambda value: "t" if value else "f",
    int: str,
    float: format_float8,
    Decimal: lambda value: format(value, "f"),
    UUID: str,
    datetime: lambda value: output_text(value, "timestamptz" if value.tzinfo else "timestamp", -1),
    date: date.isoformat,
    time: time.isoformat,
    bytes: lambda value: "\\x" + value.hex(),
    dict: lambda value: json.dumps(value, ensure_ascii=False),
    list: lambda value: json.dumps(value, ensure_ascii=False),
}
"""Functions that convert a Python value to text, by class of the value. The first matching class is used, so
bool precedes int, and datetime precedes date."""


def _strict_number(value: Any) -> Any:
    """Return a number or numeric text unchanged, after checking that PostgreSQL accepts it.

    Raises:
        ValueError: The value is a boolean, or text that Python's number parsers accept and PostgreSQL does
            not.
    """
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        raise ValueError("expected ASCII digits without underscores")
    return value


def _array_lengths(value: Any) -> tuple[int, ...]:
    """Return the length of each dimension of a nested list.

    Raises:
        ScenarioError: Sub-arrays have different dimensions.
    """
    if not isinstance(value, list | tuple):
        return ()
    inside = {_array_lengths(item) for item in value}
    if len(inside) > 1:
        raise ScenarioError(f"{value!r} is not a valid array: sub-arrays have different dimensions")
    return (len(value), *(inside.pop() if inside else ()))


def _integer(value: Any, type_: ColumnType) -> str:
    bits = _INTEGERS[catalog.FORMS[type_.base_oid].name]
    number = int(_strict_number(value))
    if not isinstance(value, str) and number != value:
        raise ValueError("expected an integer")
    if not -(1 << bits) <= number < 1 << bits:
        raise ValueError("out of range")
    return str(number)


def _bool(value: Any, type_: ColumnType) -> str:
    text = str(value).lower()
    if text not in _BOOLS:
        raise ValueError("expected True or False")
    return _BOOLS[text]


def _numeric(value: Any, type_: ColumnType) -> str:
    """Return a number as numeric text (numeric_out), rounded to the column's scale (apply_typmod)."""
    number = Decimal(repr(value) if isinstance(value, float) else _strict_number(value))
    numeric = numeric_precision(type_.base_modifier)
    if number.is_infinite() and numeric is not None:
        raise ValueError("numeric with a precision cannot store infinity")
    if not number.is_finite():
        return "NaN" if number.is_nan() else "Infinity" if number > 0 else "-Infinity"
    if numeric is None:
        return format(number, "f").removeprefix("-") if number == 0 else format(number, "f")
    precision, scale = numeric
    number = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, context=_CONTEXT)
    if number and number.adjusted() >= precision - scale:
        raise ValueError(f"more than {precision - scale} digits before the decimal point")
    return format(abs(number) if number == 0 else number, "f")


def _varchar(value: Any, type_: ColumnType) -> str:
    """Return a value as text, after checking the maximum length of the varchar or char type."""
    text = _from_python(value)
    length = string_length(type_.base_modifier)
    if 0 <= length < len(text):
        raise ValueError(f"longer than {length} characters")
    return text


def _bpchar(value: Any, type_: ColumnType) -> str:
    return _varchar(value, type_).ljust(max(0, string_length(type_.base_modifier)))


_TYPE_WRITERS: Final[Mapping[str, Callable[[Any, ColumnType], str]]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    "bool": _bool,
    "numeric": _numeric,
    "varchar": _varchar,
    "bpchar": _bpchar,
    "float4": lambda value, _: format_float4(_FLOAT4.unpack(_FLOAT4.pack(float(_strict_number(value))))[0]),
    "float8": lambda value, _: format_float8(float(_strict_number(value))),
}
"""Functions that convert a value to text, by name of the column type; only for types that restrict values or
have one canonical text."""


def _array_element(value: Any, type_: ColumnType) -> str:
    """Return an array element or sub-array as text, quoted as array_out does."""
    if isinstance(value, list | tuple):
        return "{" + ",".join(_array_element(item, type_) for item in value) + "}"
    text = to_text(value, type_)
    if text is None:
        return "NULL"
    if text and text.upper() != "NULL" and not set(text) & set('{}",\\ \t\n\r\v\f'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
