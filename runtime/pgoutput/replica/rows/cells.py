"""Convert the old and new tuples of changes to columns of text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc


class ColumnCells(msgspec.Struct, frozen=True):
    """The cells of one column in the old tuples, or in the new tuples, of several changes."""

    texts: pa.StringArray
    """The column's value in each change, as text; NULL if the value is NULL or was not sent."""
    sent: pa.BooleanArray
    """For each change, whether a value was sent; NULL counts as a value."""

    def coalesce(self, other: ColumnCells) -> ColumnCells:
        """Return these cells; where a change sent no cell, take the cell of the same change from `other`."""
        texts = pc.if_else(self.sent, self.texts, other.texts)
        return ColumnCells(texts, pc.or_(self.sent, other.sent))


def columns_of_maps(maps: pa.MapArray, names: Sequence[str]) -> list[ColumnCells]:
    """Convert tuples, as maps from column name to text, to one `ColumnCells` for each column.

    Args:
        maps: The old tuple, or the new tuple, of each change as a map; NULL if a change has no such tuple.
        names: Names of the columns to return.
    """
    valid = pc.indices_nonzero(maps.is_valid())
    present = maps.drop_null()
    keys = pa.ListArray.from_arrays(present.offsets, present.keys)
    rows = valid.take(pc.list_parent_indices(keys))
    items = pc.list_flatten(pa.ListArray.from_arrays(present.offsets, present.items))
    columns = pc.index_in(pc.list_flatten(keys), pa.array(names, pa.string()))
    order = pc.sort_indices(columns)  # stable, so each column's rows stay in their order
    rows, items, columns = rows.take(order), items.take(order), columns.take(order)
    counts = {one["values"]: one["counts"] for one in pc.value_counts(columns).to_pylist()}
    result = []
    first = 0
    for column in range(len(names)):
        count = counts.get(column, 0)
        result.append(_make_column(rows.slice(first, count), items.slice(first, count), len(maps)))
        first += count
    return result


def _make_column(rows: pa.Array, items: pa.Array, length: int) -> ColumnCells:
    if len(rows) == length:
        return ColumnCells(items, pa.array([True] * length))
    indices = pc.index_in(pa.array(range(length), rows.type), rows)
    return ColumnCells(items.take(indices), indices.is_valid())
