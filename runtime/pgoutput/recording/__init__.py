"""Recordings: folders of Parquet files, called segments, each of which can be read alone.

To read: `RecordingReader` reads a recording as one stream of messages, `SegmentReader` one segment as Arrow
batches. `Recording` gives the metadata of all segments, from a local folder or a URI. `read_metadata` reads
the metadata of one segment, `list_segments` lists the segments of a local folder. `find_inconsistencies`
finds missing segments.

To write: `SegmentWriter` writes the stream of a session as segments, `record_capture_file` converts a capture
file to a recording. `SegmentFile` and `Directory` write single files durably and atomically. `write_pack`
writes a pack of small segments, `pack_name` and `packed_numbers` convert the names of packs.

`prune` removes segments that all readers have read. `read_readers` returns the registered readers.

`verified_tables` returns which tables of the replicas of a recording were found equal to the source.
`replace_file` and `remove_file` write small files, locally or in an object store.

`Metadata` describes a segment, with `SchemaVersion`, `TransactionPart`, `TransactionEnd` and
`PreparedTransaction`. `SCHEMA` is the Arrow schema of a segment's rows.
"""

from pgoutput._extras import require

require("arrow", "numpy", "pyarrow")

from pgoutput.recording.check import find_inconsistencies, find_missing_end
from pgoutput.recording.directory import Directory, partial_name, sync_path
from pgoutput.recording.from_capture_file import record_capture_file
from pgoutput.recording.location import (
    BEGINNING_FILE,
    COPIES,
    SNAPSHOT,
    STATE_FILE,
    Beginning,
    Location,
    PathOrUri,
    find_segments,
    last_acknowledged,
    locate,
    pack_name,
    packed_numbers,
    read_beginning,
    segment_number,
)
from pgoutput.recording.object_store import (
    ObjectStore,
    StoreUnavailable,
    Superseded,
    Version,
    parse_store_url,
)
from pgoutput.recording.packs import write_pack
from pgoutput.recording.pruning import Pruned, prune
from pgoutput.recording.reader import (
    RecordingReader,
    SegmentReader,
    list_segments,
    read_metadata,
    segments_at,
)
from pgoutput.recording.recording import Recording
from pgoutput.recording.registered_readers import Reader, read_readers, reader_file
from pgoutput.recording.resent_commits import (
    NO_COMMITS,
    RecordedCommits,
    ResentCommitCheck,
    recorded_commits,
)
from pgoutput.recording.segment_file import SegmentFile, segment_name
from pgoutput.recording.segment_format import (
    LEASE_KEY,
    MESSAGE_SCHEMA,
    SCHEMA,
    GoneTable,
    IncompleteTable,
    Metadata,
    PreparedTransaction,
    PublicationChange,
    SchemaVersion,
    Source,
    TransactionEnd,
    TransactionPart,
    Upgrade,
    encode_metadata,
)
from pgoutput.recording.small_files import remove_file, replace_file
from pgoutput.recording.stream_state import DDL_PREFIX
from pgoutput.recording.verified import Verified, VerifiedTable, store_verified_table, verified_tables
from pgoutput.recording.writer import SEGMENT_BYTES, Job, Remarks, SegmentWriter, SessionStart

__all__ = [
    "BEGINNING_FILE",
    "COPIES",
    "DDL_PREFIX",
    "LEASE_KEY",
    "MESSAGE_SCHEMA",
    "NO_COMMITS",
    "SCHEMA",
    "SEGMENT_BYTES",
    "SNAPSHOT",
    "STATE_FILE",
    "Beginning",
    "Directory",
    "GoneTable",
    "IncompleteTable",
    "Job",
    "Location",
    "Metadata",
    "ObjectStore",
    "PathOrUri",
    "PreparedTransaction",
    "Pruned",
    "PublicationChange",
    "Reader",
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
    "StoreUnavailable",
    "Superseded",
    "TransactionEnd",
    "TransactionPart",
    "Upgrade",
    "Verified",
    "VerifiedTable",
    "Version",
    "encode_metadata",
    "find_inconsistencies",
    "find_missing_end",
    "find_segments",
    "last_acknowledged",
    "list_segments",
    "locate",
    "pack_name",
    "packed_numbers",
    "parse_store_url",
    "partial_name",
    "prune",
    "read_beginning",
    "read_metadata",
    "read_readers",
    "reader_file",
    "record_capture_file",
    "recorded_commits",
    "remove_file",
    "replace_file",
    "segment_name",
    "segment_number",
    "segments_at",
    "store_verified_table",
    "sync_path",
    "verified_tables",
    "write_pack",
]
