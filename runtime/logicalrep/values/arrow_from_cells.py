"""Conversion of columns of cells to Arrow arrays, and of the values that Arrow cannot represent to text."""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import from_buffers, replace_rows, value_bytes
from logicalrep.messages import Cell
from logicalrep.values.arrow_from_binary import convert_directly
from logicalrep.values.arrow_types import UUID_TYPE, arrow_type
from logicalrep.values.builtin_types import array_delimiter
from logicalrep.values.fixed_width import read_fixed_texts
from logicalrep.values.forms.datetimes import SECOND
from logicalrep.values.literals import parse_array
from logicalrep.values.text_from_cells import Rescued, read_cells, require_sequence
from logicalrep.wire import NO_TEXT, UNIX_YEAR_1, UNIX_YEAR_10000

_NUMBER = r"-?[0-9]+(\.[0-9]+)?"
_DATE = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
_MOMENT = rf"{_DATE} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{1,6}})?"
_ZONE_WITH_SECONDS: Final = r"^(?P<text>.*(?P<sign>[+-])[0-9]{2}:[0-9]{2}):(?P<seconds>[0-9]{2})$"
_PATTERNS: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_boolean, "[tf]"),
    (pa.types.is_integer, "-?[0-9]+"),
    (pa.types.is_floating, rf"{_NUMBER}(e[+-]?[0-9]+)?|NaN|-?Infinity"),
    (pa.types.is_date, _DATE),
    (lambda type_: pa.types.is_timestamp(type_) and type_.tz is None, _MOMENT),
    (pa.types.is_timestamp, rf"{_MOMENT}[+-][0-9]{{2}}(:[0-9]{{2}}){{0,2}}"),
    (pa.types.is_binary, r"\\x([0-9a-f]{2})*"),
    (UUID_TYPE.equals, "([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}"),
)
"""Pairs of a test for Arrow types and a regular expression. If a type passes the test, it can represent the
texts that match the expression. An Arrow type that passes no test can represent any text."""


def to_arrow(
    cells: Sequence[Cell] | pa.StringArray,
    type_oid: int,
    type_modifier: int = -1,
    type_: pa.DataType | None = None,
) -> tuple[pa.Array, Rescued]:
    r"""Return a column of cells as an Arrow array, and its rescued values as text.

    The text and the binary form of a value give the same result. A column may contain both.

    Args:
        cells: Cells of the column, or their text as an Arrow array, as `to_text` returns it.
        type_oid: OID of the column's type.
        type_modifier: Type modifier (`atttypmod`), -1 if there is none.
        type_: Type of the array, or None for `arrow_type(type_oid, type_modifier)`. Pass the `common_type` of
            a column whose type changed; a uuid can also be binary of 16 bytes. If this type is string, the
            array contains the server's text.

    Returns:
        The array, and the rescued values by row. The array is NULL where a value is rescued: the Arrow type
        cannot represent the value, the text is not valid UTF-8, the bytes are not a value of the type, or the
        cell is UNCHANGED. Without valid text, the rescued value is the bytes in hex: `\x00ff`.

    Raises:
        TypeError: `cells` is not a sequence of cells.
    """
    own_type = arrow_type(type_oid, type_modifier)
    type_ = own_type if type_ is None else type_
    rescued: Rescued = {}
    if not isinstance(cells, pa.StringArray):
        require_sequence(cells)
        if type_ == own_type and (array := convert_directly(cells, type_oid, type_)) is not None:
            return array, {}
        texts, rescued = read_cells(cells, type_oid)
        cells = pa.array(texts, pa.string())
    array = _convert(cells, type_, array_delimiter(type_oid))
    if array.null_count > cells.null_count:
        lost = pc.indices_nonzero(pc.and_(cells.is_valid(), array.is_null()))
        kept = (text.removeprefix(NO_TEXT) for text in cells.take(lost).to_pylist())
        rescued |= dict(zip(lost.to_pylist(), kept, strict=True))
    return array, rescued


def _convert(array: pa.StringArray, type_: pa.DataType, delimiter: str) -> pa.Array:
    """Return texts as an array, with NULL for each text that `type_` cannot represent."""
    if pa.types.is_list(type_):
        return _convert_lists(array.to_pylist(), type_, delimiter)
    if (read := read_fixed_texts(array, type_)) is None:
        return _convert_scalars(array, type_)
    values, unread = read
    if not len(unread):
        return values
    return replace_rows(values, unread, _convert_scalars(array.take(pa.array(unread)), type_))


