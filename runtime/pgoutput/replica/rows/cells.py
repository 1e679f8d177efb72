"""Convert the old and new tuples of changes to columns of text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput._arrays import Mask, Numbers, value_bytes, value_offsets


class ColumnCells(msgspec.Struct, frozen=True):
    """The cells of one column in the old tuples, or in the new tuples, of several changes."""

    texts: pa.StringArray
    """The column's value in each change, as text; NULL if the value is NULL or was not sent."""
    sent: Mask
    """For each change, whether a value was sent; NULL counts as a value."""

    def coalesce(self, other: ColumnCells) -> ColumnCells:
        """Return these cells; where a change sent no cell, take the cell of the same change from `other`."""
        if not (other.sent & ~self.sent).any():
            return self
        texts = pc.if_else(pa.array(self.sent), self.texts, other.texts)
        return ColumnCells(texts, self.sent | other.sent)


def columns_of_maps(maps: pa.MapArray, names: Sequence[str]) -> list[ColumnCells]:
    """Convert tuples, as maps from column name to text, to one `ColumnCells` for each column.

    Args:
        maps: The old tuple, or the new tuple, of each change as a map; NULL if a change has no such tuple.
        names: Names of the columns to return.
    """
    offsets = maps.offsets.to_numpy()
    keys, items = (one.slice(offsets[0], offsets[-1] - offsets[0]) for one in (maps.keys, maps.items))
    widths = np.diff(offsets)
    rows = np.flatnonzero(widths)
    widths = widths[rows]
    width = int(widths[0]) if len(widths) else 0
    if (widths == width).all() and _is_repeated(keys, width):
        sent = keys.slice(0, width).to_pylist()
        cells = {name: np.arange(at, len(keys), width) for at, name in enumerate(sent)}
        return [
            _make_column(rows, items, cells[name], len(maps))
            if name in cells
            else ColumnCells(pa.nulls(len(maps), pa.string()), np.zeros(len(maps), np.bool_))
            for name in names
        ]
    rows = np.repeat(rows, widths)
    columns = pc.index_in(keys, pa.array(names, pa.string())).fill_null(-1).to_numpy()
    numbers = [np.flatnonzero(columns == at) for at in range(len(names))]
    return [_make_column(rows[cells], items, cells, len(maps)) for cells in numbers]


def _is_repeated(texts: pa.StringArray, count: int) -> bool:
    """Return whether an array consists of its first `count` texts, repeated; no text may be NULL."""
    if not count or len(texts) % count:
        return not len(texts)
    offsets = value_offsets(texts)
    lengths = np.diff(offsets).reshape(-1, count)
    if (lengths != lengths[0]).any():
        return False
    values = value_bytes(texts)[offsets[0] : offsets[-1]].reshape(len(lengths), -1)
    return bool((values == values[0]).all())


def _make_column(rows: Numbers, items: pa.StringArray, cells: Numbers, length: int) -> ColumnCells:
    """Return the cells with these numbers; the text of a cell is in `items`, and it belongs to a row."""
    if len(rows) == length:
        return ColumnCells(items.take(pa.array(cells)), np.ones(length, np.bool_))
    numbers = np.full(length, -1, np.int64)
    numbers[rows] = cells
    return ColumnCells(take(items, numbers), numbers >= 0)


def take(array: pa.Array, numbers: Numbers) -> pa.Array:
    """Return the elements with these numbers; NULL for a negative number."""
    missing = numbers < 0
    return array.take(pa.array(numbers, mask=missing if missing.any() else None))
