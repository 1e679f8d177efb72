"""A Parquet file that is there whole or not at all."""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput.recording.directory import Directory
from pgoutput.recording.model import CHECKSUM_KEY, METADATA_KEY, SCHEMA, SENT, Metadata, encode_metadata

SUFFIX: Final = ".parquet"
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
    """A segment that is being written; readers see it when it is finished.

    Args:
        path: Where it will be.
        directory: The folder of `path`, if it is held open; else it is opened for as long as this is.
    """

    def __init__(self, path: Path, directory: Directory | None = None) -> None:
        self._path = path
        self._directory = directory
        self._resources = ExitStack()
        self._opened: tuple[Directory, BinaryIO, pq.ParquetWriter] | None = None

    def __del__(self) -> None:
        with suppress(OSError, pa.ArrowException):  # of a file that was not finished
            self._resources.close()

    def add(self, position: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Write rows, as one row group.

        Args:
            position: Of the first; the others follow it.
            batches: The rows, in the columns of `SENT`.
        """
        rows = pa.Table.from_batches(batches, SENT).combine_chunks()  # else Parquet's pages take more memory
        numbers = np.arange(position, position + len(rows), dtype=np.int64)
        positions = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(numbers)])
        self._open()[2].write_table(rows.add_column(0, SCHEMA.field("position"), positions))

    def add_keyframe(self, data: Sequence[bytes]) -> None:
        """Write the rows of a keyframe, as one row group."""
        nulls = [pa.nulls(len(data), field.type) for field in SCHEMA if field.nullable]
        self._open()[2].write_batch(pa.record_batch([*nulls, binary(data)], schema=SCHEMA))

    def finish(self, metadata: Metadata) -> Path:
        """Write metadata and file to the disk, then give it its name; return its path.

        Raises:
            FileExistsError: There is a segment of this number; it stays as it is.
            OSError: The folder was removed, or the disk failed.
        """
        directory, file, writer = self._open()
        said = encode_metadata(metadata)
        writer.add_key_value_metadata({METADATA_KEY: said, CHECKSUM_KEY: checksum(said)})
        with self._resources:
            writer.close()
            os.fsync(file.fileno())
            directory.publish(self._path.name)
        return self._path

    def _open(self) -> tuple[Directory, BinaryIO, pq.ParquetWriter]:
        if self._opened is None:
            directory = self._directory or self._resources.enter_context(Directory(self._path.parent))
            file = self._resources.enter_context(directory.create(self._path.name))
            # Arrow writes to its own descriptor of the file without the GIL, and to one of Python's with it.
            sink = self._resources.enter_context(pa.OSFile(f"/dev/fd/{file.fileno()}", "wb"))
            writer = pq.ParquetWriter(sink, SCHEMA, **_WRITING)
            self._resources.callback(writer.close)
            self._opened = directory, file, writer
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
