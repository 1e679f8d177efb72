"""Columns of cells to Arrow arrays, and what those cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput.messages import Cell
from pgoutput.values.direct import convert_directly
from pgoutput.values.literals import parse_array
from pgoutput.values.moments import SECOND
from pgoutput.values.text import Rescued, read, require_cells
from pgoutput.values.types import BOXES, arrow_type
from pgoutput.wire import UNIX_YEAR_1, UNIX_YEAR_10000

_NUMBER = r"-?[0-9]+(\.[0-9]+)?"
_DATE = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
_MOMENT = rf"{_DATE} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{1,6}})?"
_ZONE_WITH_SECONDS: Final = r"^(?P<text>.*(?P<sign>[+-])[0-9]{2}:[0-9]{2}):(?P<seconds>[0-9]{2})$"
_FORMS: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_boolean, "[tf]"),
    (pa.types.is_integer, "-?[0-9]+"),
    (pa.types.is_floating, rf"{_NUMBER}(e[+-]?[0-9]+)?|NaN|-?Infinity"),
    (pa.types.is_date, _DATE),
    (lambda type_: pa.types.is_timestamp(type_) and type_.tz is None, _MOMENT),
    (pa.types.is_timestamp, rf"{_MOMENT}[+-][0-9]{{2}}(:[0-9]{{2}}){{0,2}}"),
    (pa.types.is_binary, r"\\x([0-9a-f]{2})*"),
)
"""How text must look to be held, by Arrow type; other types hold any text."""


def to_arrow(
    cells: Sequence[Cell], type_oid: int, type_modifier: int = -1, type_: pa.DataType | None = None
) -> tuple[pa.Array, Rescued]:
    """A column of cells as an Arrow array, and what the array cannot hold.

    Cells in text and in binary format give the same, also together in one column.

    Args:
        cells: Values. Unchanged ones are rescued, and so are bytes that `to_text` can only show in hex.
        type_oid: OID of the column's type.
        type_modifier: `atttypmod`, -1 if there is none.
        type_: The array's type, where it is not `arrow_type(type_oid, type_modifier)`: `common_type` gives
            one for a column whose type changed. A string holds the server's text.

    Raises:
        TypeError: `cells` is not a sequence of cells.
    """
    require_cells(cells)
    own_type = arrow_type(type_oid, type_modifier)
    type_ = own_type if type_ is None else type_
    if type_ == own_type and (array := convert_directly(cells, type_oid, type_)) is not None:
        return array, {}
    texts, rescued = read(cells, type_oid)
    array, held = _convert(texts, type_, ";" if type_oid in BOXES else ",")
    rescued |= {row: texts[row] for row, is_held in enumerate(held) if not is_held}
    return array, rescued


def _convert(texts: list[str | None], type_: pa.DataType, delimiter: str) -> tuple[pa.Array, list[bool]]:
    """The texts as `type_`, and for each whether it is held; NULL is."""
    if pa.types.is_list(type_):
        return _convert_lists(texts, type_, delimiter)
    array = pa.array(texts, pa.string())
    form = _form(type_)
    if form is None:
        return array, [True] * len(texts)
    fits = pc.match_substring_regex(array, f"^({form})$")
    array = pc.if_else(fits, array, None)
    try:
        result = _cast(array, type_)
    except pa.ArrowInvalid:  # a date that does not exist, a number too large: rare, so one by one
        result = pa.concat_arrays([_cast_one(array.slice(row, 1), type_) for row in range(len(array))])
    if pa.types.is_timestamp(type_):
        result = _within_years(result, type_)
    elif pa.types.is_floating(type_):
        result = _within_range(result, array)
    held = [text is None or there for text, there in zip(texts, result.is_valid().to_pylist(), strict=True)]
    return result, held


def _form(type_: pa.DataType) -> str | None:
    """How text must look that `type_` holds; None where it may be any."""
    if pa.types.is_decimal(type_):
        # As the server writes it, with no more digits than there is room for: a cast would wrap around.
        whole, scale = type_.precision - type_.scale, type_.scale
        integer = rf"(0|[1-9][0-9]{{0,{whole - 1}}})" if whole else "0"
        return rf"-?{integer}" + (rf"(\.[0-9]{{1,{scale}}})?" if scale else "")
    return next((form for applies, form in _FORMS if applies(type_)), None)


def _cast(array: pa.StringArray, type_: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(type_):
        return pc.equal(array, "t")
    if pa.types.is_binary(type_):
        raw = [None if text is None else bytes.fromhex(text[2:]) for text in array.to_pylist()]
        return pa.array(raw, type_)
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return _cast_zoned(array, type_)
    return pc.cast(array, type_)


def _cast_zoned(array: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Cast timestamps with a zone. Arrow reads no seconds of a zone: they are cut off and subtracted."""
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
    """A zone can carry a timestamp out of the years that its text has."""
    unix = array.cast(pa.int64())
    inside = pc.and_(pc.greater_equal(unix, UNIX_YEAR_1), pc.less(unix, UNIX_YEAR_10000))
    return pc.if_else(inside, array, pa.scalar(None, type_))


def _within_range(array: pa.Array, texts: pa.StringArray) -> pa.Array:
    """A number too large or small for its type would silently become infinity or zero."""
    too_large = pc.and_(pc.is_inf(array), pc.match_substring_regex(texts, "[0-9]"))
    too_small = pc.and_(pc.equal(array, 0), pc.match_substring_regex(texts, "^-?[0.]*[1-9]"))
    return pc.if_else(pc.or_(too_large, too_small), pa.scalar(None, array.type), array)


def _convert_lists(
    texts: list[str | None], type_: pa.ListType, delimiter: str
) -> tuple[pa.Array, list[bool]]:
    lists = [None if text is None else parse_array(text, delimiter) for text in texts]
    offsets = [0]
    for items in lists:
        offsets.append(offsets[-1] + len(items or ()))
    flat, element_held = _convert([item for items in lists for item in items or ()], type_.value_type, ",")
    held = [
        text is None or (items is not None and all(element_held[start:end]))
        for text, items, start, end in zip(texts, lists, offsets, offsets[1:], strict=False)
    ]
    missing = pa.array([text is None or not fits for text, fits in zip(texts, held, strict=True)], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, type=type_, mask=missing), held
