"""Merge changes into the rows of a Delta table: find out which rows the changes begin and end.

A change *begins* the row that an insert or update writes. It *ends* the row that an update or delete replaces
or removes. Rows are numbered: the row that the change with index i begins has number i. The rows that were
looked up in the Delta table follow, from the number of changes on.

All changes are merged at once. Beginnings and ends are sorted by key and time; a change then ends the row
that the preceding item of the same key has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import Mask, Numbers


class Effects(msgspec.Struct, frozen=True):
    """For each change, whether it replaces or removes a row, and whether it writes a row: two masks."""

    ends: Mask
    """For each change, whether it replaces or removes a row."""
    begins: Mask
    """For each change, whether it writes a row."""


def read_effects(operations: pa.Array) -> Effects:
    """Return whether each change replaces or removes a row, and whether it writes a row, by its operation.

    "Insert" and "Snapshot" write a row, "Delete" removes a row, and "Update" replaces a row by the row that
    it writes.
    """
    ends, begins = (np.asarray(pc.is_in(operations, values)) for values in (_ENDS, _BEGINS))
    return Effects(ends, begins)


_ENDS: Final = pa.array(["Update", "Delete"])
_BEGINS: Final = pa.array(["Snapshot", "Insert", "Update"])


class MergeResult(msgspec.Struct, frozen=True):
    """Which rows changes write, replace and remove, by number of the row.

    The change with index i writes the row with number i. The numbers after the last change are rows that were
    looked up in the table.
    """

    begun: Numbers
    """Numbers of the rows that inserts, updates and snapshots write, in the order of the changes."""
    ended: Numbers
    """For each row, the index of the change that replaces or removes the row; -1 if no change does."""
    previous: Numbers
    """For each change, the number of the row that it updates; -1 if it updates none, or an unknown row."""
    unmatched: Numbers
    """Indices of the changes that do not match the rows: an update or delete that finds no row, or an insert
    or update whose new key another row has."""

    @property
    def current(self) -> Numbers:
        """Numbers of the rows that a change writes and no later change replaces or removes."""
        return self.begun[self.ended[self.begun] < 0]


class _Items(msgspec.Struct, frozen=True):
    """Beginnings and ends of rows (items), as arrays. A row of the Delta table begins before all changes."""

    keys: Numbers
    rows: Numbers
    """For each item, the number of the row that begins; -1 for an end."""
    changes: Numbers
    """For each item, the index of its change; -1 for a row of the Delta table."""

    def take(self, selected: Numbers) -> _Items:
        return _Items(self.keys[selected], self.rows[selected], self.changes[selected])


def merge_changes(
    found: Numbers,
    effects: Effects,
    old: Numbers,
    new: Numbers,
    *,
    unique: bool,
    find_matches: Callable[[Numbers], Mapping[int, int]],
) -> MergeResult:
    """Apply changes in order; return which rows the changes write, and which they replace or remove.

    Args:
        found: For each row that was looked up in the Delta table, the number (`number_keys`) of its key; -1
            if a part of the key is unknown.
        effects: The effects of each change.
        old: For each change, the number of the key of the row that it replaces or removes. The numbers of
            changes that only write a row, such as inserts, are ignored.
        new: For each change, the number of the key of the row that it writes. The numbers of deletes are
            ignored.
        unique: Whether a key identifies at most one row. If not, equal rows cannot be distinguished, and a
            change replaces or removes any one of the equal rows.
        find_matches: Called with the indices of the changes whose old key no row has. Returns, by index of
            the change, the number of a row whose key is partly unknown and may be the old key. Raises an
            error if it cannot be decided whether there is such a row.
    """
    count = len(old)
    ended, previous = np.full(count + len(found), -1, np.int64), np.full(count, -1, np.int64)
    items = _sorted_items(found, effects, old, new)
    groups = items.keys
    if not unique:
        depths = _depths(items)
        order = np.lexsort((depths, items.keys))
        items = items.take(order)
        groups = items.keys * (depths.max(initial=0) + 1) + depths[order]
    row = np.full(len(groups), -1, np.int64)
    row[1:] = np.where(groups[1:] == groups[:-1], items.rows[:-1], -1)
    # A beginning also ends an earlier row with the same key: the delete of that row was not sent, because the
    # publication lacked the table at that time.
    ends = (row >= 0) & (items.changes >= 0)
    ended[row[ends]] = items.changes[ends]
    updates = ends & (items.rows < 0)
    previous[items.changes[updates]] = row[updates]
    lost = np.sort(items.changes[(items.rows < 0) & (row < 0)])
    matches = find_matches(lost) if len(lost) else {}
    for change, match in matches.items():
        ended[match], previous[change] = change, match
    previous[~effects.begins] = -1
    unmatched = np.union1d(np.setdiff1d(lost, [*matches]), items.changes[ends & (items.rows >= 0)])
    return MergeResult(np.flatnonzero(effects.begins), ended, previous, unmatched.astype(np.int64))


def _sorted_items(found: Numbers, effects: Effects, old: Numbers, new: Numbers) -> _Items:
    """Return all beginnings and ends of rows as items, sorted by key, and for each key in order of changes.

    The arguments are those of `merge_changes`: `found`, `old` and `new` have numbers of keys.
    """
    count = len(old)
    known, ends, begins = np.flatnonzero(found >= 0), *map(np.flatnonzero, (effects.ends, effects.begins))
    items = _Items(
        np.concatenate((found[known], old[ends], new[begins])),
        np.concatenate((count + known, np.full(len(ends), -1), begins)),
        np.concatenate((np.full(len(known), -1), ends, begins)),
    )
    # An update has an end and a beginning with the same index. The ends come first in `items`, and the sort
    # is stable, so an update ends a row before it begins one.
    return items.take(np.argsort(items.keys * (count + 1) + items.changes, kind="stable"))


def _depths(items: _Items) -> Numbers:
    """Return the depth of each item: the number of rows with its key after a beginning, or before an end.

    An end and the beginning of the row that it ends have the same depth. An end that finds no row has the
    depth 1.
    """
    steps = np.where(items.rows >= 0, 1, -1)
    is_first = np.ones(len(steps), np.bool_)
    is_first[1:] = items.keys[1:] != items.keys[:-1]
    group = np.cumsum(is_first) - 1
    sums = np.cumsum(steps)
    balance = sums - (sums - steps)[is_first][group]
    # A depth counts the rows of the key that exist at the item. `steps` has 1 for an item that begins a row,
    # and -1 for an end. `balance` is their sum within the key up to the item. An end without a row removes no
    # row, but takes this sum to a new minimum below zero, so depths are counted from `lowest`, the minimum so
    # far. `offset` puts the sums of a key below the sums of the keys before it, so that one running minimum
    # gives the minimum within each key.
    offset = group * (2 * len(steps) + 1)
    lowest = np.minimum.accumulate(np.minimum(balance, 0) - offset) + offset
    depths: Numbers = balance - lowest + (steps < 0)
    return depths
