"""The output of each type: how its binary form becomes the server's text."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from pgoutput import catalog
from pgoutput.values import containers, floats, moments, numeric
from pgoutput.values.geometry import GEOMETRY
from pgoutput.values.network import NETWORK
from pgoutput.values.reader import ILLEGAL, Output
from pgoutput.values.scalars import SCALARS
from pgoutput.values.search import SEARCH
from pgoutput.values.statistics import STATISTICS

_FIRST_UNKNOWN: Final = 10_000
"""FirstGenbkiObjectId: OIDs from here on differ between servers, so a catalogue of them is of no use."""

_MAX_DEPTH: Final = 8
"""Records and arrays of unknown types inside each other. Each may double quotes, and so the text's length."""

_CONTROL: Final = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def output(type_oid: int, depth: int = 0) -> Output:
    """The output of a type.

    Args:
        type_oid: OID of the type.
        depth: Inside how many values of unknown types it stands.
    """
    return _known(type_oid) or partial(_guess, depth=depth)


def _known(type_oid: int) -> Output | None:
    if (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        return partial(containers.array_out, find=output, inner_oid=element.oid)
    builtin = catalog.BY_OID.get(type_oid)
    return None if builtin is None else _BY_NAME.get(builtin.name) or _BY_SEND.get(builtin.send, _none)


def _none(data: bytes) -> str:
    raise ValueError("the type has no binary form, or one that only its index can read")


def _guess(data: bytes, depth: int) -> str:
    """A value of a type that is not built in, as what its bytes look like.

    Enums, and much else, are sent as text; arrays and records begin with a number, so never look like that,
    nor one like the other.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not _CONTROL.search(text):
        return text
    if depth == _MAX_DEPTH:
        raise ValueError("too deep")
    find = partial(_find_inside, depth=depth + 1)
    try:
        return containers.array_out(data, find)
    except ILLEGAL:
        return containers.record_out(data, find)


def _find_inside(type_oid: int, depth: int) -> Output:
    if type_oid < _FIRST_UNKNOWN and _known(type_oid) is None:
        raise ValueError(f"{type_oid} is not the OID of a type")
    return output(type_oid, depth)


_BY_SEND: Final[dict[str, Output]] = {
    "float4send": floats.float4_out,
    "float8send": floats.float8_out,
    "numeric_send": numeric.numeric_out,
    "date_send": moments.date_out,
    "time_send": moments.time_out,
    "timetz_send": moments.timetz_out,
    "timestamp_send": moments.timestamp_out,
    "timestamptz_send": moments.timestamptz_out,
    "interval_send": moments.interval_out,
    **SCALARS,
    **NETWORK,
    **GEOMETRY,
    **SEARCH,
    **STATISTICS,
}
"""By send function. Not here are those of BRIN summaries, which stand in indexes only, and whose bytes depend
on the indexed type."""

VECTORS: Final = {"int2vector": "int2", "oidvector": "oid"}
RANGES: Final = {
    "int4range": "int4",
    "int8range": "int8",
    "numrange": "numeric",
    "daterange": "date",
    "tsrange": "timestamp",
    "tstzrange": "timestamptz",
}
MULTIRANGES: Final = {name.replace("range", "multirange"): name for name in RANGES}

_BY_NAME: Final[dict[str, Output]] = {
    name: partial(function, find=output, inner_oid=catalog.BY_NAME[inner].oid)
    for function, names in (
        (containers.vector_out, VECTORS),
        (containers.range_out, RANGES),
        (containers.multirange_out, MULTIRANGES),
    )
    for name, inner in names.items()
}
"""By name, since these share send functions."""
