"""An index that the compiled kernel makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput import _protocols
from pgoutput.columns.index import (
    DESCRIBES,
    Found,
    Index,
    Mask,
    Numbers,
    Texts,
    Values,
    without_traceback,
)
from pgoutput.compiled import kernel
from pgoutput.errors import DecodeError
from pgoutput.messages import Cell, Message, Relation, Type
from pgoutput.stream import StreamDecoder
from pgoutput.versions import CODECS, OPTIONS
from pgoutput.wire import UNCHANGED

_kernel: Final[Any] = kernel

_STREAMING: Final = list(OPTIONS["streaming"])
_TEXTS: Final = {
    field.name
    for message in _protocols.ALL_VERSIONS.messages
    for field in message.members
    if field.kind == "string"
}


class KernelIndex(Index):
    """See `Index`.

    Args:
        data: The messages.
        decoder: Remembers what they say.
        in_stream: For each whether it stands in a stream block, if the decoder is not to follow that.
    """

    def __init__(
        self, data: pa.Array, decoder: StreamDecoder, in_stream: Sequence[bool] | Mask | None = None
    ) -> None:
        self.data = data
        self._streaming = decoder.streaming
        self._versions = decoder.versions_by_tag
        validity, offsets, content = data.buffers()
        number = np.dtype(np.int64 if pa.types.is_large_binary(data.type) else np.int32)
        places = np.frombuffer(offsets or bytes(8), number, len(data) + 1, data.offset * number.itemsize)
        self._index = _kernel.Index(
            places,
            _bytes(content),
            None if validity is None else _bytes(validity),
            data.offset,
            self._versions,
            decoder.in_stream if in_stream is None else np.asarray(in_stream, np.uint8),
            _STREAMING.index(decoder.streaming),
        )
        self.tags = _bytes(self._index.tags())
        self.kinds = _bytes(self._index.kinds())
        self.errors: dict[int, DecodeError] = {}
        began_in_stream = decoder.in_stream
        self._refuse(decoder)
        for message in self.messages(np.flatnonzero(DESCRIBES[self.tags]).tolist()):
            if isinstance(message, Relation):
                decoder.relations[message.oid] = message
            elif isinstance(message, Type):
                decoder.types[message.oid] = message
        decoder.in_stream = self._index.ends_in_stream() if in_stream is None else began_in_stream

    def _refuse(self, decoder: StreamDecoder) -> None:
        """Have the decoder say what is wrong with what the kernel refused."""
        for row, in_stream in _numbers(self._index.refusals()).reshape(-1, 2).tolist():
            decoder.in_stream = bool(in_stream)
            try:
                decoder.decode(self.data[row].as_py())
            except DecodeError as error:
                self.errors[row] = without_traceback(error)
            else:
                text = f"the kernel refuses row {row}, which the codec accepts: please report this"
                raise AssertionError(text)

    def messages(self, rows: Sequence[int]) -> list[Message]:
        """See `Index`."""
        if not rows:
            return []
        # Only inside of stream blocks has a message an xid that others of its kind do not have.
        xids = self.field("xid").there
        found: list[Message] = []
        for row in rows:
            data = self.data[row].as_py()
            codec = CODECS[self._versions[data[0]]]
            found.append(codec.decode(data, bool(xids[row] and data[0] in _IN_STREAM), self._streaming))
        return found

    def field(self, name: str) -> Values:
        """See `Index`."""
        slot = self._index.slot(name)
        if slot is None:
            return Values(np.zeros(len(self.data), np.int64), np.zeros(len(self.data), np.bool_))
        values, there = slot
        return Values(_numbers(values), np.frombuffer(there, np.bool_))

    def strings(self, name: str) -> Texts:
        """See `Index`."""
        is_text = name in _TEXTS
        type_ = pa.string() if is_text else pa.binary()
        return _texts(_kernel.read_slices(self._index, name, is_text), len(self.data), type_)

    def first(self, name: str) -> Numbers:
        """See `Index`."""
        slot = self._index.slot(name)
        return np.full(len(self.data), -1, np.int64) if slot is None else _numbers(slot[0])

    def width(self, name: str) -> Numbers:
        """See `Index`."""
        return self.field(f"{name}_size").values

    def find_tuples(self, name: str, keys: Numbers, relations: Numbers) -> Found:
        """See `Index`."""
        return Found(*map(_numbers, _kernel.find_tuples(self._index, name, keys, relations)))

    def cells(self, numbers: Numbers) -> list[Cell]:
        """See `Index`."""
        there = numbers >= 0
        kinds = np.full(len(numbers), _NULL, np.uint8)
        kinds[there] = self.kinds[numbers[there]]
        raw = self.raw(numbers).to_pylist()
        return [_CELLS[kind](value) for kind, value in zip(kinds.tolist(), raw, strict=True)]

    def raw(self, numbers: Numbers) -> pa.Array:
        """See `Index`."""
        return self._any(numbers, pa.binary(), "raw", "raw").array

    def texts(self, numbers: Numbers) -> Texts:
        """See `Index`."""
        return self._any(numbers, pa.string(), "text", None)

    def column(self, numbers: Numbers, type_: pa.DataType, send: str | None) -> Texts | None:
        """See `Index`."""
        if type_ in _ANY:
            return self._any(numbers, type_, _ANY[type_], send)
        if pa.types.is_decimal128(type_) and 0 <= type_.scale <= _MOST_DIGITS:
            form = _Fixed("decimal", 16, precision=type_.precision, scale=type_.scale)
        elif type_ in _FIXED:
            form = _FIXED[type_]
        else:
            return None
        valid, nulls, values, left = _kernel.read_fixed(self._index, numbers, form.kind, send, *form[1:])
        if pa.types.is_boolean(type_):
            values = np.packbits(_bytes(values), bitorder="little")
        buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(values)]
        return Texts(pa.Array.from_buffers(type_, len(numbers), buffers, nulls), _numbers(left))

    def _any(self, numbers: Numbers, type_: pa.DataType, kind: str, send: str | None) -> Texts:
        return _texts(_kernel.read_any(self._index, numbers, kind, send), len(numbers), type_)


class _Fixed(NamedTuple):
    """How values of fixed width are read: see `read_fixed` of the kernel."""

    kind: str
    width: int
    low: int = 0
    high: int = 0
    precision: int = 0
    scale: int = 0
    zone: bool = False


_FIXED: Final = {
    pa.bool_(): _Fixed("bool", 1),
    pa.int16(): _Fixed("integer", 2, -(2**15), 2**15 - 1),
    pa.int32(): _Fixed("integer", 4, -(2**31), 2**31 - 1),
    pa.int64(): _Fixed("integer", 8, -(2**63), 2**63 - 1),
    pa.float32(): _Fixed("float", 4),
    pa.float64(): _Fixed("float", 8),
    pa.date32(): _Fixed("date", 4),
    pa.timestamp("us"): _Fixed("timestamp", 8),
    pa.timestamp("us", tz="UTC"): _Fixed("timestamp", 8, zone=True),
}
_ANY: Final = {pa.string(): "text", pa.binary(): "hex"}
_MOST_DIGITS: Final = 18

_NULL: Final = ord("n")
_CELLS: Final[dict[int, Callable[[Any], Cell]]] = {
    _NULL: lambda _: None,
    ord("u"): lambda _: UNCHANGED,
    ord("t"): lambda raw: raw.decode("utf-8", "surrogateescape"),
    ord("b"): lambda raw: raw,
}
_IN_STREAM: Final = {
    ord(message.tag)
    for message in _protocols.ALL_VERSIONS.messages
    if any(field.when == "in_stream" for field in message.fields)
}


def _texts(read: tuple[Any, int, Any, Any, Any], rows: int, type_: pa.DataType) -> Texts:
    valid, nulls, offsets, values, left = read
    buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return Texts(pa.Array.from_buffers(type_, rows, buffers, nulls), _numbers(left))


def _bytes(buffer: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(buffer or b"", np.uint8)


def _numbers(buffer: Any) -> Numbers:
    return np.frombuffer(buffer, np.int64)
