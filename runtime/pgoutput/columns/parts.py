"""What the messages of a batch are made of, part by part, and how these are joined.

The compiled kernel joins them in one pass over the messages, without the GIL, and copies each byte once;
numpy and Arrow do it part by part, which is the reference, and what there is without the kernel.
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

from pgoutput import _protocols, compiled
from pgoutput._layout import sides
from pgoutput.errors import EncodeError

Numbers: TypeAlias = npt.NDArray[Any]

FORMS: Final = {
    cell.form: cell for field in sides(_protocols.V1.by_name["Insert"].fields) for cell in field.cells
}
"""How cells look."""

_NULL, _UNCHANGED = (ord(FORMS[form].tag) for form in ("null", "unchanged"))
_HEAD: Final = np.dtype([("tag", "u1"), ("length", f">u{FORMS['text'].length_size}")])

_MOST_BYTES: Final = (1 << 31) - 1
"""What an array of `pa.binary()` can hold."""


class Integers(msgspec.Struct, frozen=True):
    """An integer of each message."""

    values: npt.NDArray[np.int64]
    """They fit; those of 2**63 and more are negative."""
    size: int
    """Bytes of each."""


class Strings(msgspec.Struct, frozen=True):
    """Some bytes of each message."""

    array: pa.BinaryArray
    """Without NULL."""


class Values(msgspec.Struct, frozen=True):
    """A cell of each message."""

    array: pa.Array
    """Strings or binary."""
    tag: int
    """Of cells that have a value."""
    unchanged: pa.BooleanArray | None = None
    """Where the value is not sent, without NULL; None: nowhere."""

    @property
    def sent(self) -> npt.NDArray[np.bool_]:
        """Where a value is."""
        there = self.array.is_valid()
        return np.asarray(there if self.unchanged is None else pc.and_not(there, self.unchanged))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Their bytes; 0 where none is."""
        return np.where(self.sent, np.diff(offsets(self.array)), np.int64(0))


Part: TypeAlias = bytes | Integers | Strings | Values
"""Bytes are the same in all messages."""


def join(parts: Iterable[Part], rows: int) -> pa.BinaryArray:
    """The parts of each message, one behind the other.

    Raises:
        EncodeError: All of it has more than an array can hold.
    """
    joined = _join if compiled.kernel is None else _join_compiled
    size, array = joined(list(_together(parts)), rows)
    if array is None:
        raise EncodeError(f"{rows} messages have {size} bytes, more than 2 GB: give fewer")
    return array


def offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    """Where the values of strings or binary begin, and where the last one ends."""
    return np.frombuffer(array.buffers()[1] or bytes(4), np.int32, len(array) + 1, array.offset * 4)


def _together(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts; what is the same in all messages is one where it stands side by side."""
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


def _join_compiled(parts: Sequence[Part], rows: int) -> tuple[int, pa.BinaryArray | None]:
    assert compiled.kernel is not None
    size, *made = compiled.kernel.join_parts(list(map(_raw, parts)), rows, _MOST_BYTES)
    if size > _MOST_BYTES:
        return size, None
    return size, pa.Array.from_buffers(pa.binary(), rows, [None, *map(pa.py_buffer, made)])


def _raw(part: Part) -> Any:
    """As the kernel takes it."""
    if isinstance(part, bytes):
        return part
    if isinstance(part, Integers):
        return part.values, part.size
    content = part.array.offset, part.array.buffers()
    if isinstance(part, Strings):
        return content
    mask = part.unchanged
    unchanged = None if mask is None else (mask.buffers()[1], mask.offset)
    return *content, part.tag, part.array.null_count > 0, unchanged


def _join(parts: Sequence[Part], rows: int) -> tuple[int, pa.BinaryArray | None]:
    pieces: list[Any] = []
    for is_fixed, some in groupby(parts, lambda part: isinstance(part, bytes | Integers)):
        if is_fixed:
            pieces.append(_fixed(list(some), rows))  # type: ignore[arg-type]
        else:
            pieces += (piece for part in some for piece in _pieces(part))  # type: ignore[arg-type]
    size = sum(_size(piece, rows) for piece in pieces)
    if size > _MOST_BYTES:
        return size, None
    if all(isinstance(piece, pa.Scalar) for piece in pieces):  # then nothing has the length
        pieces.append(_row_bytes(np.empty((rows, 0), np.uint8)))
    if len(pieces) == 1:
        return size, pieces[0]
    nothing = pa.scalar(b"", pa.binary())
    return size, pc.binary_join_element_wise(*pieces, nothing, null_handling="replace", null_replacement="")


def _fixed(parts: Sequence[bytes | Integers], rows: int) -> pa.BinaryArray | pa.BinaryScalar:
    """Parts of the same width in all messages."""
    if all(isinstance(part, bytes) for part in parts):
        return pa.scalar(b"".join(parts), pa.binary())  # type: ignore[arg-type]
    widths = [len(part) if isinstance(part, bytes) else part.size for part in parts]
    made = np.empty((rows, sum(widths)), np.uint8)
    at = 0
    for part, width in zip(parts, widths, strict=True):
        if isinstance(part, bytes):
            made[:, at : at + width] = np.frombuffer(part, np.uint8)
        else:
            whole = part.values.astype(">i8").view(np.uint8).reshape(rows, 8)
            made[:, at : at + width] = whole[:, 8 - width :]
        at += width
    return _row_bytes(made)


def _pieces(part: Strings | Values) -> Iterator[pa.BinaryArray]:
    """The heads of cells, then their values."""
    if isinstance(part, Strings):
        yield part.array
        return
    values = part.array.view(pa.binary())
    heads = np.empty(len(values), _HEAD)
    rows = heads.view(np.uint8).reshape(len(values), _HEAD.itemsize)
    heads["tag"], heads["length"] = part.tag, np.diff(offsets(values))
    if part.unchanged is None and not values.null_count:
        yield _row_bytes(rows)
    else:
        sent = part.sent
        heads["tag"][~sent] = _NULL
        if part.unchanged is not None:
            heads["tag"][np.asarray(part.unchanged)] = _UNCHANGED
            values = pc.if_else(part.unchanged, pa.scalar(None, pa.binary()), values)
        yield _row_bytes(rows, np.where(sent, _HEAD.itemsize, 1))
    yield values


def _size(piece: pa.BinaryArray | pa.BinaryScalar, rows: int) -> int:
    """The bytes of a piece in all messages."""
    if isinstance(piece, pa.Scalar):
        return rows * len(piece.as_py())
    return int(pc.sum(pc.binary_length(piece).cast(pa.int64())).as_py() or 0)


def _row_bytes(rows: npt.NDArray[np.uint8], widths: Numbers | None = None) -> pa.BinaryArray:
    """The bytes of each row; or the first of them, `widths`."""
    count, width = rows.shape
    if widths is None:
        ends = np.arange(count + 1) * width
    else:
        ends = np.concatenate(([0], np.cumsum(widths)))
        rows = rows[np.arange(width) < widths[:, np.newaxis]]
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(rows)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
