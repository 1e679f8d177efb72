"""Reference implementation of the index of a batch of messages, used without the compiled kernel.

The index has the locations of the fields and cells of each message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logicalrep import _protocols
from logicalrep._arrays import Mask, Numbers
from logicalrep._index.base import FieldValues, MessageIndex, MessageTuples, PartialArray, without_traceback
from logicalrep._protocols import CELLS
from logicalrep.errors import DecodeError
from logicalrep.messages import Cell, Message
from logicalrep.stream import StreamDecoder
from logicalrep.wire import Unchanged, is_utf8, stored_text

_NULL: Final = CELLS["null"].code
_KINDS: Final = {
    str: CELLS["text"].code,
    type(None): _NULL,
    Unchanged: CELLS["unchanged"].code,
    bytes: CELLS["binary"].code,
}
_TUPLES: Final = {
    _protocols.CLASSES[message.name]: [
        (field.name, field.kind == "list") for field in message.members if field.holds_tuples
    ]
    for message in _protocols.ALL_VERSIONS.messages
}
"""For each message class, (name, whether it is a list of tuples) of each field that holds tuples."""


class PureIndex(MessageIndex):
    """Index of a batch of messages, built by decoding each message to an object.

    The index has the locations of the fields and cells of each message. The arguments are those of
    `index_messages`.
    """

    def __init__(
        self, data: pa.Array, decoder: StreamDecoder, in_stream: Sequence[bool] | Mask | None = None
    ) -> None:
        self.data = data
        self.errors: dict[int, DecodeError] = {}
        self._messages: list[Message | None] = []
        self._rows: dict[type[Message], list[int]] = {}
        self._cells: list[Cell] = []
        self._tuples: dict[str, MessageTuples] = {}
        began_in_stream = decoder.in_stream
        for row, raw in enumerate(data.to_pylist()):
            message = None
            if raw is not None:
                if in_stream is not None:
                    decoder.in_stream = bool(in_stream[row])
                try:
                    message = decoder.decode(raw)
                except DecodeError as error:
                    self.errors[row] = without_traceback(error)
            self._messages.append(message)
            if message is not None:
                self._add(row, message)
        if in_stream is not None:
            decoder.in_stream = began_in_stream
        tags = [0 if message is None else message.wire_tag[0] for message in self._messages]
        self.tags = np.array(tags, np.uint8)
        self.kinds = np.array([_KINDS[type(cell)] for cell in self._cells], np.uint8)

    def _add(self, row: int, message: Message) -> None:
        self._rows.setdefault(type(message), []).append(row)
        for name, is_list in _TUPLES[type(message)]:
            value = getattr(message, name)
            if value is None:
                continue
            if name not in self._tuples:
                missing, nothing = np.full(len(self.data), -1, np.int64), np.zeros(len(self.data), np.int64)
                self._tuples[name] = MessageTuples(missing, nothing, nothing.copy() if is_list else None)
            first, widths, counts = self._tuples[name]
            first[row] = len(self._cells)
            if counts is None:
                widths[row] = len(value)
                self._cells.extend(value)
            else:
                sizes = {len(cells) for cells in value} or {0}
                widths[row] = sizes.pop() if len(sizes) == 1 else -1
                counts[row] = len(value)
                self._cells.extend(chain.from_iterable(value))

    def messages(self, rows: Sequence[int]) -> list[Message]:
        """Return the messages in `rows` as objects; no row may be NULL or invalid."""
        selected = (self._messages[row] for row in rows)
        return [message for message in selected if message is not None]

    def field(self, name: str) -> FieldValues:
        """Return a fixed-width field, such as `xid` or `relation_oid`, of all messages of the batch."""
        values, present = np.zeros(len(self.data), np.int64), np.zeros(len(self.data), np.bool_)
        for row, value in self._values(name):
            number = ord(value) if isinstance(value, str) else int(value)
            values[row] = number - (1 << 64) if number >> 63 == 1 else number
            present[row] = True
        return FieldValues(values, present)

    def strings(self, name: str) -> PartialArray:
        """Return a string or bytes field, such as `gid` or `content`, of all messages of the batch."""
        values: list[Any] = [None] * len(self.data)
        type_ = pa.string()
        unread = []
        for row, value in self._values(name):
            if isinstance(value, bytes):
                type_ = pa.binary()
            elif not is_utf8(value):
                unread.append(row)
                continue
            values[row] = value
        return PartialArray(pa.array(values, type_), np.array(sorted(unread), np.int64))

    def _values(self, name: str) -> list[tuple[int, Any]]:
        """Return pairs of row and value of a field, for all messages that have this field."""
        values: list[tuple[int, Any]] = []
        for kind, rows in self._rows.items():
            if name in kind.__struct_fields__:
                values += [(row, getattr(self._messages[row], name)) for row in rows]
        return [(row, value) for row, value in values if value is not None]

    def tuples_in(self, name: str) -> MessageTuples | None:
        """Return where the tuples in the field `name` are; None if no message of the batch has the field."""
        return self._tuples.get(name)

    def cells(self, numbers: Numbers) -> list[Cell]:
        """Return the cells with these indexes in the batch as `Cell` objects; -1 gives None."""
        return [None if number < 0 else self._cells[number] for number in numbers.tolist()]

    def raw(self, numbers: Numbers) -> pa.Array:
        """Return the bytes of the cells with these indexes; NULL for a NULL or UNCHANGED cell and for -1."""
        return pa.array([_bytes(cell) for cell in self.cells(numbers)], pa.binary())

    def texts(self, numbers: Numbers) -> PartialArray:
        """Return cells in text format as strings, and NULL for other cells, as `MessageIndex.texts` says."""
        texts = [cell if isinstance(cell, str) else None for cell in self.cells(numbers)]
        valid = [None if text is None or stored_text(text) != text else text for text in texts]
        array = pa.array(valid, pa.string())
        kinds = np.append(self.kinds, _NULL)[numbers]  # -1 selects the appended NULL
        return PartialArray(array, np.flatnonzero(np.asarray(array.is_null()) & (kinds != _NULL)))

    def column(self, numbers: Numbers, type_: pa.DataType, send: str | None) -> PartialArray | None:
        """Return None, so that the caller reads the cells with `logicalrep.values.to_arrow`."""
        return None


def _bytes(cell: Cell) -> bytes | None:
    if isinstance(cell, str):
        return cell.encode("utf-8", "surrogateescape")
    return cell if isinstance(cell, bytes) else None
