"""Build the messages of a window of transactions, and the rows that it inserts and does not delete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from logicalrep._build import build, fitted
from logicalrep.columns import (
    encode_begins,
    encode_commits,
    encode_deletes,
    encode_inserts,
    encode_updates,
)
from logicalrep.messages import Message
from logicalrep.stream import encode_for
from logicalrep.synth.workload.definition import Workload
from logicalrep.synth.workload.plan import VariedMessages, Window
from logicalrep.synth.workload.row_choice import DELETE, INSERT, ChosenRows, choose_rows
from logicalrep.synth.workload.tables import RowPool, WorkloadTable, draw_indices, make_pools
from logicalrep.synth.workload.values import IntArray, Random

_CHANGE_CLASSES: Final = 6
"""Number of change classes: inserts, updates and deletes, each inside and outside stream blocks. All changes
of a class are encoded in one call."""


class RemainingRows(msgspec.Struct, frozen=True):
    """Rows of a table that a window of transactions inserted and did not delete, sorted by key."""

    keys: IntArray
    pool_indices: IntArray
    """Index of each row's non-key cells in the `RowPool` of the table."""


class WindowMessages(msgspec.Struct, frozen=True):
    """The messages of a window of transactions in stream order, and its remaining rows."""

    window: Window
    lsns: pa.Int64Array
    """`wal_start` of each XLogData envelope."""
    times: IntArray
    """Send time of each envelope, in microseconds since 2000-01-01 00:00 UTC."""
    data: pa.BinaryArray
    """The encoded messages."""
    remaining_rows: list[RemainingRows]
    """Rows that the window's transactions inserted and did not delete, one item per table."""


def build_window(workload: Workload, tables: Sequence[WorkloadTable], window: Window) -> WindowMessages:
    """Return the messages of a window of transactions, and its remaining rows (see `RemainingRows`)."""
    random = np.random.default_rng([workload.seed, 2, window.number])
    clock, proto_version = window.clock, workload.options.proto_version
    version: dict[str, Any] = {"proto_version": proto_version}
    changes = _place_changes(random, window, len(tables))
    relation_count = int(window.relation_counts[0]) if not window.number else 0
    given = np.empty(0, np.int64)
    if workload.patterns:
        given = _apply_patterns(workload, window, relation_count, changes)
    rows = choose_rows(random, changes.tables, workload.mix, relation_count, given)
    others = list(_other_messages(workload, tables, window, changes))

    whole = window.block_counts == 0
    begins, counts = window.begins[whole], window.message_counts[whole]
    commits = begins + counts - 1
    encoded = [
        encode_begins(clock.lsn(commits), clock.time(commits), window.xids[whole], **version),
        encode_commits(clock.lsn(commits), clock.end_lsn(commits), clock.time(commits), **version),
        pa.array([message.data for message in others], pa.binary()),
    ]
    positions = [begins, commits, np.array([message.position for message in others], np.int64)]
    remaining_rows = []
    for number, (table, pool) in enumerate(zip(tables, make_pools(workload), strict=True)):
        span = slice(*np.searchsorted(rows.tables, [number, number + 1]).tolist())
        table_changes = _TableChanges(pool, table, window, changes, rows, span, proto_version)
        arrays, table_positions, remaining = table_changes.build(random)
        encoded += arrays
        positions.append(table_positions)
        remaining_rows.append(remaining)

    count = int(window.message_counts.sum())
    order = np.empty(count, np.int64)
    order[np.concatenate(positions) - window.position] = np.arange(count)
    data = pa.concat_arrays(encoded).take(pa.array(order))
    # The envelope of Begin has the LSN of the first change, and the envelope of Commit has the end LSN of the
    # commit record (begin_cb_wrapper, commit_cb_wrapper).
    all_positions = np.arange(window.position, window.position + count)
    lsns, times = clock.lsn(all_positions), clock.time(all_positions)
    lsns[begins - window.position] = clock.lsn(begins + 1 + (window.relation_counts[whole] > 0))
    lsns[commits - window.position] = clock.end_lsn(commits)
    for message in others:
        lsns[message.position - window.position] = message.lsn
    if window.varied is not None:
        lsns, times, data = _with_varied(window.varied, window.position, lsns, times, data)
    return WindowMessages(window, pa.array(lsns), times, data, remaining_rows)


