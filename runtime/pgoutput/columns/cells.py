"""The cells of a column as they stand on the wire (logicalrep_write_tuple)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput.errors import EncodeError

_Numbers: TypeAlias = npt.NDArray[Any]

_NULL, _UNCHANGED = b"nu"
_TAGS: Final = {pa.string(): ord("t"), pa.binary(): ord("b")}
_LARGE: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
_HEAD: Final = np.dtype([("tag", "u1"), ("length", ">u4")])

_MOST_BYTES: Final = (1 << 31) - 1
"""What an array of `pa.binary()` can hold."""

_LONGEST: Final = (1 << 30) - 1
"""The bytes of the longest value that a server can make (MaxAllocSize)."""


class Cells(msgspec.Struct, frozen=True):
    """Cells of several columns side by side, as they stand on the wire: see `encode_cells`."""

    array: pa.BinaryArray
    columns: int

    def __len__(self) -> int:
        return len(self.array)

    def take(self, places: pa.Array) -> Cells:
        """Those of some rows, as `pa.Array.take`."""
        return Cells(self.array.take(places), self.columns)

    def slice(self, start: int, stop: int) -> Cells:
        """Those of rows that follow each other."""
        return Cells(self.array[start:stop], self.columns)


class Bytes(msgspec.Struct, frozen=True):
    """Some bytes of each message."""

    array: pa.Array
    size: int
    """Of all of them together."""

    @classmethod
    def fixed(cls, rows: _Numbers) -> Bytes:
        """Those of an array that has a row of bytes for each message."""
        size = rows.nbytes
        width = size // len(rows) if len(rows) else 0
        offsets = np.arange(len(rows) + 1, dtype=np.int64) * width
        return cls._of(offsets, rows)

    @classmethod
    def _of(cls, offsets: _Numbers, content: _Numbers) -> Bytes:
        if offsets[-1] >> 31:
            raise EncodeError("the batch has more than 2 GB: give fewer rows")
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
        return cls(pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers), int(offsets[-1]))

    @classmethod
    def some(cls, rows: _Numbers, widths: _Numbers) -> Bytes:
        """The first bytes of each row, `widths` of them."""
        taken = rows[np.arange(rows.shape[1]) < widths[:, np.newaxis]]
        return cls._of(np.concatenate(([0], np.cumsum(widths, dtype=np.int64))), taken)


def encode_cells(columns: Sequence[pa.Array]) -> Cells:
    """The cells of each row, so that they can stand in many messages and are encoded once.

    Args:
        columns: As for `encode_inserts`.

    Raises:
        EncodeError: As there.
        TypeError: Likewise.
    """
    parts = [part for i, column in enumerate(columns) for part in cells(column, None, f"columns[{i}]")]
    return Cells(join(parts, len(columns[0])), len(columns))


def join(parts: Sequence[bytes | Bytes], rows: int) -> pa.BinaryArray:
    """The parts of each message, one behind the other.

    Raises:
        EncodeError: All of it has more than an array can hold.
    """
    size = sum(rows * len(part) if isinstance(part, bytes) else part.size for part in parts)
    if size > _MOST_BYTES:
        raise EncodeError(f"{rows} messages have {size} bytes, more than 2 GB: give fewer")
    if all(isinstance(part, bytes) for part in parts):  # then nothing has the length
        parts = [*parts, Bytes.fixed(np.empty((rows, 0), np.uint8))]
    joined = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part.array for part in parts]
    options = {"null_handling": "replace", "null_replacement": ""}
    return pc.binary_join_element_wise(*joined, pa.scalar(b"", pa.binary()), **options)


def cells(column: pa.Array | Cells, unchanged: pa.BooleanArray | None, path: str) -> Iterator[bytes | Bytes]:
    """The cells: their heads, then their values; or what all of them are.

    Args:
        column: The values.
        unchanged: Where they are not sent; NULL is not there.
        path: How errors call the column.

    Raises:
        EncodeError: A value is longer than any can be.
        TypeError: The column is neither text nor binary.
        ValueError: Cells that are encoded already are to be left out.
    """
    if isinstance(column, Cells):
        if unchanged is not None:
            raise ValueError(f"{path}: these cells are encoded already: none of them can be made UNCHANGED")
        yield Bytes(column.array, _length(_offsets(column.array)))
        return
    if column.type in _LARGE:
        column = column.cast(_LARGE[column.type])
    if column.type not in _TAGS:
        raise TypeError(f"{path}: a column of {column.type} is not cells: string (text) or binary is wanted")
    tag = _TAGS[column.type]
    if unchanged is None and column.null_count == len(column):
        yield bytes([_NULL])
        return
    if unchanged is not None:
        unchanged = unchanged.fill_null(False)
        column = pc.if_else(unchanged, pa.scalar(None, column.type), column)
    offsets = _offsets(column)
    lengths = offsets[1:] - offsets[:-1]
    if len(lengths) and (longest := int(lengths.max())) > _LONGEST:
        where = f"{path}: row {int(lengths.argmax())}"
        raise EncodeError(f"{where}: a value of {longest} bytes; 1 GB is the most that is sent", field=path)
    heads = np.empty(len(column), _HEAD)
    heads["tag"] = tag
    heads["length"] = lengths
    rows = heads.view(np.uint8).reshape(-1, _HEAD.itemsize)
    if not column.null_count:
        yield Bytes.fixed(rows)
    else:
        null = np.asarray(column.is_null())
        heads["tag"][null] = _NULL
        if unchanged is not None:
            heads["tag"][np.asarray(unchanged)] = _UNCHANGED
        yield Bytes.some(rows, np.where(null, 1, _HEAD.itemsize))
    yield Bytes(column.view(pa.binary()), _length(offsets))


def _offsets(column: pa.Array) -> _Numbers:
    return np.frombuffer(column.buffers()[1] or bytes(4), np.int32, len(column) + 1, column.offset * 4)


def _length(offsets: _Numbers) -> int:
    return int(offsets[-1]) - int(offsets[0])
