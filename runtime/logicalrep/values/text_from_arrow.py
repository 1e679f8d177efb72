"""Conversion of Arrow arrays to the server's text."""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep import catalog, compiled
from logicalrep._arrays import (
    byte_values,
    data_buffer,
    from_buffers,
    int64_values,
    raw_buffers,
    value_offsets,
)
from logicalrep.values.arrow_types import UUID_TYPE, arrow_type
from logicalrep.values.builtin_types import array_delimiter, describe_type
from logicalrep.values.forms import datetimes
from logicalrep.values.forms.floats import format_float4, format_float8
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS, UNIX_YEAR_1, UNIX_YEAR_10000

_DAY: Final = 86_400_000_000
_FLOAT4_PLAIN: Final = (1e-4, 1e6)
_FLOAT8_PLAIN: Final = (1e-4, 1e10)
"""Range of absolute values of a float8 that Arrow writes like the server; `_FLOAT4_PLAIN` is that of a
float4."""
_DECIMAL_PLAIN: Final = 6
"""Largest scale up to which Arrow writes every decimal without an exponent."""

_DIGITS: Final = [at for at in range(36) if at not in (8, 13, 18, 23)]
"""Indices of the hexadecimal digits in the text of a uuid; the other characters are hyphens."""

_QUOTED: Final = {delimiter: rf'[ \t\n\r\v\f"\\{{}}{delimiter}]|^$|^(?i:null)$' for delimiter in (",", ";")}
"""Regular expression for array elements that need quotes, by delimiter of the array (array_out)."""


def from_arrow(array: pa.Array, type_oid: int, type_modifier: int = -1) -> pa.StringArray:
    r"""Return the values of an Arrow array as the server's text: the inverse of `to_arrow`.

    Args:
        array: Values that can be cast to `arrow_type(type_oid, type_modifier)` without loss. If that Arrow
            type is a string (uuid, jsonb, …), the values must be the server's text; for numeric, decimals
            and integers are valid too, and for uuid, binary of 16 bytes.
        type_oid: OID of the column's type.
        type_modifier: Type modifier (`atttypmod`), -1 if there is none. It sets the number of fractional
            digits of a numeric. Without a modifier, the scale of the Arrow type sets that number.

    Raises:
        ValueError: The PostgreSQL type cannot represent a value, or a text contains a zero character
            (U+0000).
    """
    builtin = catalog.BY_ARRAY_OID.get(type_oid) or catalog.BY_OID.get(type_oid)
    name = "" if builtin is None else builtin.name
    try:
        cast_type = _cast_type(array.type, arrow_type(type_oid, type_modifier), name)
        return _format(array.cast(cast_type), array_delimiter(type_oid))
    except (ValueError, pa.ArrowNotImplementedError) as error:  # pa.ArrowInvalid is a ValueError
        why = str(error).partition("\n")[0]
        raise ValueError(f"a column of {array.type} cannot become {describe_type(type_oid)}: {why}") from None


def _cast_type(source: pa.DataType, target: pa.DataType, name: str) -> pa.DataType:
    """Return the Arrow type to which values are cast before they are formatted as the server's text.

    Args:
        source: Arrow type of the values.
        target: Arrow type for the PostgreSQL type, as `arrow_type` returns it.
        name: Name of the PostgreSQL type, or of its elements.

    Raises:
        ValueError: `target` is string, and Arrow's cast of `source` to string may differ from the server's
            text.
    """
    if pa.types.is_list(target) and hasattr(source, "value_type"):
        return pa.list_(pa.field("element", _cast_type(source.value_type, target.value_type, name)))
    if target != pa.string() or pa.types.is_null(source) or "string" in str(source):
        return target
    is_number = pa.types.is_decimal(source) or pa.types.is_integer(source)
    if (name == "numeric" and is_number) or (name == "uuid" and source == UUID_TYPE):
        return source
    raise ValueError(
        f"Arrow's text of {source} may differ from the server's text: pass strings in text format"
    )


def _format(array: pa.Array, delimiter: str) -> pa.StringArray:
    return next(format_ for matches, format_ in _FORMATTERS if matches(array.type))(array, delimiter)


def _format_string(array: pa.StringArray, delimiter: str) -> pa.StringArray:
    if pc.any(pc.match_substring(array, "\0")).as_py():
        raise ValueError("text contains a zero character (U+0000), which PostgreSQL does not store")
    return array


def _format_float(array: pa.FloatingPointArray, delimiter: str) -> pa.StringArray:
    is_single = pa.types.is_float32(array.type)
    low, high = _FLOAT4_PLAIN if is_single else _FLOAT8_PLAIN
    text, size = array.cast(pa.string()), pc.abs(array)
    is_same = pc.or_(_between(size, low, high), pc.equal(size, 0))
    format_ = format_float4 if is_single else format_float8
    return _reformat(text, pc.invert(is_same), array, format_)


def _format_decimal(array: pa.Array, delimiter: str) -> pa.StringArray:
    text = array.cast(pa.string())
    if array.type.scale <= _DECIMAL_PLAIN:
        return text
    return _reformat(text, pc.match_substring(text, "E"), array, lambda value: format(value, "f"))