def _convert_scalars(array: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Return texts as an array of a type other than a list, with NULL for texts that it cannot represent."""
    pattern = _pattern(type_)
    if pattern is None:
        lacks_text = pc.starts_with(array, NO_TEXT)
        return pc.if_else(lacks_text, None, array) if pc.any(lacks_text).as_py() else array
    fits = pc.match_substring_regex(array, f"^({pattern})$")
    array = pc.if_else(fits, array, None)
    try:
        result = _cast(array, type_)
    except pa.ArrowInvalid:  # a nonexistent date or a number out of range: rare
        result = pa.concat_arrays([_cast_one(array.slice(row, 1), type_) for row in range(len(array))])
    if pa.types.is_timestamp(type_):
        result = _within_years(result, type_)
    elif pa.types.is_floating(type_):
        result = _within_range(result, array)
    return result


def _pattern(type_: pa.DataType) -> str | None:
    """Return the regular expression for texts that an Arrow type represents; None for any text."""
    if pa.types.is_decimal(type_):
        # Match only as many digits as the type has: a cast of a text with more digits would wrap around.
        whole, scale = type_.precision - type_.scale, type_.scale
        integer = rf"(0|[1-9][0-9]{{0,{whole - 1}}})" if whole else "0"
        return rf"-?{integer}" + (rf"(\.[0-9]{{1,{scale}}})?" if scale else "")
    return next((pattern for matches, pattern in _PATTERNS if matches(type_)), None)


def _cast(array: pa.StringArray, type_: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(type_):
        return pc.equal(array, "t")
    if pa.types.is_binary(type_):
        raw = [None if text is None else bytes.fromhex(text[2:]) for text in array.to_pylist()]
        return pa.array(raw, type_)
    if type_ == UUID_TYPE:
        digits = pc.fill_null(pc.replace_substring(array, "-", ""), "0" * 32)
        data = unhexlify(value_bytes(digits)[: 2 * type_.byte_width * len(array)].tobytes())
        return pc.if_else(array.is_valid(), from_buffers(type_, len(array), data), None)
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return _cast_zoned(array, type_)
    return pc.cast(array, type_)


def _cast_zoned(array: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Cast texts with a UTC offset to timestamps, even offsets with seconds, which Arrow cannot parse."""
    if pc.all(pc.ends_with(array, "+00")).as_py():  # tested first, because it is fast
        return pc.cast(array, type_)
    parts = pc.extract_regex(array, _ZONE_WITH_SECONDS)
    if parts.null_count == len(parts):
        return pc.cast(array, type_)
    found = parts.is_valid()
    text, sign, seconds = (pc.struct_field(parts, name) for name in ("text", "sign", "seconds"))
    moments = pc.cast(pc.if_else(found, text, array), type_)
    east = pc.cast(pc.binary_join_element_wise(pc.replace_substring(sign, "+", ""), seconds, ""), pa.int64())
    shift = pc.multiply(pc.if_else(found, east, 0), SECOND)
    return pc.subtract(moments.cast(pa.int64()), shift).cast(type_)


def _cast_one(array: pa.StringArray, type_: pa.DataType) -> pa.Array:
    try:
        return _cast(array, type_)
    except pa.ArrowInvalid:
        return pa.nulls(1, type_)


def _within_years(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return the timestamps, with NULL for each that is outside the years 1 to 9999 in UTC."""
    unix = array.cast(pa.int64())
    inside = pc.and_(pc.greater_equal(unix, UNIX_YEAR_1), pc.less(unix, UNIX_YEAR_10000))
    return pc.if_else(inside, array, pa.scalar(None, type_))


def _within_range(array: pa.Array, texts: pa.StringArray) -> pa.Array:
    """Return the numbers, with NULL for each that the cast from text rounded to infinity or zero."""
    too_large = pc.and_(pc.is_inf(array), pc.match_substring_regex(texts, "[0-9]"))
    too_small = pc.and_(pc.equal(array, 0), pc.match_substring_regex(texts, "^-?[0.]*[1-9]"))
    return pc.if_else(pc.or_(too_large, too_small), pa.scalar(None, array.type), array)


def _convert_lists(texts: list[str | None], type_: pa.ListType, delimiter: str) -> pa.ListArray:
    lists = [None if text is None else parse_array(text, delimiter) for text in texts]
    offsets = list(accumulate((len(items or ()) for items in lists), initial=0))
    elements = pa.array([item for items in lists for item in items or ()], pa.string())
    flat = _convert(elements, type_.value_type, ",")
    lost = pc.and_(elements.is_valid(), flat.is_null()).to_pylist()
    is_null = [
        items is None or any(lost[start:end])
        for items, (start, end) in zip(lists, pairwise(offsets), strict=True)
    ]
    mask = pa.array(is_null, pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, type=type_, mask=mask)
