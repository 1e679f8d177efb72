"""The input function of each type: from the server's text to the binary form."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NoReturn

from pgoutput import catalog
from pgoutput.messages import Cell
from pgoutput.values.binary_from_text import containers, datetimes, floats, numeric
from pgoutput.values.binary_from_text.geometry import GEOMETRY
from pgoutput.values.binary_from_text.network import NETWORK
from pgoutput.values.binary_from_text.parsing import InputFunction
from pgoutput.values.binary_from_text.scalars import SCALARS
from pgoutput.values.binary_from_text.text_search import TEXT_SEARCH
from pgoutput.values.builtin_types import (
    MULTIRANGE_RANGES,
    RANGE_SUBTYPES,
    VECTOR_ELEMENTS,
    describe_type,
)

_MAX_SHOWN: Final = 60
"""Number of characters of a value that an error message shows."""


def encode_binary(text: str, type_oid: int) -> bytes:
    r"""Return a value's binary form, as the server sends it (the type's send function).

    Args:
        text: The value's text with DateStyle ISO, IntervalStyle postgres and bytea_output hex. Times may be
            in any time zone. A money value is its amount in the smallest unit, and a value of a reg* type
            (regclass, …) its OID, as `to_text` returns them.
        type_oid: OID of a built-in type. For a domain, pass the OID of its base type; an enum's binary form
            is its text.

    Raises:
        ValueError: The text is not a value of the type, or binary values of the type cannot be made from text
            (types that are not built in, extended statistics, BRIN summaries, aclitem).
    """
    return _encoder(type_oid)(text)


def to_binary(cells: Sequence[Cell], type_oid: int) -> list[Cell]:
    """Return a column's cells with text values converted to binary format.

    Cells that are bytes, None or UNCHANGED are returned as they are.

    Args:
        cells: Cells of a column. Texts must have DateStyle ISO, IntervalStyle postgres and bytea_output hex.
        type_oid: OID of the column's type, a built-in type.

    Raises:
        ValueError: A text is not a value of the type, or binary values of the type cannot be made from text
            (types that are not built in, extended statistics, BRIN summaries, aclitem).
    """
    encode = _encoder(type_oid)
    return [encode(cell) if isinstance(cell, str) else cell for cell in cells]


def _encoder(type_oid: int) -> InputFunction:
    convert, name = _input_function(type_oid), describe_type(type_oid)

    def encode(text: str) -> bytes:
        try:
            return convert(text)
        except (ValueError, OverflowError, struct.error) as error:
            shown = repr(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…")
            raise ValueError(f"{shown} is not what a server writes for {name} ({error})") from None

    return encode


def _input_function(type_oid: int) -> InputFunction:
    """Return the input function of a type.

    Raises:
        ValueError: Binary values of the type cannot be made from text.
    """
    if (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        return partial(containers.array_in, convert=_input_function(element.oid), inner=element)
    builtin = catalog.FORMS.get(type_oid)
    if builtin is None:
        _refuse(type_oid, "it is not built in: a domain is sent as its base type, an enum as its text")
    function = _BY_NAME.get(builtin.name) or _BY_SEND.get(builtin.send)
    if function is None:
        _refuse(type_oid, "it has none, or its text omits a part of the value")
    return function


def _refuse(type_oid: int, why: str) -> NoReturn:
    raise ValueError(f"{describe_type(type_oid)} has no binary form that can be made from text: {why}")


_BY_SEND: Final[dict[str, InputFunction]] = {
    "float4send": floats.float4_in,
    "float8send": floats.float8_in,
    "numeric_send": numeric.numeric_in,
    "date_send": datetimes.date_in,
    "time_send": datetimes.time_in,
    "timetz_send": datetimes.timetz_in,
    "timestamp_send": datetimes.timestamp_in,
    "timestamptz_send": datetimes.timestamptz_in,
    "interval_send": datetimes.interval_in,
    **SCALARS,
    **NETWORK,
    **GEOMETRY,
    **TEXT_SEARCH,
}
"""Input functions, by name of the send function."""


def _with_inner(function: Callable[..., bytes], inner: str) -> InputFunction:
    element = catalog.BY_NAME[inner]
    return lambda text: function(text, convert=_input_function(element.oid), inner=element)


_BY_NAME: Final[dict[str, InputFunction]] = {
    name: _with_inner(function, inner)
    for function, names in (
        (containers.vector_in, VECTOR_ELEMENTS),
        (containers.range_in, RANGE_SUBTYPES),
        (containers.multirange_in, MULTIRANGE_RANGES),
    )
    for name, inner in names.items()
}
"""Input functions of types that share a send function, by type name."""
