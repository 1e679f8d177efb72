"""The view `table`: the changes of one table, with its columns' own types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from pgoutput.columns.index import Index, Mask, Numbers, where_not
from pgoutput.columns.read import read_column, read_texts
from pgoutput.values import Rescued, arrow_type, common_type
from pgoutput.views.changes import HEAD, commit_columns, head_columns, names_column
from pgoutput.views.committed import Committed
from pgoutput.views.rows import Changes, new_first, old_first, unchanged_cells, unchanged_kinds
from pgoutput.views.shapes import Shape

RESCUED: Final = "_rescued_data"
"""The last column of a row: what its other columns cannot hold, a map from names to values as text. In a
table that has a column of this name, underscores behind it tell it apart."""

RESCUED_TYPE: Final = pa.map_(pa.string(), pa.string())


def row_type(shapes: Iterable[Shape]) -> pa.StructType:
    """The type of a table's rows: the columns it ever had, by name, and `_rescued_data`.

    A column whose type changed has a type that holds all its values.
    """
    types: dict[str, pa.DataType] = {}
    for shape in shapes:
        for name, column in zip(shape.names, shape.relation.columns, strict=True):
            type_ = arrow_type(column.type_oid, column.type_modifier)
            types[name] = common_type(types[name], type_) if name in types else type_
    rescued = RESCUED
    while rescued in types:
        rescued += "_"
    return pa.struct([*types.items(), (rescued, RESCUED_TYPE)])


def table_schema(row: pa.StructType) -> pa.Schema:
    """The columns of the view, for rows of a type that `row_type` gives.

    They are those of `changes`, but for `columns`; `before` and `after` have a field for each column, NULL
    where the column was not sent.
    """
    unchanged = pa.list_(pa.field("element", pa.string(), nullable=False))
    rows = pa.field("before", row), pa.field("after", row)
    return pa.schema([*HEAD, *rows, pa.field("unchanged", unchanged, nullable=False)])


def table_batch(committed: Committed, schema: pa.Schema, *, snapshot: bool) -> pa.RecordBatch:
    """The rows of the view.

    Args:
        committed: Changes of the table.
        schema: Of the view. Columns that the table has and the schema lacks go into `_rescued_data`.
        snapshot: Whether they are rows of a snapshot.
    """
    changes = committed.changes
    columns = head_columns(changes) | commit_columns(committed, snapshot=snapshot)
    kinds = unchanged_kinds(changes.index)
    unsent = kinds if kinds.any() else None
    columns["before"] = _structs(changes, old_first(changes), None, schema.field("before").type)
    columns["after"] = _structs(changes, new_first(changes), unsent, schema.field("after").type)
    columns["unchanged"] = names_column(changes, unchanged_cells(changes))
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _structs(changes: Changes, first: Numbers, unsent: Mask | None, type_: pa.StructType) -> pa.StructArray:
    """Rows as structs, those of one shape at a time.

    Args:
        changes: The changes.
        first: The first cell of each row; -1 where there is none.
        unsent: Which cells were not sent, if some were not.
        type_: Of the rows.
    """
    if (first < 0).all():
        return pa.nulls(len(first), type_)
    if len(changes.shapes) == 1:
        return _of_shape(changes.index, changes.shapes[0], first, unsent, type_)
    order = np.argsort(changes.shape, kind="stable")
    ends = np.cumsum(np.bincount(changes.shape))
    groups = zip(changes.shapes, np.split(first[order], ends[:-1]), strict=True)
    arrays = [_of_shape(changes.index, shape, cells, unsent, type_) for shape, cells in groups]
    return pa.concat_arrays(arrays).take(pa.array(np.argsort(order)))


def _of_shape(
    index: Index, shape: Shape, first: Numbers, unsent: Mask | None, type_: pa.StructType
) -> pa.StructArray:
    *fields, rescued = type_
    wanted = {field.name: field.type for field in fields}
    arrays = {name: pa.nulls(len(first), one) for name, one in wanted.items() if name not in shape.names}
    lost: dict[str, Rescued] = {}
    missing = first < 0
    whole = not missing.any()
    for place, (name, column) in enumerate(zip(shape.names, shape.relation.columns, strict=True)):
        cells = first + place if whole else where_not(first + place, missing)
        if unsent is not None:
            cells = where_not(cells, unsent[cells])
        if name in wanted:
            of_type = (column.type_oid, column.type_modifier, wanted[name])
            arrays[name], lost[name] = read_column(index, cells, *of_type)
        else:
            oids = np.full(len(cells), column.type_oid)
            texts = enumerate(read_texts(index, cells, oids).to_pylist())
            lost[name] = {row: text for row, text in texts if text is not None}
    columns = [*(arrays[field.name] for field in fields), _rescued(lost, len(first), rescued.type)]
    mask = None if whole else pa.array(missing)
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=mask)


def _rescued(lost: Mapping[str, Rescued], rows: int, type_: pa.MapType) -> pa.MapArray:
    """What columns could not hold, by row."""
    if not any(lost.values()):
        return pa.nulls(rows, type_)
    maps: list[dict[str, str | None] | None] = [None] * rows
    for name, texts in lost.items():
        for row, text in texts.items():
            maps[row] = (maps[row] or {}) | {name: text}
    return pa.array([None if one is None else list(one.items()) for one in maps], type_)
