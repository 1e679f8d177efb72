"""A window of a workload to its messages, and to the rows that are left of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput.columns import (
    Cells,
    encode_begins,
    encode_commits,
    encode_deletes,
    encode_inserts,
    encode_updates,
)
from pgoutput.stream import encode_for
from pgoutput.synth.workload import Workload
from pgoutput.synth.workload_plan import Clock, Numbers, Window, clock, place
from pgoutput.synth.workload_rows import DELETE, UPDATE, Random, Rows, follow
from pgoutput.synth.workload_streams import Changes, Said, Streams
from pgoutput.synth.workload_tables import Pool, WorkloadTable, draw, make_pools

_CLASSES: Final = 6
"""Inserts, updates and deletes, each of ordinary and of streamed transactions: they are encoded together."""


class Left(msgspec.Struct, frozen=True):
    """The rows of a table that are left, sorted by key."""

    keys: Numbers
    places: Numbers
    """Of what is in their other columns, in the table's pool."""


class Made(msgspec.Struct, frozen=True):
    """A window's messages, in their order, and its truth."""

    window: Window
    lsns: pa.Int64Array
    """`wal_start` of their envelopes."""
    times: Numbers
    """When they are sent, in microseconds since 2000."""
    data: pa.BinaryArray
    left: list[Left]
    """By table: the rows that are left in the end."""


def make(workload: Workload, tables: Sequence[WorkloadTable], window: Window) -> Made:
    """Make a window."""
    random = np.random.default_rng([workload.seed, 2, window.number])
    at = clock(workload)
    begins, pieces = place(window)
    streams = Streams(workload, tables, at)
    for piece in pieces:
        streams.add(random, window.streamed[piece.transaction], piece)
    ordinary, relations = _ordinary(random, window, begins, tables, workload.proto_version)
    said = [*relations, *streams.said]
    ops = Changes.joined([ordinary, *streams.changes])
    committed = np.array(streams.committed)
    lanes = len(committed)
    rows = follow(random, ops.tables * lanes + ops.lanes, workload.mix, window.describes)

    commits = begins + 1 + window.sizes
    commits[0] += window.describes
    encoded = [
        encode_begins(at.lsn(commits), at.time(commits), window.xids),
        encode_commits(at.lsn(commits), at.end_lsn(commits), at.time(commits)),
        pa.array([one.data for one in said], pa.binary()),
    ]
    positions = [begins, commits, np.array([one.position for one in said], np.int64)]
    left = []
    for number, (table, pool) in enumerate(zip(tables, make_pools(workload), strict=True)):
        some = slice(*np.searchsorted(rows.groups, [number * lanes, (number + 1) * lanes]).tolist())
        part = _Part(pool, table, window, ops, rows, some)
        arrays, places, rest = part.make(random, committed, lanes)
        encoded += arrays
        positions.append(places)
        left.append(rest)

    order = np.empty(window.messages, np.int64)
    order[np.concatenate(positions) - window.position] = np.arange(window.messages)
    data = pa.concat_arrays(encoded).take(pa.array(order))
    return Made(window, *_envelopes(window, at, begins, commits, said), data, left)


def _ordinary(
    random: Random, window: Window, begins: Numbers, tables: Sequence[WorkloadTable], proto_version: int
) -> tuple[Changes, list[Said]]:
    """The changes of ordinary transactions, and the first Relations."""
    sizes, first = window.sizes, window.describes
    count = int(sizes.sum())
    positions = np.repeat(begins + 1 - (np.cumsum(sizes) - sizes), sizes) + np.arange(count)
    positions[: sizes[0]] += np.minimum(np.arange(sizes[0]) + 1, first)
    of_tables = random.integers(0, len(tables), size=count)
    of_tables[:first] = np.arange(first)
    relations = [
        Said(int(position) - 1, encode_for(table.relation, proto_version), 0)
        for position, table in zip(positions[:first], tables, strict=False)
    ]
    return Changes.of(positions, of_tables), relations