class _PlacedChanges(msgspec.Struct, frozen=True):
    """The row changes of a window as parallel arrays, in stream order."""

    positions: IntArray
    """Position in the stream of each change's message."""
    tables: IntArray
    """Number, from 0, of each change's table."""
    xids: IntArray
    """Xid in each change's message; 0 outside stream blocks."""
    firsts: IntArray
    """By transaction: index of its first change."""


class _PlacedMessage(msgspec.Struct, frozen=True):
    """An encoded message with its position in the stream."""

    position: int
    data: bytes
    lsn: int
    """`wal_start` of the XLogData envelope."""


def _place_changes(random: Random, window: Window, table_count: int) -> _PlacedChanges:
    """Choose a random table for each change of a window, and return the changes.

    A transaction with Relation messages changes only the tables of these messages. It begins with one change
    of each of these tables.
    """
    sizes, relations, blocks = window.change_counts, window.relation_counts, window.block_counts
    firsts, count = np.cumsum(sizes) - sizes, int(sizes.sum())
    number = np.arange(count) - np.repeat(firsts, sizes)
    block = number * np.repeat(blocks, sizes) // np.repeat(sizes, sizes)
    before = np.minimum(number + 1, np.repeat(relations, sizes)) + 2 * block
    tables = random.integers(0, table_count, size=count)
    for i in np.flatnonzero(relations):
        chosen = random.permutation(table_count)[: relations[i]] if blocks[i] else np.arange(table_count)
        drawn = chosen[random.integers(0, len(chosen), size=sizes[i])]
        drawn[: len(chosen)] = chosen
        tables[firsts[i] : firsts[i] + sizes[i]] = drawn
    xids = np.repeat(window.xids * (blocks > 0), sizes)
    return _PlacedChanges(np.repeat(window.begins + 1, sizes) + number + before, tables, xids, firsts)


