"""Assemble the messages of a batch from parts: columns with an integer, bytes or a cell for each message.

The compiled kernel joins the parts in one pass over the messages, without the GIL, and copies each byte
once. The reference implementation, used without the kernel, joins part by part with NumPy and Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep import compiled
from logicalrep._arrays import from_buffers, raw_buffers, value_offsets
from logicalrep._protocols import CELLS
from logicalrep.errors import EncodeError

IntegerArray: TypeAlias = npt.NDArray[Any]
"""NumPy array of integers of any width."""

_NULL, _UNCHANGED = (CELLS[form].code for form in ("null", "unchanged"))
_CELL_HEAD: Final = np.dtype([("tag", "u1"), ("length", f">u{CELLS['text'].length_size}")])

_MAX_BYTES: Final = (1 << 31) - 1
"""Size limit of an array of `pa.binary()`, in bytes."""


class Integers(msgspec.Struct, frozen=True):
    """A column with one integer for each message of a batch: the content of one field of every message."""

    values: npt.NDArray[np.int64]
    """One integer per message, which fits into `size` bytes; unsigned integers of 2**63 and more are negative
    here."""
    size: int
    """Size of each integer, in bytes."""


class Bytes(msgspec.Struct, frozen=True):
    """A column with one bytes value for each message of a batch: one part, such as a field, of every one."""

    array: pa.BinaryArray
    """One binary value per message, without NULL."""


class CellValues(msgspec.Struct, frozen=True):
    """A column with one cell for each message of a batch: the cell at the same place of every message."""

    array: pa.Array
    """One string or binary value per message; NULL for a NULL cell."""
    tag: int
    """Tag byte of the cells that have a value: `t` (text) or `b` (binary)."""
    unchanged: pa.BooleanArray | None = None
    """For each cell, whether it is UNCHANGED (an array without NULL); None if no cell is UNCHANGED."""

    @property
    def sent(self) -> npt.NDArray[np.bool_]:
        """For each cell, whether it has a value, that is, is neither NULL nor UNCHANGED."""
        valid = self.array.is_valid()
        return np.asarray(valid if self.unchanged is None else pc.and_not(valid, self.unchanged))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Length of each value in bytes; 0 for NULL and UNCHANGED."""
        return np.where(self.sent, np.diff(value_offsets(self.array)), np.int64(0))


MessagePart: TypeAlias = bytes | Integers | Bytes | CellValues
"""A part, such as a field, of the messages of a batch: a column with one value for each message, or a bytes
object that is equal in all messages."""


def join_parts(parts: Iterable[MessagePart], rows: int) -> pa.BinaryArray:
    """Return the messages of a batch by concatenating the parts of each message.

    Args:
        parts: The parts, in the order of the wire.
        rows: Number of messages.

    Raises:
        EncodeError: The messages have more than 2 GB together.
    """
    join = _join if compiled.kernel is None else _join_compiled
    size, array = join(list(_merge_constants(parts)), rows)
    if array is None:
        raise EncodeError(f"{rows} messages have {size} bytes, more than 2 GB: pass fewer at a time")
    return array


def _merge_constants(parts: Iterable[MessagePart]) -> Iterator[MessagePart]:
    """Yield the parts, with neighbouring bytes objects (equal in all messages) joined to one."""
    same = b""
    for part in parts:
        if isinstance(part, bytes):
            same += part
            continue
        if same:
            yield same
            same = b""
        yield part
    if same:
        yield same


def _join_compiled(parts: Sequence[MessagePart], rows: int) -> tuple[int, pa.BinaryArray | None]:
    assert compiled.kernel is not None
    size, *made = compiled.kernel.join_parts(list(map(_kernel_part, parts)), rows, _MAX_BYTES)
    if size > _MAX_BYTES:
        return size, None
    return size, from_buffers(pa.binary(), rows, *made)


def _kernel_part(part: MessagePart) -> Any:
    """Convert a part to the tuple or bytes object that the kernel's function `join_parts` takes."""
    if isinstance(part, bytes):
        return part
    if isinstance(part, Integers):
        return part.values, part.size
    content = raw_buffers(part.array)
    if isinstance(part, Bytes):
        return content
    unchanged = None
    if part.unchanged is not None:
        offset, (_, bits) = raw_buffers(part.unchanged)
        unchanged = bits, offset
    return *content, part.tag, part.array.null_count > 0, unchanged


