"""Convert rows of the view `changes` to changes by relation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import Numbers, take, value_bytes, value_offsets
from logicalrep.views.alterations import OPERATION
from logicalrep.views.relation_changes import (
    COMMON,
    ChangedRelation,
    Column,
    ColumnCells,
    RelationChanges,
    altered_changes,
    change_rows,
    grouped_rows,
    number_lists,
    tuple_array,
)

_OF_RELATION: Final = ["relation", "columns", "key_columns", "incomplete"]
"""Columns of the view `changes` that are equal for all changes of a relation and schema version."""

_COLUMNS: Final = msgspec.json.Decoder(dict[str, tuple[int, int]])


def from_rows(changes: pa.RecordBatch) -> Iterator[RelationChanges]:
    """Convert rows of the view `changes`; yield changes of one relation and schema version at a time."""
    oids = pc.struct_field(changes["relation"], "oid").to_numpy()
    for _, of_relation in grouped_rows(oids, changes):
        is_altered = np.asarray(pc.equal(of_relation["operation"], OPERATION))
        ends = np.flatnonzero(is_altered[1:] | is_altered[:-1]) + 1
        for first, end in pairwise([0, *ends.tolist(), len(is_altered)]):
            for rows in _by_schema(of_relation.slice(first, end - first)):
                yield _from_rows(rows, is_altered=bool(is_altered[first]))


def _by_schema(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split changes of one relation, so that each part has one name, column list and replica identity.

    Schema changes are rare, so a bisection is faster than comparing each row with the next.
    """
    if all(_is_constant(rows[name]) for name in _OF_RELATION):
        yield rows
        return
    half = rows.num_rows // 2
    yield from _by_schema(rows.slice(0, half))
    yield from _by_schema(rows.slice(half))


def _is_constant(array: pa.Array) -> bool:
    return bool(array.slice(1).equals(array.slice(0, max(len(array) - 1, 0))))


def _from_rows(rows: pa.RecordBatch, *, is_altered: bool) -> RelationChanges:
    described, types, keys, incomplete = rows.select(_OF_RELATION).slice(0, 1).to_pylist()[0].values()
    columns = tuple(Column(name, *type_) for name, type_ in _COLUMNS.decode(types).items())
    relation = ChangedRelation(**described, columns=columns, keys=tuple(keys), incomplete=incomplete)
    common = {name: rows[name] for name in COMMON}
    if is_altered:
        (values,) = rows.select(["before", "after", "unchanged"]).to_pylist()
        return altered_changes(relation, values, common)
    names = [column.name for column in columns]
    old, new = (_columns_of_maps(rows[name], names) for name in ("before", "after"))
    has_old, has_new = (np.asarray(rows[name].is_valid()) for name in ("before", "after"))
    is_sent = np.array([one.sent for one in new], np.bool_).reshape(len(names), rows.num_rows)
    others = [one.sent for one, name in zip(old, names, strict=True) if name not in relation.keys]
    key_only = has_old & ~np.logical_and.reduce(others) if others else np.zeros(rows.num_rows, np.bool_)
    tuples = {
        "old": tuple_array([one.texts for one in old], ~has_old),
        "new": tuple_array([one.texts for one in new], ~has_new),
        "key_only": pa.array(key_only),
        "unchanged": number_lists((has_new & ~is_sent).T),
    }
    return RelationChanges(relation, change_rows(common | tuples))


def _columns_of_maps(maps: pa.MapArray, names: Sequence[str]) -> list[ColumnCells]:
    """Convert tuples, given as maps from column name to text, to one `ColumnCells` for each column.

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
    """Return a column with `length` rows: row `rows[i]` has the text `items[cells[i]]`, others have none."""
    if len(rows) == length:
        return ColumnCells(items.take(pa.array(cells)), np.ones(length, np.bool_))
    numbers = np.full(length, -1, np.int64)
    numbers[rows] = cells
    return ColumnCells(take(items, numbers), numbers >= 0)
