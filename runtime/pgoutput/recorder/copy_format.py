"""Convert COPY's text and binary format to columns of cells (src/backend/commands/copyto.c)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput._arrays import Mask, Numbers, binary_array, boolean_array, from_buffers, mask_bits
from pgoutput.columns import Cells, Columns

_BATCH_BYTES: Final = 1 << 20
_BATCH_ROWS: Final = 16_384


def row_batches(data: Iterable[bytes], *, is_binary: bool) -> Iterator[list[bytes]]:
    """Yield the rows of a COPY in lists of limited size, without the header and trailer of binary format.

    Args:
        data: Output of COPY, one row per element.
        is_binary: Whether the output is in binary format, with a header and a trailer.
    """
    rows: list[bytes] = []
    size = 0
    for row in _without_header_and_trailer(data) if is_binary else data:
        rows.append(row)
        size += len(row)
        if size >= _BATCH_BYTES or len(rows) >= _BATCH_ROWS:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def cell_columns(rows: Sequence[bytes], binary_columns: Sequence[bool] | None, width: int) -> Columns:
    """Return the cells of COPY rows by column, as `pgoutput.columns.encode_inserts` takes them.

    Args:
        rows: Rows as COPY writes them.
        binary_columns: None for rows in text format. For rows in binary format, one value per column: True
            for cells in binary format, False for cells copied as text.
        width: Number of columns.
    """
    if not width:
        return [Cells(binary_array([b""] * len(rows)), 0)]
    cells = _text_cells(rows) if binary_columns is None else _binary_cells(rows, width)
    is_binary = binary_columns or [False] * width
    return [
        cells.take(_indices(np.arange(column, len(cells), width))).view(pa.binary() if stays else pa.string())
        for column, stays in enumerate(is_binary)
    ]


def _text_cells(rows: Sequence[bytes]) -> pa.BinaryArray:
    """Return the cells of rows in COPY's text format, row by row (CopyAttributeOutText)."""
    data = np.frombuffer(b"".join(rows), np.uint8)
    ends = np.flatnonzero((data == ord("\t")) | (data == ord("\n")))  # values have both as escapes only
    starts = np.concatenate(([0], ends + 1))[:-1]
    null = ends - starts == len(_NULL)
    for position, byte in enumerate(_NULL):
        null[null] = data[starts[null] + position] == byte
    cells = pc.binary_slice(_cells(data, ends + 1, ~null), 0, -1)
    escaped = np.unique(np.searchsorted(ends, np.flatnonzero(data == _BACKSLASH)))
    escaped = escaped[~null[escaped]]
    if not len(escaped):
        return cells
    values = [_unescape(value) for value in cells.take(_indices(escaped)).to_pylist()]
    is_escaped = np.zeros(len(cells), np.bool_)
    is_escaped[escaped] = True
    return pc.replace_with_mask(cells, boolean_array(is_escaped), binary_array(values))


def _binary_cells(rows: Sequence[bytes], width: int) -> pa.BinaryArray:
    """Return the cells of rows in COPY's binary format, row by row (CopyOneRowTo)."""
    rows = [row[2:] for row in rows]  # without the number of columns
    data = np.frombuffer(b"".join(rows), np.uint8)
    at = np.concatenate(([0], np.cumsum([len(row) for row in rows])))[:-1]
    ends = np.empty((len(rows), width), np.int64)
    is_valid = np.empty((len(rows), width), np.bool_)
    for column in range(width):
        sizes = data[at[:, np.newaxis] + np.arange(4)].view(">i4")[:, 0]
        is_valid[:, column] = sizes >= 0
        ends[:, column] = at = at + 4 + np.maximum(sizes, 0)
    # Without `stop`, pyarrow 26 computes a negative size of the result.
    return pc.binary_slice(_cells(data, ends.ravel(), is_valid.ravel()), 4, stop=4 + len(data))


def _without_header_and_trailer(data: Iterable[bytes]) -> Iterator[bytes]:
    """Return the rows from COPY's output in binary format, without header and trailer."""
    rows = iter(data)
    first = next(rows)  # the header, which ends with the size of its extension in four bytes, and maybe a row
    start = len(_SIGNATURE) + 8 + int.from_bytes(first[len(_SIGNATURE) + 4 :][:4])
    return (row for row in chain([first[start:]], rows) if row and row != _TRAILER)


_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_TRAILER: Final = b"\xff\xff"

_NULL: Final = rb"\N"
_BACKSLASH: Final = ord("\\")
_ESCAPES: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)


def _unescape(value: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), value)


# Not pa.array, which imports pandas if it is installed.
def _cells(data: npt.NDArray[np.uint8], ends: Numbers, is_valid: Mask) -> pa.BinaryArray:
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    return from_buffers(pa.binary(), len(ends), offsets, data, valid=mask_bits(is_valid))


def _indices(numbers: Numbers) -> pa.Array:
    return from_buffers(pa.int64(), len(numbers), numbers)
