"""Read segments and recordings: Arrow batches, messages and transactions."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from logicalrep._stored_stream import Record, StoredStream
from logicalrep._text import one_line
from logicalrep.errors import DecodeError, RecordingError
from logicalrep.recording.check import find_inconsistencies
from logicalrep.recording.location import (
    Location,
    PathOrUri,
    find_segments,
    last_acknowledged,
    locate,
    read_beginning,
)
from logicalrep.recording.packs import StoredSegment
from logicalrep.recording.segment_file import SUFFIX, checksum
from logicalrep.recording.segment_format import (
    CHECKSUM_KEY,
    FORMAT,
    METADATA_KEY,
    SCHEMA,
    Metadata,
    decode_metadata,
)
from logicalrep.stream import StreamDecoder


def list_segments(recording: str | Path) -> list[Path]:
    """Return the paths of a recording's segments in order, the snapshot's segments first.

    Raises:
        RecordingError: The folder has no segments.
    """
    return [Path(segment.path) for segment in _segments(locate(Path(recording)))]


def segments_at(place: Location) -> list[Location]:
    """Return the locations of a recording's segments in order; if `place` is a segment, only `place`.

    Raises:
        RecordingError: The folder has no segments.
    """
    return _segments(place) if place.is_folder else [place]


def _segments(folder: Location) -> list[Location]:
    found = find_segments(folder)
    if not found:
        raise RecordingError(f"{folder}: no segments found: give the folder that `logicalrep record` writes")
    return found


def read_metadata(path: PathOrUri | Location) -> Metadata:
    """Return the metadata of a segment.

    Raises:
        RecordingError: The file is missing, is not a segment, or has another version of the format.
    """
    with SegmentReader(path) as segment:
        return segment.metadata


class SegmentReader:
    """An opened segment; a context manager, whose exit closes the file.

    Attributes:
        location: Location of the file.
        metadata: Metadata of the segment.

    Raises:
        RecordingError: The file is missing, is not a segment, or has another version of the format.
    """

    def __init__(self, path: PathOrUri | Location) -> None:
        self.location: Location = path if isinstance(path, Location) else locate(path)
        try:
            self._file = _open(self.location)
        except _UNREADABLE as error:
            raise self._unreadable("cannot be read as a Parquet file", error) from error
        try:
            self.metadata: Metadata = self._metadata()
        except RecordingError:
            self.close()
            raise

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the segment's file."""
        self._file.close(force=True)

    @property
    def size(self) -> int:
        """Size of the segment's rows before compression, in bytes."""
        file = self._file.metadata
        return sum(file.row_group(number).total_byte_size for number in range(file.num_row_groups))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the segment's rows as batches with the columns of `SCHEMA`, the keyframe first.

        A batch never spans row groups. It holds about 8 MiB of messages, or a single larger message.

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
                        reader.close()  # frees the last page and batch
                        _return_memory(batch.nbytes)
                    last = [batch]
                    del batch  # then only the caller keeps the batch in memory: a message can have 1 GB
                    yield last.pop()
        except _UNREADABLE as error:
            raise self._unreadable("the file is damaged", error) from error
        self._check_rows(self.metadata, rows)

    def decoder(self) -> StreamDecoder:
        """Return a new decoder for the segment's messages; it must decode the keyframe first.

        Raises:
            RecordingError: This version of logicalrep does not support the segment's protocol version.
        """
        source = self.metadata.source
        try:
            return StreamDecoder(
                source.proto_version, streaming=source.streaming, two_phase=source.slot_two_phase
            )
        except ValueError as error:
            raise self._error(str(error)) from None

    def error_at(self, position: int | None, error: DecodeError) -> RecordingError:
        """Return the RecordingError for a message of the segment that cannot be decoded.

        Args:
            position: Position of the message; None for a message of the keyframe.
            error: Error that the decoder raised.
        """
        place = "keyframe" if position is None else f"position {position}"
        return self._error(f"{place}: {error}")

    def _metadata(self) -> Metadata:
        stored = self._file.metadata.metadata or {}
        raw = stored.get(METADATA_KEY)
        if raw is None:
            raise self._error("not a segment: the Parquet file has no metadata of logicalrep")
        if stored.get(CHECKSUM_KEY) != checksum(raw):
            raise self._error("the file is damaged (wrong checksum of the metadata): restore it from a copy")
        try:
            if (number := decode_metadata(raw, _FORMAT).format) != FORMAT:
                text = f"expected format {FORMAT} of the recording, found format {number}"
                raise self._error(f"{text}: install the version of logicalrep that wrote the recording")
            metadata = decode_metadata(raw, _METADATA)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise self._error(
                f"the metadata of the segment cannot be read ({error}): restore the file from a copy"
            ) from None
        if not self._schema().equals(SCHEMA):
            raise self._error("not a segment: the Parquet file has other columns than a segment")
        self._check_rows(metadata, self._file.metadata.num_rows)
        return metadata

    def _batch_rows(self, group: int) -> int:
        """Return how many rows of a row group to read at once, computed from the rows' average size."""
        row_group = self._file.metadata.row_group(group)
        rows = row_group.num_rows * _BATCH_BYTES // max(1, row_group.total_byte_size)
        return int(max(1, min(_BATCH_ROWS, rows)))

    def _schema(self) -> pa.Schema:
        try:
            return self._file.schema_arrow
        except _UNREADABLE as error:
            raise self._unreadable("the file is damaged", error) from error

    def _unreadable(self, text: str, error: Exception) -> RecordingError:
        """Return the RecordingError for an unreadable file.

        Args:
            text: What is wrong with the file. If `error` is a failure of the storage, the message says
                "the storage failed" instead.
            error: The error of pyarrow.
        """
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT, errno.EISDIR):
            text = "the storage failed"
        return self._error(f"{text} ({one_line(error)})")

    def _check_rows(self, metadata: Metadata, rows: int) -> None:
        if (expected := metadata.keyframe + metadata.messages) != rows:
            text = f"the file is damaged: expected {expected} rows, found {rows}"
            raise self._error(f"{text}: restore the file from a copy")

    def _error(self, text: str) -> RecordingError:
        return RecordingError(f"{self.location}: {text}")


