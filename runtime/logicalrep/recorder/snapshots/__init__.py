"""Copies of the rows of published tables, at the start of a recording and while the stream is recorded.

Imports `client` and `catalogs`. The other folders of the recorder import from `snapshots`, not from its
modules.

- `exported`: a snapshot of the database. `ranges`: parts of tables. `table_copy`: copies them in parallel.
- `copy_format`: the format of COPY. `segment`: segments of copied rows. `copy_folder`: where they are kept.
- `requests`: requests of users. `copy_thread`: a thread that copies tables on request.
- `copied_rows`: transactions that make copied rows part of a recording. `row_keys`, `changes_of_keys`: copies
  of rows that are selected by their keys, and the recorded changes of these rows.
"""

from logicalrep.recorder.snapshots.copied_rows import (
    CopiedTables as CopiedTables,
    transactions_of as transactions_of,
)
from logicalrep.recorder.snapshots.copy_folder import CopyFolder as CopyFolder
from logicalrep.recorder.snapshots.copy_thread import TableSnapshots as TableSnapshots
from logicalrep.recorder.snapshots.exported import (
    ExportedSnapshot as ExportedSnapshot,
    export_snapshot as export_snapshot,
)
from logicalrep.recorder.snapshots.requests import (
    SnapshotRequests as SnapshotRequests,
    is_requested as is_requested,
    request_snapshot as request_snapshot,
)
from logicalrep.recorder.snapshots.row_keys import (
    Keys as Keys,
    key_columns as key_columns,
    quote_name as quote_name,
    quote_text as quote_text,
)
from logicalrep.recorder.snapshots.table_copy import SchemaChanged as SchemaChanged, TableCopy as TableCopy
