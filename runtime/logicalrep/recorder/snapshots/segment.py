"""Segments of copied rows: each contains one transaction, which inserts rows of one table."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from logicalrep._arrays import binary_array, repeated_int64, value_offsets
from logicalrep._build import build, fitted
from logicalrep.jsonlines import to_json
from logicalrep.recorder.catalogs import PublishedTable
from logicalrep.recording import (
    MESSAGE_SCHEMA,
    Directory,
    Metadata,
    SchemaVersion,
    SegmentFile,
    Source,
    segment_name,
)
from logicalrep.stream import encode_for
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS

_SEGMENT_MESSAGES: Final = 1 << 20
"""Largest number of messages in a segment of the snapshot; each segment has this many positions reserved."""


class SnapshotSegment:
    """A snapshot segment being written, which contains one transaction that inserts rows of one table.

    Attributes:
        number: Number of the segment.

    Args:
        directory: Folder of the snapshot.
        number: Number of the segment.
        source: Server, slot, publications and options of the stream that continues the snapshot.
        lsn: Consistent point of the slot, the LSN of all messages.
        time: Time of the snapshot, in microseconds since 2000-01-01 00:00 UTC.
        table: Table whose rows the segment contains.
        segment_bytes: Size of the rows at which the segment is full, in bytes.
    """

    def __init__(
        self,
        directory: Directory,
        number: int,
        source: Source,
        lsn: int,
        time: int,
        table: PublishedTable,
        segment_bytes: int,
    ) -> None:
        self._bytes_left = self._messages = 0
        self.number: int = number
        self._source, self._lsn, self._time = source, lsn, time
        # Several segments are written in parallel: each has a range of positions reserved.
        self._first = (number - 1) * _SEGMENT_MESSAGES
        self._file = SegmentFile(directory.path / segment_name(number), directory)
        version = source.proto_version
        self._types = [fitted(type_, version) for type_ in table.types]
        self._relation = fitted(table.relation, version)
        begin = build("begin", version, lsn=lsn, time=time)
        first = (begin, *self._types, self._relation)
        self._write(binary_array([encode_for(message, version) for message in first]))
        self._bytes_left = segment_bytes
        commit = build("commit", version, lsn=lsn, end_lsn=lsn, time=time)
        self._commit = binary_array([encode_for(commit, version)])

    def add(self, data: pa.BinaryArray) -> int:
        """Write as many messages as fit into the segment; return the number of written messages."""
        ends = value_offsets(data)[1:] - value_offsets(data)[:1]
        room = int(np.searchsorted(ends, self._bytes_left)) + 1 if self._bytes_left > 0 else 0
        room = min(room, len(data), _SEGMENT_MESSAGES - 1 - self._messages)  # one message is the Commit
        if room:
            self._write(data.slice(0, room))
        return room

    def finish(self) -> None:
        """Write the Commit and the metadata, and give the file its final name."""
        self._write(self._commit)
        types, relation = tuple(map(to_json, self._types)), to_json(self._relation)
        version = SchemaVersion(self._first + 1 + len(types), self._lsn, relation, types)
        self._file.finish(
            Metadata(
                kind="snapshot",
                number=self.number,
                session=0,
                source=self._source,
                first_position=self._first,
                messages=self._messages,
                keyframe=0,
                start_lsn=self._lsn,
                end_lsn=self._lsn,
                transactions=1,
                last_commit_time=self._time,
                relations=(version,),
            )
        )

    def _write(self, data: pa.BinaryArray) -> None:
        numbers = (self._lsn, self._time + EPOCH_UNIX_MICROSECONDS)
        columns = [
            repeated_int64(one, len(data), field.type)
            for one, field in zip(numbers, MESSAGE_SCHEMA, strict=False)
        ]
        rows = pa.record_batch([*columns, data], schema=MESSAGE_SCHEMA)
        self._file.add(self._first + self._messages, [rows])
        self._messages += len(data)
        self._bytes_left -= int(value_offsets(data)[-1] - value_offsets(data)[0])
