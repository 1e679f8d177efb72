"""The input of each type: how the server's text becomes the binary form."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NoReturn

from pgoutput import catalog
from pgoutput.messages import Cell
from pgoutput.values.binary import containers, floats, moments, numeric
from pgoutput.values.binary.geometry import GEOMETRY
from pgoutput.values.binary.network import NETWORK
from pgoutput.values.binary.reading import Input
from pgoutput.values.binary.scalars import SCALARS
from pgoutput.values.binary.search import SEARCH
from pgoutput.values.outputs import MULTIRANGES, RANGES, VECTORS
from pgoutput.values.types import shown_type

_SHOWN: Final = 60
"""Characters of a value that an error shows."""


def encode_binary(text: str, type_oid: int) -> bytes:
    r"""A value's binary form, as the server sends it (the type's send function).

    Args:
        text: The value as the server writes it, with the settings of `to_text`: DateStyle ISO, IntervalStyle
            postgres, bytea_output hex. Times may have any zone. money is the amount in its smallest unit, and
            of regclass and the like the OID, as `to_text` gives them: names are not known here.
        type_oid: OID of the type. A domain has its base type's binary form; that of an enum is its text.

    Raises:
        ValueError: The text is no such value, or the type has no binary form that can be told: those that are
            not built in, statistics and index summaries, aclitem.
    """
    return _encoder(type_oid)(text)


def to_binary(cells: Sequence[Cell], type_oid: int) -> list[Cell]:
    """A column with its texts in binary format; bytes, NULLs and unchanged cells stay what they are.

    Args:
        cells: Values as the server writes them; see `encode_binary`.
        type_oid: OID of the column's type.

    Raises:
        ValueError: As `encode_binary`.
    """
    encode = _encoder(type_oid)
    return [encode(cell) if isinstance(cell, str) else cell for cell in cells]


def _encoder(type_oid: int) -> Input:
    convert, name = _input(type_oid), shown_type(type_oid)

    def encode(text: str) -> bytes:
        try:
            return convert(text)
        except (ValueError, OverflowError, struct.error) as error:
            shown = repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
            raise ValueError(f"{shown} is not what a server writes for {name} ({error})") from None

    return encode


def _input(type_oid: int) -> Input:
    """The input of a type.

    Raises:
        ValueError: There is none.
    """
    if (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        return partial(containers.array_in, convert=_input(element.oid), inner=element)
    builtin = catalog.BY_OID.get(type_oid)
    if builtin is None:
        _refuse(type_oid, "it is not built in: a domain is sent as its base type, an enum as its text")
    found = _BY_NAME.get(builtin.name) or _BY_SEND.get(builtin.send)
    if found is None:
        _refuse(type_oid, "it has none, or the text does not say all of it")
    return found


def _refuse(type_oid: int, why: str) -> NoReturn:
    raise ValueError(f"{shown_type(type_oid)} has no binary form that can be made of text: {why}")


_BY_SEND: Final[dict[str, Input]] = {
    "float4send": floats.float4_in,
    "float8send": floats.float8_in,
    "numeric_send": numeric.numeric_in,
    "date_send": moments.date_in,
    "time_send": moments.time_in,
    "timetz_send": moments.timetz_in,
    "timestamp_send": moments.timestamp_in,
    "timestamptz_send": moments.timestamptz_in,
    "interval_send": moments.interval_in,
    **SCALARS,
    **NETWORK,
    **GEOMETRY,
    **SEARCH,
}
"""By send function."""


def _inner(function: Callable[..., bytes], inner: str) -> Input:
    element = catalog.BY_NAME[inner]
    return lambda text: function(text, convert=_input(element.oid), inner=element)


_BY_NAME: Final[dict[str, Input]] = {
    name: _inner(function, inner)
    for function, names in (
        (containers.vector_in, VECTORS),
        (containers.range_in, RANGES),
        (containers.multirange_in, MULTIRANGES),
    )
    for name, inner in names.items()
}
"""By name, since these share send functions."""
