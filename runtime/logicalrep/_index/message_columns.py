"""Return the messages of a `MessageIndex` as rows: the columns of `logicalrep.schemas.arrow.MESSAGES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logicalrep import _protocols
from logicalrep._arrays import Mask, Numbers, from_buffers, mask_bits
from logicalrep._index.base import MessageIndex, PartialArray, mask_out
from logicalrep._layout import Field, Message
from logicalrep._message_rows import RESCUED, TYPE, column_value, rescued_text, value_range
from logicalrep.schemas import arrow as schemas
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS

_MESSAGES: Final = _protocols.ALL_VERSIONS

_NO_ROWS: Final = np.empty(0, np.int64)


def message_columns(index: MessageIndex, schema: pa.Schema = schemas.MESSAGES) -> list[pa.Array]:
    """Return columns with one row per message; an invalid or NULL message is NULL in all columns.

    Args:
        index: The messages.
        schema: The columns to return: `schemas.MESSAGES`, or some of its columns.
    """
    kinds = [_MESSAGES.by_tag[tag] for tag in np.flatnonzero(np.bincount(index.tags)).tolist() if tag]
    fields = {field.name: field for message in kinds for field in message.members}
    columns = {TYPE: _types(index.tags)}
    unread: dict[str, Numbers] = {}
    for column in schema:
        if (field := fields.get(column.name)) is not None:
            columns[field.name], unread[field.name] = _CONVERTERS[field.kind](index, field, column.type)
    columns[RESCUED] = _rescued(index, unread)
    return [
        columns[column.name] if column.name in columns else pa.nulls(len(index), column.type)
        for column in schema
    ]


def _types(tags: npt.NDArray[np.uint8]) -> pa.StringArray:
    return _type_names().take(pa.array(_NAME_NUMBERS[tags], mask=None if tags.all() else tags == 0))


@cache  # not at import: pa.array imports pandas if it is installed, which takes 0.3 s and 45 MB
def _type_names() -> pa.StringArray:
    return pa.array([message.name for message in _MESSAGES.messages], pa.string())


_NAME_NUMBERS: Final = np.zeros(256, np.int32)
"""For each tag byte, the index of the message's name in `_type_names`."""
for _number, _message in enumerate(_MESSAGES.messages):
    _NAME_NUMBERS[ord(_message.tag)] = _number


def _numbers(index: MessageIndex, field: Field, type_: pa.DataType) -> PartialArray:
    """Return an integer, flags or boolean field as a column.

    `unread` of the result has the rows with an LSN or time that is out of the column's range.
    """
    values, present = index.field(field.name)
    low, high = value_range(field)
    fits = present & (values >= low) & (values <= high)
    shift = EPOCH_UNIX_MICROSECONDS if field.type == "timestamp" else 0
    numbers: npt.NDArray[Any] = (values + shift).astype(_NUMPY[field.kind], copy=False)
    return PartialArray(pa.array(numbers, mask=_mask(fits)).cast(type_), np.flatnonzero(present & ~fits))


_NUMPY: Final = {"integer": np.int64, "flags": np.int16, "bool": np.bool_}


def _enums(index: MessageIndex, field: Field, type_: pa.DataType) -> PartialArray:
    values, present = index.field(field.name)
    return PartialArray(letters(np.where(present, values, 0).astype(np.uint8), _mask(present)), _NO_ROWS)


def _strings(index: MessageIndex, field: Field, type_: pa.DataType) -> PartialArray:
    return index.strings(field.name)


def _lists(index: MessageIndex, field: Field, type_: pa.DataType) -> PartialArray:
    """Return a list field as a column; `unread` of the result has the rows that Arrow cannot represent."""
    if field.element == "tuple":
        return _tuples(index, field, type_)
    # Lists without tuples are rare: decoding their messages as objects is fast enough.
    tags = [tag for tag, message in _MESSAGES.by_tag.items() if field.name in _names(message)]
    rows = np.flatnonzero(np.isin(index.tags, tags))
    lists = [getattr(message, field.name) for message in index.messages(rows.tolist())]
    converted = [column_value(field, value) for value in lists]
    unread = [
        row
        for row, before, after in zip(rows.tolist(), lists, converted, strict=True)
        if after is None and before is not None
    ]
    return PartialArray(scatter(converted, rows, len(index), type_), np.array(unread, np.int64))


def _names(message: Message) -> list[str]:
    return [field.name for field in message.members]


