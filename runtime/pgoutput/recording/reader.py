"""Segments to messages and transactions."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput._stored_stream import Record, StoredStream
from pgoutput._text import one_line
from pgoutput.errors import DecodeError, RecordingError
from pgoutput.recording.check import find_gaps
from pgoutput.recording.files import SUFFIX, checksum
from pgoutput.recording.location import (
    Location,
    Place,
    find_segments,
    last_acknowledged,
    locate,
)
from pgoutput.recording.model import CHECKSUM_KEY, FORMAT, METADATA_KEY, SCHEMA, Metadata, decode_metadata
from pgoutput.stream import StreamDecoder


def list_segments(folder: str | Path) -> list[Path]:
    """The segments of a recording, in their order: those of the snapshot first.

    Raises:
        RecordingError: The folder has none.
    """
    found = [Path(segment.path) for segment in find_segments(locate(Path(folder)))]
    if not found:
        raise RecordingError(f"{folder}: no segments are here; `pgoutput record` writes them")
    return found


def read_metadata(path: Place | Location) -> Metadata:
    """What a segment says of itself.

    Raises:
        RecordingError: The file is missing, is not a segment, or was written by a newer version.
    """
    with SegmentReader(path) as segment:
        return segment.metadata


class SegmentReader:
    """One segment, opened; a context manager.

    Attributes:
        location: Where the file is.
        metadata: What it says of itself.

    Raises:
        RecordingError: As `read_metadata`.
    """

    def __init__(self, path: Place | Location) -> None:
        self.location = location = path if isinstance(path, Location) else locate(path)
        try:
            self._file = pq.ParquetFile(
                location.path, filesystem=location.filesystem, page_checksum_verification=True
            )
        except _UNREADABLE as error:
            raise self._unreadable("no Parquet file", error) from error
        try:
            self.metadata = self._metadata()
        except RecordingError:
            self.close()
            raise

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def size(self) -> int:
        """Bytes of its rows, before they are compressed."""
        file = self._file.metadata
        return sum(file.row_group(number).total_byte_size for number in range(file.num_row_groups))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows in the columns of `SCHEMA`, those of the keyframe first.

        A batch never spans row groups and has about 8 MiB of messages, or one message if that is larger.

        Raises:
            RecordingError: The file is damaged.
        """
        rows = 0
        try:
            for group in range(self._file.num_row_groups):
                ends = rows + self._file.metadata.row_group(group).num_rows
                size = self._batch_rows(group)
                reader = self._file.iter_batches(size, row_groups=[group], use_threads=False)
                for batch in reader:
                    rows += len(batch)
                    if rows == ends:
                        reader.close()  # it holds the last page and batch
                        _return_memory(batch.nbytes)
                    last = [batch]
                    del batch  # only the caller holds it: one message can have a gigabyte
                    yield last.pop()
        except _UNREADABLE as error:
            raise self._unreadable("the file is damaged", error) from error
        self._has_rows(self.metadata, rows)

    def decoder(self) -> StreamDecoder:
        """A decoder for its messages, the keyframe first.

        Raises:
            RecordingError: It needs a newer version of this package.
        """
        source = self.metadata.source
        try:
            return StreamDecoder(
                source.proto_version, streaming=source.streaming, two_phase=source.slot_two_phase
            )
        except ValueError as error:
            raise self._error(str(error)) from None

    def error_at(self, position: int | None, error: DecodeError) -> RecordingError:
        """The error that a message cannot be read.

        Args:
            position: Its position; None in the keyframe.
            error: What is wrong with it.
        """
        place = "keyframe" if position is None else f"position {position}"
        return self._error(f"{place}: {error}")

    def _metadata(self) -> Metadata:
        said = self._file.metadata.metadata or {}
        raw = said.get(METADATA_KEY)
        if raw is None:
            raise self._error("no segment: the metadata of `pgoutput` is missing")
        if said.get(CHECKSUM_KEY) != checksum(raw):
            raise self._error("the file is damaged (its metadata does not have the checksum that it should)")
        try:
            if (number := decode_metadata(raw, _FORMAT).format) != FORMAT:
                raise self._error(f"it has format {number}, this version of pgoutput reads format {FORMAT}")
            metadata = decode_metadata(raw, _METADATA)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise self._error(f"its metadata cannot be read ({error})") from None
        if not self._schema().equals(SCHEMA):
            raise self._error("no segment: its columns are not those of one")
        self._has_rows(metadata, self._file.metadata.num_rows)
        return metadata

    def _batch_rows(self, group: int) -> int:
        """Return how many rows of a row group to read at once, from their average size."""
        found = self._file.metadata.row_group(group)
        rows = found.num_rows * _BATCH_BYTES // max(1, found.total_byte_size)
        return int(max(1, min(_BATCH_ROWS, rows)))

    def _schema(self) -> pa.Schema:
        try:
            return self._file.schema_arrow
        except _UNREADABLE as error:
            raise self._unreadable("the file is damaged", error) from error

    def _unreadable(self, text: str, error: Exception) -> RecordingError:
        """The error that the file cannot be read; a failure of the storage is told apart from damage."""
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT, errno.EISDIR):
            text = "the storage failed"
        return self._error(f"{text} ({one_line(error)})")

    def _has_rows(self, metadata: Metadata, rows: int) -> None:
        if (wanted := metadata.keyframe + metadata.messages) != rows:
            raise self._error(f"it has {rows} rows, and should have {wanted}")

    def _error(self, text: str) -> RecordingError:
        return RecordingError(f"{self.location}: {text}")


