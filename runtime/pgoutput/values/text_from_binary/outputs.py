"""The output function of each type: from the binary form to the server's text."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from pgoutput import catalog
from pgoutput.values.builtin_types import MULTIRANGE_RANGES, RANGE_SUBTYPES, VECTOR_ELEMENTS
from pgoutput.values.text_from_binary import containers, datetimes, floats, numeric
from pgoutput.values.text_from_binary.geometry import GEOMETRY
from pgoutput.values.text_from_binary.network import NETWORK
from pgoutput.values.text_from_binary.reader import INVALID_VALUE_ERRORS, OutputFunction
from pgoutput.values.text_from_binary.scalars import SCALARS
from pgoutput.values.text_from_binary.statistics import STATISTICS
from pgoutput.values.text_from_binary.text_search import TEXT_SEARCH

_FIRST_UNSTABLE_OID: Final = 10_000
"""First OID that differs between servers (FirstGenbkiObjectId); lower OIDs are built in."""

_MAX_DEPTH: Final = 8
"""Largest nesting depth of arrays and records of unknown types. Each level can double the text's length."""

_CONTROL: Final = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def output_function(type_oid: int, depth: int = 0) -> OutputFunction:
    """Return the output function of a type.

    Args:
        type_oid: OID of the type.
        depth: How many arrays and records of types that are not built in enclose the value.
    """
    return _builtin_output(type_oid) or partial(_guess_text, depth=depth)


def _builtin_output(type_oid: int) -> OutputFunction | None:
    if (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        return partial(containers.array_out, find_output=output_function, inner_oid=element.oid)
    builtin = catalog.FORMS.get(type_oid)
    return None if builtin is None else _BY_NAME.get(builtin.name) or _BY_SEND.get(builtin.send, _refuse)


def _refuse(data: bytes) -> str:
    raise ValueError("the type has no binary form, or a form that depends on its index")


def _guess_text(data: bytes, depth: int) -> str:
    """Return the text of a value whose type is not built in; guess the form from the bytes.

    Enums and many extension types are sent as text. An array or record starts with a 4-byte number, which
    contains control characters. No value is both a valid array and a valid record.

    Raises:
        ValueError: The bytes are not text, an array or a record.
        struct.error: The bytes are not text, an array or a record.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not _CONTROL.search(text):
        return text
    if depth == _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
    find_output = partial(_inner_output, depth=depth + 1)
    try:
        return containers.array_out(data, find_output)
    except INVALID_VALUE_ERRORS:
        return containers.record_out(data, find_output)


def _inner_output(type_oid: int, depth: int) -> OutputFunction:
    if type_oid < _FIRST_UNSTABLE_OID and _builtin_output(type_oid) is None:
        raise ValueError(f"{type_oid} is not the OID of a type")
    return output_function(type_oid, depth)


_BY_SEND: Final[dict[str, OutputFunction]] = {
    "float4send": floats.float4_out,
    "float8send": floats.float8_out,
    "numeric_send": numeric.numeric_out,
    "date_send": datetimes.date_out,
    "time_send": datetimes.time_out,
    "timetz_send": datetimes.timetz_out,
    "timestamp_send": datetimes.timestamp_out,
    "timestamptz_send": datetimes.timestamptz_out,
    "interval_send": datetimes.interval_out,
    **SCALARS,
    **NETWORK,
    **GEOMETRY,
    **TEXT_SEARCH,
    **STATISTICS,
}
"""Output functions, by name of the send function.

BRIN summaries are missing: they exist only in indexes, and their bytes depend on the indexed type.
"""

_BY_NAME: Final[dict[str, OutputFunction]] = {
    name: partial(function, find_output=output_function, inner_oid=catalog.BY_NAME[inner].oid)
    for function, names in (
        (containers.vector_out, VECTOR_ELEMENTS),
        (containers.range_out, RANGE_SUBTYPES),
        (containers.multirange_out, MULTIRANGE_RANGES),
    )
    for name, inner in names.items()
}
"""Output functions of types that share a send function, by type name."""
