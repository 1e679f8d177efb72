"""Column values: text format to Arrow, by the built-in types' catalog.

A column is converted as a whole. What the Arrow type cannot hold (infinity and years before 1 or past 9999
in dates and timestamps, NaN in a decimal, arrays of several dimensions or with bounds of their own, text
that is not UTF-8, values in binary format) becomes NULL and is handed back as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput import catalog
from pgoutput.messages import Cell, Relation, RelationColumn, Type
from pgoutput.wire import UNIX_YEAR_1, UNIX_YEAR_10000, is_utf8, shown_text

Rescued: TypeAlias = dict[int, str | None]
"""What a column could not hold: rows, and their values as text; None where the value was never sent."""

_TYPES: Final = {
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date32": pa.date32(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, tz=UTC]": pa.timestamp("us", tz="UTC"),
    "decimal128(20, 0)": pa.decimal128(20, 0),
}

_NUMBER = r"-?[0-9]+(\.[0-9]+)?"
_DATE = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
_MOMENT = rf"{_DATE} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{1,6}})?"
_FORMS: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_boolean, "[tf]"),
    (pa.types.is_integer, "-?[0-9]+"),
    (pa.types.is_floating, rf"{_NUMBER}(e[+-]?[0-9]+)?|NaN|-?Infinity"),
    (pa.types.is_date, _DATE),
    (lambda type_: pa.types.is_timestamp(type_) and type_.tz is None, _MOMENT),
    (pa.types.is_timestamp, rf"{_MOMENT}[+-][0-9]{{2}}(:[0-9]{{2}})?"),
    (pa.types.is_binary, r"\\x([0-9a-f]{2})*"),
)
"""How text must look to be held, by Arrow type; other types hold any text."""

MAX_PRECISION: Final = 38
"""Digits that decimal128 and Spark's DecimalType hold."""


def arrow_type(type_oid: int, type_modifier: int = -1) -> pa.DataType:
    """The Arrow type for a column, from `atttypid` and `atttypmod`.

    `numeric(p, s)` is a decimal where it has at most 38 digits, and a string otherwise: without a modifier
    it has no bound. Types that are not built in are strings.
    """
    if (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        return pa.list_(pa.field("element", arrow_type(element.oid, type_modifier)))
    builtin = catalog.BY_OID.get(type_oid)
    if builtin is None:
        return pa.string()
    if builtin.modifier == "numeric" and type_modifier >= 4:
        return _decimal(type_modifier) or pa.string()
    return _TYPES[builtin.arrow]


def _decimal(type_modifier: int) -> pa.DataType | None:
    """The decimal for a modifier of numeric (numeric.c, numeric_typmod_precision and _scale)."""
    precision = (type_modifier - 4) >> 16 & 0xFFFF
    scale = ((type_modifier - 4 & 0x7FF) ^ 1024) - 1024
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return pa.decimal128(precision, scale) if 1 <= precision <= MAX_PRECISION else None


def base_types(relation: Relation, types: Mapping[int, Type]) -> Relation:
    """The relation with domains replaced by their base types, where those are built in.

    The Type message of a domain has the domain's OID and the name of the base type.
    """
    columns = tuple(_base_type(column, types.get(column.type_oid)) for column in relation.columns)
    return msgspec.structs.replace(relation, columns=columns)


def _base_type(column: RelationColumn, named: Type | None) -> RelationColumn:
    if named is None or named.namespace not in ("", "pg_catalog"):
        return column
    oid = column.type_oid
    if named.name in catalog.BY_NAME:
        oid = catalog.BY_NAME[named.name].oid
    elif named.name.startswith("_") and named.name[1:] in catalog.BY_NAME:
        oid = catalog.BY_NAME[named.name[1:]].array_oid
    return msgspec.structs.replace(column, type_oid=oid)


def to_arrow(cells: Sequence[Cell], type_oid: int, type_modifier: int = -1) -> tuple[pa.Array, Rescued]:
    """A column of cells as an Arrow array, and what the array cannot hold.

    Args:
        cells: Values in text format. Binary and unchanged ones are rescued.
        type_oid: OID of the column's type.
        type_modifier: `atttypmod`, -1 if there is none.
    """
    rescued: Rescued = {}
    texts: list[str | None] = []
    for row, cell in enumerate(cells):
        if isinstance(cell, str) and is_utf8(cell):
            texts.append(cell)
            continue
        texts.append(None)
        if cell is not None:
            rescued[row] = _as_text(cell)
    delimiter = ";" if type_oid in _BOXES else ","
    array, held = _convert(texts, arrow_type(type_oid, type_modifier), delimiter)
    rescued |= {row: texts[row] for row, is_held in enumerate(held) if not is_held}
    return array, rescued


_BOXES = {builtin.array_oid for builtin in catalog.TYPES if builtin.name == "box"}
"""Arrays whose elements `;` separates (pg_type.typdelim), since a comma is part of each."""


def _as_text(cell: Cell) -> str | None:
    if isinstance(cell, bytes):
        return "\\x" + cell.hex()
    if isinstance(cell, str):
        return shown_text(cell)
    return None


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
    return pc.cast(array, type_)


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
    missing = pa.array([text is None or not fits for text, fits in zip(texts, held, strict=True)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, type=type_, mask=missing), held


_ELEMENT: Final = {
    delimiter: re.compile(rf'"((?:[^"\\]|\\.)*)"|([^"\\{{}}{delimiter}]|\\.)+', re.DOTALL)
    for delimiter in (",", ";")
}


def parse_array(text: str, delimiter: str = ",") -> list[str | None] | None:
    """The elements of a one-dimensional array in text format (array_out).

    None where the text is of another kind: several dimensions, bounds of its own (`[2:4]={…}`), or no array
    at all.
    """
    if not (text.startswith("{") and text.endswith("}")):
        return None
    if text == "{}":
        return []
    items: list[str | None] = []
    pos = 1
    while True:
        match = _ELEMENT[delimiter].match(text, pos)
        if match is None:
            return None
        raw = match[0] if match[1] is None else match[1]
        quoted = match[1] is not None
        items.append(
            None if raw.upper() == "NULL" and not quoted else re.sub(r"\\(.)", r"\1", raw, flags=re.DOTALL)
        )
        pos = match.end()
        if pos == len(text) - 1:
            return items
        if not text.startswith(delimiter, pos, -1):
            return None
        pos += 1