_BATCH_ROWS: Final = 16_384
"""The writer's limit for a row group."""
_BATCH_BYTES: Final = 8 << 20
"""Twice the writer's limit for a row group, so that a usual row group is one batch."""

_UNREADABLE: Final = (OSError, pa.ArrowException, UnicodeDecodeError)
"""What pyarrow raises for bytes that are not Parquet."""


def _return_memory(freed: int) -> None:
    """Make Arrow return unused memory to the operating system if more than a usual batch was freed."""
    if freed > _BATCH_BYTES:
        pa.default_memory_pool().release_unused()


class _Format(msgspec.Struct):
    format: int


# Made once, and here: msgspec 0.22 crashes where several threads meet a type for the first time.
_FORMAT: Final = msgspec.json.Decoder(_Format)
_METADATA: Final = msgspec.json.Decoder(Metadata)


class RecordingReader(StoredStream):
    """Segments as one stream, opened; a context manager.

    Their keyframes are left out, but for that of the first: the messages before have said the same.

    Args:
        path: A segment, or the folder of a recording.
        on_bad: Called with what cannot be decoded, which is then skipped; None raises it.

    Raises:
        RecordingError: The folder has no segments, or some are missing, or a file is none.
    """

    numbered_by = "position"

    def __init__(self, path: str | Path, *, on_bad: Callable[[RecordingError], None] | None = None) -> None:
        super().__init__(on_bad)
        self.path = Path(path)
        is_folder = self.path.is_dir()
        last = last_acknowledged(locate(self.path)) if is_folder else 0
        self.paths: Sequence[Path] = list_segments(path) if is_folder else [self.path]
        with SegmentReader(self.paths[0]) as first:
            self._session, self.decoder = first.metadata.session, first.decoder()
        if is_folder:
            for gap in find_gaps([read_metadata(path) for path in self.paths], last=last):
                self._bad(RecordingError(f"{self.path}: {gap}"))

    def records(self) -> Iterator[Record]:
        """The messages, in their order.

        Raises:
            RecordingError: A file is damaged, or is no segment.
        """
        for path in self.paths:
            with SegmentReader(path) as segment:
                if segment.metadata.session != self._session:
                    self._session = segment.metadata.session
                    self.decoder = segment.decoder()
                for batch in segment.batches():
                    positions, data = batch["position"].to_pylist(), batch["data"].to_pylist()
                    freed = batch.nbytes
                    del batch  # else both would be held while the messages are read
                    _return_memory(freed)
                    for position, message in zip(positions, data, strict=True):
                        if position is not None or path is self.paths[0]:
                            yield Record(position, "data", message)

    @property
    def name(self) -> str:
        """The name of the folder, or of the segment without suffix."""
        return self.path.name.removesuffix(SUFFIX)

    def close(self) -> None:
        """Nothing stays open between records."""

    def _error(self, number: int | None, text: str) -> RecordingError:
        place = "keyframe" if number is None else f"position {number}"
        return RecordingError(f"{self.path}: {place}: {text}")
