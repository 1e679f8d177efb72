"""Recordings: folders of Parquet files, called segments, each of which can be read alone.

To read: `RecordingReader` reads a recording as one stream of messages, `SegmentReader` one segment as Arrow
batches. `Recording` gives the metadata of all segments, from a local folder or a URI. `read_metadata` reads
the metadata of one segment, `list_segments` lists the segments of a local folder. `find_inconsistencies`
finds missing segments.

To write: `SegmentWriter` writes the stream of a session as segments, `record_capture_file` converts a capture
file to a recording. `SegmentFile` and `Directory` write single files durably and atomically.

`Metadata` describes a segment, with `SchemaVersion`, `TransactionPart`, `TransactionEnd` and
`PreparedTransaction`. `SCHEMA` is the Arrow schema of a segment's rows.
"""

from pgoutput._extras import require

require("arrow", "numpy", "pyarrow")

from pgoutput.recording.check import find_inconsistencies, find_missing_end
from pgoutput.recording.directory import Directory, sync_path
from pgoutput.recording.from_capture_file import record_capture_file
from pgoutput.recording.location import (
    SNAPSHOT,
    STATE_FILE,
    Location,
    PathOrUri,
    find_segments,
    last_acknowledged,
    locate,
    segment_number,
)
from pgoutput.recording.reader import RecordingReader, SegmentReader, list_segments, read_metadata
from pgoutput.recording.recording import Recording
from pgoutput.recording.resent_commits import (
    NO_COMMITS,
    RecordedCommits,
    ResentCommitCheck,
    recorded_commits,
)
from pgoutput.recording.segment_file import SegmentFile, segment_name
from pgoutput.recording.segment_format import (
    MESSAGE_SCHEMA,
    SCHEMA,
    IncompleteTable,
    Metadata,
    PreparedTransaction,
    PublicationChange,
    SchemaVersion,
    Source,
    TransactionEnd,
    TransactionPart,
    encode_metadata,
)
from pgoutput.recording.writer import SEGMENT_BYTES, Job, Remarks, SegmentWriter, SessionStart

__all__ = [
    "MESSAGE_SCHEMA",
    "NO_COMMITS",
    "SCHEMA",
    "SEGMENT_BYTES",
    "SNAPSHOT",
    "STATE_FILE",
    "Directory",
    "IncompleteTable",
    "Job",
    "Location",
    "Metadata",
    "PathOrUri",
    "PreparedTransaction",
    "PublicationChange",
    "RecordedCommits",
    "Recording",
    "RecordingReader",
    "Remarks",
    "ResentCommitCheck",
    "SchemaVersion",
    "SegmentFile",
    "SegmentReader",
    "SegmentWriter",
    "SessionStart",
    "Source",
    "TransactionEnd",
    "TransactionPart",
    "encode_metadata",
    "find_inconsistencies",
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
    "sync_path",
]