def _join(parts: Sequence[MessagePart], rows: int) -> tuple[int, pa.BinaryArray | None]:
    pieces: list[Any] = []
    for is_fixed, group in groupby(parts, lambda part: isinstance(part, bytes | Integers)):
        if is_fixed:
            pieces.append(_fixed_width(list(group), rows))  # type: ignore[arg-type]
        else:
            pieces += (piece for part in group for piece in _pieces(part))  # type: ignore[arg-type]
    size = sum(_size(piece, rows) for piece in pieces)
    if size > _MAX_BYTES:
        return size, None
    if all(isinstance(piece, pa.Scalar) for piece in pieces):  # scalars alone would give one scalar
        pieces.append(_row_bytes(np.empty((rows, 0), np.uint8)))
    if len(pieces) == 1:
        return size, pieces[0]
    nothing = pa.scalar(b"", pa.binary())
    return size, pc.binary_join_element_wise(*pieces, nothing, null_handling="replace", null_replacement="")


def _fixed_width(parts: Sequence[bytes | Integers], rows: int) -> pa.BinaryArray | pa.BinaryScalar:
    """Join the parts of each message, all of fixed width; return a scalar if all messages are equal."""
    if all(isinstance(part, bytes) for part in parts):
        return pa.scalar(b"".join(parts), pa.binary())  # type: ignore[arg-type]
    widths = [len(part) if isinstance(part, bytes) else part.size for part in parts]
    joined = np.empty((rows, sum(widths)), np.uint8)
    at = 0
    for part, width in zip(parts, widths, strict=True):
        if isinstance(part, bytes):
            joined[:, at : at + width] = np.frombuffer(part, np.uint8)
        else:
            whole = part.values.astype(">i8").view(np.uint8).reshape(rows, 8)
            joined[:, at : at + width] = whole[:, 8 - width :]
        at += width
    return _row_bytes(joined)


def _pieces(part: Bytes | CellValues) -> Iterator[pa.BinaryArray]:
    """Yield the arrays that `_join` concatenates row by row for a part.

    A column of bytes gives one array. Cells give two arrays: tags with lengths, then values.
    """
    if isinstance(part, Bytes):
        yield part.array
        return
    values = part.array.view(pa.binary())
    heads = np.empty(len(values), _CELL_HEAD)
    rows = heads.view(np.uint8).reshape(len(values), _CELL_HEAD.itemsize)
    heads["tag"], heads["length"] = part.tag, np.diff(value_offsets(values))
    if part.unchanged is None and not values.null_count:
        yield _row_bytes(rows)
    else:
        sent = part.sent
        heads["tag"][~sent] = _NULL
        if part.unchanged is not None:
            heads["tag"][np.asarray(part.unchanged)] = _UNCHANGED
            values = pc.if_else(part.unchanged, pa.scalar(None, pa.binary()), values)
        yield _row_bytes(rows, np.where(sent, _CELL_HEAD.itemsize, 1))
    yield values


def _size(piece: pa.BinaryArray | pa.BinaryScalar, rows: int) -> int:
    """Return the total size in bytes of an array's values, or of a scalar repeated `rows` times."""
    if isinstance(piece, pa.Scalar):
        return rows * len(piece.as_py())
    return int(pc.sum(pc.binary_length(piece).cast(pa.int64())).as_py() or 0)


def _row_bytes(rows: npt.NDArray[np.uint8], widths: npt.NDArray[np.int64] | None = None) -> pa.BinaryArray:
    """Return each row of a byte matrix as a binary value, cut to the row's width in `widths` if given."""
    count, width = rows.shape
    if widths is None:
        ends = np.arange(count + 1) * width
    else:
        ends = np.concatenate(([0], np.cumsum(widths)))
        rows = rows[np.arange(width) < widths[:, np.newaxis]]
    return from_buffers(pa.binary(), count, ends.astype(np.int32), rows)
