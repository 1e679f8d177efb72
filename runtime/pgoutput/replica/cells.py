"""The maps of changes as columns of text, and which rows of the columns were sent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc


class Cells(msgspec.Struct, frozen=True):
    """A column, with a row for each change."""

    texts: pa.StringArray
    """NULL where the value is NULL, and where none was sent."""
    sent: pa.BooleanArray

    def otherwise(self, other: Cells) -> Cells:
        """The cells of `other` where none were sent."""
        texts = pc.if_else(self.sent, self.texts, other.texts)
        return Cells(texts, pc.or_(self.sent, other.sent))


def spread(maps: pa.MapArray, names: Sequence[str]) -> list[Cells]:
    """The columns that stand in maps from names to texts.

    Args:
        maps: A map for each change; NULL where nothing was sent.
        names: The columns.
    """
    valid = pc.indices_nonzero(maps.is_valid())
    there = maps.drop_null()
    keys = pa.ListArray.from_arrays(there.offsets, there.keys)
    rows = valid.take(pc.list_parent_indices(keys))
    items = pc.list_flatten(pa.ListArray.from_arrays(there.offsets, there.items))
    places = pc.index_in(pc.list_flatten(keys), pa.array(names, pa.string()))
    order = pc.sort_indices(places)  # stable, so each column's rows stay in their order
    rows, items, places = rows.take(order), items.take(order), places.take(order)
    counts = {one["values"]: one["counts"] for one in pc.value_counts(places).to_pylist()}
    columns = []
    first = 0
    for place in range(len(names)):
        count = counts.get(place, 0)
        columns.append(_column(rows.slice(first, count), items.slice(first, count), len(maps)))
        first += count
    return columns


def _column(rows: pa.Array, items: pa.Array, length: int) -> Cells:
    if len(rows) == length:
        return Cells(items, pa.array([True] * length))
    places = pc.index_in(pa.array(range(length), rows.type), rows)
    return Cells(items.take(places), places.is_valid())
