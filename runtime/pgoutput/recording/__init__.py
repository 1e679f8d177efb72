"""Recordings as Parquet files, called segments, that each can be read alone.

`SegmentWriter` writes them. `RecordingReader` reads them as one stream, `SegmentReader` reads one. `Metadata`
describes a segment.
"""

from pgoutput._extras import require

require("arrow", "numpy", "pyarrow")

from pgoutput.recording.check import find_gaps, find_missing_end
from pgoutput.recording.directory import Directory
from pgoutput.recording.files import SegmentFile, segment_name
from pgoutput.recording.from_capture_file import record_capture_file
from pgoutput.recording.location import (
    SNAPSHOT,
    STATE_FILE,
    Location,
    Place,
    find_segments,
    last_acknowledged,
    locate,
    segment_number,
)
from pgoutput.recording.model import (
    SCHEMA,
    End,
    Epoch,
    Incomplete,
    Metadata,
    Part,
    Prepared,
    PublicationChange,
    Source,
    encode_metadata,
)
from pgoutput.recording.reader import RecordingReader, SegmentReader, list_segments, read_metadata
from pgoutput.recording.resent import NOTHING_RECORDED, RecordedCommits, Resent, recorded_commits
from pgoutput.recording.writer import SEGMENT_BYTES, Remarks, SegmentWriter, Start

__all__ = [
    "NOTHING_RECORDED",
    "SCHEMA",
    "SEGMENT_BYTES",
    "SNAPSHOT",
    "STATE_FILE",
    "Directory",
    "End",
    "Epoch",
    "Incomplete",
    "Location",
    "Metadata",
    "Part",
    "Place",
    "Prepared",
    "PublicationChange",
    "RecordedCommits",
    "RecordingReader",
    "Remarks",
    "Resent",
    "SegmentFile",
    "SegmentReader",
    "SegmentWriter",
    "Source",
    "Start",
    "encode_metadata",
    "find_gaps",
    "find_missing_end",
    "find_segments",
    "last_acknowledged",
    "list_segments",
    "locate",
    "read_metadata",
    "record_capture_file",
    "recorded_commits",
    "segment_name",
    "segment_number",
]
