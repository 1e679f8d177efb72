"""Arrow arrays to the server's text: the way back of `to_arrow`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput import catalog
from pgoutput.values import moments
from pgoutput.values.floats import format_float4, format_float8
from pgoutput.values.types import BOXES, arrow_type, shown_type
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS, UNIX_YEAR_1, UNIX_YEAR_10000

_DAY: Final = 86_400_000_000
_FLOAT4_PLAIN: Final = (1e-4, 1e6)
_FLOAT8_PLAIN: Final = (1e-4, 1e15)
"""Between them, Arrow writes numbers as the server does, or with an exponent."""

_QUOTED: Final = {delimiter: rf'[ \t\n\r\v\f"\\{{}}{delimiter}]|^$|^(?i:null)$' for delimiter in (",", ";")}
"""What an element of an array looks like that is quoted (array_out)."""


def from_arrow(array: pa.Array, type_oid: int, type_modifier: int = -1) -> pa.StringArray:
    r"""The server's text of a column: what `to_arrow` made the column of.

    Args:
        array: Values that can be cast to `arrow_type(type_oid, type_modifier)` without loss. Where that is a
            string, they are the server's text already, as for uuid or jsonb; but decimals and numbers will do
            for numeric.
        type_oid: OID of the column's type.
        type_modifier: `atttypmod`, -1 if there is none. A numeric has as many digits behind its point as it
            says, otherwise as many as its Arrow type has.

    Raises:
        ValueError: A value has no place in the type, or text holds a zero character, which no server stores.
    """
    builtin = catalog.BY_ARRAY_OID.get(type_oid) or catalog.BY_OID.get(type_oid)
    is_numeric = builtin is not None and builtin.name == "numeric"
    try:
        wanted = _wanted(array.type, arrow_type(type_oid, type_modifier), is_numeric)
        return _text(array.cast(wanted), ";" if type_oid in BOXES else ",")
    except (ValueError, pa.ArrowNotImplementedError) as error:  # of which pa.ArrowInvalid is one
        why = str(error).partition("\n")[0]
        raise ValueError(f"a column of {array.type} is none of {shown_type(type_oid)}: {why}") from None


def _wanted(given: pa.DataType, own: pa.DataType, is_numeric: bool) -> pa.DataType:
    """What the values are cast to. Arrow itself would make text of anything, but not the server's."""
    if pa.types.is_list(own) and hasattr(given, "value_type"):
        return pa.list_(pa.field("element", _wanted(given.value_type, own.value_type, is_numeric)))
    if own != pa.string() or pa.types.is_null(given) or "string" in str(given):
        return own
    if is_numeric and (pa.types.is_decimal(given) or pa.types.is_integer(given)):
        return given
    raise ValueError("its values are wanted as the server's text")


def _text(array: pa.Array, delimiter: str) -> pa.StringArray:
    return next(write for applies, write in _FORMS if applies(array.type))(array, delimiter)


def _bool(array: pa.BooleanArray, delimiter: str) -> pa.StringArray:
    return pc.if_else(array, "t", "f")


def _plain(array: pa.Array, delimiter: str) -> pa.StringArray:
    return array.cast(pa.string())


def _string(array: pa.StringArray, delimiter: str) -> pa.StringArray:
    if pc.any(pc.match_substring(array, "\0")).as_py():
        raise ValueError("text holds a zero character, which no server stores")
    return array


def _float(array: pa.FloatingPointArray, delimiter: str) -> pa.StringArray:
    is_single = pa.types.is_float32(array.type)
    low, high = _FLOAT4_PLAIN if is_single else _FLOAT8_PLAIN
    text, size = array.cast(pa.string()), pc.abs(array)
    alike = pc.or_(_between(size, low, high), pc.equal(size, 0))
    alike = pc.and_not(alike, pc.match_substring(text, "e"))
    write = format_float4 if is_single else format_float8
    return _replaced(text, pc.invert(alike), array, write)


def _decimal(array: pa.Array, delimiter: str) -> pa.StringArray:
    text = array.cast(pa.string())
    return _replaced(text, pc.match_substring(text, "E"), array, lambda value: format(value, "f"))


