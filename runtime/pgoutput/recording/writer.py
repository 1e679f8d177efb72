"""A stream to segments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput.messages import XLogData
from pgoutput.recording.batches import follow, offsets
from pgoutput.recording.directory import Directory
from pgoutput.recording.files import SegmentFile, segment_name, sent
from pgoutput.recording.model import SENT, Incomplete, Metadata, Prepared, PublicationChange, Source
from pgoutput.recording.resent import Resent
from pgoutput.recording.state import StreamState

Job: TypeAlias = Callable[[], None]

SEGMENT_BYTES: Final = 64 << 20
"""Bytes of messages in a segment: what one Spark task reads in some seconds."""

_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 16_384


class _Open(msgspec.Struct):
    """The segment that is being written."""

    file: SegmentFile
    position: int
    start_lsn: int
    keyframe: list[bytes]
    opened: float
    bytes: int = 0


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session goes on."""

    session: int
    number: int
    """Of its first segment."""
    position: int
    """Of its first message."""
    lsn: int
    """What ended up to here is stored already, and will not be stored again."""
    prepared: tuple[Prepared, ...] = ()
    described: tuple[bytes, ...] = ()
    """Type and Relation messages that the session has had, if another writer wrote its beginning."""


class Remarks(msgspec.Struct, frozen=True):
    """What a segment says beside its messages; the fields are those of `Metadata`."""

    incomplete: tuple[Incomplete, ...] = ()
    publication_changes: tuple[PublicationChange, ...] = ()


class SegmentWriter:
    """Writes the stream of one session to segments.

    Files are written in jobs, in order. A job that fails leaves the writer of no further use.

    Attributes:
        state: What has passed.

    Args:
        folder: Where the segments go; one that is held open stays the same when its path is given to another.
        source: Where the stream comes from.
        start: Where it goes on.
        run: Runs jobs, now or in another thread.
        stored: Is told of each segment that is safe on the disk, from within a job.
        segment_bytes: A segment ends when its messages have so many bytes.
        remarks: Returns what a segment is to say when it ends, for OIDs of relations that it describes.
        resent: Checks what the server sends again, if the stream begins before `start.lsn`.
    """

    def __init__(
        self,
        folder: Path | Directory,
        source: Source,
        start: Start,
        *,
        run: Callable[[Job], None] = lambda job: job(),
        stored: Callable[[Path, Metadata], None] = lambda path, metadata: None,
        segment_bytes: int = SEGMENT_BYTES,
        remarks: Callable[[Sequence[int]], Remarks] = lambda oids: Remarks(),
        resent: Resent | None = None,
    ) -> None:
        self.state = StreamState(source, start.position, start.lsn, start.prepared, start.described, resent)
        self._directory = folder if isinstance(folder, Directory) else None
        self._folder = folder.path if isinstance(folder, Directory) else folder
        self._source = source
        self._session = start.session
        self._number = start.number
        self._position = start.position
        self._run = run
        self._stored = stored
        self._remarks = remarks
        self._segment_bytes = segment_bytes
        self._batch_limit = min(_BATCH_BYTES, segment_bytes)
        self._file: _Open | None = None
        self._batches: list[pa.RecordBatch] = []
        """What is not written yet, and how much it is."""
        self._rows = self._bytes = 0

    @property
    def open_for(self) -> float:
        """Seconds since the first message of the segment that is being written; 0 if there is none."""
        return 0.0 if self._file is None else time.monotonic() - self._file.opened

    @property
    def has_ends(self) -> bool:
        """Whether the segment that is being written has what can be acknowledged once it is stored."""
        return self._file is not None and self.state.end_lsn > self._file.start_lsn

    def write(self, messages: Iterable[XLogData], received_at: int) -> None:
        """Take the next messages.

        Args:
            messages: As the walsender sent them.
            received_at: When they were read, in microseconds since 1970.

        Raises:
            DecodeError: One is not a message of this stream, or no server sends it there; the writer is of
                no further use.
            OSError: A file could not be written; likewise.
        """
        rows = list(messages)
        lsns, times = (row.wal_start for row in rows), (received_at for _ in rows)
        self._write(sent(lsns, times, [row.data for row in rows]))

    def write_batch(self, lsns: pa.Array, received_at: pa.Array, data: pa.BinaryArray) -> None:
        """Take the next messages, in columns.

        Args:
            lsns: The LSNs of their envelopes, int64.
            received_at: When they were read, as in `SCHEMA`.
            data: The messages.

        Raises:
            DecodeError: As `write`.
            OSError: As `write`.
        """
        self._write(pa.record_batch([lsns, received_at, data], schema=SENT))

    def _write(self, rest: pa.RecordBatch) -> None:
        while len(rest):
            if self._file is None:
                self._file = self._open()
            count = self._missing(rest["data"])
            stored = follow(self.state, self._position, rest[:count])
            rest = rest[count:]
            if len(stored):
                self._batches.append(stored)
                self._rows += len(stored)
                ends = offsets(stored["data"])
                self._bytes += int(ends[-1] - ends[0])
                self._position += len(stored)
            if self._bytes >= self._batch_limit or self._rows == _BATCH_ROWS:
                self._write_batch()
                if self._file.bytes >= self._segment_bytes:
                    self.rotate()

    def rotate(self) -> None:
        """End the segment that is being written, if there is one."""
        if self._file is not None:
            self._rotate(self._file, may_be_empty=False)

    def announce(self) -> None:
        """Write a segment without messages for remarks that are to be seen, unless one is being written."""
        if self._file is None:
            file = self._open()
            self._run(lambda: file.file.add_keyframe(file.keyframe))
            self._rotate(file, may_be_empty=True)

    def _rotate(self, file: _Open, *, may_be_empty: bool) -> None:
        state = self.state
        self._write_batch()
        self._file = None
        if self._position == file.position and not may_be_empty:  # all of it was stored before
            return
        remarks = self._remarks([epoch.relation["oid"] for epoch in state.relations])
        metadata = Metadata(
            kind="stream",
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
        )
        self._number += 1
        self._run(lambda: self._stored(file.file.finish(metadata), metadata))

    def _open(self) -> _Open:
        file = SegmentFile(self._folder / segment_name(self._number), self._directory)
        lsn, keyframe = self.state.end_lsn, self.state.start_segment(self._number)
        return _Open(file, self._position, lsn, keyframe, time.monotonic())

    def _missing(self, data: pa.BinaryArray) -> int:
        """How many of the messages fill the batch, if all of them are stored."""
        ends = offsets(data)
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