def _format_date(array: pa.Date32Array, delimiter: str) -> pa.StringArray:
    days = array.cast(pa.int32())
    in_years = _between(days, UNIX_YEAR_1 // _DAY, UNIX_YEAR_10000 // _DAY)
    epoch = EPOCH_UNIX_MICROSECONDS // _DAY
    out_of_years = pc.if_else(in_years, None, days)
    text = pc.if_else(in_years, array, pa.scalar(0, array.type)).cast(pa.string())
    return _reformat(
        text, pc.invert(in_years), out_of_years, lambda day: datetimes.date_out(_INT32.pack(day - epoch))
    )


def _format_timestamp(array: pa.TimestampArray, delimiter: str) -> pa.StringArray:
    zone = "" if array.type.tz is None else "+00"
    microseconds = array.cast(pa.int64())
    in_years = _between(microseconds, UNIX_YEAR_1, UNIX_YEAR_10000)
    if compiled.kernel is not None:
        texts = compiled.kernel.timestamp_texts(int64_values(microseconds), zone.encode())
        text = from_buffers(pa.string(), len(array), *texts)
        text = pc.if_else(array.is_valid(), text, None) if array.null_count else text
    else:
        text = pc.if_else(in_years, microseconds, 0).cast(pa.timestamp("us")).cast(pa.string())
        text = pc.utf8_rtrim(pc.utf8_rtrim(text, characters="0"), characters=".")
        text = pc.binary_join_element_wise(text, zone, "")
    out = datetimes.timestamptz_out if zone else datetimes.timestamp_out
    return _reformat(
        text,
        pc.invert(in_years),
        microseconds,
        lambda value: out(_INT64.pack(value - EPOCH_UNIX_MICROSECONDS)),
    )


def _format_bytes(array: pa.BinaryArray, delimiter: str) -> pa.StringArray:
    """Return bytea values in hex format, by converting the array's whole data buffer at once."""
    if not len(array):
        return pa.array([], pa.string())
    offsets = value_offsets(array)
    start, end = offsets[[0, -1]].tolist()
    if end - start >= 1 << 30:
        raise ValueError("the values have more than 1 GB: pass fewer rows")
    digits = memoryview(data_buffer(array))[start:end].hex().encode()
    text = from_buffers(pa.string(), len(array), (offsets - start) * 2, digits)
    return pc.if_else(array.is_valid(), pc.binary_join_element_wise("\\x", text, ""), None)


def _format_uuid(array: pa.FixedSizeBinaryArray, delimiter: str) -> pa.StringArray:
    size = UUID_TYPE.byte_width
    first, (_, data) = raw_buffers(array)
    digits = byte_values(hexlify(byte_values(data)[first * size :][: len(array) * size].tobytes()))
    text = np.full((len(array), 2 * size + 4), ord("-"), np.uint8)
    text[:, _DIGITS] = digits.reshape(-1, 2 * size)
    offsets = np.arange(0, text.size + 1, text.shape[1]).astype(np.int32)
    return pc.if_else(array.is_valid(), from_buffers(pa.string(), len(array), offsets, text), None)


def _format_list(array: pa.ListArray, delimiter: str) -> pa.StringArray:
    """Return one-dimensional arrays as text (array_out)."""
    if pa.types.is_list(array.type.value_type):
        raise ValueError(
            "nested lists are not supported: in a PostgreSQL array, all rows must have the same length"
        )
    elements = _format(array.flatten(), ",")
    quoted = pc.match_substring_regex(elements, _QUOTED[delimiter])
    escaped = pc.replace_substring_regex(elements, r'(["\\])', r"\\\1")
    elements = pc.if_else(quoted, pc.binary_join_element_wise('"', escaped, '"', ""), elements)
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    lists = pa.ListArray.from_arrays(offsets, pc.fill_null(elements, "NULL"))
    text = pc.binary_join_element_wise("{", pc.binary_join(lists, delimiter), "}", "")
    return pc.if_else(array.is_valid(), text, None)


def _reformat(
    text: pa.StringArray, rows: pa.BooleanArray, values: pa.Array, format_: Callable[[Any], str]
) -> pa.StringArray:
    """Return `text`, with `format_(value)` in place of the text in each row where `rows` is true."""
    rows = pc.fill_null(rows, False)
    texts = [format_(value) for value in values.filter(rows).to_pylist()]
    return pc.replace_with_mask(text, rows, pa.array(texts, pa.string())) if texts else text


def _between(values: pa.Array, low: float, high: float) -> pa.BooleanArray:
    return pc.and_(pc.greater_equal(values, low), pc.less(values, high))


_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_FORMATTERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, str], pa.StringArray]], ...]] = (
    (pa.types.is_boolean, lambda array, _: pc.if_else(array, "t", "f")),
    (pa.types.is_integer, lambda array, _: array.cast(pa.string())),
    (pa.types.is_floating, _format_float),
    (pa.types.is_decimal, _format_decimal),
    (pa.types.is_date, _format_date),
    (pa.types.is_timestamp, _format_timestamp),
    (pa.types.is_binary, _format_bytes),
    (UUID_TYPE.equals, _format_uuid),
    (pa.types.is_list, _format_list),
    (pa.types.is_string, _format_string),
)
