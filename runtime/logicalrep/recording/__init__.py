"""Recordings: folders of Parquet files, called segments, each of which can be read alone.

To read: `RecordingReader` reads a recording as one stream of messages, `SegmentReader` one segment as Arrow
batches. `Recording` gives the metadata of all segments, from a local folder or a URI. `read_metadata` reads
the metadata of one segment, `list_segments` lists the segments of a local folder. `find_inconsistencies`
finds missing segments.

To write: `SegmentWriter` writes the stream of a session as segments, `record_capture_file` converts a capture
file to a recording. `SegmentFile` and `Directory` write single files durably and atomically. `write_pack`
writes a pack of small segments, `pack_name` and `packed_numbers` convert the names of packs.

`prune` removes segments that all registered readers have read. `read_readers` returns these readers.

`verified_tables` returns the tables of a recording's replicas that were found equal to their source.
`replace_file` and `remove_file` write small files, locally or in an object store.

`Metadata` describes a segment, with `SchemaVersion`, `TransactionPart`, `TransactionEnd` and
`PreparedTransaction`. `SCHEMA` is the Arrow schema of a segment's rows.
"""

from logicalrep._extras import require

require("arrow", "numpy", "pyarrow")

from logicalrep.recording.check import find_inconsistencies as find_inconsistencies
from logicalrep.recording.directory import (
    Directory as Directory,
    make_folder as make_folder,
    partial_name as partial_name,
    sync_path as sync_path,
)
from logicalrep.recording.from_capture_file import record_capture_file
from logicalrep.recording.location import (
    COPIES as COPIES,
    SNAPSHOT as SNAPSHOT,
    STATE_FILE as STATE_FILE,
    Location as Location,
    PathOrUri as PathOrUri,
    find_segments as find_segments,
    last_acknowledged as last_acknowledged,
    locate as locate,
    pack_name as pack_name,
    packed_numbers as packed_numbers,
    read_beginning as read_beginning,
)
from logicalrep.recording.object_store import (
    ObjectStore as ObjectStore,
    StoreUnavailable as StoreUnavailable,
    Superseded as Superseded,
    Version as Version,
    parse_store_url as parse_store_url,
    uses_profile as uses_profile,
)
from logicalrep.recording.packs import write_pack as write_pack
from logicalrep.recording.pruning import Pruned as Pruned, prune
from logicalrep.recording.reader import (
    RecordingReader,
    SegmentReader,
    list_segments,
    read_metadata,
    segments_at as segments_at,
)
from logicalrep.recording.recording import Recording
from logicalrep.recording.registered_readers import (
    Reader as Reader,
    read_readers as read_readers,
    reader_file as reader_file,
)
from logicalrep.recording.resent_commits import (
    RecordedCommits as RecordedCommits,
    ResentCommitCheck as ResentCommitCheck,
    recorded_commits as recorded_commits,
)
from logicalrep.recording.segment_file import SegmentFile as SegmentFile, segment_name as segment_name
from logicalrep.recording.segment_format import (
    LEASE_KEY as LEASE_KEY,
    MESSAGE_SCHEMA as MESSAGE_SCHEMA,
    SCHEMA,
    GoneTable as GoneTable,
    IncompleteTable as IncompleteTable,
    Metadata,
    PublicationChange as PublicationChange,
    RenamedTable as RenamedTable,
    SchemaVersion as SchemaVersion,
    Source as Source,
    Upgrade as Upgrade,
    encode_metadata as encode_metadata,
)
from logicalrep.recording.small_files import remove_file as remove_file, replace_file as replace_file
from logicalrep.recording.stream_state import DDL_PREFIX as DDL_PREFIX
from logicalrep.recording.verified import (
    Verified as Verified,
    VerifiedTable as VerifiedTable,
    store_verified_tables as store_verified_tables,
    verified_tables,
)
from logicalrep.recording.writer import (
    SEGMENT_BYTES as SEGMENT_BYTES,
    Job as Job,
    Remarks as Remarks,
    SegmentWriter as SegmentWriter,
    SessionStart as SessionStart,
)

__all__ = [
    "SCHEMA",
    "Metadata",
    "Recording",
    "RecordingReader",
    "SegmentReader",
    "list_segments",
    "prune",
    "read_metadata",
    "record_capture_file",
    "verified_tables",
]
