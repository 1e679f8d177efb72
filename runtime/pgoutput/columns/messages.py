"""Messages as rows: the columns of `pgoutput.schemas.arrow.MESSAGES`, made of an index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput import _protocols
from pgoutput._layout import Field, Message
from pgoutput.columns.index import Index, Mask, Numbers, Texts, where_not
from pgoutput.schemas import arrow as schemas
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS, UNIX_YEAR_1, UNIX_YEAR_10000, is_utf8, shown_text

_TYPE, _RESCUED = schemas.MESSAGES.names[0], schemas.MESSAGES.names[-1]
_MESSAGES: Final = _protocols.ALL_VERSIONS

_NO_ROWS: Final = np.empty(0, np.int64)


def message_columns(index: Index, schema: pa.Schema = schemas.MESSAGES) -> list[pa.Array]:
    """A row per message, NULL in all columns where there is none.

    Args:
        index: The messages.
        schema: The columns that are wanted: `schemas.MESSAGES`, or some of it.
    """
    found = [_MESSAGES.by_tag[tag] for tag in np.flatnonzero(np.bincount(index.tags)).tolist() if tag]
    fields = {field.name: field for message in found for field in message.members}
    columns = {_TYPE: _types(index.tags)}
    left: dict[str, Numbers] = {}
    for column in schema:
        if (field := fields.get(column.name)) is not None:
            columns[field.name], left[field.name] = _CONVERTERS[field.kind](index, field, column.type)
    columns[_RESCUED] = _rescued(index, left)
    return [
        columns[column.name] if column.name in columns else pa.nulls(len(index), column.type)
        for column in schema
    ]


def _types(tags: npt.NDArray[np.uint8]) -> pa.StringArray:
    return _type_names().take(pa.array(_PLACES[tags], mask=None if tags.all() else tags == 0))


@cache  # when it is wanted: pa.array imports pandas where that is installed, which takes 0.3 s and 45 MB
def _type_names() -> pa.StringArray:
    return pa.array([message.name for message in _MESSAGES.messages], pa.string())


_PLACES: Final = np.zeros(256, np.int32)
"""By tag, the place of the message's name."""
for _place, _message in enumerate(_MESSAGES.messages):
    _PLACES[ord(_message.tag)] = _place


def _numbers(index: Index, field: Field, type_: pa.DataType) -> Texts:
    """Integers, flags and booleans; LSNs and timestamps are left where their columns cannot hold them."""
    values, there = index.field(field.name)
    least, most, shift = _HELD.get(field.type, _ANY)
    held = there & (values >= least) & (values <= most)
    numbers: npt.NDArray[Any] = (values + shift).astype(_NUMPY[field.kind], copy=False)
    return Texts(pa.array(numbers, mask=_mask(held)).cast(type_), np.flatnonzero(there & ~held))


_ANY: Final = -(1 << 63), (1 << 63) - 1, 0
_HELD: Final[Mapping[str, tuple[int, int, int]]] = {
    "lsn": (0, (1 << 63) - 1, 0),
    "timestamp": (
        UNIX_YEAR_1 - EPOCH_UNIX_MICROSECONDS,
        UNIX_YEAR_10000 - EPOCH_UNIX_MICROSECONDS - 1,
        EPOCH_UNIX_MICROSECONDS,
    ),
}
"""By the type of a field the least and the most that its column holds, and what is added to it there."""

_NUMPY: Final = {"integer": np.int64, "flags": np.int16, "bool": np.bool_}


def _enums(index: Index, field: Field, type_: pa.DataType) -> Texts:
    values, there = index.field(field.name)
    return Texts(letters(np.where(there, values, 0).astype(np.uint8), _mask(there)), _NO_ROWS)


def _strings(index: Index, field: Field, type_: pa.DataType) -> Texts:
    return index.strings(field.name)


def _lists(index: Index, field: Field, type_: pa.DataType) -> Texts:
    """Lists are in few messages: those are made as objects. A list is left as a whole."""
    tags = [tag for tag, message in _MESSAGES.by_tag.items() if field.name in _names(message)]
    rows = np.flatnonzero(np.isin(index.tags, tags))
    found = [getattr(message, field.name) for message in index.messages(rows.tolist())]
    values = [_list(field, value) for value in found]
    left = [
        row
        for row, value, held in zip(rows.tolist(), found, values, strict=True)
        if held is None and value is not None
    ]
    return Texts(scatter(values, rows, len(index), type_), np.array(left, np.int64))


