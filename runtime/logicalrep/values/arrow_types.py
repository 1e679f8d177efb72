"""Arrow types for PostgreSQL columns, also if a column's type changed; PostgreSQL types for Arrow types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from logicalrep import catalog
from logicalrep._type_modifiers import numeric_modifier, numeric_precision

_ARROW_TYPES: Final = {
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
"""Arrow types, by the name that `logicalrep.catalog` gives them."""

UUID_TYPE: Final = pa.binary(16)
"""Arrow type of uuid columns in table formats that have a UUID type: 16 bytes per value."""

MAX_PRECISION: Final = 38
"""Largest precision, in digits, of decimal128 and of Spark's DecimalType."""


def arrow_type(type_oid: int, type_modifier: int = -1) -> pa.DataType:
    """Return the Arrow type for a column of a PostgreSQL type.

    A `numeric(p, s)` of at most 38 digits becomes a decimal. A numeric with more digits or without a
    modifier, and every type that is not built in, becomes a string.

    Args:
        type_oid: OID of the column's type (`atttypid`).
        type_modifier: Type modifier (`atttypmod`), -1 if there is none.
    """
    if (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        return pa.list_(pa.field("element", arrow_type(element.oid, type_modifier)))
    builtin = catalog.BY_OID.get(type_oid)
    if builtin is None:
        return pa.string()
    if builtin.modifier == "numeric" and (numeric := numeric_precision(type_modifier)) is not None:
        return _decimal(*numeric) or pa.string()
    return _ARROW_TYPES[builtin.arrow]


def _decimal(precision: int, scale: int) -> pa.DataType | None:
    """Return the Arrow type for numeric(precision, scale); None if it needs more than 38 digits."""
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return pa.decimal128(precision, scale) if 1 <= precision <= MAX_PRECISION else None


_TYPE_NAMES: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_boolean, "bool"),
    (pa.types.is_int8, "int2"),
    (pa.types.is_int16, "int2"),
    (pa.types.is_int32, "int4"),
    (pa.types.is_int64, "int8"),
    (pa.types.is_float32, "float4"),
    (pa.types.is_float64, "float8"),
    (lambda type_: pa.types.is_string(type_) or pa.types.is_large_string(type_), "text"),
    (lambda type_: pa.types.is_binary(type_) or pa.types.is_large_binary(type_), "bytea"),
    (UUID_TYPE.equals, "uuid"),
    (pa.types.is_date32, "date"),
    (lambda type_: pa.types.is_timestamp(type_) and type_.tz is None, "timestamp"),
    (pa.types.is_timestamp, "timestamptz"),
)


def default_type(type_: pa.DataType) -> tuple[int, int]:
    """Return the OID and type modifier of the PostgreSQL type that represents all values of an Arrow type.

    A decimal becomes numeric with its precision and scale, and binary of 16 bytes becomes uuid. `arrow_type`
    of the result returns the same Arrow type, except for uuid, 8-bit integers, and timestamps in units other
    than microseconds.

    Raises:
        ValueError: No PostgreSQL type represents the Arrow type, for example a struct, map, nested list, time
            of day or interval.
    """
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        oid, modifier = default_type(type_.value_type)
        if oid in catalog.BY_OID:
            return catalog.BY_OID[oid].array_oid, modifier
    if pa.types.is_decimal(type_) and 0 <= type_.scale <= type_.precision:
        return catalog.BY_NAME["numeric"].oid, numeric_modifier(type_.precision, type_.scale)
    for matches, name in _TYPE_NAMES:
        if matches(type_):
            return catalog.BY_NAME[name].oid, -1
    raise ValueError(
        f"there is no PostgreSQL type for {type_}: convert its values to text, structs and maps with to_json"
    )


_INTEGER_DIGITS: Final = {pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
"""Largest number of decimal digits of a value, by Arrow integer type."""

_EXACT_IN_DOUBLE: Final = (pa.int16(), pa.int32())
"""Arrow integer types whose values a double represents exactly."""


def common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the Arrow type for all values of a column whose Arrow type changed from `a` to `b`.

    Two types of numbers become the narrowest type of numbers that represents both exactly, if there is one.
    Two list types become a list of their elements' common type. All other pairs become a string with the
    server's text. `to_arrow` accepts the result as its `type_`.
    """
    if a == b:
        return a
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(pa.field("element", common_type(a.value_type, b.value_type)))
    if a in _INTEGER_DIGITS and b in _INTEGER_DIGITS:
        return max(a, b, key=_INTEGER_DIGITS.__getitem__)
    if all(pa.types.is_floating(type_) or type_ in _EXACT_IN_DOUBLE for type_ in (a, b)):
        return pa.float64()
    digits = [_decimal_digits(type_) for type_ in (a, b)]
    if (first := digits[0]) and (second := digits[1]):
        whole, scale = (max(pair) for pair in zip(first, second, strict=True))
        if whole + scale <= MAX_PRECISION:
            return pa.decimal128(whole + scale, scale)
    return pa.string()


def _decimal_digits(type_: pa.DataType) -> tuple[int, int] | None:
    """Return how many digits values can have before and after the point; None unless decimal or integer."""
    if pa.types.is_decimal(type_):
        return type_.precision - type_.scale, type_.scale
    return (_INTEGER_DIGITS[type_], 0) if type_ in _INTEGER_DIGITS else None
