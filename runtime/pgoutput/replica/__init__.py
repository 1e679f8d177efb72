"""Replicas: the committed changes of a recording are applied to one Delta table for each relation.

The input is rows of the view `changes`. The tables can be read by any reader of Delta tables. A table
has the columns of its relation, with the types of `pgoutput.values.arrow_type`, and `_rescued_data`, a map
from column name to the text of a value that its column cannot represent. A NULL instead of a text means that
the server never sent the value. With history (SCD type 2) the table also has `__START_AT` and `__END_AT`,
named as in Spark's AUTO CDC.

A table whose changes cannot be applied becomes a failed table. Changes of the other tables are still applied.
`replica_tables` returns the error of a failed table, and `retry_tables` applies the micro-batches that the
table has missed.

How the package is divided:

- `schema`: gives a Delta table the columns of its relation.
- `rows`: applies changes to the rows of a Delta table.
- `batch`, `chunks`, `data_files`: apply a micro-batch, table by table, in chunks of bounded size.
- `ownership`, `registry`, `failed_tables`: files of the target that name its owner, the folder of each
  relation's table, and the failed tables.
- `tables`, `retry`: list the tables of a target, and retry the failed tables.
- `delta_log`, `as_of`, `verified`: how far a table has applied changes, its rows as of an LSN, and up to
  which LSN it was found equal to its source.
"""

from __future__ import annotations

from pgoutput._extras import require

require("spark", "deltalake", "pyarrow")

from pgoutput.replica.batch import TableResult, apply_changes
from pgoutput.replica.failed_tables import FailedTable, MissedBatch, read_failed_tables, record_failure
from pgoutput.replica.ownership import Owner, check_owner, claim_target
from pgoutput.replica.retry import retry_tables
from pgoutput.replica.schema import Difference
from pgoutput.replica.tables import ReplicaTable, replica_tables
from pgoutput.replica.verified import Verified

__all__ = [
    "Difference",
    "FailedTable",
    "MissedBatch",
    "Owner",
    "ReplicaTable",
    "TableResult",
    "Verified",
    "apply_changes",
    "check_owner",
    "claim_target",
    "read_failed_tables",
    "record_failure",
    "replica_tables",
    "retry_tables",
]
