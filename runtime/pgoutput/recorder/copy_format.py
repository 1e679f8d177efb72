"""Convert COPY's text and binary format to columns of cells (src/backend/commands/copyto.c)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput._arrays import Mask, Numbers, binary_array, boolean_array, from_buffers, mask_bits
from pgoutput.columns import Cells, Columns


def without_framing(batches: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Yield the rows of a COPY in binary format without the header and trailer of the format.

    Args:
        batches: Output of COPY, one row per element of the lists.
    """
    start = len(_SIGNATURE) + 4
    is_first = True
    for rows in batches:
        if is_first:  # the header ends with the size of its extension in four bytes; a row may follow
            rows[0] = rows[0][start + 4 + int.from_bytes(rows[0][start:][:4]) :]
            is_first = False
        if rows[-1] == _TRAILER:
            rows.pop()
        if rows and not rows[0]:
            del rows[0]
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
