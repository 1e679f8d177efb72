"""Convert existing rows of a Delta table to changed column types, as the server's casts do.

ALTER TABLE … TYPE sends nothing about existing rows. The values in the Delta table are converted to the
text that the server's cast gives, and then to the new Arrow type. A value that its new type cannot represent
becomes NULL and is kept as text in `_rescued_data`.

Values are not converted if the cast depends on settings or is given with USING. Type modifiers are applied to
values of char, numeric and timestamp, but not to time, interval and elements of arrays; these values stay as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from itertools import islice
from math import isfinite
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logicalrep import catalog
from logicalrep._type_modifiers import numeric_precision, round_to_precision, string_length
from logicalrep.apply.schema.layout import TableLayout, delta_names
from logicalrep.values import Rescued, default_type, format_float8, from_arrow, quote_array_element, to_arrow
from logicalrep.views import RESCUED_TYPE, Column
from logicalrep.wire import NO_TEXT


def _oids(*names: str) -> frozenset[int]:
    """Return the OIDs of the types with these names, and of the types that share their formats."""
    return frozenset(oid for oid, forms in catalog.FORMS.items() if forms.name in names)


_NUMERIC: Final = _oids("numeric")
_CHAR: Final = _oids("bpchar")
_STRINGS: Final = _oids("text", "varchar", "bpchar")
_TIMESTAMPS: Final = _oids("timestamp", "timestamptz")
_EPOCH: Final = datetime(2000, 1, 1)
_EXACT: Final = Context(prec=200_000)
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_MAX_EXPONENT: Final = 20
"""Greatest decimal exponent of a number that is rounded; a larger number stays as it is.

The value exceeds the exponents of all integer types, and is below the precision of `Decimal`.
"""


def convert_batch(
    batch: pa.RecordBatch, old: TableLayout, new: TableLayout, columns: tuple[Column, ...]
) -> pa.RecordBatch:
    """Convert rows of a Delta table to a new layout.

    Added columns are NULL. `_rescued_data` marks them as never sent.

    Args:
        batch: Rows of the Delta table, with the old layout.
        old: The layout of `batch`.
        new: The layout to convert to.
        columns: Columns of the relation, with the PostgreSQL types of the new layout.
    """
    by_name = dict(zip(delta_names(columns), columns, strict=True))
    adjustments = text_adjustments(old, new)
    old_rescued: list[dict[str, str | None]] = [dict(one or ()) for one in batch[old.rescued].to_pylist()]
    new_rescued: list[dict[str, str | None]] = [{} for _ in old_rescued]
    extra_sources = dict(zip(_extra_columns(new), _extra_columns(old), strict=True))
    arrays: dict[str, pa.Array] = {}
    for field in new.schema:
        if field.name == new.rescued:
            continue
        source = extra_sources.get(field.name) or new.sources.get(field.name)
        if source is None:
            arrays[field.name] = pa.nulls(batch.num_rows, field.type)
            for one in new_rescued:
                one[field.name] = None
            continue
        column = batch[source]
        rescued: Rescued = {row: one[source] for row, one in enumerate(old_rescued) if source in one}
        adjust = adjustments.get(field.name, str)
        if column.type != field.type or field.name in adjustments:
            column, rescued = _convert_column(column, rescued, by_name[field.name], field.type, adjust)
        arrays[field.name] = column
        for row, text in rescued.items():
            new_rescued[row][field.name] = text
    arrays[new.rescued] = pa.array([list(one.items()) or None for one in new_rescued], RESCUED_TYPE)
    return pa.record_batch([arrays[name] for name in new.schema.names], schema=new.schema)


def _extra_columns(layout: TableLayout) -> list[str]:
    """Return the names of the Delta table's own columns, such as `_rescued_data` and `__START_AT`."""
    return [name for name in (layout.rescued, layout.start, layout.end) if name is not None]


def text_adjustments(old: TableLayout, new: TableLayout) -> dict[str, Callable[[str], str]]:
    """Return functions that adjust values, as text, to a new type or type modifier, by new column name.

    Columns whose text does not change are left out.
    """
    before = dict(zip(delta_names(old.columns), old.columns, strict=True))
    adjustments = {}
    for name, column in zip(delta_names(new.columns), new.columns, strict=True):
        was = before.get(new.sources.get(name, ""))
        if was is not None and (adjust := _text_adjustment(was, column)) is not None:
            adjustments[name] = adjust
    return adjustments


def _text_adjustment(old: Column, new: Column) -> Callable[[str], str] | None:
    oid, modifier = new.type_oid, new.type_modifier
    if (old.type_oid, old.type_modifier) == (oid, modifier):
        return None
    if oid in _CHAR and (length := string_length(modifier)) > 0:
        return lambda text: text.rstrip(" ").ljust(length)
    if old.type_oid in _CHAR and oid in _STRINGS - _CHAR:
        return lambda text: text.rstrip(" ")
    if oid in _NUMERIC and (numeric := numeric_precision(modifier)) is not None:
        return lambda text: _round(text, numeric[1], ROUND_HALF_UP, _EXACT.prec)
    if oid in _TIMESTAMPS and 0 <= modifier < 6:
        return lambda text: _with_precision(text, modifier)
    return None


