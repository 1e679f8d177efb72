"""Write the stream of a session as segments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from logicalrep._arrays import value_offsets
from logicalrep._trace import span
from logicalrep.messages import XLogData
from logicalrep.recording.batch_tracker import BatchTracker
from logicalrep.recording.directory import Directory
from logicalrep.recording.resent_commits import ResentCommitCheck
from logicalrep.recording.segment_file import SegmentFile, message_batch, segment_name
from logicalrep.recording.segment_format import (
    MESSAGE_SCHEMA,
    GoneTable,
    IncompleteTable,
    Metadata,
    PreparedTransaction,
    PublicationChange,
    RenamedTable,
    SchemaVersion,
    Source,
)
from logicalrep.recording.stream_state import StreamState

Job: TypeAlias = Callable[[], None]
"""A callable that writes files for a `SegmentWriter`, now or in another thread."""

SEGMENT_BYTES: Final = 64 << 20
"""Default size of a segment's messages, in bytes: what one Spark task reads in a few seconds."""

_BATCH_BYTES: Final = 4 << 20
"""Size of the messages after which a row group is written, in bytes."""
_BATCH_ROWS: Final = 16_384
"""Maximum number of messages of a row group."""


class _OpenSegment(msgspec.Struct):
    """A segment being written."""

    file: SegmentFile
    position: int
    start_lsn: int
    keyframe: list[bytes]
    opened: float
    """`time.monotonic()` when the segment was started."""
    bytes: int = 0
    """Size of the messages written so far, in bytes."""


class SessionStart(msgspec.Struct, frozen=True, kw_only=True):
    """The point at which a session continues a recording."""

    session: int
    """Number of the session."""
    number: int
    """Number of the session's first segment."""
    position: int
    """Position of the session's first message."""
    lsn: int
    """Transactions with an end LSN up to this one are stored already and are not stored again."""
    prepared: tuple[PreparedTransaction, ...] = ()
    """Transactions that are prepared when the session starts."""
    described: tuple[bytes, ...] = ()
    """Type and Relation messages sent earlier in the session, if another writer wrote that part."""


class Remarks(msgspec.Struct, frozen=True):
    """What the recorder has found out about tables and publications, for a segment's metadata."""

    incomplete: tuple[IncompleteTable, ...] = ()
    """All tables that are incomplete when the segment ends."""
    publication_changes: tuple[PublicationChange, ...] = ()
    """Changes of publications that the recorder noticed since the preceding segment."""
    gone: tuple[GoneTable, ...] = ()
    """Tables that the recorder found dropped or unpublished since the preceding segment."""
    following_columns: dict[int, tuple[str, ...]] = {}
    """Names of altered columns whose existing values follow from earlier ones, by OID of the table."""
    renamed: tuple[RenamedTable, ...] = ()
    """Tables that the recorder found renamed since the preceding segment."""


