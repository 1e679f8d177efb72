"""Convert Python values to the text format that the server's output functions write."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final
from uuid import UUID

from logicalrep import catalog
from logicalrep._type_modifiers import numeric_precision, round_to_precision, string_length
from logicalrep.errors import ScenarioError
from logicalrep.synth.column_types import ColumnType
from logicalrep.synth.server_texts import check_text, is_checked
from logicalrep.values import (
    decode_binary,
    encode_binary,
    format_float8,
    format_jsonb,
    parse_array,
    quote_array_element,
)
from logicalrep.wire import is_utf8

_CONTEXT: Final = Context(prec=200_000)
_INT64: Final = struct.Struct(">q")
_INTERVAL: Final = struct.Struct(">qii")
_UNCHECKED_SEND: Final = frozenset(("none", "cash_send"))
"""Names of the send functions of types whose text is not checked: types without a binary format, and money,
whose binary value depends on the currency."""


def to_text(value: Any, type_: ColumnType) -> str | None:
    """Return a Python value in text format, as the server would write the value.

    A string must be text that the server could write for the type. Values get the scale or precision of the
    type, and char(n) values are padded. None stays None (NULL).

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
        return "{}" if 0 in _array_lengths(value) else _array(value, inner)
    builtin = element or catalog.BY_OID[type_.base_oid]
    try:
        text = value if isinstance(value, str) else _python_text(value, catalog.FORMS[builtin.oid].name)
        if "\0" in text or not is_utf8(text):
            raise ValueError(f"{value!r} contains a zero byte or invalid UTF-8")
        form = catalog.FORMS[builtin.oid].name
        for one in (text,) if element is None else _elements(text, form):
            check_text(one, form)
        if builtin.send in _UNCHECKED_SEND or builtin.name.startswith("reg"):
            return text
        data = encode_binary(text, type_.base_oid)
        if isinstance(value, str) and (canonical := decode_binary(data, type_.base_oid)) != text:
            raise ValueError(f"the server writes {canonical!r} for {text!r}: give that text")
        if element is None and builtin.modifier == "precision":
            microseconds = round_to_precision(_INT64.unpack_from(data)[0], type_.base_modifier)
            data = _INT64.pack(microseconds) + data[_INT64.size :]
        text = decode_binary(data, type_.base_oid)
        limit = _LIMITS.get(builtin.modifier) if element is None else None
        return limit(text, type_) if limit else text
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ScenarioError(str(error)) from None


def _array(values: Any, element: ColumnType) -> str:
    """Return a nested list as the text of an array (array_out)."""
    parts = []
    for value in values:
        if isinstance(value, list | tuple):
            parts.append(_array(value, element))
        else:
            text = to_text(value, element)
            parts.append("NULL" if text is None else quote_array_element(text))
    return "{" + ",".join(parts) + "}"


def _elements(text: str, form: str) -> Iterable[str]:
    """Return the elements of an array in text format, if texts of the element type are checked one by one."""
    if not is_checked(form):
        return ()
    if form == "box":  # whose arrays have semicolons between their elements
        return text.strip("{}").split(";")
    flat = re.sub(r"^\[[^{]*=", "", text)
    while flat.startswith("{{"):  # the elements of all dimensions
        flat = "{" + ",".join(re.findall(r'\{((?:"(?:[^"\\]|\\.)*"|[^{}"])*)\}', flat)) + "}"
    return [one for one in parse_array(flat) or () if one is not None]


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


def _python_text(value: Any, type_name: str) -> str:
    """Return text that the input function of a type accepts for a Python value other than a string.

    The server may write the value in another form; `to_text` converts the text to that form.
    """
    if type_name == "json":
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    if type_name == "jsonb":
        return format_jsonb(json.loads(json.dumps(value, allow_nan=False), parse_float=Decimal))
    if type_name == "numeric" and isinstance(value, float):
        value = Decimal(repr(value))
    if type_name == "timestamp" and type(value) is date:
        value = datetime.combine(value, time())
    for kind, write in _PYTHON_WRITERS.items():
        if isinstance(value, kind):
            return write(value)
    raise ValueError(f"Python type {type(value).__name__} is not supported; pass text in PostgreSQL's format")


def _interval(value: timedelta) -> str:
    within_day = (value - timedelta(value.days)) // timedelta(microseconds=1)
    return decode_binary(_INTERVAL.pack(within_day, value.days, 0), catalog.BY_NAME["interval"].oid)


_PYTHON_WRITERS: Final[Mapping[type, Callable[[Any], str]]] = {
    bool: lambda value: "t" if value else "f",
    int: str,
    float: format_float8,
    Decimal: lambda value: format(value, "f"),
    UUID: str,
    datetime: lambda value: value.isoformat(" "),
    date: date.isoformat,
    time: time.isoformat,
    timedelta: _interval,
    bytes: lambda value: "\\x" + value.hex(),
    dict: lambda value: json.dumps(value, ensure_ascii=False),
    list: lambda value: json.dumps(value, ensure_ascii=False),
}
"""Functions that convert a Python value to text, by class of the value. The first matching class is used, so
bool precedes int, and datetime precedes date."""


def _limited_numeric(text: str, type_: ColumnType) -> str:
    """Return numeric text rounded to the column's scale (apply_typmod).

    Raises:
        ValueError: The number is infinite or has too many digits for the column's precision.
    """
    limits = numeric_precision(type_.base_modifier)
    if limits is None or text == "NaN":
        return text
    number, (precision, scale) = Decimal(text), limits
    if number.is_infinite():
        raise ValueError("numeric with a precision cannot store infinity")
    number = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, context=_CONTEXT)
    if number and number.adjusted() >= precision - scale:
        raise ValueError(f"{text} has more than {precision - scale} digits before the decimal point")
    return format(number if number else abs(number), "f")


def _limited_text(text: str, type_: ColumnType) -> str:
    """Return text of a varchar or char type, padded if the type is char.

    Raises:
        ValueError: The text is longer than the type allows.
    """
    length = string_length(type_.base_modifier)
    if 0 <= length < len(text):
        raise ValueError(f"{text!r} is longer than {length} characters")
    return text.ljust(length) if type_.base_oid == catalog.BY_NAME["bpchar"].oid else text


def _limited_bits(text: str, type_: ColumnType) -> str:
    """Return text of a bit or varbit type.

    Raises:
        ValueError: The server refuses the number of bits.
    """
    length, exact = type_.base_modifier, type_.base_oid == catalog.BY_NAME["bit"].oid
    if length >= 0 and (len(text) != length if exact else len(text) > length):
        raise ValueError(
            f"bit string length {len(text)} does not match type {'bit' if exact else 'varbit'}({length})"
        )
    return text


_LIMITS: Final[Mapping[str, Callable[[str, ColumnType], str]]] = {
    "bits": _limited_bits,
    "numeric": _limited_numeric,
    "length": _limited_text,
}
"""Functions that apply a type modifier to text, by kind of type modifier in `logicalrep.catalog`."""
