"""The view `table`: the changes of one table, with its columns' own types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import pyarrow as pa

from pgoutput.messages import Cell
from pgoutput.values import arrow_type, common_type, to_arrow, to_text
from pgoutput.views.changes import (
    HEAD,
    Row,
    distinct_shapes,
    head_columns,
    new_rows,
    old_rows,
    unchanged_column,
)
from pgoutput.views.committed import Changes, Shape
from pgoutput.wire import UNCHANGED

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


def table_batch(changes: Changes, schema: pa.Schema, *, snapshot: bool) -> pa.RecordBatch:
    """The rows of the view.

    Args:
        changes: Changes of the table.
        schema: Of the view. Columns that the table has and the schema lacks go into `_rescued_data`.
        snapshot: Whether they are rows of a snapshot.
    """
    old = _structs(old_rows(changes), changes.shapes, schema.field("before").type)
    new = _structs(new_rows(changes), changes.shapes, schema.field("after").type)
    columns = [
        *head_columns(changes, *distinct_shapes(changes), snapshot=snapshot),
        old,
        new,
        unchanged_column(changes),
    ]
    return pa.record_batch(columns, schema=schema)


def _structs(rows: Sequence[Row | None], shapes: Sequence[Shape], type_: pa.StructType) -> pa.StructArray:
    """The rows as structs, those of one shape at a time."""
    arrays = []
    place = 0
    for shape, same in groupby(shapes):
        end = place + len(list(same))
        arrays.append(_of_shape(rows[place:end], shape, type_))
        place = end
    return pa.concat_arrays(arrays) if arrays else pa.array([], type_)


def _of_shape(rows: Sequence[Row | None], shape: Shape, type_: pa.StructType) -> pa.StructArray:
    fields = list(type_)
    columns = list(zip(*(_sent(row, shape) for row in rows), strict=True))
    rescued: list[dict[str, str | None]] = [{} for _ in rows]
    by_name = {}
    wanted = {field.name: field.type for field in fields[:-1]}
    for name, column, cells in zip(shape.names, shape.relation.columns, columns, strict=True):
        if name in wanted:
            by_name[name], lost = to_arrow(cells, column.type_oid, column.type_modifier, wanted[name])
        else:
            texts = enumerate(to_text(cells, column.type_oid))
            lost = {row: text for row, text in texts if text is not None}
        for row, text in lost.items():
            rescued[row][name] = text
    maps = pa.array([list(items.items()) or None for items in rescued], fields[-1].type)
    none = pa.array([row is None for row in rows])
    arrays = [
        by_name[field.name] if field.name in by_name else pa.nulls(len(rows), field.type)
        for field in fields[:-1]
    ]
    return pa.StructArray.from_arrays([*arrays, maps], fields=fields, mask=none)


def _sent(row: Row | None, shape: Shape) -> Sequence[Cell]:
    """The cells of all columns, None for those that were not sent."""
    if row is None:
        return [None] * len(shape.names)
    if len(row.places) == len(row.cells):
        return row.cells
    return [None if cell is UNCHANGED else cell for cell in row.cells]
