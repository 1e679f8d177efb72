"""The changes of a batch of messages, and the cells of their old and new rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput._arrays import Mask, Numbers
from pgoutput._index import MessageIndex
from pgoutput.views.relation_schemas import RelationSchema


class Changes(msgspec.Struct, frozen=True):
    """The changes of a batch; a Truncate counts once for each of its relations."""

    index: MessageIndex
    """The messages of the batch."""
    rows: Numbers
    """Row of each change's message."""
    schemas: Sequence[RelationSchema]
    """Schemas of the changed relations, without duplicates."""
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
    """Return the schemas that `numbers` refer to, and the numbers renumbered accordingly.

    Args:
        schemas: All schemas; None for a schema that no number refers to.
        numbers: Indices of schemas.
    """
    used = np.flatnonzero(np.bincount(numbers, minlength=len(schemas)))
    renumbered = np.zeros(len(schemas), np.int64)
    renumbered[used] = np.arange(len(used))
    selected = (schemas[number] for number in used.tolist())
    return [schema for schema in selected if schema is not None], renumbered[numbers]


class CellLists(NamedTuple):
    """A list of cells for each row, like an Arrow list array."""

    offsets: Numbers
    """Where each row's cells begin in `cells`, and where the last row's cells end."""
    missing: Mask
    """Which rows have no tuple."""
    cells: Numbers
    """Number of each cell in the index."""
    columns: Numbers
    """Column of each cell; the columns of all schemas are numbered consecutively."""
    schema: RelationSchema | None = None
    """The schema of all rows, if the lists are whole tuples of one schema; else None."""

    def where(self, mask: Mask) -> CellLists:
        """Return the lists with only the cells where the mask is true."""
        offsets = np.concatenate(([0], np.cumsum(mask)))[self.offsets]
        return CellLists(offsets, self.missing, self.cells[mask], self.columns[mask])

    @property
    def emptied(self) -> CellLists:
        """The same rows with empty lists."""
        return CellLists(np.zeros_like(self.offsets), self.missing, self.cells[:0], self.columns[:0])


def new_first(changes: Changes) -> Numbers:
    """Return the number of the first cell of each new tuple; -1 if there is none."""
    return changes.index.first("new")[changes.rows]


def old_first(changes: Changes) -> Numbers:
    """Return the number of the first cell of each old or key tuple; -1 if neither is sent."""
    key = changes.index.first("key")[changes.rows]
    return np.where(key >= 0, key, changes.index.first("old")[changes.rows])


def new_cells(changes: Changes) -> tuple[CellLists, CellLists]:
    """Return the cells of the new tuples: those that were sent, and those that are UNCHANGED."""
    cells = _cells(changes, new_first(changes), np.zeros(len(changes), np.bool_))
    unchanged = is_unchanged(changes.index)
    if not unchanged.any():
        return cells, cells.emptied
    unchanged = unchanged[cells.cells]
    return cells.where(~unchanged), cells.where(unchanged)


def unchanged_cells(changes: Changes) -> CellLists:
    """Return the cells of the new tuples that are UNCHANGED."""
    if not is_unchanged(changes.index).any():
        none = np.zeros(0, np.int64)
        offsets, missing = np.zeros(len(changes) + 1, np.int64), np.zeros(len(changes), np.bool_)
        return CellLists(offsets, missing, none, none)
    return new_cells(changes)[1]


def old_cells(changes: Changes) -> CellLists:
    """Return the cells of the old tuples; of key tuples only those of the replica identity."""
    return _cells(changes, old_first(changes), changes.index.first("key")[changes.rows] >= 0)


def is_unchanged(index: MessageIndex) -> Mask:
    """Return which cells of a batch are UNCHANGED."""
    unchanged: Mask = index.kinds == _UNCHANGED
    return unchanged


def _cells(changes: Changes, first: Numbers, is_key: Mask) -> CellLists:
    """Return the cells of one tuple per change.

    Args:
        changes: The changes.
        first: Number of the first cell of each tuple; -1 if there is none.
        is_key: Which tuples are key tuples, of which only the columns of the replica identity are returned.
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
    """Return the cells of whole tuples of one schema: the result of `_cells`, but faster."""
    columns = np.arange(len(schema.names))
    present = first[~missing] if missing.any() else first
    offsets = np.concatenate(([0], np.cumsum(~missing) * len(columns)))
    cells = (present[:, np.newaxis] + columns).ravel()
    return CellLists(offsets, missing, cells, np.tile(columns, len(present)), schema)


def _column_lists(schemas: Sequence[RelationSchema]) -> tuple[Numbers, Numbers, Numbers]:
    """Return lists of column indices: for each schema all columns, then for each schema its key columns.

    Returns:
        The lists concatenated, the start of each list, and the size of each list.
    """
    lists = [range(len(schema.names)) for schema in schemas] + [schema.keys for schema in schemas]
    sizes = np.array([len(one) for one in lists], np.int64)
    columns = np.concatenate([np.array(one, np.int64) for one in lists] or [np.zeros(0, np.int64)])
    return columns, np.cumsum(sizes) - sizes, sizes


_UNCHANGED: Final = ord("u")
"""Tag of an UNCHANGED cell (LOGICALREP_COLUMN_UNCHANGED)."""


def column_names(schemas: Sequence[RelationSchema]) -> pa.StringArray:
    """Return the column names of all schemas, concatenated."""
    return pa.array([name for schema in schemas for name in schema.names], pa.string())


def column_types(schemas: Sequence[RelationSchema]) -> npt.NDArray[np.int64]:
    """Return the type OIDs of the columns of all schemas, concatenated."""
    return np.array([oid for schema in schemas for oid in schema.types], np.int64)
