"""Apply committed changes to the tables of a target.

`apply_changes` applies the sorted changes of one relation to its table. It merges the changes by key, in
chunks of bounded size, and commits the rows together with the table's position. Changes that the table
already contains are skipped.

- `sorted_changes`: gathers and sorts the changes of a micro-batch; spills them to disk if there are too many.
- `batch`, `chunks`, `pending_chunks`: apply the changes of a relation, chunk by chunk.
- `data_files`: the data files of a Delta table, and new data files that no commit has added yet.
- `rows`: applies a chunk to the rows of a table.
- `schema`: gives a table the columns of its relation, and stores why the table may differ from its source.
- `parts`: applies the changes of a relation in several processes.
"""

from __future__ import annotations

from logicalrep._extras import require

require("replica", "deltalake", "numpy", "pyarrow", "pyroaring")

from logicalrep.apply.batch import (
    TableResult as TableResult,
    Updates as Updates,
    apply_changes as apply_changes,
)
from logicalrep.apply.chunks import MAX_ROWS as MAX_ROWS, Chunk as Chunk, is_after as is_after
from logicalrep.apply.data_files import DataFiles as DataFiles, write_again as write_again
from logicalrep.apply.parts import (
    Part as Part,
    PartsError as PartsError,
    Rewrite as Rewrite,
    Rewritten as Rewritten,
    TableVersion as TableVersion,
    commit_parts as commit_parts,
    discard_files as discard_files,
    find_version as find_version,
    fold_part as fold_part,
    plan_rewrites as plan_rewrites,
    rewrite_files as rewrite_files,
)
from logicalrep.apply.schema import (
    Difference as Difference,
    TableLayout as TableLayout,
    convert_batch as convert_batch,
    decode_differences as decode_differences,
    delta_names as delta_names,
    follow_schema as follow_schema,
    make_layout as make_layout,
    read_layout as read_layout,
    rename_columns as rename_columns,
    store_difference as store_difference,
    store_foreign_change as store_foreign_change,
)
from logicalrep.apply.sorted_changes import SortedChanges as SortedChanges
