"""Record a replication slot of a live server as a recording: a folder of Parquet segments.

`Recorder` stores messages before it acknowledges them. After a crash of the recorder or the server, a
recording continues where it ended. Needs the extra `recorder`.
"""

from pgoutput._extras import require

require("recorder", "numpy", "psycopg", "pyarrow")

from pgoutput.recorder.ddl_events import ddl_events_sql, install_ddl_events
from pgoutput.recorder.events import (
    Connected,
    Event,
    Notice,
    Progress,
    PublicationAltered,
    Reconnecting,
    SnapshotKept,
    Snapshotted,
    Stopped,
    Stored,
    TableComplete,
    TableIncomplete,
    TableNotCopied,
    Waiting,
)
from pgoutput.recorder.options import RecorderOptions
from pgoutput.recorder.recorder import Recorder
from pgoutput.recorder.snapshot_requests import is_requested, request_snapshot

__all__ = [
    "Connected",
    "Event",
    "Notice",
    "Progress",
    "PublicationAltered",
    "Reconnecting",
    "Recorder",
    "RecorderOptions",
    "SnapshotKept",
    "Snapshotted",
    "Stopped",
    "Stored",
    "TableComplete",
    "TableIncomplete",
    "TableNotCopied",
    "Waiting",
    "ddl_events_sql",
    "install_ddl_events",
    "is_requested",
    "request_snapshot",
]
