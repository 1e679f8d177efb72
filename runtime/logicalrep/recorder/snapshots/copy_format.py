"""Convert COPY's text and binary format to cells of messages (src/backend/commands/copyto.c)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from logicalrep import compiled
from logicalrep._arrays import binary_array, from_buffers
from logicalrep._protocols import CELLS
from logicalrep.columns import Cells
from logicalrep.recorder.client import CopiedRows


def copied_cells(
    batches: Iterable[CopiedRows], binary_columns: Sequence[bool] | None, width: int
) -> Iterator[Cells]:
    """Yield the cells of copied rows.

    Args:
        batches: Output of COPY.
        binary_columns: None for rows in text format. For rows in binary format, one value per column: True
            for cells in binary format, False for cells copied as text.
        width: Number of columns.
    """
    if binary_columns is None:
        for rows in batches:
            yield _text_cells(rows, width)
        return
    tags = b"".join(_TAGS[is_binary] for is_binary in binary_columns)
    has_header = True
    for rows in batches:
        data = memoryview(rows.data)
        yield _binary_cells(_without_header(data) if has_header else data, tags)
        has_header = False


def _text_cells(rows: CopiedRows, width: int) -> Cells:
    """Return the cells of rows in text format (CopyOneRowTo, CopyAttributeOutText)."""
    if not width:
        return _without_columns(rows.number)
    if compiled.kernel is not None:
        encoded = compiled.kernel.encode_text_rows(rows.data, rows.number, width)
        return Cells(from_buffers(pa.binary(), rows.number, *encoded), width)
    lines = bytes(rows.data).split(b"\n")[:-1]  # line feeds and tabs in values are escaped
    return Cells(binary_array([b"".join(map(_text_cell, line.split(b"\t"))) for line in lines]), width)


def _text_cell(value: bytes) -> bytes:
    if value == rb"\N":
        return _NULL_TAG
    return _cell(_TAGS[False], _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), value))


def _without_header(data: memoryview) -> memoryview:
    """Return rows in binary format without the header and the header's extension of variable size."""
    (size,) = _SIZE.unpack_from(data, _HEADER_BYTES - _SIZE.size)
    return data[_HEADER_BYTES + size :]


def _binary_cells(data: memoryview, tags: bytes) -> Cells:
    """Return the cells of rows in binary format; a trailer may follow them (CopyOneRowTo, DoCopyTo).

    Args:
        data: The rows.
        tags: For each column, the tag that its cells get unless they are NULL: `b` or `t`.
    """
    if not tags:
        return _without_columns(len(data) // _WIDTH.size - (data[-_WIDTH.size :] == _TRAILER))
    if compiled.kernel is not None:
        offsets, cells = compiled.kernel.encode_binary_rows(data, tags)
        return Cells(from_buffers(pa.binary(), len(offsets) // 4 - 1, offsets, cells), len(tags))
    rows, at = [], 0
    while at < len(data) and data[at : at + _WIDTH.size] != _TRAILER:
        at += _WIDTH.size
        row = []
        for tag in struct.unpack(f"{len(tags)}c", tags):
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size
            row.append(_NULL_TAG if size < 0 else _cell(tag, bytes(data[at : at + size])))
            at += max(size, 0)
        rows.append(b"".join(row))
    return Cells(binary_array(rows), len(tags))


def _cell(tag: bytes, value: bytes) -> bytes:
    return tag + _SIZE.pack(len(value)) + value


def _without_columns(rows: int) -> Cells:
    return Cells(binary_array([b""] * rows), 0)


_HEADER_BYTES: Final = 11 + 4 + 4
"""Size of the header of the binary format without its extension: signature, flags, size of the extension."""
_WIDTH: Final = struct.Struct(">h")
"""Number of columns at the start of each row in binary format."""
_TRAILER: Final = _WIDTH.pack(-1)
_SIZE: Final = struct.Struct(">i")
"""Size of a value, both in COPY's binary format and in a message."""

_NULL_TAG: Final = bytes([CELLS["null"].code])
_TAGS: Final = {False: bytes([CELLS["text"].code]), True: bytes([CELLS["binary"].code])}
"""Tags of cells with a value, by whether the cells are in binary format."""

_ESCAPES: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
