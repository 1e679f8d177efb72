"""Outputs of a workload: a recording, a capture file, or CopyData messages."""

from __future__ import annotations

import gzip
import os
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput._arrays import data_buffer, from_buffers, value_bytes, value_offsets
from pgoutput._build import fitted
from pgoutput.capturefile import Header, encode_header, encode_record
from pgoutput.columns import encode_copy_data, encode_xlog_data
from pgoutput.recording import SegmentWriter, SessionStart
from pgoutput.stream import encode_for
from pgoutput.synth.workload.definition import Workload
from pgoutput.synth.workload.messages import WindowMessages
from pgoutput.synth.workload.plan import wal_clock
from pgoutput.synth.workload.processes import PrepareWindow
from pgoutput.synth.workload.tables import make_tables
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_BATCH_ROWS: Final = 65_536
"""Maximum number of rows in a call of `SegmentWriter.write_batch`."""

_SEGMENTS_PER_WINDOW: Final = 2
"""Number of segments for each window of transactions. A segment may end inside a transaction."""

_RECEIVE_TIME_OFFSET: Final = EPOCH_UNIX_MICROSECONDS + 1_000
"""Offset from send time (microseconds since 2000) to receive time 1 ms later (microseconds since 1970)."""

_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
"""Hexadecimal digits by byte value: the ASCII codes of both digits as one 16-bit integer."""

_GZIP_LEVEL: Final = 1
"""Compression level of gzip: the fastest level."""


class Output(Protocol):
    """Format and destination of a workload. Output is written in windows of consecutive transactions."""

    @property
    def prepare(self) -> PrepareWindow:
        """Function that encodes or writes a window of transactions; called in any order and any process."""

    def write(self, prepared: bytes | pa.Buffer) -> None:
        """Write the bytes that `prepare` returned for a window of transactions; called in stream order."""


class SegmentOutput:
    """Writes a workload as a recording."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self._workload = workload
        self._folder = folder
        self._clock = wal_clock(workload)
        relations = [table.relation for table in make_tables(workload.tables)]
        self._relations = tuple(
            encode_for(fitted(relation, workload.proto_version), workload.proto_version)
            for relation in relations
        )

    def prepare(self, built: WindowMessages) -> bytes:
        """Write the segments of a window of transactions, and return empty bytes."""
        window = built.window
        before = window.position - 1
        start = SessionStart(
            session=1,
            number=window.number * _SEGMENTS_PER_WINDOW + 1,
            position=window.position,
            lsn=self._clock.end_lsn(before) if window.number else self._clock.lsn(0),
            described=self._relations if window.number else (),
        )
        writer = SegmentWriter(self._folder, self._workload.source, start, segment_bytes=1 << 62)
        for part in segment_rows(window.message_count):
            for first in range(part.start, part.stop, _BATCH_ROWS):
                rows = slice(first, min(first + _BATCH_ROWS, part.stop))
                times = pa.array(built.times[rows] + _RECEIVE_TIME_OFFSET).cast(pa.timestamp("us", "UTC"))
                writer.write_batch(built.lsns[rows], times, built.data[rows])
            writer.rotate()
        return b""

    def write(self, prepared: bytes | pa.Buffer) -> None:
        """Do nothing; `prepare` has written the segments."""


def segment_rows(messages: int) -> list[range]:
    """Return the range of row numbers of each segment, for a window of `messages` messages."""
    cuts = [messages * i // _SEGMENTS_PER_WINDOW for i in range(_SEGMENTS_PER_WINDOW + 1)]
    return [range(start, stop) for start, stop in pairwise(cuts)]


class CopyDataOutput:
    """Writes a workload as CopyData messages with XLogData, as a walsender sends them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @staticmethod
    def prepare(built: WindowMessages) -> pa.Buffer:
        """Return the CopyData messages of a window of transactions, concatenated."""
        return data_buffer(encode_copy_data(encode_xlog_data(built.lsns, built.times, built.data)))

    def write(self, prepared: bytes | pa.Buffer) -> None:
        """Write the CopyData messages of the next window of transactions."""
        self._file.write(prepared)


class CaptureFileOutput:
    """Writes a workload as a capture file, compressed if the name ends in .gz. Use as a context manager."""

    def __init__(self, workload: Workload, path: Path) -> None:
        self._file = path.open("wb")
        compress = path.suffix == ".gz"
        self.prepare: PrepareWindow = partial(_encode_lines, compress)
        options = {"publication_names": '"synth"'} | workload.source.options
        header = encode_header(Header(workload.proto_version, options))
        self._file.write(_gzip_member(header) if compress else header)

    def write(self, prepared: bytes | pa.Buffer) -> None:
        """Write the capture file lines of the next window of transactions."""
        self._file.write(prepared)

    def __enter__(self) -> CaptureFileOutput:
        return self

    def __exit__(self, *exception: object) -> None:
        """Flush the file to disk and close the file."""
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


_LINE_START, _LINE_END = (
    pa.scalar(part, pa.binary()) for part in encode_record("copydata", b"\0").split(b"00")
)
_NO_SEPARATOR: Final = pa.scalar(b"", pa.binary())


def _encode_lines(compress: bool, built: WindowMessages) -> bytes | pa.Buffer:
    """Return the capture file lines of a window of transactions, compressed if `compress` is true."""
    sent = encode_xlog_data(built.lsns, built.times, built.data)
    cells = from_buffers(pa.binary(), len(sent), value_offsets(sent) * 2, _HEX[value_bytes(sent)])
    lines = data_buffer(pc.binary_join_element_wise(_LINE_START, cells, _LINE_END, _NO_SEPARATOR))
    return _gzip_member(lines) if compress else lines


def _gzip_member(lines: bytes | pa.Buffer) -> bytes:
    """Return lines as a gzip member. A gzip file may consist of several concatenated members."""
    return gzip.compress(lines, _GZIP_LEVEL, mtime=0)
