"""Replicas: the committed changes of a recording are applied to one table for each relation.

The tables are Delta tables; `use_iceberg` makes the tables of a new target Iceberg tables. `replicate`
applies a recording in one process, `logicalrep.spark.replicate` with Spark. Each of these two can resume what
the other has begun. A table has the columns of its relation, with the types of
`logicalrep.values.arrow_type`, and `_rescued_data`, a map from column name to the text of a value that its
column cannot represent. A NULL instead of a text means that the server never sent the value. With history
(SCD type 2) the table also has
`__START_AT` and `__END_AT`, named as in Spark's AUTO CDC.

Each table stores its position, the last change that was applied: rows and position change in one commit. A
table whose changes cannot be applied becomes a failed table, and keeps its position. Changes of the other
tables are still applied. `replica_tables` returns the error of a failed table. Its changes are applied again
after a pause, or by the next run.

How the package is divided:

- `replication`, `positions`: decide which changes of a recording the next micro-batch applies.
- `micro_batch`: applies a micro-batch in this process.
- `applied`: the event of an applied micro-batch, logged with the logger `logicalrep.replica`.
- `ownership`, `failed_tables`: files of the target that name its owner and the failed tables.
- `names`: keeps each table in the folder of its relation's name.
- `remarks`: marks incomplete and dropped tables, and archives or removes dropped tables.
- `selection`: the tables that a target follows, if it does not follow all tables of the recording.
- `registration`: registers a query in the recording, so that segments are pruned only after it has read them.
- `tables`, `reset`: lists the tables of a target; removes tables that are to be built anew.
- `cut`: finds for each table the version that equals the source as of one moment.
- `maintenance`: removes files that the tables do not need any more.
- `self_checked`: what the self-check of `logicalrep sync` has found.
- `as_of`, `verified`: the rows of a table as of an LSN, and up to which LSN it was found equal to its source.

`logicalrep.apply` applies changes to a table, and `logicalrep.targets` contains the table formats.
"""

from __future__ import annotations

from logicalrep._extras import require

require("replica", "deltalake", "numpy", "pyarrow", "pyroaring")

from logicalrep.apply import Difference, TableResult, Updates
from logicalrep.recording import Verified as Verified
from logicalrep.replica.applied import Applied as Applied
from logicalrep.replica.as_of import TableAsOf as TableAsOf, TablesAsOf as TablesAsOf
from logicalrep.replica.cut import Cut, TableAt, versions_at
from logicalrep.replica.maintenance import Maintenance, maintain_tables
from logicalrep.replica.micro_batch import MicroBatch as MicroBatch, Watch as Watch
from logicalrep.replica.ownership import (
    Owner as Owner,
    check_owner as check_owner,
    read_owner as read_owner,
    use_iceberg,
)
from logicalrep.replica.positions import (
    Positions as Positions,
)
from logicalrep.replica.remarks import (
    Dropped,
)
from logicalrep.replica.replication import (
    Progress,
    Query as Query,
    Report as Report,
    replicate,
)
from logicalrep.replica.reset import reset_tables
from logicalrep.replica.selection import (
    existing_tables as existing_tables,
    select_tables,
    selected_tables as selected_tables,
)
from logicalrep.replica.self_checked import (
    CheckedTable as CheckedTable,
    SelfCheckReport as SelfCheckReport,
    read_self_check as read_self_check,
    store_self_check as store_self_check,
)
from logicalrep.replica.tables import ReplicaTable, replica_table, replica_tables
from logicalrep.replica.verified import mark_difference as mark_difference, store_verified as store_verified
from logicalrep.targets import THREADS as THREADS, Position, restore_registry as restore_registry

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