def _names(message: Message) -> list[str]:
    return [field.name for field in message.members]


def _list(field: Field, value: Sequence[Any] | None) -> list[Any] | None:
    if value is None or not field.fields[0].name:
        return value if value is None else list(value)
    items = [{one.name: _item(one, getattr(item, one.name)) for one in field.fields} for item in value]
    return None if any(None in item.values() for item in items) else items


def _item(field: Field, value: Any) -> Any:
    """The value of a field in a list; None if its column cannot hold it."""
    if isinstance(value, str):
        return str(value) if is_utf8(value) else None
    least, most, shift = _HELD.get(field.type, _ANY)
    return value + shift if least <= value <= most else None


def _tuples(index: Index, field: Field, type_: pa.DataType) -> Texts:
    """Tuples as lists of cells. Text that is not UTF-8 stands with the binary cells."""
    first, width = index.first(field.name), index.width(field.name)
    offsets = np.concatenate(([0], np.cumsum(width)))
    numbers = np.repeat(first - offsets[:-1], width) + np.arange(offsets[-1])
    kinds = index.kinds[numbers]
    texts, left = index.texts(numbers)
    columns = [letters(kinds), texts, _binary(index, numbers, left)]
    cells = pa.StructArray.from_arrays(columns, fields=list(type_.value_type))
    missing = _mask(first >= 0)
    lists = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), cells, type=type_, mask=None if missing is None else pa.array(missing)
    )
    return Texts(lists, _NO_ROWS)


def _binary(index: Index, numbers: Numbers, places: Numbers) -> pa.Array:
    if not len(places):
        return pa.nulls(len(numbers), pa.binary())
    others = np.ones(len(numbers), np.bool_)
    others[places] = False
    return index.raw(where_not(numbers, others))


_CONVERTERS: Final[Mapping[str, Callable[[Index, Field, pa.DataType], Texts]]] = {
    "integer": _numbers,
    "flags": _numbers,
    "bool": _numbers,
    "enum": _enums,
    "string": _strings,
    "bytes": _strings,
    "list": _lists,
    "tuple": _tuples,
}
"""By the kind of a field: its column, and the rows of what that cannot hold."""


def _rescued(index: Index, left: Mapping[str, Numbers]) -> pa.Array:
    """What columns cannot hold, as text; there is little, so it is read from objects."""
    names: dict[int, set[str]] = {}
    for name, places in left.items():
        for row in places.tolist():
            names.setdefault(row, set()).add(name)
    rows = sorted(names)
    values = [
        [
            (field.name, _shown(getattr(message, field.name)))
            for field in _MESSAGES.by_name[type(message).__name__].members
            if field.name in names[row]
        ]
        for row, message in zip(rows, index.messages(rows), strict=True)
    ]
    type_ = schemas.MESSAGES.field(_RESCUED).type
    return scatter(values, np.array(rows, np.int64), len(index), type_)


def _shown(value: object) -> str:
    return shown_text(value) if isinstance(value, str) else str(value)


def scatter(values: Sequence[Any], rows: Numbers, length: int, type_: pa.DataType) -> pa.Array:
    """An array that has values in some rows, and is NULL in the others."""
    if not values:
        return pa.nulls(length, type_)
    places = np.full(length, -1, np.int64)
    places[rows] = np.arange(len(rows))
    return pa.array(values, type_).take(pa.array(places, mask=places < 0))


def letters(codes: npt.NDArray[np.uint8], missing: Mask | None = None) -> pa.StringArray:
    """Strings of one ASCII letter each, NULL where they are missing."""
    offsets = np.arange(len(codes) + 1, dtype=np.int32)
    valid = None if missing is None else pa.array(~missing).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(codes))]
    return pa.Array.from_buffers(pa.string(), len(codes), buffers)


def _mask(there: Mask) -> Mask | None:
    """Where something is missing, as pyarrow takes it; None if nothing is."""
    return None if there.all() else ~there
