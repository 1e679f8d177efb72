"""The view `messages`: one row per message, by the generated schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from pgoutput import layouts
from pgoutput.layout import Field
from pgoutput.messages import Message, TupleData
from pgoutput.schemas import arrow as schemas
from pgoutput.wire import (
    EPOCH_UNIX_MICROSECONDS,
    UNIX_YEAR_1,
    UNIX_YEAR_10000,
    Unchanged,
    is_utf8,
    shown_text,
)

MESSAGES: Final = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("wal_start", pa.int64()),
        pa.field("received_at", pa.timestamp("us", tz="UTC")),
        *schemas.MESSAGES,
    ]
)
"""One row per message.

- `position`: Place of the message in the recording.
- `wal_start`: The LSN of its XLogData, 0 where the server gives none.
- `received_at`: When the recorder read it.
- The others are `pgoutput.schemas.arrow.MESSAGES`.
"""

_INT64_MAX: Final = 2**63 - 1


class _NotHeld(Exception):
    """The column cannot hold the value; the text takes its place in `_rescued_data`."""


def message_columns(messages: Sequence[Message]) -> list[pa.Array]:
    """The columns of `schemas.arrow.MESSAGES`, one row per message, in the order of the schema."""
    columns: dict[str, list[Any]] = {name: [None] * len(messages) for name in schemas.MESSAGES.names}
    for row, message in enumerate(messages):
        name = type(message).__name__
        columns["type"][row] = name
        rescued: dict[str, str] = {}
        for field in _FIELDS[name]:
            value = getattr(message, field.name)
            if value is not None:
                try:
                    columns[field.name][row] = _value(field, value)
                except _NotHeld as text:
                    rescued[field.name] = str(text)
        if rescued:
            columns["_rescued_data"][row] = list(rescued.items())
    return [
        (_tuples if field.type == schemas.TUPLE_DATA else pa.array)(columns[field.name], field.type)
        for field in schemas.MESSAGES
    ]


_FIELDS: Final = {message.name: message.members for message in layouts.ALL_VERSIONS.messages}


def _value(field: Field, value: Any) -> Any:
    convert = _CONVERTERS.get(field.type) or _CONVERTERS.get(field.kind)
    return value if convert is None else convert(field, value)


def _lsn(field: Field, value: int) -> int:
    if value > _INT64_MAX:
        raise _NotHeld(value)
    return value


def _timestamp(field: Field, value: int) -> int:
    unix = value + EPOCH_UNIX_MICROSECONDS
    if not UNIX_YEAR_1 <= unix < UNIX_YEAR_10000:
        raise _NotHeld(value)
    return unix


def _string(field: Field, value: str) -> str:
    if not is_utf8(value):
        raise _NotHeld(shown_text(value))
    return value


def _tuples(values: Sequence[TupleData | None], type_: pa.ListType) -> pa.Array:
    """Tuples as lists of cells; made by column, since there are so many cells."""
    cells = [cell for value in values if value is not None for cell in value]
    kinds = [_KINDS[type(cell)] for cell in cells]
    texts = [cell if type(cell) is str else None for cell in cells]
    binary = [cell if type(cell) is bytes else None for cell in cells]
    try:
        text_column = pa.array(texts, pa.string())
    except UnicodeEncodeError:
        for place, text in enumerate(texts):
            if text is not None and not is_utf8(text):
                texts[place], binary[place] = None, text.encode("utf-8", "surrogateescape")
        text_column = pa.array(texts, pa.string())
    columns = [pa.array(kinds, pa.string()), text_column, pa.array(binary, pa.binary())]
    structs = pa.StructArray.from_arrays(columns, fields=list(schemas.CELL))
    sizes = (0 if value is None else len(value) for value in values)
    offsets = pa.array(accumulate(sizes, initial=0), pa.int32())
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(offsets, structs, type=type_, mask=missing)


_KINDS: Final = {type(None): "n", Unchanged: "u", str: "t", bytes: "b"}
"""The tag of a cell, by its Python type."""


def _list(field: Field, value: tuple[Any, ...]) -> list[Any]:
    if not field.fields[0].name:
        return list(value)
    try:
        return [{one.name: _value(one, getattr(item, one.name)) for one in field.fields} for item in value]
    except _NotHeld:
        raise _NotHeld(value) from None


_CONVERTERS: Final[Mapping[str, Callable[[Field, Any], Any]]] = {
    "lsn": _lsn,
    "timestamp": _timestamp,
    "string": _string,
    "enum": lambda _, value: str(value),
    "list": _list,
}
"""By the type of a field, or else by its kind."""