def _other_messages(
    workload: Workload, tables: Sequence[WorkloadTable], window: Window, changes: _PlacedChanges
) -> Iterator[_PlacedMessage]:
    """Yield the window's Relation, Stream Start, Stream Stop and Stream Commit messages."""
    version, clock = workload.options.proto_version, window.clock

    def place(position: int, lsn: int, message: Message) -> _PlacedMessage:
        return _PlacedMessage(position, encode_for(fitted(message, version), version), lsn)

    for i in np.flatnonzero(window.relation_counts).tolist():
        blocks, xid, size = int(window.block_counts[i]), int(window.xids[i]), int(window.change_counts[i])
        first = int(changes.firsts[i])
        positions = changes.positions[first : first + size].tolist()
        for k in range(int(window.relation_counts[i])):
            relation = tables[changes.tables[first + k]].relation
            relation = msgspec.structs.replace(relation, xid=xid if blocks else None)
            yield place(positions[k] - 1, 0, relation)
        cuts = [-(-block * size // blocks) for block in range(blocks + 1)] if blocks else []
        for block, (start, stop) in enumerate(pairwise(cuts)):
            opening = build("open_block", version, xid=xid, first_block=not block)
            at = positions[start] - (1 if block else 2)
            yield place(at, clock.lsn(positions[start]), opening)
            yield place(
                positions[stop - 1] + 1, clock.lsn(positions[stop - 1]), build("close_block", version)
            )
        if blocks:
            end = positions[-1] + 2
            lsn, end_lsn, time = clock.lsn(end), clock.end_lsn(end), clock.time(end)
            commit = build("commit_streamed", version, xid=xid, lsn=lsn, end_lsn=end_lsn, time=time)
            yield place(end, end_lsn, commit)


def _with_varied(
    varied: VariedMessages, position: int, lsns: IntArray, times: IntArray, data: pa.BinaryArray
) -> tuple[IntArray, IntArray, pa.BinaryArray]:
    """Insert the messages `varied` into the arrays of a window, and return new arrays.

    `position` is the position of the window's first message. `lsns`, `times` and `data` are parallel: each
    has one item per message.
    """
    numbers = len(data) + np.arange(len(varied.data))
    order = np.insert(np.arange(len(data)), varied.positions - position, numbers)
    both = pa.concat_arrays([data, varied.data])
    return (
        np.concatenate([lsns, varied.lsns])[order],
        np.concatenate([times, varied.times])[order],
        both.take(pa.array(order)),
    )


def _apply_patterns(
    workload: Workload, window: Window, relation_count: int, changes: _PlacedChanges
) -> IntArray:
    """Set the tables of `changes` by the patterns of their transactions; return the kinds of the changes.

    A pattern is the list of the changes of one transaction (`Profile.patterns`). The first transaction of the
    workload has no pattern: it inserts a row into each table. `relation_count` is the number of these
    inserts; 0 in a later window.
    """
    patterns = [np.array(pattern) for pattern in workload.patterns]
    chosen = window.patterns[relation_count > 0 :].tolist()
    coded = np.concatenate([np.empty(0, np.int64), *(patterns[number] for number in chosen)])
    changes.tables[relation_count:] = coded // 3
    return np.concatenate([np.zeros(relation_count, np.int64), coded % 3])


class _TableChanges(msgspec.Struct, frozen=True):
    """The changes of one table in a window of transactions."""

    pool: RowPool
    table: WorkloadTable
    window: Window
    changes: _PlacedChanges
    rows: ChosenRows
    span: slice
    """Slice of the arrays in `rows` that contains the changes of the table."""
    proto_version: int

    def build(self, random: Random) -> tuple[list[pa.BinaryArray], IntArray, RemainingRows]:
        """Return the encoded messages of the table's changes, their positions, and the remaining rows.

        The positions are in the order of the messages in the concatenated arrays.
        """
        kinds, order = self.rows.kinds[self.span], self.rows.order[self.span]
        classes = _change_classes(kinds, self.changes.xids[order] != 0)
        by_class = np.argsort(classes, kind="stable")
        counts = np.bincount(classes, minlength=_CHANGE_CLASSES)
        inserts = np.flatnonzero(kinds == INSERT)
        row_numbers = self.rows.rows[self.span]
        first_row = int(row_numbers[inserts[0]]) if len(inserts) else 0
        keys = row_numbers[by_class] - first_row + (self.window.position + 1)
        by_change = np.empty(len(by_class), np.int64)
        by_change[by_class] = np.arange(len(by_class))
        pool_indices = draw_indices(random, len(self.pool), int(counts[:4].sum()))
        old_indices = pool_indices
        if self.table.shape.replica_identity == "full":
            old_indices = pool_indices[by_change[self.rows.previous_changes(self.span)[by_class]]]
        change_indices = order[by_class]
        xids = self.changes.xids[change_indices]
        encoded = list(self._encode(counts, keys, pool_indices, old_indices, xids))
        inserted = slice(first_row, first_row + len(inserts))
        last_changes = self.rows.last_change[inserted][self.rows.is_live[inserted]]
        remaining = by_change[last_changes - self.span.start]
        remaining_rows = RemainingRows(keys[remaining], pool_indices[remaining])
        return encoded, self.changes.positions[change_indices], remaining_rows

    def _encode(
        self, counts: IntArray, keys: IntArray, new: IntArray, old: IntArray, xids: IntArray
    ) -> Iterator[pa.BinaryArray]:
        """Yield an array of messages for each change class (see `_change_classes`) that has changes.

        Args:
            counts: Number of changes of each class. The changes in the other arrays are sorted by class.
            keys: Row number of each change.
            new: Pool index of the new row of each insert and update.
            old: Pool index of the old row of each change; used only with REPLICA IDENTITY FULL.
            xids: Xid of each change; used only in stream blocks.
        """
        pool, identity = self.pool, self.table.shape.replica_identity
        oid = self.table.relation.oid
        ends = np.cumsum(counts).tolist()
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if start == end:
                continue
            options: dict[str, Any] = {"proto_version": self.proto_version}
            if number in _STREAMED:
                options["xid"] = pa.array(xids[start:end])
            part = slice(start, end)
            if number not in _INSERTS and identity == "full":
                options["old"] = pool.columns(keys[part], old[part])
            elif number in _DELETES:
                options["key"] = pool.columns(keys[part], None)
            if number in _DELETES:
                yield encode_deletes(oid, **options)
            else:
                encode = encode_inserts if number in _INSERTS else encode_updates
                yield encode(oid, pool.columns(keys[part], new[part]), **options)


_INSERTS: Final = (0, 2)
_DELETES: Final = (4, 5)
_STREAMED: Final = (2, 3, 5)


def _change_classes(kinds: IntArray, streamed: IntArray) -> IntArray:
    """Return the class number of each change; all changes of a class are encoded in one call.

    Outside stream blocks: 0 insert, 1 update, 4 delete. In stream blocks: 2 insert, 3 update, 5 delete.
    """
    return np.where(kinds == DELETE, 4 + streamed, kinds + 2 * streamed).astype(np.uint8)
