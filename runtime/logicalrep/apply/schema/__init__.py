"""Give a Delta table the columns of its relation, also after schema changes.

- `layout`: which columns a Delta table has for a relation, and the purpose of each column.
- `evolution`: alters a Delta table, or rewrites its files, when the relation has changed.
- `conversion`: converts existing rows to changed column types, as the server's casts do.
- `alteration`: applies an ALTER TABLE that the recording describes.
- `differences`: why a table may differ from its source after a schema change, and the table properties that
  contain these reasons and the relation's name.
"""

from __future__ import annotations

from logicalrep.apply.schema.alteration import alter_table
from logicalrep.apply.schema.conversion import convert_batch
from logicalrep.apply.schema.differences import (
    Difference,
    changed_properties,
    decode_differences,
    encode_key,
    store_difference,
    store_foreign_change,
    store_unmatched,
    update_properties,
)
from logicalrep.apply.schema.evolution import follow_schema, keeps_files, rename_columns
from logicalrep.apply.schema.layout import MOMENT, TableLayout, delta_names, make_layout, read_layout

__all__ = [
    "MOMENT",
    "Difference",
    "TableLayout",
    "alter_table",
    "changed_properties",
    "convert_batch",
    "decode_differences",
    "delta_names",
    "encode_key",
    "follow_schema",
    "keeps_files",
    "make_layout",
    "read_layout",
    "rename_columns",
    "store_difference",
    "store_foreign_change",
    "store_unmatched",
    "update_properties",
]
