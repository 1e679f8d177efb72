"""Outputs of a workload: a recording, a capture file, or CopyData messages."""

from __future__ import annotations

import gzip
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import data_buffer, from_buffers, value_bytes, value_offsets
from logicalrep._build import fitted
from logicalrep.capturefile import encode_record
from logicalrep.columns import encode_copy_data, encode_xlog_data
from logicalrep.recording import SegmentWriter, SessionStart
from logicalrep.stream import encode_for
from logicalrep.synth.export import header_line
from logicalrep.synth.workload.definition import Workload
from logicalrep.synth.workload.messages import WindowMessages
from logicalrep.synth.workload.tables import make_tables
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS

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


def write_segments(workload: Workload, folder: Path, built: WindowMessages) -> bytes:
    """Write the segments of a window of transactions to a folder, and return empty bytes.

    The caller appends the returned bytes to one output file. A recording has no such file.
    """
    window, clock = built.window, built.window.clock
    described = window.varied.described if window.varied else ()
    start = SessionStart(
        session=1,
        number=window.number * _SEGMENTS_PER_WINDOW + 1,
        position=window.first_position,
        lsn=clock.end_lsn(window.position - 1) if window.number else clock.lsn(0),
        described=(*_encoded_relations(workload), *described) if window.number else (),
    )
    writer = SegmentWriter(folder, workload.source, start, segment_bytes=1 << 62)
    cuts = [len(built.data) * i // _SEGMENTS_PER_WINDOW for i in range(_SEGMENTS_PER_WINDOW + 1)]
    for start_row, stop_row in pairwise(cuts):
        for first in range(start_row, stop_row, _BATCH_ROWS):
            rows = slice(first, min(first + _BATCH_ROWS, stop_row))
            times = pa.array(built.times[rows] + _RECEIVE_TIME_OFFSET).cast(pa.timestamp("us", "UTC"))
            writer.write_batch(built.lsns[rows], times, built.data[rows])
        writer.rotate()
    return b""


@lru_cache(maxsize=1)
def _encoded_relations(workload: Workload) -> tuple[bytes, ...]:
    """Return the encoded Relation messages of a workload's tables."""
    version = workload.options.proto_version
    relations = (table.relation for table in make_tables(workload))
    return tuple(encode_for(fitted(relation, version), version) for relation in relations)


def copy_data(built: WindowMessages) -> pa.Buffer:
    """Return the CopyData messages of a window of transactions, as a walsender sends them."""
    return data_buffer(encode_copy_data(encode_xlog_data(built.lsns, built.times, built.data)))


def capture_file_header(workload: Workload, compress: bool) -> bytes:
    """Return the header line of a workload's capture file, compressed if `compress` is true."""
    header = header_line(workload.options, workload.server_version)
    return _gzip_member(header) if compress else header


_LINE_START, _LINE_END = (
    pa.scalar(part, pa.binary()) for part in encode_record("copydata", b"\0").split(b"00")
)
_NO_SEPARATOR: Final = pa.scalar(b"", pa.binary())


def capture_file_lines(compress: bool, built: WindowMessages) -> bytes | pa.Buffer:
    """Return the capture file lines of a window of transactions, compressed if `compress` is true."""
    sent = encode_xlog_data(built.lsns, built.times, built.data)
    cells = from_buffers(pa.binary(), len(sent), value_offsets(sent) * 2, _HEX[value_bytes(sent)])
    lines = data_buffer(pc.binary_join_element_wise(_LINE_START, cells, _LINE_END, _NO_SEPARATOR))
    return _gzip_member(lines) if compress else lines


def _gzip_member(lines: bytes | pa.Buffer) -> bytes:
    """Return lines as a gzip member. A gzip file may consist of several concatenated members."""
    return gzip.compress(lines, _GZIP_LEVEL, mtime=0)
