"""Recordings as Parquet files, called segments, that each can be read alone.

`SegmentWriter` makes them of a stream; `Segments` reads them as one stream again, `Segment` reads one; what
a segment says of itself is its `Metadata`.
"""

from pgoutput.segments.captured import record_capture
from pgoutput.segments.check import find_gaps, find_missing_end
from pgoutput.segments.directory import Directory
from pgoutput.segments.files import SegmentFile, segment_name
from pgoutput.segments.location import (
    SNAPSHOT,
    STATE_FILE,
    Location,
    Place,
    find_segments,
    last_acknowledged,
    locate,
    segment_number,
)
from pgoutput.segments.model import (
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
from pgoutput.segments.reader import Segment, Segments, list_segments, read_metadata
from pgoutput.segments.resent import NOTHING_RECORDED, RecordedCommits, Resent, recorded_commits
from pgoutput.segments.writer import SEGMENT_BYTES, Remarks, SegmentWriter, Start

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
    "Remarks",
    "Resent",
    "Segment",
    "SegmentFile",
    "SegmentWriter",
    "Segments",
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
    "record_capture",
    "recorded_commits",
    "segment_name",
    "segment_number",
]
