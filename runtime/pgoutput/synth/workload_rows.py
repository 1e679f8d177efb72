"""Which row a change is of: rows are inserted, updated while they are there, and deleted, oldest first.

All of it is computed for a window at once. Changes that can see each other's rows are a group: those of a
table by ordinary transactions, or by one streamed transaction, or by one savepoint of it. So what is rolled
back never touched a row of others, and no transaction waits for a row that an open one has changed.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
import numpy as np

from pgoutput.synth.workload import Mix
from pgoutput.synth.workload_plan import Numbers

Random: TypeAlias = np.random.Generator

INSERT: Final = 0
UPDATE: Final = 1
DELETE: Final = 2


class Rows(msgspec.Struct, frozen=True):
    """The changes of a window, sorted by group; those of a group are in their order."""

    order: Numbers
    """Which change it is."""
    groups: Numbers
    """Its group."""
    kinds: Numbers
    """INSERT, UPDATE or DELETE."""
    rows: Numbers
    """Number of its row. Rows are numbered by group, and in a group as they are inserted."""
    last: Numbers
    """By row: where the change that gave it its last values stands here."""
    live: Numbers
    """By row: whether it is there in the end."""


def follow(random: Random, groups: Numbers, mix: Mix, inserts: int) -> Rows:
    """Choose the kinds and rows of changes.

    Args:
        random: Chooses.
        groups: The group of each change.
        mix: How often the kinds come. Where no row is left, a row is inserted instead.
        inserts: The first so many changes are inserts.
    """
    kinds = _draw(random, len(groups), mix)
    kinds[:inserts] = INSERT
    order = np.argsort(groups, kind="stable")
    groups, kinds = groups[order], kinds[order]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(groups)))

    kinds[_too_many(kinds, starts, group)] = INSERT
    deleted = _counted_before(kinds == DELETE, starts, group)
    inserted = _counted_before(kinds == INSERT, starts, group)
    kinds[(kinds == UPDATE) & (inserted == deleted)] = INSERT

    is_insert = kinds == INSERT
    inserted = _counted_before(is_insert, starts, group)
    base = (np.cumsum(is_insert) - is_insert)[starts][group]
    rows = base + deleted
    rows[is_insert] = (base + inserted)[is_insert]
    updates = np.flatnonzero(kinds == UPDATE)
    choice = random.random(len(updates)) * (inserted - deleted)[updates]
    rows[updates] += choice.astype(np.int64)

    count = int(is_insert.sum())
    last = np.zeros(count, np.int64)
    new = np.flatnonzero(kinds != DELETE)
    last[rows[new]] = new  # of those of a row, the last one stays
    live = np.ones(count, np.bool_)
    live[rows[kinds == DELETE]] = False
    return Rows(order, groups, kinds, rows, last, live)


def _draw(random: Random, count: int, mix: Mix) -> Numbers:
    total = mix.insert + mix.update + mix.delete
    drawn = random.random(count, dtype=np.float32) * total
    kinds: Numbers = (drawn >= mix.insert).astype(np.uint8) + (drawn >= mix.insert + mix.update)
    return kinds


def _counted_before(marks: Numbers, starts: Numbers, group: Numbers) -> Numbers:
    """How many marks stand before each place in its group."""
    before: Numbers = np.cumsum(marks) - marks
    before -= before[starts][group]
    return before


def _too_many(kinds: Numbers, starts: Numbers, group: Numbers) -> Numbers:
    """The deletes that would leave their group with fewer rows than none.

    They are those that bring inserts less deletes to a new low; without them the number is never negative.
    """
    steps = (kinds == INSERT).astype(np.int64) - (kinds == DELETE)
    levels = np.cumsum(steps)
    levels -= (levels - steps)[starts][group]
    lower = group * (2 * len(kinds) + 1)  # each group lies below the one before, whose lows so do not count
    lows = np.minimum.accumulate(levels - lower) + lower
    before = np.roll(lows, 1)
    before[starts] = 0
    too_many: Numbers = (kinds == DELETE) & (levels < np.minimum(before, 0))
    return too_many