def _with_precision(text: str, digits: int) -> str:
    """Round the text of a timestamp to `digits` decimals of a second, as AdjustTimestampForTypmod does.

    Ties are rounded away from 2000-01-01.
    """
    plain = text.removesuffix("+00")
    try:
        since = datetime.fromisoformat(plain) - _EPOCH
        microseconds = round_to_precision(since // timedelta(microseconds=1), digits)
        timestamp = _EPOCH + timedelta(microseconds=microseconds)
    except (ValueError, OverflowError):
        return text
    rounded = timestamp.isoformat(" ")
    return (rounded.rstrip("0") if timestamp.microsecond else rounded) + text[len(plain) :]


def _convert_column(
    array: pa.Array, rescued: Rescued, column: Column, type_: pa.DataType, adjust: Callable[[str], str]
) -> tuple[pa.Array, Rescued]:
    """Convert a column to another type; return the new values, and the rescued values by row index.

    Args:
        array: The old values.
        rescued: The old rescued values, by row index; None for a value that was never sent.
        column: Column of the relation, with the new PostgreSQL type.
        type_: The new Arrow type.
        adjust: Adjusts the text of each value to the new type or type modifier (see `text_adjustments`).
    """
    texts = _cast_to_text(array, type_, column.type_oid)
    cells = [None if text is None else adjust(text) for text in texts]
    for row, text in rescued.items():
        if text is not None:
            cells[row] = NO_TEXT + text if text.startswith("\\x") else text
    array = pa.array(cells, pa.string())
    result, newly_rescued = to_arrow(array, column.type_oid, column.type_modifier, type_)
    never_sent: Rescued = {row: None for row, text in rescued.items() if text is None}
    return result, newly_rescued | never_sent


def _cast_to_text(array: pa.Array, new: pa.DataType, type_oid: int) -> list[str | None]:
    """Return the text that each value has after the server's cast to a type.

    Args:
        array: The values.
        new: Arrow type of the type to cast to.
        type_oid: OID of the type to cast to.
    """
    old = array.type
    if pa.types.is_list(old) and (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        new_element = new.value_type if pa.types.is_list(new) else new
        items = iter(_cast_to_text(array.flatten(), new_element, element.oid))
        lengths = pc.list_value_length(array).to_pylist()
        return [None if length is None else _array_text(islice(items, length)) for length in lengths]
    if pa.types.is_floating(old) and type_oid in _NUMERIC:
        digits = 15 if pa.types.is_float64(old) else 6  # float8_numeric, float4_numeric
        texts = [None if value is None else _format_float(digits, value) for value in array.to_pylist()]
    else:
        source = array.cast(new) if pa.types.is_floating(old) and pa.types.is_float64(new) else array
        texts = from_arrow(source, *default_type(source.type)).to_pylist()
    cast = _text_cast(old, new, type_oid)
    return [None if text is None else cast(text) for text in texts]


def _format_float(digits: int, value: float) -> str:
    return f"{value:.{digits}g}" if isfinite(value) else format_float8(value)


def _array_text(items: Iterable[str | None]) -> str:
    return "{" + ",".join("NULL" if item is None else quote_array_element(item) for item in items) + "}"


def _text_cast(old: pa.DataType, new: pa.DataType, type_oid: int) -> Callable[[str], str]:
    """Return a function that converts a value's text from one type to another, as the server's cast does."""
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
    if pa.types.is_floating(old) and pa.types.is_string(new) and type_oid in _NUMERIC:
        return lambda text: text if text in _NOT_FINITE else f"{Decimal(text) + 0:f}"  # numeric has no -0
    scale = new.scale if pa.types.is_decimal(new) else 0
    is_exact = pa.types.is_decimal(old) or pa.types.is_string(old)
    if pa.types.is_decimal(new) or pa.types.is_integer(new):
        # numeric rounds ties away from zero (round_var); floating point rounds ties to even (rint)
        rounding = ROUND_HALF_UP if is_exact or pa.types.is_decimal(new) else ROUND_HALF_EVEN
        return lambda text: _round(text, scale, rounding)
    return lambda text: text


def _round(text: str, scale: int, rounding: str, max_exponent: int = _MAX_EXPONENT) -> str:
    """Round a number, given as text, to `scale` decimals; return other texts and huge numbers unchanged."""
    try:
        number = Decimal(text)
    except ArithmeticError:
        return text
    if not number.is_finite() or number.adjusted() > max_exponent:
        return text
    rounded = number.quantize(Decimal(1).scaleb(-scale), rounding, _EXACT)
    return f"{abs(rounded) if rounded.is_zero() else rounded:f}"  # no target type of a rounding has -0
