"""Give a Delta table the columns of its relation, also after schema changes.

- `layout`: which columns a Delta table has for a relation, and the purpose of each column.
- `evolution`: alters a Delta table, or rewrites its files, when the relation has changed.
- `conversion`: converts existing rows to changed column types, as the server's casts do.
- `differences`: why a table may differ from its source after a schema change.
- `properties`: the table properties, which contain the relation's name and the reasons why the table may
  differ.
"""

from __future__ import annotations

from pgoutput.replica.schema.differences import Difference, decode_differences
from pgoutput.replica.schema.evolution import follow_schema, read_table_layout
from pgoutput.replica.schema.layout import MOMENT, TableLayout, delta_names, make_layout
from pgoutput.replica.schema.properties import update_properties

__all__ = [
    "MOMENT",
    "Difference",
    "TableLayout",
    "decode_differences",
    "delta_names",
    "follow_schema",
    "make_layout",
    "read_table_layout",
    "update_properties",
]