def _tuples(index: MessageIndex, field: Field, type_: pa.DataType) -> PartialArray:
    """Return a field with tuples as a column: a tuple is a list of cells, a list of tuples a list of lists.

    The text of a cell that is not valid UTF-8 is stored as bytes.
    """
    tuples = index.tuples_in(field.name)
    if tuples is None:
        return PartialArray(pa.nulls(len(index), type_), _NO_ROWS)
    first, widths, counts = tuples
    missing = first < 0
    if counts is None:
        cells = _cells(index, first, widths, type_.value_type)
        return PartialArray(_list_array(cells, widths, type_, missing), _NO_ROWS)
    sizes = np.repeat(widths, counts)  # number of cells of each tuple
    uneven = index.messages(np.flatnonzero(widths < 0).tolist())
    sizes[sizes < 0] = [len(cells) for message in uneven for cells in getattr(message, field.name)]
    begins, ends = (np.concatenate(([0], np.cumsum(numbers))) for numbers in (sizes, counts))
    cells = _cells(index, first, np.diff(begins[ends]), type_.value_type.value_type)
    rows = _list_array(cells, sizes, type_.value_type)
    return PartialArray(_list_array(rows, counts, type_, missing), _NO_ROWS)


def _cells(index: MessageIndex, first: Numbers, sizes: Numbers, type_: pa.StructType) -> pa.StructArray:
    """Return the cells of all messages in one array: per message, `sizes` cells from index `first` on."""
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    numbers = np.repeat(first - offsets[:-1], sizes) + np.arange(offsets[-1])
    kinds = index.kinds[numbers]
    texts, unread = index.texts(numbers)
    columns = [letters(kinds), texts, _binary(index, numbers, unread)]
    return pa.StructArray.from_arrays(columns, fields=list(type_))


def _list_array(
    values: pa.Array, sizes: Numbers, type_: pa.ListType, missing: Mask | None = None
) -> pa.ListArray:
    """Return `values` divided into lists of the lengths `sizes`; a list is NULL where `missing` is true."""
    offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
    mask = None if missing is None or not missing.any() else pa.array(missing)
    return pa.ListArray.from_arrays(offsets, values, type=type_, mask=mask)


def _binary(index: MessageIndex, numbers: Numbers, selected: Numbers) -> pa.Array:
    """Return the bytes of the cells `numbers[selected]`, and NULL for all other cells in `numbers`."""
    if not len(selected):
        return pa.nulls(len(numbers), pa.binary())
    others = np.ones(len(numbers), np.bool_)
    others[selected] = False
    return index.raw(mask_out(numbers, others))


_CONVERTERS: Final[Mapping[str, Callable[[MessageIndex, Field, pa.DataType], PartialArray]]] = {
    "integer": _numbers,
    "flags": _numbers,
    "bool": _numbers,
    "enum": _enums,
    "string": _strings,
    "bytes": _strings,
    "list": _lists,
    "tuple": _tuples,
}
"""Maps each kind of field to the function that returns a field of this kind as an Arrow column."""


def _rescued(index: MessageIndex, unread: Mapping[str, Numbers]) -> pa.Array:
    """Return the column `_rescued_data`; `unread` has the rows with a rescued value, by name of the field."""
    names: dict[int, set[str]] = {}
    for name, unread_rows in unread.items():
        for row in unread_rows.tolist():
            names.setdefault(row, set()).add(name)
    rows = sorted(names)
    values = [
        [
            (field.name, rescued_text(field, getattr(message, field.name)))
            for field in _MESSAGES.by_name[type(message).__name__].members
            if field.name in names[row]
        ]
        for row, message in zip(rows, index.messages(rows), strict=True)
    ]
    type_ = schemas.MESSAGES.field(RESCUED).type
    return scatter(values, np.array(rows, np.int64), len(index), type_)


def scatter(values: Sequence[Any], rows: Numbers, length: int, type_: pa.DataType) -> pa.Array:
    """Return an array of `length` rows with `values` in the rows `rows`, and NULL in all other rows."""
    if not values:
        return pa.nulls(length, type_)
    sources = np.full(length, -1, np.int64)
    sources[rows] = np.arange(len(rows))
    return pa.array(values, type_).take(pa.array(sources, mask=sources < 0))


def letters(codes: npt.NDArray[np.uint8], missing: Mask | None = None) -> pa.StringArray:
    """Return an array of one-letter strings from ASCII codes, with NULL where `missing` is true."""
    offsets = np.arange(len(codes) + 1, dtype=np.int32)
    valid = None if missing is None else mask_bits(~missing)
    return from_buffers(pa.string(), len(codes), offsets, np.ascontiguousarray(codes), valid=valid)


def _mask(present: Mask) -> Mask | None:
    """Return the null mask for pyarrow, true where a value is missing; None if no value is missing."""
    return None if present.all() else ~present
