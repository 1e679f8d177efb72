"""Replicas: the committed changes of a recording are applied to one table for each relation.

The tables are Delta tables; `use_iceberg` makes the tables of a new target Iceberg tables. `replicate`
applies a recording in one process, `pgoutput.spark.replicate` with Spark. Each of these two can resume what
the other has begun. A table has the columns of its relation, with the types of `pgoutput.values.arrow_type`,
and `_rescued_data`, a map from column name to the text of a value that its column cannot represent. A NULL
instead of a text means that the server never sent the value. With history (SCD type 2) the table also has
`__START_AT` and `__END_AT`, named as in Spark's AUTO CDC.

Each table stores its position, the last change that was applied: rows and position change in one commit. A
table whose changes cannot be applied becomes a failed table, and keeps its position. Changes of the other
tables are still applied. `replica_tables` returns the error of a failed table. Its changes are applied again
after a pause, or by the next run.

How the package is divided:

- `replication`, `positions`: decide which changes of a recording the next micro-batch applies.
- `micro_batch`: applies a micro-batch in this process.
- `applied`: the event of an applied micro-batch, logged with the logger `pgoutput.replica`.
- `ownership`, `failed_tables`: files of the target that name its owner and the failed tables.
- `names`: keeps each table in the folder of its relation's name.
- `remarks`: marks incomplete and dropped tables, and archives or removes dropped tables.
- `selection`: the tables that a target follows, if it does not follow all tables of the recording.
- `registration`: registers a query in the recording, so that segments are pruned only after it has read them.
- `tables`, `reset`: lists the tables of a target; removes tables that are to be built anew.
- `cut`: finds for each table the version that equals the source as of one moment.
- `maintenance`: removes files that the tables do not need any more.
- `self_checked`: what the self-check of `pgoutput sync` has found.
- `as_of`, `verified`: the rows of a table as of an LSN, and up to which LSN it was found equal to its source.

`pgoutput.apply` applies changes to a table, and `pgoutput.targets` contains the table formats.
"""

from __future__ import annotations

from pgoutput._extras import require

require("replica", "deltalake", "numpy", "pyarrow", "pyroaring")

from pgoutput.apply import Difference, TableResult, Updates
from pgoutput.recording import Verified as Verified
from pgoutput.replica.applied import Applied as Applied
from pgoutput.replica.as_of import TableAsOf as TableAsOf, TablesAsOf as TablesAsOf
from pgoutput.replica.cut import Cut, TableAt, versions_at
from pgoutput.replica.maintenance import Maintenance, maintain_tables
from pgoutput.replica.micro_batch import MicroBatch as MicroBatch, Watch as Watch
from pgoutput.replica.ownership import (
    Owner as Owner,
    check_owner as check_owner,
    read_owner as read_owner,
    use_iceberg,
)
from pgoutput.replica.positions import (
    Positions as Positions,
)
from pgoutput.replica.remarks import (
    Dropped,
)
from pgoutput.replica.replication import (
    Progress,
    Query as Query,
    Report as Report,
    replicate,
)
from pgoutput.replica.reset import reset_tables
from pgoutput.replica.selection import (
    existing_tables as existing_tables,
    select_tables,
    selected_tables as selected_tables,
)
from pgoutput.replica.self_checked import (
    CheckedTable as CheckedTable,
    SelfCheckReport as SelfCheckReport,
    read_self_check as read_self_check,
    store_self_check as store_self_check,
)
from pgoutput.replica.tables import ReplicaTable, replica_table, replica_tables
from pgoutput.replica.verified import mark_difference as mark_difference, store_verified as store_verified
from pgoutput.targets import THREADS as THREADS, Position, restore_registry as restore_registry

__all__ = [
    "Cut",
    "Difference",
    "Dropped",
    "Maintenance",
    "Position",
    "Progress",
    "ReplicaTable",
    "TableAt",
    "TableResult",
    "Updates",
    "maintain_tables",
    "replica_table",
    "replica_tables",
    "replicate",
    "reset_tables",
    "select_tables",
    "use_iceberg",
    "versions_at",
]
