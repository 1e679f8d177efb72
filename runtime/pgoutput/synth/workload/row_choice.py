"""Choose the row that each change of a workload affects.

Rows are inserted, updated while they exist, and deleted oldest first. A whole window of transactions is
computed at once with NumPy. Changes of a table that see each other's rows form a group: the changes of all
ordinary transactions, of one streamed transaction, or of one savepoint. Therefore a rollback never affects
rows of other groups, and no transaction waits for a row lock.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from pgoutput.synth.workload.definition import Mix
from pgoutput.synth.workload.plan import IntArray, Random

INSERT: Final = 0
UPDATE: Final = 1
DELETE: Final = 2


class ChosenRows(msgspec.Struct, frozen=True):
    """The changes of a window of transactions, sorted by group and by order within the group."""

    order: IntArray
    """Index of each change before sorting."""
    groups: IntArray
    """Group number of each change."""
    kinds: IntArray
    """Kind of each change: INSERT, UPDATE or DELETE."""
    rows: IntArray
    """Row number of each change. Rows are numbered by group, then in insertion order."""
    last_change: IntArray
    """Index, after sorting, of the insert or update that wrote the row's last values, by row number."""
    is_live: IntArray
    """Whether the row exists at the end of the window, by row number."""


def choose_rows(random: Random, groups: IntArray, mix: Mix, inserts: int) -> ChosenRows:
    """Choose the kind and the row of each change.

    Args:
        random: Random generator.
        groups: Group number of each change, in stream order.
        mix: Relative frequencies of inserts, updates and deletes. If no row is left to update
            or delete, a row is inserted.
        inserts: Number of changes at the start of the window that must be inserts.
    """
    kinds = _draw_kinds(random, len(groups), mix)
    kinds[:inserts] = INSERT
    order = np.argsort(groups, kind="stable")
    groups, kinds = groups[order], kinds[order]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(groups)))

    kinds[_excess_deletes(kinds, starts, group)] = INSERT
    deleted = _count_before(kinds == DELETE, starts, group)
    inserted = _count_before(kinds == INSERT, starts, group)
    kinds[(kinds == UPDATE) & (inserted == deleted)] = INSERT

    is_insert = kinds == INSERT
    inserted = _count_before(is_insert, starts, group)
    base = (np.cumsum(is_insert) - is_insert)[starts][group]
    rows = base + deleted
    rows[is_insert] = (base + inserted)[is_insert]
    updates = np.flatnonzero(kinds == UPDATE)
    choice = random.random(len(updates)) * (inserted - deleted)[updates]
    rows[updates] += choice.astype(np.int64)

    count = int(is_insert.sum())
    last = np.zeros(count, np.int64)
    new = np.flatnonzero(kinds != DELETE)
    last[rows[new]] = new  # numpy keeps the last assignment per row
    live = np.ones(count, np.bool_)
    live[rows[kinds == DELETE]] = False
    return ChosenRows(order, groups, kinds, rows, last, live)


def _draw_kinds(random: Random, count: int, mix: Mix) -> IntArray:
    total = mix.insert + mix.update + mix.delete
    drawn = random.random(count, dtype=np.float32) * total
    kinds: IntArray = (drawn >= mix.insert).astype(np.uint8) + (drawn >= mix.insert + mix.update)
    return kinds


def _count_before(marks: IntArray, starts: IntArray, group: IntArray) -> IntArray:
    """Return for each change how many marked changes precede the change in its group."""
    before: IntArray = np.cumsum(marks) - marks
    before -= before[starts][group]
    return before


def _excess_deletes(kinds: IntArray, starts: IntArray, group: IntArray) -> IntArray:
    """Return a mask of the deletes for which no row is left in their group.

    These are the deletes that bring inserts minus deletes of the group to a new minimum below zero. Without
    such deletes the difference is never negative.
    """
    steps = (kinds == INSERT).astype(np.int64) - (kinds == DELETE)
    levels = np.cumsum(steps)
    levels -= (levels - steps)[starts][group]
    lower = group * (2 * len(kinds) + 1)  # shift each group below all previous ones
    lows = np.minimum.accumulate(levels - lower) + lower
    before = np.roll(lows, 1)
    before[starts] = 0
    excess: IntArray = (kinds == DELETE) & (levels < np.minimum(before, 0))
    return excess
