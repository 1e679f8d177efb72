"""Where the messages of a workload go: segments, a capture file, or a stream of frames."""

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

from pgoutput.capturefile import Header, encode_header, encode_record
from pgoutput.columns import encode_copy_data, encode_xlog_data
from pgoutput.recording import SegmentWriter, SessionStart
from pgoutput.stream import encode_for
from pgoutput.synth.workload import Workload
from pgoutput.synth.workload_batches import Made
from pgoutput.synth.workload_plan import clock
from pgoutput.synth.workload_tables import make_tables
from pgoutput.synth.workload_worker import Prepare
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_BATCH: Final = 65_536
"""Rows that a writer of segments is given at a time."""

_SEGMENTS: Final = 2
"""Of a window. Their border is anywhere, also inside of transactions."""

_READ: Final = EPOCH_UNIX_MICROSECONDS + 1_000
"""When a message is read, less when it is sent, which counts from 2000."""

_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)

_FAST: Final = 1
"""The level of gzip."""


class Output(Protocol):
    """Takes the windows of a workload."""

    @property
    def prepare(self) -> Prepare:
        """What can be done with windows in any order; gives what `write` takes."""

    def write(self, prepared: bytes | pa.Buffer) -> None:
        """The rest, in order."""


class ToSegments:
    """Writes a recording."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self._workload = workload
        self._folder = folder
        self._clock = clock(workload)
        relations = [table.relation for table in make_tables(workload.tables)]
        self._described = tuple(encode_for(relation, workload.proto_version) for relation in relations)

    def prepare(self, made: Made) -> bytes:
        """Write the segments of a window."""
        window = made.window
        before = window.position - 1
        start = SessionStart(
            session=1,
            number=window.number * _SEGMENTS + 1,
            position=window.position,
            lsn=self._clock.end_lsn(before) if window.number else self._clock.lsn(0),
            described=self._described if window.number else (),
        )
        writer = SegmentWriter(self._folder, self._workload.source, start, segment_bytes=1 << 62)
        for part in borders(window.messages):
            for first in range(part.start, part.stop, _BATCH):
                rows = slice(first, min(first + _BATCH, part.stop))
                times = pa.array(made.times[rows] + _READ).cast(pa.timestamp("us", "UTC"))
                writer.write_batch(made.lsns[rows], times, made.data[rows])
            writer.rotate()
        return b""

    def write(self, prepared: bytes | pa.Buffer) -> None:
        """All is done."""


def borders(messages: int) -> list[range]:
    """The rows of each segment of a window."""
    cuts = [messages * i // _SEGMENTS for i in range(_SEGMENTS + 1)]
    return [range(start, stop) for start, stop in pairwise(cuts)]


class ToFrames:
    """Writes what a walsender sends: CopyData with XLogData."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @staticmethod
    def prepare(made: Made) -> pa.Buffer:
        """The frames of a window."""
        return _content(encode_copy_data(encode_xlog_data(made.lsns, made.times, made.data)))

    def write(self, prepared: bytes | pa.Buffer) -> None:
        """Write them."""
        self._file.write(prepared)


class ToCapture:
    """Writes a capture file of what a walsender sends, compressed if it ends in .gz; a context manager."""

    def __init__(self, workload: Workload, path: Path) -> None:
        self._file = path.open("wb")
        compress = path.suffix == ".gz"
        self.prepare: Prepare = partial(_lines, compress)
        options = {"publication_names": '"synth"'} | workload.source.options
        header = encode_header(Header(workload.proto_version, options))
        self._file.write(_packed(header) if compress else header)

    def write(self, prepared: bytes | pa.Buffer) -> None:
        """Write them."""
        self._file.write(prepared)

    def __enter__(self) -> ToCapture:
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the file, all of it on the disk."""
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


_BEFORE, _BEHIND = (pa.scalar(part, pa.binary()) for part in encode_record("copydata", b"\0").split(b"00"))
_NOTHING: Final = pa.scalar(b"", pa.binary())


def _lines(compress: bool, made: Made) -> bytes | pa.Buffer:
    """The lines of a window."""
    sent = encode_xlog_data(made.lsns, made.times, made.data)
    offsets = np.frombuffer(sent.buffers()[1], np.int32, len(sent) + 1) * 2
    digits = _HEX[np.frombuffer(_content(sent), np.uint8)]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
    cells = pa.Array.from_buffers(pa.binary(), len(sent), buffers)
    lines = _content(pc.binary_join_element_wise(_BEFORE, cells, _BEHIND, _NOTHING))
    return _packed(lines) if compress else lines


def _packed(lines: bytes | pa.Buffer) -> bytes:
    """A part of a gzip file: such files may have many, one behind the other."""
    return gzip.compress(lines, _FAST, mtime=0)


def _content(array: pa.BinaryArray) -> pa.Buffer:
    """All bytes of an array that was just made."""
    return array.buffers()[2]
