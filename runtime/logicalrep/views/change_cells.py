"""The changes of a batch of messages, and the cells of their old and new rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logicalrep._arrays import Mask, Numbers
from logicalrep._index import MessageIndex, ordinals
from logicalrep._protocols import CELLS
from logicalrep.views.relation_schemas import RelationSchema


class Changes(msgspec.Struct, frozen=True):
    """The changes of a batch of messages.

    A Truncate is one change for each of its relations. The spec also allows inserts with a list of new rows:
    such a message is one change for each row.
    """

    index: MessageIndex
    """Index of all messages of the batch, with their fields and cells."""
    rows: Numbers
    """Row of each change's message in the batch, ascending. Of a message with a list of new rows,
    either all changes are included or none."""
    schemas: Sequence[RelationSchema]
    """Schemas of the relations that the changes belong to, without duplicates."""
    schema: Numbers
    """Index of each change's schema in `schemas`."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def widths(self) -> Numbers:
        """Number of columns of each change's relation."""
        return np.array([len(schema.names) for schema in self.schemas], np.int64)[self.schema]


def used_schemas(
    schemas: Sequence[RelationSchema | None], numbers: Numbers
) -> tuple[list[RelationSchema], Numbers]:
    """Return the schemas that `numbers` refers to, and `numbers` as indices of the returned schemas.

    Args:
        schemas: All schemas; None for a schema that `numbers` does not refer to.
        numbers: Indices into `schemas`.
    """
    used = np.flatnonzero(np.bincount(numbers, minlength=len(schemas)))
    renumbered = np.zeros(len(schemas), np.int64)
    renumbered[used] = np.arange(len(used))
    selected = (schemas[number] for number in used.tolist())
    return [schema for schema in selected if schema is not None], renumbered[numbers]


class CellLists(NamedTuple):
    """A list of cells for each change, laid out like an Arrow list array."""

    offsets: Numbers
    """Index in `cells` where each change's cells begin, and where the last change's cells end."""
    missing: Mask
    """For each change, true if the change has no such tuple (new or old), so that its list is NULL rather
    than empty."""
    cells: Numbers
    """Index of each cell among all cells of the batch's `MessageIndex`."""
    columns: Numbers
    """Index of each cell's column in the concatenated columns of all schemas of the batch."""
    schema: RelationSchema | None = None
    """The schema of all changes, if the lists are whole tuples of one schema; otherwise None."""

    def where(self, mask: Mask) -> CellLists:
        """Return the lists without the cells for which the mask is false."""
        offsets = np.concatenate(([0], np.cumsum(mask)))[self.offsets]
        return CellLists(offsets, self.missing, self.cells[mask], self.columns[mask])

    @property
    def emptied(self) -> CellLists:
        """These lists without their cells: each list is empty, or NULL if it is NULL here."""
        return CellLists(np.zeros_like(self.offsets), self.missing, self.cells[:0], self.columns[:0])


def new_first(changes: Changes) -> Numbers:
    """Return for each change the index of its new tuple's first cell in the batch's cells; -1 without one."""
    return _first(changes, "new")


def old_first(changes: Changes) -> Numbers:
    """Return for each change the index of its old or key tuple's first cell in the batch's cells, else -1."""
    key = key_first(changes)
    return np.where(key >= 0, key, _first(changes, "old"))


def key_first(changes: Changes) -> Numbers:
    """Return for each change the index of its key tuple's first cell in the batch's cells; -1 without one."""
    return _first(changes, "key")


def _first(changes: Changes, meaning: str) -> Numbers:
    """Return for each change the index of a tuple's first cell in the batch's cells; -1 without that tuple.

    Args:
        changes: The changes.
        meaning: The kind of tuple: `new`, `old` or `key`.
    """
    rows, tuples = changes.rows, changes.index.tuples(meaning)
    if tuples is None:
        return np.full(len(rows), -1, np.int64)
    if tuples.counts is None:
        return tuples.first[rows]
    return tuples.first[rows] + tuples.widths[rows] * ordinals(rows)