_BATCH_ROWS: Final = 16_384
"""Maximum number of rows of a batch; equals the writer's limit for a row group."""
_BATCH_BYTES: Final = 8 << 20
"""Maximum size of a batch, in bytes: twice the writer's limit for a row group, so that most groups fit."""

_OPTIONS: Final[dict[str, Any]] = {"page_checksum_verification": True}

_UNREADABLE: Final = (OSError, pa.ArrowException, UnicodeDecodeError)
"""Errors that pyarrow raises for a file that is missing or not Parquet."""


def _open(location: Location) -> pq.ParquetFile:
    """Open a segment, in a file of its own or in a pack (a file of several segments).

    Raises:
        FileNotFoundError: The segment does not exist.
    """
    if location.is_local:
        with suppress(FileNotFoundError):
            return pq.ParquetFile(location.path, filesystem=location.filesystem, **_OPTIONS)
    stored = StoredSegment(location)
    try:
        return pq.ParquetFile(stored, **_OPTIONS)
    except _UNREADABLE as error:
        stored.close()
        if stored.file is location:
            raise
        raise OSError(f"{stored.file}: {one_line(error)}") from error


def _return_memory(freed: int) -> None:
    """Give Arrow's unused memory to the operating system if `freed`, in bytes, exceeds `_BATCH_BYTES`."""
    if freed > _BATCH_BYTES:
        pa.default_memory_pool().release_unused()


class _Format(msgspec.Struct):
    format: int


# Made at import: msgspec 0.22 crashes if several threads use a type for the first time at once.
_FORMAT: Final = msgspec.json.Decoder(_Format)
_METADATA: Final = msgspec.json.Decoder(Metadata)


class RecordingReader(StoredStream):
    """An opened recording, or one segment, read as one stream; a context manager.

    Only the keyframe of the first segment is read. Later keyframes repeat messages that were read before.

    Args:
        path: Path or URI of the folder of a recording, or of a segment.
        on_error: Called with the error of each message that cannot be decoded, and of each missing segment;
            the message or segment is then skipped. None raises the error.

    Raises:
        RecordingError: The folder has no segments, some are missing, or a file is not a segment.
    """

    numbered_by = "position"

    def __init__(
        self, path: PathOrUri | Location, *, on_error: Callable[[RecordingError], None] | None = None
    ) -> None:
        super().__init__(on_error)
        self.path: Location = path if isinstance(path, Location) else locate(path)
        is_folder = self.path.is_folder
        last = last_acknowledged(self.path) if is_folder else 0
        self.paths: Sequence[Location] = _segments(self.path) if is_folder else [self.path]
        with SegmentReader(self.paths[0]) as first:
            self._session, self.decoder = first.metadata.session, first.decoder()
        if is_folder:
            metadata = [read_metadata(path) for path in self.paths]
            for text in find_inconsistencies(metadata, read_beginning(self.path).segment, last):
                self._report(RecordingError(f"{self.path}: {text}"))

    def records(self) -> Iterator[Record]:
        """Yield the messages of the recording in order.

        Raises:
            RecordingError: A file is damaged or not a segment.
        """
        for path in self.paths:
            with SegmentReader(path) as segment:
                if segment.metadata.session != self._session:
                    self._session = segment.metadata.session
                    self.decoder: StreamDecoder = segment.decoder()
                for batch in segment.batches():
                    positions, data = batch["position"].to_pylist(), batch["data"].to_pylist()
                    freed = batch.nbytes
                    del batch  # free the memory of the batch while its messages are processed
                    _return_memory(freed)
                    for position, message in zip(positions, data, strict=True):
                        if position is not None or path is self.paths[0]:
                            yield Record(position, "data", message)

    @property
    def name(self) -> str:
        """Name of the folder, or of the segment without `.parquet`."""
        return self.path.path.rstrip("/").rpartition("/")[2].removesuffix(SUFFIX)

    def close(self) -> None:
        """Do nothing: the reader keeps no file open between records."""

    def _error(self, number: int | None, text: str) -> RecordingError:
        place = "keyframe" if number is None else f"position {number}"
        return RecordingError(f"{self.path}: {place}: {text}")
