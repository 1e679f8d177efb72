"""Record a replication slot of a live server as a recording: a folder of Parquet segments.

`Recorder` stores messages before it acknowledges them. After a crash of the recorder or the server, a
recording continues where it ended. Each event is also logged, with the logger `logicalrep.recorder`. Needs
the extra `recorder`, and `store` to record to an object store.

The parts of the package. A folder imports only from folders further down in this list:

- `recorder`: the class `Recorder`, which connects, and connects again when the connection is lost.
- `session`: records the stream of one connection.
- `snapshots`: copies the rows of tables. `storage`: the folder of the recording, or its objects in a store.
- `catalogs`: reads the catalogs again and again, and finds what the stream does not contain.
- `client`: the connection to the server, its slots and timelines.
- `options`, `events`: the settings of a recorder, and what it reports.
"""

from logicalrep._extras import require

require("recorder", "numpy", "psycopg", "pyarrow")

from logicalrep.recorder.catalogs import (
    DDL_EVENTS as DDL_EVENTS,
    DDL_EVENTS_SINCE as DDL_EVENTS_SINCE,
    MISSING_PRIVILEGES as MISSING_PRIVILEGES,
    PublishedTable as PublishedTable,
    check_privileges as check_privileges,
    ddl_events_sql as ddl_events_sql,
    install_ddl_events,
    published_tables as published_tables,
)
from logicalrep.recorder.client import (
    Connection as Connection,
    PermissionDenied as PermissionDenied,
    Row as Row,
    SlotStatus as SlotStatus,
    identify as identify,
    read_slot_status as read_slot_status,
)
from logicalrep.recorder.events import (
    Connected,
    Event,
    Lost,
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
    event_level as event_level,
    event_text,
)
from logicalrep.recorder.options import RecorderOptions
from logicalrep.recorder.recorder import Recorder
from logicalrep.recorder.session import FIXED_MINORS as FIXED_MINORS
from logicalrep.recorder.snapshots import (
    ExportedSnapshot as ExportedSnapshot,
    Keys as Keys,
    export_snapshot as export_snapshot,
    is_requested as is_requested,
    key_columns as key_columns,
    quote_name as quote_name,
    quote_text as quote_text,
    request_snapshot,
)
from logicalrep.recorder.storage import (
    check_place as check_place,
    is_recording as is_recording,
    stored_lsn as stored_lsn,
)

__all__ = [
    "Connected",
    "Event",
    "Lost",
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
