"""Index of a batch of messages, built by the compiled kernel.

The index has the locations of the fields and cells of each message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logicalrep import _protocols
from logicalrep._arrays import (
    Mask,
    Numbers,
    byte_values,
    from_buffers,
    raw_buffers,
    value_bytes,
    value_offsets,
)
from logicalrep._index.base import (
    IS_SCHEMA_MESSAGE,
    FieldValues,
    MessageIndex,
    MessageTuples,
    PartialArray,
    without_traceback,
)
from logicalrep._protocols import CELLS
from logicalrep.compiled import kernel
from logicalrep.errors import DecodeError
from logicalrep.messages import Cell, Message, Relation, Type
from logicalrep.stream import StreamDecoder
from logicalrep.values import fixed_array, fixed_reader
from logicalrep.versions import CODECS, OPTIONS
from logicalrep.wire import UNCHANGED

_kernel: Final[Any] = kernel

_STREAMING: Final = list(OPTIONS["streaming"])
_FIELDS: Final = [field for message in _protocols.ALL_VERSIONS.messages for field in message.members]
_STRINGS: Final = {field.name for field in _FIELDS if field.kind == "string"}
_LISTS_OF_TUPLES: Final = {field.name for field in _FIELDS if field.element == "tuple"}


class KernelIndex(MessageIndex):
    """Index of a batch of messages, built by the compiled kernel.

    The index has the locations of the fields and cells of each message. The arguments are those of
    `index_messages`.
    """

    def __init__(
        self, data: pa.Array, decoder: StreamDecoder, in_stream: Sequence[bool] | Mask | None = None
    ) -> None:
        self.data = data
        self._streaming = decoder.streaming
        self._versions = decoder.versions_by_tag
        offset, (valid, *_) = raw_buffers(data)
        self._index = _kernel.Index(
            value_offsets(data),
            value_bytes(data),
            None if valid is None else byte_values(valid),
            offset,
            self._versions,
            decoder.in_stream if in_stream is None else np.asarray(in_stream, np.uint8),
            _STREAMING.index(decoder.streaming),
        )
        self.tags = byte_values(self._index.tags())
        self.kinds = byte_values(self._index.kinds())
        self.errors: dict[int, DecodeError] = {}
        began_in_stream = decoder.in_stream
        self._explain_refusals(decoder)
        for message in self.messages(np.flatnonzero(IS_SCHEMA_MESSAGE[self.tags]).tolist()):
            if isinstance(message, Relation):
                decoder.relations[message.oid] = message
            elif isinstance(message, Type):
                decoder.types[message.oid] = message
        decoder.in_stream = self._index.ends_in_stream() if in_stream is None else began_in_stream

    def _explain_refusals(self, decoder: StreamDecoder) -> None:
        """Decode each message that the kernel refused, and store the error of the codec in `errors`."""
        for row, in_stream in _numbers(self._index.refusals()).reshape(-1, 2).tolist():
            decoder.in_stream = bool(in_stream)
            try:
                decoder.decode(self.data[row].as_py())
            except DecodeError as error:
                self.errors[row] = without_traceback(error)
            else:
                text = f"row {row} is valid, but the kernel refused it: please report this bug of logicalrep"
                raise AssertionError(text)

    def messages(self, rows: Sequence[int]) -> list[Message]:
        """Return the messages in `rows` as objects; no row may be NULL or invalid."""
        if not rows:
            return []
        # Some messages have one more field inside stream blocks: its presence tells where the message was.
        present = {name: self.field(name).present for name in set(_FIELD_IN_STREAM.values())}
        decoded: list[Message] = []
        for row in rows:
            data = self.data[row].as_py()
            name = _FIELD_IN_STREAM.get(data[0])
            in_stream = name is not None and bool(present[name][row])
            decoded.append(CODECS[self._versions[data[0]]].decode(data, in_stream, self._streaming))
        return decoded

    def field(self, name: str) -> FieldValues:
        """Return a fixed-width field, such as `xid` or `relation_oid`, of all messages of the batch."""
        slot = self._index.slot(name)
        if slot is None:
            return FieldValues(np.zeros(len(self.data), np.int64), np.zeros(len(self.data), np.bool_))
        values, present = slot
        return FieldValues(_numbers(values), np.frombuffer(present, np.bool_))

    def strings(self, name: str) -> PartialArray:
        """Return a string or bytes field, such as `gid` or `content`, of all messages of the batch."""
        is_text = name in _STRINGS
        type_ = pa.string() if is_text else pa.binary()
        return _partial_array(_kernel.read_slices(self._index, name, is_text), len(self.data), type_)

    def tuples_in(self, name: str) -> MessageTuples | None:
        """Return where the tuples in the field `name` are; None if no message of the batch has the field."""
        slot = self._index.slot(name)
        if slot is None:
            return None
        counts = self.field(f"{name}_count").values if name in _LISTS_OF_TUPLES else None
        return MessageTuples(_numbers(slot[0]), self.field(f"{name}_size").values, counts)

    def first_tuples(self, first: Numbers, keys: Numbers, versions: Numbers) -> tuple[Numbers, ...]:
        """Return three arrays, with an item per message that has a tuple: row, first cell, schema version.

        The schema version is given by its number; -1 if the relation is unknown.

        `first` has the index of the first cell of each message's tuple; -1 if the message has no tuple.
        `keys` has an ascending sort key for each schema version, as `MessageIndex.first_tuples` describes it,
        and `versions` has the number of the schema version for each key.
        """
        found = _kernel.find_tuples(first, self.meaning("relation"), keys, versions)
        return tuple(map(_numbers, found))

    def cells(self, numbers: Numbers) -> list[Cell]:
        """Return the cells with these indexes in the batch as `Cell` objects; -1 gives None."""
        present = numbers >= 0
        kinds = np.full(len(numbers), _NULL, np.uint8)
        kinds[present] = self.kinds[numbers[present]]
        raw = self.raw(numbers).to_pylist()
        return [_CELL_READERS[kind](value) for kind, value in zip(kinds.tolist(), raw, strict=True)]

    def raw(self, numbers: Numbers) -> pa.Array:
        """Return the bytes of the cells with these indexes; NULL for a NULL or UNCHANGED cell and for -1."""
        return self.raw_columns(numbers, 1)[0]

    def raw_columns(self, first: Numbers, columns: int) -> list[pa.Array]:
        """Return the cells of several columns, each as `raw` does.

        `first` has, for each row, the index of its cell in the first column; -1 gives NULL in all columns.
        """
        return [read.array for read in self._variable_width(first, pa.binary(), "raw", ["raw"] * columns)]

    def texts(self, numbers: Numbers) -> PartialArray:
        """Return cells in text format as strings, and NULL for other cells, as `MessageIndex.texts` says."""
        return self.text_columns(numbers, 1)[0]

    def text_columns(self, first: Numbers, columns: int) -> list[PartialArray]:
        """Return the cells of several columns, each as `texts` does.

        `first` has, for each row, the index of its cell in the first column; -1 gives NULL in all columns.
        """
        return self._variable_width(first, pa.string(), "text", [None] * columns)

    def column(self, numbers: Numbers, type_: pa.DataType, send: str | None) -> PartialArray | None:
        """Return cells as values of an Arrow type; None if the kernel would not be faster than `to_arrow`.

        `send` is the name of the send function of the cells' PostgreSQL type, as in `MessageIndex.column`.
        """
        if type_ in _VARIABLE:
            return self._variable_width(numbers, type_, _VARIABLE[type_], [send])[0]
        reader = fixed_reader(type_)
        if reader is None:
            return None
        read = _kernel.read_fixed(self._index, numbers, send, *reader)
        return PartialArray(*fixed_array(type_, len(numbers), read))

    def _variable_width(
        self, first: Numbers, type_: pa.DataType, kind: str, sends: Sequence[str | None]
    ) -> list[PartialArray]:
        columns = _kernel.read_any(self._index, first, kind, sends)
        return [_partial_array(read, len(first), type_) for read in columns]


_VARIABLE: Final = {pa.string(): "text", pa.binary(): "hex"}

_NULL: Final = CELLS["null"].code
_CELL_READERS: Final[dict[int, Callable[[Any], Cell]]] = {
    _NULL: lambda _: None,
    CELLS["unchanged"].code: lambda _: UNCHANGED,
    CELLS["text"].code: lambda raw: raw.decode("utf-8", "surrogateescape"),
    CELLS["binary"].code: lambda raw: raw,
}
_FIELD_IN_STREAM: Final = {
    ord(message.tag): field.name
    for message in _protocols.ALL_VERSIONS.messages
    for field in message.members
    if field.when == "in_stream" and field.kind in ("integer", "bool", "enum", "flags")
}
"""Maps the first byte of a message to the name of the field that it has only inside stream blocks."""


def _partial_array(read: tuple[Any, int, Any, Any, Any], rows: int, type_: pa.DataType) -> PartialArray:
    """Build an array of strings or binary values from the buffers that the kernel returns."""
    valid, nulls, offsets, values, unread = read
    valid = valid if nulls else None
    return PartialArray(
        from_buffers(type_, rows, offsets, values, valid=valid, null_count=nulls), _numbers(unread)
    )


def _numbers(buffer: Any) -> Numbers:
    return np.frombuffer(buffer, np.int64)
