"""The view `table`: the committed changes of one table, with typed columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from logicalrep._arrays import Mask, Numbers
from logicalrep._index import MessageIndex, mask_out, read_column, read_texts
from logicalrep.values import Rescued, arrow_type, common_type
from logicalrep.views.change_cells import Changes, is_unchanged, new_first, old_first, unchanged_cells
from logicalrep.views.changes import COMMON_COLUMNS, commit_columns, common_columns, names_column
from logicalrep.views.committed_changes import CommittedBatch
from logicalrep.views.relation_schemas import RelationSchema
from logicalrep.wire import NO_TEXT

RESCUED: Final = "_rescued_data"
"""Name of the column of rescued values, the last column of a row: a map from column name to text.

If the table itself has a column of this name, underscores are appended to the name.
"""

RESCUED_TYPE: Final = pa.map_(pa.string(), pa.string())
"""Arrow type of the column with the rescued values."""


def row_type(schemas: Iterable[RelationSchema]) -> pa.StructType:
    """Return the struct type of a table's rows: all columns that the table ever had, and `_rescued_data`.

    A column whose type changed gets an Arrow type that can represent the values of all types it had.

    Args:
        schemas: The schemas of all schema versions of the table, in order.
    """
    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for name, column in zip(schema.names, schema.relation.columns, strict=True):
            type_ = arrow_type(column.type_oid, column.type_modifier)
            types[name] = common_type(types[name], type_) if name in types else type_
    rescued = RESCUED
    while rescued in types:
        rescued += "_"
    return pa.struct([*types.items(), (rescued, RESCUED_TYPE)])


def table_schema(row: pa.StructType) -> pa.Schema:
    """Return the Arrow schema of the view `table`.

    The view has the columns of the view `changes`, except `columns` and `incomplete`. `before` and `after`
    are structs with a field for each column of the table; the field is NULL if the server did not send the
    column.

    Args:
        row: Type of the table's rows, as `row_type` returns it.
    """
    unchanged = pa.list_(pa.field("element", pa.string(), nullable=False))
    rows = pa.field("before", row), pa.field("after", row)
    return pa.schema([*COMMON_COLUMNS, *rows, pa.field("unchanged", unchanged, nullable=False)])


def table_batch(committed: CommittedBatch, schema: pa.Schema, *, snapshot: bool) -> pa.RecordBatch:
    """Return committed changes of a table as rows of the view `table`.

    Args:
        committed: Changes of the table.
        schema: The columns to return, all or some of those that `table_schema` returns. The structs `before`
            and `after` may lack columns of the table; their values then go into `_rescued_data`.
        snapshot: Whether the changes are rows of a snapshot.
    """
    changes = committed.changes
    columns = common_columns(changes) | commit_columns(committed, snapshot=snapshot)
    unchanged = is_unchanged(changes.index)
    unsent = unchanged if unchanged.any() else None
    for name, first, masked in (("before", old_first, None), ("after", new_first, unsent)):
        if name in schema.names:
            columns[name] = _structs(changes, first(changes), masked, schema.field(name).type)
    columns["unchanged"] = names_column(changes, unchanged_cells(changes))
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _structs(changes: Changes, first: Numbers, unsent: Mask | None, type_: pa.StructType) -> pa.StructArray:
    """Return old or new rows as structs.

    Args:
        changes: The changes.
        first: Index of the first cell of each change's old or new row; -1 for a change without that row.
        unsent: Whether each cell of the batch is UNCHANGED; None if no cell is UNCHANGED.
        type_: Type of the rows.
    """
    if (first < 0).all():
        return pa.nulls(len(first), type_)
    if len(changes.schemas) == 1:
        return _structs_of_schema(changes.index, changes.schemas[0], first, unsent, type_)
    order = np.argsort(changes.schema, kind="stable")
    ends = np.cumsum(np.bincount(changes.schema))
    groups = zip(changes.schemas, np.split(first[order], ends[:-1]), strict=True)
    arrays = [_structs_of_schema(changes.index, schema, cells, unsent, type_) for schema, cells in groups]
    return pa.concat_arrays(arrays).take(pa.array(np.argsort(order)))


def _structs_of_schema(
    index: MessageIndex, schema: RelationSchema, first: Numbers, unsent: Mask | None, type_: pa.StructType
) -> pa.StructArray:
    """Return old or new rows of one schema version as structs.

    Args:
        index: The messages of the batch.
        schema: The schema of all rows.
        first: Index of the first cell of each change's old or new row; -1 for a change without that row.
        unsent: Whether each cell of the batch is UNCHANGED; None if no cell is UNCHANGED.
        type_: Type of the rows.
    """
    *fields, rescued = type_
    types = {field.name: field.type for field in fields}
    arrays = {name: pa.nulls(len(first), own) for name, own in types.items() if name not in schema.names}
    lost: dict[str, Rescued] = {}
    missing = first < 0
    whole = not missing.any()
    for offset, (name, column) in enumerate(zip(schema.names, schema.relation.columns, strict=True)):
        cells = first + offset if whole else mask_out(first + offset, missing)
        if unsent is not None:
            cells = mask_out(cells, unsent[cells])
        if name in types:
            column_type = (column.type_oid, column.type_modifier, types[name])
            arrays[name], lost[name] = read_column(index, cells, *column_type)
        else:
            oids = np.full(len(cells), column.type_oid)
            texts = enumerate(read_texts(index, cells, oids).to_pylist())
            lost[name] = {row: text.removeprefix(NO_TEXT) for row, text in texts if text is not None}
    columns = [*(arrays[field.name] for field in fields), _rescued(lost, len(first), rescued.type)]
    mask = None if whole else pa.array(missing)
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=mask)


def _rescued(lost: Mapping[str, Rescued], rows: int, type_: pa.MapType) -> pa.MapArray:
    """Return for each row a map from column name to its rescued value in `lost`; NULL if the row has none."""
    if not any(lost.values()):
        return pa.nulls(rows, type_)
    maps: list[dict[str, str | None] | None] = [None] * rows
    for name, texts in lost.items():
        for row, text in texts.items():
            maps[row] = (maps[row] or {}) | {name: text}
    return pa.array([None if entries is None else list(entries.items()) for entries in maps], type_)