def _date(array: pa.Date32Array, delimiter: str) -> pa.StringArray:
    days = array.cast(pa.int32())
    inside = _between(days, UNIX_YEAR_1 // _DAY, UNIX_YEAR_10000 // _DAY)
    epoch = EPOCH_UNIX_MICROSECONDS // _DAY
    far = pc.if_else(inside, None, days)
    shown = pc.if_else(inside, array, pa.scalar(0, array.type)).cast(pa.string())
    return _replaced(shown, pc.invert(inside), far, lambda day: moments.date_out(_INT32.pack(day - epoch)))


def _timestamp(array: pa.TimestampArray, delimiter: str) -> pa.StringArray:
    zone = "" if array.type.tz is None else "+00"
    microseconds = array.cast(pa.int64())
    inside = _between(microseconds, UNIX_YEAR_1, UNIX_YEAR_10000)
    shown = pc.if_else(inside, microseconds, 0).cast(pa.timestamp("us")).cast(pa.string())
    shown = pc.utf8_rtrim(pc.utf8_rtrim(shown, characters="0"), characters=".")
    text = pc.binary_join_element_wise(shown, zone, "")
    out = moments.timestamptz_out if zone else moments.timestamp_out
    return _replaced(
        text,
        pc.invert(inside),
        microseconds,
        lambda value: out(_INT64.pack(value - EPOCH_UNIX_MICROSECONDS)),
    )


def _bytes(array: pa.BinaryArray, delimiter: str) -> pa.StringArray:
    """Two hex digits a byte: those of all values at once, and offsets that are twice as large."""
    if not len(array):
        return pa.array([], pa.string())
    _, offsets, data = array.buffers()
    ends = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, offsets], offset=array.offset)
    start, end = ends[0].as_py(), ends[-1].as_py()
    if end - start >= 1 << 30:
        raise ValueError("its hex digits are more than 2 GB: give fewer rows")
    doubled = pc.multiply(pc.subtract(ends, pa.scalar(start, pa.int32())), pa.scalar(2, pa.int32()))
    digits = pa.py_buffer(memoryview(data or b"")[start:end].hex().encode())
    text = pa.Array.from_buffers(pa.string(), len(array), [None, doubled.buffers()[1], digits])
    return pc.if_else(array.is_valid(), pc.binary_join_element_wise("\\x", text, ""), None)


def _list(array: pa.ListArray, delimiter: str) -> pa.StringArray:
    """Elements in braces (array_out)."""
    if pa.types.is_list(array.type.value_type):
        raise ValueError("an array of several dimensions cannot be told from one whose rows differ in length")
    elements = _text(array.flatten(), ",")
    quoted = pc.match_substring_regex(elements, _QUOTED[delimiter])
    escaped = pc.replace_substring_regex(elements, r'(["\\])', r"\\\1")
    elements = pc.if_else(quoted, pc.binary_join_element_wise('"', escaped, '"', ""), elements)
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    lists = pa.ListArray.from_arrays(offsets, pc.fill_null(elements, "NULL"))
    text = pc.binary_join_element_wise("{", pc.binary_join(lists, delimiter), "}", "")
    return pc.if_else(array.is_valid(), text, None)


def _replaced(
    text: pa.StringArray, rows: pa.BooleanArray, values: pa.Array, write: Callable[[Any], str]
) -> pa.StringArray:
    """The text, with that of some rows written one by one."""
    rows = pc.fill_null(rows, False)
    some = [write(value) for value in values.filter(rows).to_pylist()]
    return pc.replace_with_mask(text, rows, pa.array(some, pa.string())) if some else text


def _between(values: pa.Array, low: float, high: float) -> pa.BooleanArray:
    return pc.and_(pc.greater_equal(values, low), pc.less(values, high))


_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_FORMS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, str], pa.StringArray]], ...]] = (
    (pa.types.is_boolean, _bool),
    (pa.types.is_integer, _plain),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_binary, _bytes),
    (pa.types.is_list, _list),
    (pa.types.is_string, _string),
)
