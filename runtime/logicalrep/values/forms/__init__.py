"""The text and the binary form of each type, converted into each other as the server converts them.

The output function of a type combines PostgreSQL's receive and output functions. The input function combines
PostgreSQL's input and send functions. They are named after the server's output and input functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from logicalrep import catalog
from logicalrep.values.builtin_types import (
    MULTIRANGE_RANGES,
    RANGE_SUBTYPES,
    VECTOR_ELEMENTS,
    describe_type,
)
from logicalrep.values.forms import containers, datetimes, floats, numeric
from logicalrep.values.forms.geometry import GEOMETRY
from logicalrep.values.forms.network import NETWORK
from logicalrep.values.forms.parsing import INVALID_VALUE_ERRORS, Form, InputFunction, OutputFunction
from logicalrep.values.forms.scalars import SCALARS
from logicalrep.values.forms.statistics import STATISTICS
from logicalrep.values.forms.text_search import TEXT_SEARCH

_FIRST_UNSTABLE_OID: Final = 10_000
"""First OID that differs between servers (FirstGenbkiObjectId); lower OIDs are built in."""

_MAX_DEPTH: Final = 8
"""Largest nesting depth of arrays and records of unknown types. Each level can double the text's length."""

_CONTROL: Final = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def output_function(type_oid: int, depth: int = 0) -> OutputFunction:
    """Return the function that converts values of a type from binary to text form.

    Args:
        type_oid: OID of the type.
        depth: How many arrays and records contain the value, one inside the other. Only those whose type is
            not built in are counted.
    """
    return _builtin_output(type_oid) or partial(_guess_text, depth=depth)


def input_function(type_oid: int) -> InputFunction:
    """Return the function that converts values of a type from text to binary form.

    Raises:
        ValueError: Binary values of the type cannot be made from text.
    """
    if (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        return partial(containers.array_in, convert=input_function(element.oid), inner=element)
    builtin = catalog.FORMS.get(type_oid)
    if builtin is None:
        why = "it is not built in: a domain is sent as its base type, an enum as its text"
    elif (function := _form(builtin).input) is not None:
        return function
    else:
        why = "it has no binary form, or its text omits a part of the value"
    raise ValueError(f"{describe_type(type_oid)} has no binary form that can be made from text: {why}")


def _form(builtin: catalog.BuiltinType) -> Form:
    return _BY_NAME.get(builtin.name) or _BY_SEND.get(builtin.send, _NO_FORM)


def _builtin_output(type_oid: int) -> OutputFunction | None:
    if (element := catalog.BY_ARRAY_OID.get(type_oid)) is not None:
        return partial(containers.array_out, find_output=output_function, inner_oid=element.oid)
    builtin = catalog.FORMS.get(type_oid)
    return None if builtin is None else _form(builtin).output


def _refuse(data: bytes) -> str:
    raise ValueError(
        "the type has no binary form, or is a BRIN summary, whose binary form depends on the indexed type"
    )


def _guess_text(data: bytes, depth: int) -> str:
    """Return the text of a value whose type is not built in; guess the form from the bytes.

    Enums and many extension types are sent as text. An array or record starts with a small number of
    4 bytes, whose zero bytes are control characters: bytes with control characters are not taken for text. No
    value is both a valid array and a valid record.

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
        raise ValueError(f"arrays and records are nested more than {_MAX_DEPTH} levels deep")
    find_output = partial(_inner_output, depth=depth + 1)
    try:
        return containers.array_out(data, find_output)
    except INVALID_VALUE_ERRORS:
        return containers.record_out(data, find_output)


def _inner_output(type_oid: int, depth: int) -> OutputFunction:
    if type_oid < _FIRST_UNSTABLE_OID and _builtin_output(type_oid) is None:
        raise ValueError(f"{type_oid} is not the OID of a built-in type")
    return output_function(type_oid, depth)


_NO_FORM: Final = Form(_refuse)

_BY_SEND: Final = {
    "float4send": Form(floats.float4_out, floats.float4_in),
    "float8send": Form(floats.float8_out, floats.float8_in),
    "numeric_send": Form(numeric.numeric_out, numeric.numeric_in),
    "date_send": Form(datetimes.date_out, datetimes.date_in),
    "time_send": Form(datetimes.time_out, datetimes.time_in),
    "timetz_send": Form(datetimes.timetz_out, datetimes.timetz_in),
    "timestamp_send": Form(datetimes.timestamp_out, datetimes.timestamp_in),
    "timestamptz_send": Form(datetimes.timestamptz_out, datetimes.timestamptz_in),
    "interval_send": Form(datetimes.interval_out, datetimes.interval_in),
    **SCALARS,
    **NETWORK,
    **GEOMETRY,
    **TEXT_SEARCH,
    **STATISTICS,
}
"""Conversions between binary and text form, by name of the type's send function.

BRIN summaries are missing: they exist only in indexes, and their bytes depend on the indexed type.
"""


def _with_inner(output: Callable[..., str], input_: Callable[..., bytes], inner: str) -> Form:
    element = catalog.BY_NAME[inner]
    return Form(
        partial(output, find_output=output_function, inner_oid=element.oid),
        lambda text: input_(text, convert=input_function(element.oid), inner=element),
    )


_BY_NAME: Final = {
    name: _with_inner(output, input_, inner)
    for output, input_, names in (
        (containers.vector_out, containers.vector_in, VECTOR_ELEMENTS),
        (containers.range_out, containers.range_in, RANGE_SUBTYPES),
        (containers.multirange_out, containers.multirange_in, MULTIRANGE_RANGES),
    )
    for name, inner in names.items()
}
"""Conversions between binary and text form, by name of the type, for types that share a send function."""
