"""Rows of a table whose columns became others, as the server converts them where it can be known.

ALTER TABLE … TYPE sends nothing of the rows that are there. What a cast of the server's gives is made here
of what the table holds, as far as the cast needs no settings and is not one of USING; what cannot be
converted becomes NULL and stands in `_rescued_data`. What a type's modifier does is made of values of char,
numeric and timestamp, but not of time, interval and of elements of arrays, which stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from functools import partial
from math import isfinite
from typing import Any, Final

import pyarrow as pa

from pgoutput import catalog
from pgoutput.replica.chunks import Column
from pgoutput.replica.rows import Layout, column_names
from pgoutput.values import Rescued, format_float4, format_float8, quote_array_element, to_arrow
from pgoutput.views import RESCUED_TYPE


def convert(batch: pa.RecordBatch, old: Layout, new: Layout, columns: tuple[Column, ...]) -> pa.RecordBatch:
    """Rows of a table, with its new columns. What they have in columns that are added was never sent.

    Args:
        batch: The rows.
        old: The columns that they have.
        new: The columns that they get.
        columns: Those of the relation, which say the types that columns get.
    """
    by_name = dict(zip(column_names(columns), columns, strict=True))
    refinements = refined(old, new)
    rescued: list[dict[str, str | None]] = [dict(one or ()) for one in batch[old.rescued].to_pylist()]
    roles = dict(zip(_roles(new), _roles(old), strict=True))
    arrays: dict[str, pa.Array] = {}
    kept: list[dict[str, str | None]] = [{} for _ in rescued]
    for field in new.schema:
        if field.name == new.rescued:
            continue
        source = roles.get(field.name) or new.sources.get(field.name)
        if source is None:
            arrays[field.name] = pa.nulls(batch.num_rows, field.type)
            for one in kept:
                one[field.name] = None
            continue
        column = batch[source]
        lost: Rescued = {row: one[source] for row, one in enumerate(rescued) if source in one}
        refine = refinements.get(field.name, str)
        if column.type != field.type or field.name in refinements:
            column, lost = _retype(column, lost, by_name[field.name], field.type, refine)
        arrays[field.name] = column
        for row, text in lost.items():
            kept[row][field.name] = text
    arrays[new.rescued] = pa.array([list(one.items()) or None for one in kept], RESCUED_TYPE)
    return pa.record_batch([arrays[name] for name in new.schema.names], schema=new.schema)


def refined(old: Layout, new: Layout) -> dict[str, Callable[[str], str]]:
    """What becomes of the text of columns whose type or modifier is another, beside what `_cast` does."""
    before = dict(zip(column_names(old.columns), old.columns, strict=True))
    refinements = {}
    for name, column in zip(column_names(new.columns), new.columns, strict=True):
        was = before.get(new.sources.get(name, ""))
        if was is not None and (refine := _refinement(was, column)) is not None:
            refinements[name] = refine
    return refinements


def _refinement(was: Column, now: Column) -> Callable[[str], str] | None:
    oid, modifier = now.type_oid, now.type_modifier
    if (was.type_oid, was.type_modifier) == (oid, modifier):
        return None
    if oid == _CHAR and modifier > 4:
        return lambda text: text.rstrip(" ").ljust(modifier - 4)
    if was.type_oid == _CHAR and oid in _STRINGS - {_CHAR}:
        return lambda text: text.rstrip(" ")
    if oid == _NUMERIC and modifier >= 4:
        scale = ((modifier - 4 & 0x7FF) ^ 1024) - 1024  # numeric_typmod_scale
        return lambda text: _scaled(text, scale)
    if oid in _TIMESTAMPS and 0 <= modifier < 6:
        return lambda text: _with_precision(text, modifier)
    return None


def _scaled(text: str, scale: int) -> str:
    try:
        number = Decimal(text)
    except ArithmeticError:
        return text
    if not number.is_finite():
        return text
    scaled = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    return f"{abs(scaled) if scaled.is_zero() else scaled:f}"


def _with_precision(text: str, digits: int) -> str:
    """A timestamp, rounded as AdjustTimestampForTypmod does: away from 2000, if it is in the middle."""
    plain = text.removesuffix("+00")
    try:
        since = datetime.fromisoformat(plain) - _EPOCH
        unit = 10 ** (6 - digits)
        microseconds = since // timedelta(microseconds=1)
        rounded = (abs(microseconds) + unit // 2) // unit * unit
        moment = _EPOCH + timedelta(microseconds=rounded if microseconds >= 0 else -rounded)
    except (ValueError, OverflowError):
        return text
    return _moment(moment) + text[len(plain) :]


def _roles(layout: Layout) -> list[str]:
    return [name for name in (layout.rescued, layout.start, layout.end) if name is not None]


def _retype(
    array: pa.Array, rescued: Rescued, column: Column, type_: pa.DataType, refine: Callable[[str], str]
) -> tuple[pa.Array, Rescued]:
    converted = _conversion(array.type, type_, column.type_oid)
    cells = [None if value is None else refine(converted(value)) for value in array.to_pylist()]
    for row, text in rescued.items():
        if text is not None:
            cells[row] = text
    result, lost = to_arrow(cells, column.type_oid, column.type_modifier, type_)
    never_sent: Rescued = {row: None for row, text in rescued.items() if text is None}
    return result, lost | never_sent


def _conversion(old: pa.DataType, new: pa.DataType, type_oid: int) -> Callable[[Any], str]:
    """What makes the text of a cast's result of the values of a type."""
    if pa.types.is_list(old) and (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        new_element = new.value_type if pa.types.is_list(new) else new
        one = _conversion(old.value_type, new_element, element.oid)
        return lambda items: _array_text(items, one)
    shown = shown_by(old)
    if pa.types.is_floating(old) and type_oid == _NUMERIC:
        digits = 15 if pa.types.is_float64(old) else 6  # float8_numeric, float4_numeric
        shown = partial(_rounded_float, digits)
    elif pa.types.is_floating(old) and pa.types.is_float64(new):
        shown = format_float8
    cast = _cast(old, new, type_oid)
    return lambda value: cast(shown(value))


def _rounded_float(digits: int, value: float) -> str:
    return f"{value:.{digits}g}" if isfinite(value) else format_float8(value)


def _array_text(items: list[Any], element: Callable[[Any], str]) -> str:
    return (
        "{" + ",".join("NULL" if item is None else quote_array_element(element(item)) for item in items) + "}"
    )


def _moment(value: datetime) -> str:
    text = value.isoformat(" ")
    return text.rstrip("0") if value.microsecond else text


def shown_by(type_: pa.DataType) -> Callable[[Any], str]:
    """What makes the server's text of the values of a type."""
    if pa.types.is_list(type_):
        element = shown_by(type_.value_type)
        return lambda items: _array_text(items, element)
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return lambda value: _moment(value.replace(tzinfo=None)) + "+00"
    return next((shown for applies, shown in _SHOWN if applies(type_)), str)


_SHOWN: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...]] = (
    (pa.types.is_boolean, lambda value: "t" if value else "f"),
    (pa.types.is_float32, lambda value: format_float4(value)),
    (pa.types.is_float64, lambda value: format_float8(value)),
    (pa.types.is_decimal, lambda value: f"{value:f}"),
    (pa.types.is_timestamp, lambda value: _moment(value)),
    (pa.types.is_binary, lambda value: "\\x" + value.hex()),
)
"""The same for the others that are not what `str` gives."""


