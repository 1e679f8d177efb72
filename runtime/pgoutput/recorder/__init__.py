"""Record a replication slot of a live server as a recording: a folder of Parquet segments.

`Recorder` stores messages before it acknowledges them. After a crash of the recorder or the server, a
recording continues where it ended. Each event is also logged, with the logger `pgoutput.recorder`. Needs the
extra `recorder`, and `store` to record to an object store.
"""

from pgoutput._extras import require

require("recorder", "numpy", "psycopg", "pyarrow")

from pgoutput.recorder.connection import Connection as Connection, Row as Row
from pgoutput.recorder.ddl_events import ddl_events_sql as ddl_events_sql, install_ddl_events
from pgoutput.recorder.event_texts import event_level as event_level, event_text
from pgoutput.recorder.events import (
    Connected,
    Event,
    Notice,
    Progress,
    PublicationAltered,
    Reconnecting,
    RowsComplete,
    Snapshotted,
    Stopped,
    Stored,
    TableComplete,
    TableDropped,
    TableIncomplete,
    TableNotCopied,
    Waiting,
)
from pgoutput.recorder.exported_snapshot import (
    ExportedSnapshot as ExportedSnapshot,
    export_snapshot as export_snapshot,
    is_recording as is_recording,
    stored_lsn as stored_lsn,
)
from pgoutput.recorder.options import RecorderOptions
from pgoutput.recorder.publications import (
    PublishedTable as PublishedTable,
    published_tables as published_tables,
)
from pgoutput.recorder.recorder import Recorder
from pgoutput.recorder.row_keys import (
    Keys as Keys,
    key_columns as key_columns,
    quote_name as quote_name,
    quote_text as quote_text,
)
from pgoutput.recorder.server import identify as identify
from pgoutput.recorder.slot_status import SlotStatus as SlotStatus, read_slot_status as read_slot_status
from pgoutput.recorder.snapshot_requests import is_requested as is_requested, request_snapshot

__all__ = [
    "Connected",
    "Event",
    "Notice",
    "Progress",
    "PublicationAltered",
    "Reconnecting",
    "Recorder",
    "RecorderOptions",
    "RowsComplete",
    "Snapshotted",
    "Stopped",
    "Stored",
    "TableComplete",
    "TableDropped",
    "TableIncomplete",
    "TableNotCopied",
    "Waiting",
    "event_text",
    "install_ddl_events",
    "request_snapshot",
]
