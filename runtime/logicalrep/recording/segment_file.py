"""Write segments as Parquet files that appear complete or not at all."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logicalrep._arrays import binary_array, from_buffers, int64_array
from logicalrep.recording.directory import Directory
from logicalrep.recording.segment_format import (
    CHECKSUM_KEY,
    MESSAGE_SCHEMA,
    METADATA_KEY,
    SCHEMA,
    Metadata,
    encode_metadata,
)

SUFFIX: Final = ".parquet"
_NUMBER_ENCODINGS: Final = dict.fromkeys(("position", "lsn", "received_at"), "DELTA_BINARY_PACKED")
_PARQUET_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "use_dictionary": False,
    "column_encoding": _NUMBER_ENCODINGS | {"data": "PLAIN"},
    "write_statistics": ["position"],
    "write_page_checksum": True,
}


def segment_name(number: int) -> str:
    """Return the file name of a segment. File names sort in the order of segment numbers."""
    return f"{number:010}{SUFFIX}"


class SegmentFile:
    """A segment file being written; readers see the file only after `finish`.

    Args:
        path: Path of the finished segment.
        directory: The folder of `path`, already opened. With None, the folder is opened here and closed by
            `finish`.
    """

    def __init__(self, path: Path, directory: Directory | None = None) -> None:
        self._path = path
        self._directory = directory
        self._resources = ExitStack()
        self._opened: tuple[Directory, BinaryIO, pq.ParquetWriter] | None = None

    def __del__(self) -> None:
        with suppress(OSError, pa.ArrowException):  # the file is unfinished, so errors do not matter
            self._resources.close()

    def add(self, position: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Write messages as one row group.

        Args:
            position: Position of the first message; the next messages have the following positions.
            batches: The messages, in the columns of `MESSAGE_SCHEMA`.
        """
        # One chunk per column: for chunked columns, the Parquet writer takes more memory for pages.
        rows = pa.Table.from_batches(batches, MESSAGE_SCHEMA).combine_chunks()
        numbers = np.arange(position, position + len(rows), dtype=np.int64)
        positions = from_buffers(pa.int64(), len(rows), numbers)
        self._open()[2].write_table(rows.add_column(0, SCHEMA.field("position"), positions))

    def add_keyframe(self, data: Sequence[bytes]) -> None:
        """Write the messages of a keyframe as one row group."""
        nulls = [pa.nulls(len(data), field.type) for field in SCHEMA if field.nullable]
        self._open()[2].write_batch(pa.record_batch([*nulls, binary_array(data)], schema=SCHEMA))

    def finish(self, metadata: Metadata) -> Path:
        """Write the metadata, flush the file to the disk, give the file its final name and return the path.

        Raises:
            FileExistsError: A segment of this number exists already; the existing segment is not changed.
            OSError: The folder was removed, or the disk failed.
        """
        directory, file, writer = self._open()
        encoded = encode_metadata(metadata)
        writer.add_key_value_metadata(
            {METADATA_KEY: encoded, CHECKSUM_KEY: checksum(encoded), **directory.segment_marks}
        )
        with self._resources:
            writer.close()
            os.fsync(file.fileno())
            directory.publish(self._path.name)
        return self._path

    def _open(self) -> tuple[Directory, BinaryIO, pq.ParquetWriter]:
        if self._opened is None:
            directory = self._directory or self._resources.enter_context(Directory(self._path.parent))
            file = self._resources.enter_context(directory.create(self._path.name))
            # Arrow holds the GIL while it writes to a Python file, but not for a file that it opened itself.
            sink = self._resources.enter_context(pa.OSFile(f"/dev/fd/{file.fileno()}", "wb"))
            writer = pq.ParquetWriter(sink, SCHEMA, **_PARQUET_OPTIONS)
            self._resources.callback(writer.close)
            self._opened = directory, file, writer
        return self._opened


def checksum(metadata: bytes) -> bytes:
    """Return the value for `CHECKSUM_KEY`: the CRC-32 of a segment's encoded metadata, in hex."""
    return b"%08x" % zlib.crc32(metadata)


def message_batch(lsns: Iterable[int], received_at: Iterable[int], data: Sequence[bytes]) -> pa.RecordBatch:
    """Return messages as a batch with the columns of `MESSAGE_SCHEMA`.

    Args:
        lsns: `wal_start` of each message's XLogData.
        received_at: Time when each message was received, in microseconds since 1970-01-01 00:00 UTC.
        data: The messages.
    """
    lsn_type, time_type, _ = MESSAGE_SCHEMA.types
    columns = [int64_array(lsns, lsn_type), int64_array(received_at, time_type), binary_array(data)]
    return pa.record_batch(columns, schema=MESSAGE_SCHEMA)
