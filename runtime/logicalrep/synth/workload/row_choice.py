"""Choose the row that each change of a workload affects.

Rows are inserted, updated while they exist, and deleted oldest first. A whole window of transactions is
computed at once with NumPy.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from logicalrep.synth.workload.definition import Mix
from logicalrep.synth.workload.values import IntArray, Random

INSERT: Final = 0
UPDATE: Final = 1
DELETE: Final = 2


class ChosenRows(msgspec.Struct, frozen=True):
    """Kind and row of each change in a window of transactions, sorted by table and then in stream order."""

    order: IntArray
    """Index of each change in stream order (before the changes were sorted by table)."""
    tables: IntArray
    """For each change, the number of its table, from 0."""
    kinds: IntArray
    """Kind of each change: INSERT, UPDATE or DELETE."""
    rows: IntArray
    """For each change, the number of the row that it affects. Rows are numbered by table, then in insertion
    order."""
    last_change: IntArray
    """By row number: index in `kinds` of the insert or update that wrote the last values of the row."""
    is_live: IntArray
    """By row number: whether the row exists at the end of the window of transactions."""

    def previous_changes(self, span: slice) -> IntArray:
        """Return for each change of a table the index of the previous change of the same row.

        `span` selects the table's changes, and an index counts from the first of these. The item of an insert
        is 0 and has no meaning, because no change of the row precedes it.
        """
        rows = self.rows[span]
        by_row = np.argsort(rows, kind="stable")
        previous = np.zeros(len(rows), np.int64)
        previous[by_row[1:]] = by_row[:-1]
        previous[self.kinds[span] == INSERT] = 0
        return previous


def choose_rows(random: Random, tables: IntArray, mix: Mix, inserts: int, given: IntArray) -> ChosenRows:
    """Choose the kind and the row of each change in a window of transactions.

    An update or delete becomes an insert if its table has no rows at that change.

    Args:
        random: Random generator.
        tables: For each change in stream order, the number of its table, from 0.
        mix: Relative frequencies of inserts, updates and deletes among the changes whose kind is drawn.
        inserts: How many changes at the start are inserts, even if `given` has another kind for them.
        given: Kinds of the changes at the start, one item per change. The kinds of all later changes are
            drawn.
    """
    kinds = _draw_kinds(random, len(tables), mix)
    kinds[: len(given)] = given
    kinds[:inserts] = INSERT
    order = np.argsort(tables, kind="stable")
    tables, kinds = tables[order], kinds[order]
    starts = np.flatnonzero(np.diff(tables, prepend=-1))
    group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(tables)))

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
    return ChosenRows(order, tables, kinds, rows, last, live)


def _draw_kinds(random: Random, count: int, mix: Mix) -> IntArray:
    total = mix.insert + mix.update + mix.delete
    drawn = random.random(count, dtype=np.float32) * total
    kinds: IntArray = (drawn >= mix.insert).astype(np.uint8) + (drawn >= mix.insert + mix.update)
    return kinds


def _count_before(marks: IntArray, starts: IntArray, group: IntArray) -> IntArray:
    """Return for each change the number of earlier changes of its table for which `marks` is true.

    The changes are sorted by table. `starts` has the index of the first change of each table, and `group`
    has for each change the index of its table in `starts`.
    """
    before: IntArray = np.cumsum(marks) - marks
    before -= before[starts][group]
    return before


def _excess_deletes(kinds: IntArray, starts: IntArray, group: IntArray) -> IntArray:
    """Return a boolean mask: True for a delete whose table has no row left to delete.

    Each insert adds 1 to a total of its table, and each delete subtracts 1. A delete has no row left if the
    total becomes negative and lower than ever before. Without these deletes the total is never negative.
    `starts` and `group` are as in `_count_before`.
    """
    steps = (kinds == INSERT).astype(np.int64) - (kinds == DELETE)
    levels = np.cumsum(steps)
    levels -= (levels - steps)[starts][group]
    lower = group * (2 * len(kinds) + 1)  # shift each group below all previous groups
    lows = np.minimum.accumulate(levels - lower) + lower
    before = np.roll(lows, 1)
    before[starts] = 0
    excess: IntArray = (kinds == DELETE) & (levels < np.minimum(before, 0))
    return excess