def _envelopes(
    window: Window, at: Clock, begins: Numbers, commits: Numbers, said: Sequence[Said]
) -> tuple[pa.Int64Array, Numbers]:
    """The LSNs of the envelopes, and when they are sent.

    A Begin has that of the first change, a Commit the end of its record (begin_cb_wrapper,
    commit_cb_wrapper).
    """
    positions = np.arange(window.position, window.position + window.messages)
    lsns = at.lsn(positions)
    first_changes = begins + 1
    first_changes[0] += window.describes > 0
    lsns[begins - window.position] = at.lsn(first_changes)
    lsns[commits - window.position] = at.end_lsn(commits)
    for one in said:
        lsns[one.position - window.position] = one.lsn
    return pa.array(lsns), at.time(positions)


class _Part(msgspec.Struct, frozen=True):
    """The changes of one table."""

    pool: Pool
    table: WorkloadTable
    window: Window
    ops: Changes
    rows: Rows
    some: slice
    """Where they stand in `rows`."""

    def make(
        self, random: Random, committed: Numbers, lanes: int
    ) -> tuple[list[pa.BinaryArray], Numbers, Left]:
        """Their messages and the positions of these, and the rows that are left."""
        kinds, order = self.rows.kinds[self.some], self.rows.order[self.some]
        classes = _class(kinds, self.ops.xids[order] != 0)
        by_class = np.argsort(classes, kind="stable")
        counts = np.bincount(classes, minlength=_CLASSES)
        inserts = np.flatnonzero((kinds != UPDATE) & (kinds != DELETE))
        numbers = self.rows.rows[self.some]
        first_row = int(numbers[inserts[0]]) if len(inserts) else 0
        keys = numbers[by_class] - first_row + (self.window.position + 1)
        texts = pc.cast(pa.array(keys), pa.string())
        new = int(counts[:4].sum())
        places = draw(random, len(self.pool.cells), new)
        rest = self.pool.cells.take(pa.array(places))
        ops = order[by_class]
        encoded = list(self._encode(counts, texts, rest, self.ops.xids[ops]))
        last_row = first_row + len(inserts)
        left = self._left(keys, places, by_class, np.arange(first_row, last_row), committed, lanes)
        return encoded, self.ops.positions[ops], left

    def _encode(
        self, counts: Numbers, keys: pa.StringArray, rest: Cells, xids: Numbers
    ) -> Iterator[pa.BinaryArray]:
        oid = self.table.relation.oid
        ends = np.cumsum(counts).tolist()
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if start == end:
                continue
            options: dict[str, Any] = {"xid": pa.array(xids[start:end])} if number in _STREAMED else {}
            if number in _DELETES:
                nulls = pa.nulls(end - start, pa.string())
                key = [keys[start:end], *(nulls for _ in self.table.kinds)]
                yield encode_deletes(oid, key=key, **options)
            else:
                encode = encode_updates if number in _UPDATES else encode_inserts
                yield encode(oid, [keys[start:end], rest.slice(start, end)], **options)

    def _left(
        self,
        keys: Numbers,
        places: Numbers,
        by_class: Numbers,
        rows: Numbers,
        committed: Numbers,
        lanes: int,
    ) -> Left:
        last = self.rows.last[rows]
        kept = self.rows.live[rows] & committed[self.rows.groups[last] % lanes]
        by_change = np.empty(len(by_class), np.int64)
        by_change[by_class] = np.arange(len(by_class))
        left = by_change[last[kept] - self.some.start]
        return Left(keys[left], places[left])


_UPDATES: Final = (1, 3)
_DELETES: Final = (4, 5)
_STREAMED: Final = (2, 3, 5)


def _class(kinds: Numbers, streamed: Numbers) -> Numbers:
    """Ordinary inserts and updates, streamed ones, then deletes likewise."""
    return np.where(kinds == DELETE, 4 + streamed, kinds + 2 * streamed).astype(np.uint8)