def new_cells(changes: Changes) -> tuple[CellLists, CellLists]:
    """Return the cells of the new tuples in two parts: the sent cells and the UNCHANGED cells."""
    cells = _cells(changes, new_first(changes), np.zeros(len(changes), np.bool_))
    unchanged = is_unchanged(changes.index)
    if not unchanged.any():
        return cells, cells.emptied
    unchanged = unchanged[cells.cells]
    return cells.where(~unchanged), cells.where(unchanged)


def unchanged_cells(changes: Changes) -> CellLists:
    """Return the UNCHANGED cells of the new tuples."""
    if not is_unchanged(changes.index).any():
        none = np.zeros(0, np.int64)
        offsets, missing = np.zeros(len(changes) + 1, np.int64), np.zeros(len(changes), np.bool_)
        return CellLists(offsets, missing, none, none)
    return new_cells(changes)[1]


def old_cells(changes: Changes) -> CellLists:
    """Return the cells of old tuples, and of key tuples only in the columns of the replica identity."""
    return _cells(changes, old_first(changes), key_first(changes) >= 0)


def is_unchanged(index: MessageIndex) -> Mask:
    """Return for each cell of a batch whether it is UNCHANGED."""
    unchanged: Mask = index.kinds == CELLS["unchanged"].code
    return unchanged


def _cells(changes: Changes, first: Numbers, is_key: Mask) -> CellLists:
    """Return the cells of one tuple per change.

    Args:
        changes: The changes.
        first: Index of the first cell of each change's tuple; -1 for a change without the tuple.
        is_key: Whether each tuple is a key tuple, of which only the columns of the replica identity are
            returned.
    """
    missing = first < 0
    if len(changes.schemas) == 1 and not is_key.any():
        return _whole_tuples(changes.schemas[0], first, missing)
    column_lists, starts, sizes = _column_lists(changes.schemas)
    lists = changes.schema + np.where(is_key, len(changes.schemas), 0)
    counts = np.where(missing, 0, sizes[lists])
    offsets = np.concatenate(([0], np.cumsum(counts)))
    numbers = np.arange(offsets[-1])
    columns = column_lists[numbers + np.repeat(starts[lists] - offsets[:-1], counts)]
    return CellLists(
        offsets,
        missing,
        columns + np.repeat(first, counts),
        columns + np.repeat(starts[changes.schema], counts),
    )


def _whole_tuples(schema: RelationSchema, first: Numbers, missing: Mask) -> CellLists:
    """Return the cells of one tuple per change, faster than `_cells` does; no tuple is a key tuple.

    Args:
        schema: The schema of all changes.
        first: Index of the first cell of each change's tuple; -1 for a change without the tuple.
        missing: Whether each change has no tuple.
    """
    columns = np.arange(len(schema.names))
    present = first[~missing] if missing.any() else first
    offsets = np.concatenate(([0], np.cumsum(~missing) * len(columns)))
    cells = (present[:, np.newaxis] + columns).ravel()
    return CellLists(offsets, missing, cells, np.tile(columns, len(present)), schema)


def _column_lists(schemas: Sequence[RelationSchema]) -> tuple[Numbers, Numbers, Numbers]:
    """Return two lists of column indices for each schema: of all columns, and of the key columns.

    Returns:
        Three arrays. The first is all lists, concatenated: the lists of all columns, one for each schema,
        then the lists of the key columns. The second has for each list its start in the first array, the
        third its size.
    """
    lists = [range(len(schema.names)) for schema in schemas] + [schema.keys for schema in schemas]
    sizes = np.array([len(one) for one in lists], np.int64)
    columns = np.concatenate([np.array(one, np.int64) for one in lists] or [np.zeros(0, np.int64)])
    return columns, np.cumsum(sizes) - sizes, sizes


def column_names(schemas: Sequence[RelationSchema]) -> pa.StringArray:
    """Return the column names of these schemas, concatenated."""
    return pa.array([name for schema in schemas for name in schema.names], pa.string())


def column_types(schemas: Sequence[RelationSchema]) -> npt.NDArray[np.int64]:
    """Return the type OIDs of the columns of these schemas, concatenated."""
    return np.array([oid for schema in schemas for oid in schema.types], np.int64)
