"""Which Arrow type holds a column, and which one holds it before and after its type changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import pyarrow as pa

from pgoutput import catalog
from pgoutput.messages import Relation, RelationColumn, Type

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

MAX_PRECISION: Final = 38
"""Digits that decimal128 and Spark's DecimalType hold."""


BOXES: Final = {builtin.array_oid for builtin in catalog.TYPES if builtin.name == "box"}
"""Arrays whose elements `;` separates (pg_type.typdelim), since a comma is part of each."""


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


def shown_type(type_oid: int) -> str:
    """A type as errors call it."""
    if (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        return f"the type {element.name}[]"
    builtin = catalog.BY_OID.get(type_oid)
    return f"the type with OID {type_oid}" if builtin is None else f"the type {builtin.name}"


_DEFAULTS: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_boolean, "bool"),
    (pa.types.is_int8, "int2"),
    (pa.types.is_int16, "int2"),
    (pa.types.is_int32, "int4"),
    (pa.types.is_int64, "int8"),
    (pa.types.is_float32, "float4"),
    (pa.types.is_float64, "float8"),
    (lambda type_: pa.types.is_string(type_) or pa.types.is_large_string(type_), "text"),
    (lambda type_: pa.types.is_binary(type_) or pa.types.is_large_binary(type_), "bytea"),
    (pa.types.is_date32, "date"),
    (lambda type_: pa.types.is_timestamp(type_) and type_.tz is None, "timestamp"),
    (pa.types.is_timestamp, "timestamptz"),
)


def default_type(type_: pa.DataType) -> tuple[int, int]:
    """The PostgreSQL type for values of an Arrow type: its OID, and `atttypmod`.

    It holds all of them, and `arrow_type` gives the Arrow type again, but for int8, which PostgreSQL lacks,
    and timestamps of other units than microseconds. A decimal becomes numeric of its precision and scale.

    Raises:
        ValueError: There is none: for structs, maps, lists in lists, times of day, intervals and others.
    """
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        oid, modifier = default_type(type_.value_type)
        if oid in catalog.BY_OID:
            return catalog.BY_OID[oid].array_oid, modifier
    if pa.types.is_decimal(type_) and 0 <= type_.scale <= type_.precision:
        return catalog.BY_NAME["numeric"].oid, (type_.precision << 16 | type_.scale) + 4
    for applies, name in _DEFAULTS:
        if applies(type_):
            return catalog.BY_NAME[name].oid, -1
    raise ValueError(
        f"there is no PostgreSQL type for {type_}: make text of its values, of structs and maps with to_json"
    )


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


_INTEGER_DIGITS: Final = {pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
"""Decimal digits, by integer type, the narrowest first."""

_EXACT: Final = (pa.int16(), pa.int32())
"""Integers that a double holds all of."""


def common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The type for the values of a column whose type changed from `a` to `b`, or from `b` to `a`.

    Integers, floating-point numbers and decimals become the narrowest of them that holds both exactly, lists
    those of what their elements become. Anything else becomes a string, where values stand as the server's
    text. `to_arrow` makes any of these of the text of either.
    """
    if a == b:
        return a
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(pa.field("element", common_type(a.value_type, b.value_type)))
    if a in _INTEGER_DIGITS and b in _INTEGER_DIGITS:
        return max(a, b, key=_INTEGER_DIGITS.__getitem__)
    if all(pa.types.is_floating(type_) or type_ in _EXACT for type_ in (a, b)):
        return pa.float64()
    digits = [_digits(type_) for type_ in (a, b)]
    if (first := digits[0]) and (second := digits[1]):
        whole, scale = (max(pair) for pair in zip(first, second, strict=True))
        if whole + scale <= MAX_PRECISION:
            return pa.decimal128(whole + scale, scale)
    return pa.string()


def _digits(type_: pa.DataType) -> tuple[int, int] | None:
    """Decimal digits before and behind the point; None where that is not what says what the type holds."""
    if pa.types.is_decimal(type_):
        return type_.precision - type_.scale, type_.scale
    return (_INTEGER_DIGITS[type_], 0) if type_ in _INTEGER_DIGITS else None
