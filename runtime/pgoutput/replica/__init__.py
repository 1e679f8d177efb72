"""Tables kept up to date: committed changes applied to Delta tables, one for each relation.

What comes in are rows of `pgoutput.views.CHANGES`, what comes out can be read by any reader of Delta tables.
A table has the relation's columns, with the types of `pgoutput.values.arrow_type`, and `_rescued_data`, as in
the view `table`; with history also `__START_AT` and `__END_AT`, as Spark's AUTO CDC calls them.

A table whose changes cannot be applied is set aside: `replica_tables` has its error, and `retry_tables`
applies what it has missed.
"""

from __future__ import annotations

from pgoutput._extras import require

require("spark", "deltalake", "pyarrow")

from pgoutput.replica.apply import Applied, apply_changes
from pgoutput.replica.differences import Difference
from pgoutput.replica.retry import retry_tables
from pgoutput.replica.tables import ReplicaTable, replica_tables

__all__ = ["Applied", "Difference", "ReplicaTable", "apply_changes", "replica_tables", "retry_tables"]
