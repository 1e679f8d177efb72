"""Changes in a batch of messages, and where the cells of their rows are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput.columns.index import Index, Mask, Numbers
from pgoutput.views.shapes import Shape


class Changes(msgspec.Struct, frozen=True):
    """Changes, one row each; a truncate has one for each of its relations."""

    index: Index
    """The messages."""
    rows: Numbers
    """Each change's message."""
    shapes: Sequence[Shape]
    """The shapes of the relations that are changed, each once."""
    shape: Numbers
    """Each change's place in them."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def widths(self) -> Numbers:
        """How many columns the relation of each has."""
        return np.array([len(shape.names) for shape in self.shapes], np.int64)[self.shape]


def used_shapes(shapes: Sequence[Shape], numbers: Numbers) -> tuple[list[Shape], Numbers]:
    """Those of the shapes that have a number, and their numbers among themselves."""
    used = np.flatnonzero(np.bincount(numbers, minlength=len(shapes)))
    anew = np.zeros(len(shapes), np.int64)
    anew[used] = np.arange(len(used))
    return [shapes[number] for number in used.tolist()], anew[numbers]


class Cells(NamedTuple):
    """Cells of several rows, those of each behind those of the one before."""

    offsets: Numbers
    """Where those of each row begin, and where all end."""
    missing: Mask
    """Where there is no row."""
    cells: Numbers
    """Their numbers in the index."""
    columns: Numbers
    """The numbers of their columns: those of all shapes are counted one behind the other."""
    shape: Shape | None = None
    """The shape, if they are all cells of rows that have the same."""

    def where(self, mask: Mask) -> Cells:
        """Some of them."""
        offsets = np.concatenate(([0], np.cumsum(mask)))[self.offsets]
        return Cells(offsets, self.missing, self.cells[mask], self.columns[mask])

    @property
    def none(self) -> Cells:
        """None of them."""
        return Cells(np.zeros_like(self.offsets), self.missing, self.cells[:0], self.columns[:0])


def new_first(changes: Changes) -> Numbers:
    """The first cell of each new row; -1 where there is none."""
    return changes.index.first("new")[changes.rows]


def old_first(changes: Changes) -> Numbers:
    """The first cell of each old row, or of its key; -1 where neither is sent."""
    key = changes.index.first("key")[changes.rows]
    return np.where(key >= 0, key, changes.index.first("old")[changes.rows])


def new_cells(changes: Changes) -> tuple[Cells, Cells]:
    """Those of the new rows that were sent, and those that were not, since they are unchanged."""
    cells = _cells(changes, new_first(changes), np.zeros(len(changes), np.bool_))
    unchanged = unchanged_kinds(changes.index)
    if not unchanged.any():
        return cells, cells.none
    unchanged = unchanged[cells.cells]
    return cells.where(~unchanged), cells.where(unchanged)


def unchanged_cells(changes: Changes) -> Cells:
    """Those of the new rows that were not sent."""
    if not unchanged_kinds(changes.index).any():
        none = np.zeros(0, np.int64)
        return Cells(np.zeros(len(changes) + 1, np.int64), np.zeros(len(changes), np.bool_), none, none)
    return new_cells(changes)[1]


def old_cells(changes: Changes) -> Cells:
    """Those of the old rows: of the key's columns only where no others are sent."""
    return _cells(changes, old_first(changes), changes.index.first("key")[changes.rows] >= 0)


def unchanged_kinds(index: Index) -> Mask:
    """Which cells were not sent."""
    unchanged: Mask = index.kinds == _UNCHANGED
    return unchanged


def _cells(changes: Changes, first: Numbers, is_key: Mask) -> Cells:
    """The cells of tuples that begin with a cell each, -1 for none; of some only those of the key."""
    missing = first < 0
    if len(changes.shapes) == 1 and not is_key.any():
        return _same_cells(changes.shapes[0], first, missing)
    places, starts, sizes = _places(changes.shapes)
    lists = changes.shape + np.where(is_key, len(changes.shapes), 0)
    counts = np.where(missing, 0, sizes[lists])
    offsets = np.concatenate(([0], np.cumsum(counts)))
    numbers = np.arange(offsets[-1])
    place = places[numbers + np.repeat(starts[lists] - offsets[:-1], counts)]
    return Cells(
        offsets,
        missing,
        place + np.repeat(first, counts),
        place + np.repeat(starts[changes.shape], counts),
    )


def _same_cells(shape: Shape, first: Numbers, missing: Mask) -> Cells:
    """The cells of whole rows of one shape: what `_cells` gives, and quicker."""
    inside = np.arange(len(shape.names))
    there = first[~missing] if missing.any() else first
    offsets = np.concatenate(([0], np.cumsum(~missing) * len(inside)))
    cells = (there[:, np.newaxis] + inside).ravel()
    return Cells(offsets, missing, cells, np.tile(inside, len(there)), shape)


def _places(shapes: Sequence[Shape]) -> tuple[Numbers, Numbers, Numbers]:
    """Lists of places: of each shape's columns, then of each shape's key.

    Returns:
        All of them in a row, where each begins, and their sizes.
    """
    lists = [range(len(shape.names)) for shape in shapes] + [shape.keys for shape in shapes]
    sizes = np.array([len(one) for one in lists], np.int64)
    places = np.concatenate([np.array(one, np.int64) for one in lists] or [np.zeros(0, np.int64)])
    return places, np.cumsum(sizes) - sizes, sizes


_UNCHANGED: Final = ord("u")
"""The tag of a cell that was not sent (LOGICALREP_COLUMN_UNCHANGED)."""


def column_names(shapes: Sequence[Shape]) -> pa.StringArray:
    """The names of the columns of all shapes, by number."""
    return pa.array([name for shape in shapes for name in shape.names], pa.string())


def column_types(shapes: Sequence[Shape]) -> npt.NDArray[np.int64]:
    """Their types' OIDs."""
    return np.array([oid for shape in shapes for oid in shape.types], np.int64)
