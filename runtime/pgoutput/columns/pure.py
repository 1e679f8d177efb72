"""An index that is made of message objects: the reference, and what there is without the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pgoutput.columns.index import Index, Mask, Numbers, Texts, Values, without_traceback
from pgoutput.errors import DecodeError
from pgoutput.messages import Cell, Message
from pgoutput.stream import StreamDecoder
from pgoutput.wire import Unchanged, is_utf8

_KINDS: Final = {str: ord("t"), type(None): ord("n"), Unchanged: ord("u"), bytes: ord("b")}
_NULL: Final = _KINDS[type(None)]
_TUPLES: Final = ("key", "old", "new")
"""The tuples of a message, in the order of the wire."""


class PureIndex(Index):
    """See `Index`.

    Args:
        data: The messages.
        decoder: Decodes them, and remembers what they say.
        in_stream: For each whether it stands in a stream block, if the decoder is not to follow that.
    """

    def __init__(
        self, data: pa.Array, decoder: StreamDecoder, in_stream: Sequence[bool] | Mask | None = None
    ) -> None:
        self.data = data
        self.errors: dict[int, DecodeError] = {}
        self._messages: list[Message | None] = []
        self._rows: dict[type[Message], list[int]] = {}
        self._cells: list[Cell] = []
        self._first = {name: np.full(len(data), -1, np.int64) for name in _TUPLES}
        self._width = {name: np.zeros(len(data), np.int64) for name in _TUPLES}
        began_in_stream = decoder.in_stream
        for row, one in enumerate(data.to_pylist()):
            message = None
            if one is not None:
                if in_stream is not None:
                    decoder.in_stream = bool(in_stream[row])
                try:
                    message = decoder.decode(one)
                except DecodeError as error:
                    self.errors[row] = without_traceback(error)
            self._messages.append(message)
            if message is not None:
                self._add(row, message)
        if in_stream is not None:
            decoder.in_stream = began_in_stream
        found = [0 if one is None else one.wire_tag[0] for one in self._messages]
        self.tags = np.array(found, np.uint8)
        self.kinds = np.array([_KINDS[type(cell)] for cell in self._cells], np.uint8)

    def _add(self, row: int, message: Message) -> None:
        self._rows.setdefault(type(message), []).append(row)
        for name in _TUPLES:
            cells = getattr(message, name, None)
            if cells is not None:
                self._first[name][row] = len(self._cells)
                self._width[name][row] = len(cells)
                self._cells.extend(cells)

    def messages(self, rows: Sequence[int]) -> list[Message]:
        """See `Index`."""
        found = (self._messages[row] for row in rows)
        return [message for message in found if message is not None]

    def field(self, name: str) -> Values:
        """See `Index`."""
        values, there = np.zeros(len(self.data), np.int64), np.zeros(len(self.data), np.bool_)
        for row, value in self._values(name):
            number = ord(value) if isinstance(value, str) else int(value)
            values[row] = number - (1 << 64) if number >> 63 == 1 else number
            there[row] = True
        return Values(values, there)

    def strings(self, name: str) -> Texts:
        """See `Index`."""
        values: list[Any] = [None] * len(self.data)
        type_ = pa.string()
        left = []
        for row, value in self._values(name):
            if isinstance(value, bytes):
                type_ = pa.binary()
            elif not is_utf8(value):
                left.append(row)
                continue
            values[row] = value
        return Texts(pa.array(values, type_), np.array(sorted(left), np.int64))

    def _values(self, name: str) -> list[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []
        for one, rows in self._rows.items():
            if name in one.__struct_fields__:
                found += [(row, getattr(self._messages[row], name)) for row in rows]
        return [(row, value) for row, value in found if value is not None]

    def first(self, name: str) -> Numbers:
        """See `Index`."""
        return self._first[name]

    def width(self, name: str) -> Numbers:
        """See `Index`."""
        return self._width[name]

    def cells(self, numbers: Numbers) -> list[Cell]:
        """See `Index`."""
        return [None if number < 0 else self._cells[number] for number in numbers.tolist()]

    def raw(self, numbers: Numbers) -> pa.Array:
        """See `Index`."""
        return pa.array([_bytes(cell) for cell in self.cells(numbers)], pa.binary())

    def texts(self, numbers: Numbers) -> Texts:
        """See `Index`."""
        texts = [cell if isinstance(cell, str) else None for cell in self.cells(numbers)]
        try:
            array = pa.array(texts, pa.string())
        except UnicodeEncodeError:
            valid = [None if text is None or not is_utf8(text) else text for text in texts]
            array = pa.array(valid, pa.string())
        kinds = np.append(self.kinds, _NULL)[numbers]  # -1 is the last
        return Texts(array, np.flatnonzero(np.asarray(array.is_null()) & (kinds != _NULL)))

    def column(self, numbers: Numbers, type_: pa.DataType, send: str | None) -> Texts | None:
        """See `Index`."""
        return None


def _bytes(cell: Cell) -> bytes | None:
    if isinstance(cell, str):
        return cell.encode("utf-8", "surrogateescape")
    return cell if isinstance(cell, bytes) else None