class SegmentWriter:
    """Writes the stream of one session as segments.

    Files are written by jobs, callables that `run` and `end` execute in order. After a failed job the writer
    must not be used any more.

    Attributes:
        state: State of the stream after the messages written so far.
        kind: Kind of the segment being written: `stream`, or `snapshot` for rows that the recorder copied.

    Args:
        folder: Folder of the segments. With a `Directory`, segments are written to the opened folder, even if
            its path now leads to another folder.
        source: Source of the stream.
        start: The point at which the session continues the recording.
        run: Executes a job, at once or later in another thread; jobs must be executed in order.
        end: Called by a job to execute the last job of a segment, which stores the segment: at once, or in
            another thread while the next segment is written.
        stored: Called by the last job of each segment with path and metadata, after the segment was flushed
            to the disk.
        segment_bytes: Size of the messages after which a new segment is started, in bytes.
        remarks: Called when a segment ends, with the schema versions that begin in the segment, and the
            descriptions of DDL statements in it; returns what the recorder has found out about tables and
            publications, for the segment's metadata.
        resent: Checks the transactions that the server sends again because the stream begins before
            `start.lsn`; None for no check.
    """

    def __init__(
        self,
        folder: Path | Directory,
        source: Source,
        start: SessionStart,
        *,
        run: Callable[[Job], None] = lambda job: job(),
        end: Callable[[Job], None] = lambda job: job(),
        stored: Callable[[Path, Metadata], None] = lambda path, metadata: None,
        segment_bytes: int = SEGMENT_BYTES,
        remarks: Callable[[Sequence[SchemaVersion], Sequence[bytes]], Remarks] = lambda *_: Remarks(),
        resent: ResentCommitCheck | None = None,
    ) -> None:
        self.state: StreamState = StreamState(
            source, start.position, start.lsn, start.prepared, start.described, resent
        )
        self._directory = folder if isinstance(folder, Directory) else None
        self._folder = folder.path if isinstance(folder, Directory) else folder
        self._source = source
        self._session = start.session
        self._number = start.number
        self._position = start.position
        self._run = run
        self._end = end
        self._stored = stored
        self._remarks = remarks
        self._segment_bytes = segment_bytes
        self._batch_limit = min(_BATCH_BYTES, segment_bytes)
        self.kind: Literal["stream", "snapshot"] = "stream"
        self._file: _OpenSegment | None = None
        self._batches: list[pa.RecordBatch] = []
        """Messages that are not yet written to the segment's file."""
        self._rows = self._bytes = 0

    @property
    def open_for(self) -> float:
        """Seconds since the segment being written was started; 0 if no segment is open."""
        return 0.0 if self._file is None else time.monotonic() - self._file.opened

    @property
    def has_ends(self) -> bool:
        """Whether a transaction ends in the segment being written.

        Storing such a segment allows the recorder to acknowledge a higher LSN.
        """
        return self._file is not None and self.state.end_lsn > self._file.start_lsn

    def write(self, messages: Iterable[XLogData], received_at: int) -> None:
        """Write the next messages of the stream.

        After an error the writer must not be used any more.

        Args:
            messages: The messages in their envelopes, as the walsender sent them.
            received_at: When the messages were received, in microseconds since 1970-01-01 00:00 UTC.

        Raises:
            DecodeError: A message is invalid or out of place.
            OSError: A file could not be written.
        """
        rows = list(messages)
        lsns, times = (row.wal_start for row in rows), (received_at for _ in rows)
        self.write_batch(*message_batch(lsns, times, [row.data for row in rows]).columns)

    def write_batch(self, lsns: pa.Array, received_at: pa.Array, data: pa.BinaryArray) -> None:
        """Write the next messages of the stream, given as columns.

        After an error the writer must not be used any more.

        Args:
            lsns: `wal_start` of each message's XLogData, as int64.
            received_at: When each message was received, as a timestamp in microseconds with time zone UTC.
            data: The messages, as binary.

        Raises:
            DecodeError: A message is invalid or out of place.
            OSError: A file could not be written.
        """
        rest = pa.record_batch([lsns, received_at, data], schema=MESSAGE_SCHEMA)
        while len(rest):
            if self._file is None:
                self._file = self._open()
            count = self._fitting_rows(rest["data"])
            stored = BatchTracker(
                self.state, self._position, rest[:count], self._source.proto_version
            ).track()
            rest = rest[count:]
            if len(stored):
                self._batches.append(stored)
                self._rows += len(stored)
                ends = value_offsets(stored["data"])
                self._bytes += int(ends[-1] - ends[0])
                self._position += len(stored)
            if self._bytes >= self._batch_limit or self._rows == _BATCH_ROWS:
                self._write_batch()
                if self._file.bytes >= self._segment_bytes:
                    self.rotate()

    def rotate(self) -> None:
        """End the segment being written, if any; the next message starts a new segment."""
        if self._file is not None:
            self._rotate(self._file, may_be_empty=False)

    def announce(self) -> None:
        """Write a segment without messages to store `Remarks`; do nothing if a segment is being written."""
        if self._file is None:
            file = self._open()
            self._run(lambda: file.file.add_keyframe(file.keyframe))
            self._rotate(file, may_be_empty=True)

    def _rotate(self, file: _OpenSegment, *, may_be_empty: bool) -> None:
        state = self.state
        self._write_batch()
        self._file = None
        if self._position == file.position and not may_be_empty:  # an earlier session stored the messages
            return
        remarks = self._remarks(state.relations, state.statements)
        metadata = Metadata(
            kind=self.kind,
            number=self._number,
            session=self._session,
            source=self._source,
            first_position=file.position,
            messages=self._position - file.position,
            keyframe=len(file.keyframe),
            start_lsn=file.start_lsn,
            end_lsn=state.end_lsn,
            transactions=state.transactions,
            last_commit_time=state.last_commit_time,
            relations=tuple(state.relations),
            parts=state.parts(self._position),
            ends=tuple(state.ends),
            prepared=tuple(state.prepared.values()),
            incomplete=remarks.incomplete,
            publication_changes=remarks.publication_changes,
            gone=remarks.gone,
            following_columns=remarks.following_columns,
            renamed=remarks.renamed,
        )
        self._number += 1
        self._run(lambda: self._end(lambda: self._finish(file, metadata)))

    def _finish(self, file: _OpenSegment, metadata: Metadata) -> None:
        attributes = {"segment": metadata.number, "messages": metadata.messages, "kind": metadata.kind}
        with span("logicalrep store segment", **attributes):
            path = file.file.finish(metadata)
        self._stored(path, metadata)

    def _open(self) -> _OpenSegment:
        file = SegmentFile(self._folder / segment_name(self._number), self._directory)
        lsn, keyframe = self.state.end_lsn, self.state.start_segment(self._number)
        return _OpenSegment(file, self._position, lsn, keyframe, time.monotonic())

    def _fitting_rows(self, data: pa.BinaryArray) -> int:
        """Return how many messages of `data` fit into the current row group until it is full.

        Messages that will be left out, because an earlier session stored them, are counted too.
        """
        ends = value_offsets(data)
        count = np.searchsorted(ends, int(ends[0]) + self._batch_limit - self._bytes)
        return min(int(count), _BATCH_ROWS - self._rows, len(data))

    def _write_batch(self) -> None:
        open_, batches = self._file, self._batches
        if open_ is None or not self._rows:
            return
        position = self._position - self._rows
        keyframe = open_.keyframe if position == open_.position else []

        def job() -> None:
            if keyframe:
                open_.file.add_keyframe(keyframe)
            open_.file.add(position, batches)

        self._run(job)
        open_.bytes += self._bytes
        self._batches, self._rows, self._bytes = [], 0, 0