def _cast(old: pa.DataType, new: pa.DataType, type_oid: int) -> Callable[[str], str]:
    """What a cast does to text, where that is not to leave it as it is."""
    if pa.types.is_date(new):
        return lambda text: text[:10] if pa.types.is_timestamp(old) else text
    if pa.types.is_timestamp(new) and pa.types.is_date(old):
        return lambda text: f"{text} 00:00:00" + ("" if new.tz is None else "+00")
    if pa.types.is_timestamp(new) and pa.types.is_timestamp(old):
        return lambda text: text.removesuffix("+00") + ("" if new.tz is None else "+00")
    if pa.types.is_boolean(old) and pa.types.is_integer(new):
        return lambda text: "1" if text == "t" else "0"
    if pa.types.is_boolean(old) and type_oid in _STRINGS:
        return lambda text: "true" if text == "t" else "false"
    if pa.types.is_floating(old) and pa.types.is_string(new) and type_oid == _NUMERIC:
        return lambda text: text if text in _NOT_FINITE else f"{Decimal(text) + 0:f}"  # no -0
    scale = new.scale if pa.types.is_decimal(new) else 0
    exact = pa.types.is_decimal(old) or pa.types.is_string(old)
    if pa.types.is_decimal(new) or pa.types.is_integer(new):
        # numeric rounds half away from zero (round_var), floating point to even (rint)
        rounding = ROUND_HALF_UP if exact or pa.types.is_decimal(new) else ROUND_HALF_EVEN
        return lambda text: _rounded(text, scale, rounding)
    return lambda text: text


def _rounded(text: str, scale: int, rounding: str) -> str:
    try:
        number = Decimal(text)
    except ArithmeticError:
        return text
    if not number.is_finite() or number.adjusted() > _DIGITS:
        return text
    return f"{number.quantize(Decimal(1).scaleb(-scale), rounding, _EXACT):f}"


_NUMERIC: Final = catalog.BY_NAME["numeric"].oid
_CHAR: Final = catalog.BY_NAME["bpchar"].oid
_TIMESTAMPS: Final = {catalog.BY_NAME[name].oid for name in ("timestamp", "timestamptz")}
_EPOCH: Final = datetime(2000, 1, 1)
_EXACT: Final = Context(prec=200_000)
_STRINGS: Final = {catalog.BY_NAME[name].oid for name in ("text", "varchar", "bpchar")}
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_DIGITS: Final = 20
"""More than an integer has, and less than a `Decimal` keeps."""
