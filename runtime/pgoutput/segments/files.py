"""A Parquet file that is there whole or not at all."""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput.segments.model import CHECKSUM_KEY, METADATA_KEY, SCHEMA, SENT, Metadata

SUFFIX: Final = ".parquet"
_PARTIAL: Final = ".partial"
_NUMBERS: Final = dict.fromkeys(("position", "lsn", "received_at"), "DELTA_BINARY_PACKED")
_WRITING: Final[dict[str, Any]] = {
    "compression": "zstd",
    "use_dictionary": False,
    "column_encoding": _NUMBERS | {"data": "PLAIN"},
    "write_statistics": ["position"],
    "write_page_checksum": True,
}


def segment_name(number: int) -> str:
    """The name of a segment's file. Names sort as the numbers do."""
    return f"{number:010}{SUFFIX}"


class SegmentFile:
    """A segment that is being written, under a name that no reader looks at.

    Args:
        path: Where it will be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}{_PARTIAL}")
        self._opened: pq.ParquetWriter | None = None

    def add(self, position: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Write rows, as one row group.

        Args:
            position: Of the first; the others follow it.
            batches: The rows, in the columns of `SENT`.
        """
        rows = pa.Table.from_batches(batches, SENT).combine_chunks()  # else Parquet's pages take more memory
        numbers = np.arange(position, position + len(rows), dtype=np.int64)
        positions = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(numbers)])
        self._writer().write_table(rows.add_column(0, SCHEMA.field("position"), positions))

    def add_keyframe(self, data: Sequence[bytes]) -> None:
        """Write the rows of a keyframe, as one row group."""
        nulls = [pa.nulls(len(data), field.type) for field in SCHEMA if field.nullable]
        self._writer().write_batch(pa.record_batch([*nulls, binary(data)], schema=SCHEMA))

    def finish(self, metadata: Metadata) -> Path:
        """Give the file its metadata, write it to the disk, and then its name; give where it is."""
        writer = self._writer()
        said = msgspec.json.encode(metadata)
        writer.add_key_value_metadata({METADATA_KEY: said, CHECKSUM_KEY: checksum(said)})
        writer.close()
        sync(self._partial)
        self._partial.rename(self._path)
        sync(self._path.parent)
        return self._path

    def _writer(self) -> pq.ParquetWriter:
        if self._opened is None:
            self._opened = pq.ParquetWriter(self._partial, SCHEMA, **_WRITING)
        return self._opened


def checksum(metadata: bytes) -> bytes:
    """What stands under `CHECKSUM_KEY`."""
    return b"%08x" % zlib.crc32(metadata)


def sent(lsns: Iterable[int], received_at: Iterable[int], data: Sequence[bytes]) -> pa.RecordBatch:
    """Rows in the columns of `SENT`.

    Args:
        lsns: Their LSNs.
        received_at: When they were read, in microseconds since 1970.
        data: The messages.
    """
    numbers = [_numbers(values, field.type) for values, field in zip((lsns, received_at), SENT, strict=False)]
    return pa.record_batch([*numbers, binary(data)], schema=SENT)


# Not pa.array, which takes three times as long for bytes, and imports pandas where that is installed: 45 MB.
def _numbers(values: Iterable[int], type_: pa.DataType) -> pa.Array:
    """The values as an array."""
    numbers = array("q", values)
    return pa.Array.from_buffers(type_, len(numbers), [None, pa.py_buffer(numbers)])


def repeated(value: int, rows: int, type_: pa.DataType) -> pa.Array:
    """The value in each row; the type has 64 bits."""
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(np.full(rows, value, np.int64))])


def mask(rows: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """The mask as an array."""
    bits = np.packbits(rows, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(rows), [None, pa.py_buffer(bits)])


def binary(values: Sequence[bytes]) -> pa.Array:
    """The values as an array."""
    offsets = array("i", accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_partial(folder: Path) -> None:
    """Remove files that a writer left unfinished."""
    for path in folder.glob(f".*{_PARTIAL}"):
        if path.is_file():  # a snapshot that was not finished is a folder
            path.unlink()
