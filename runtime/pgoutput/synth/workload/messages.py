"""Build the messages of a window of transactions, and the rows that exist at the end of the window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput._build import fitted
from pgoutput.columns import (
    encode_begins,
    encode_commits,
    encode_deletes,
    encode_inserts,
    encode_updates,
)
from pgoutput.stream import encode_for
from pgoutput.synth.workload.definition import Workload
from pgoutput.synth.workload.plan import VariedMessages, WalClock, Window, place_messages
from pgoutput.synth.workload.row_choice import DELETE, INSERT, ChosenRows, choose_rows
from pgoutput.synth.workload.stream_blocks import PlacedMessage, PlannedChanges, StreamBlockBuilder
from pgoutput.synth.workload.tables import RowPool, WorkloadTable, draw_indices, make_pools
from pgoutput.synth.workload.values import IntArray, Random

_CHANGE_CLASSES: Final = 6
"""Number of change classes: inserts, updates and deletes, each inside and outside stream blocks. All changes
of a class are encoded in one call."""


class RemainingRows(msgspec.Struct, frozen=True):
    """Rows of a table that a window of transactions inserted and did not delete, sorted by key."""

    keys: IntArray
    pool_indices: IntArray
    """Index of each row's non-key cells in the `RowPool` of the table."""


class WindowMessages(msgspec.Struct, frozen=True):
    """The messages of a window of transactions in stream order, and the rows at the end of the window."""

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
    """Return the messages of a window of transactions, and the rows at the end of the window."""
    random = np.random.default_rng([workload.seed, 2, window.number])
    clock = window.clock
    begins, pieces = place_messages(window)
    streams = StreamBlockBuilder(workload, tables, clock)
    for index, block, position in pieces:
        streamed = window.streamed[index]
        if block == len(streamed.changes):
            streams.add_end(streamed, position)
        else:
            streams.add_block(random, streamed, block, index + 1, position)
    proto_version = workload.options.proto_version
    ordinary, relations = _ordinary_changes(random, window, begins, tables, proto_version)
    given = np.empty(0, np.int64)
    if workload.patterns:
        given = _apply_patterns(workload, window, ordinary)
    other_messages = [*relations, *streams.other_messages]
    version: dict[str, Any] = {"proto_version": proto_version}
    changes = PlannedChanges.concatenate([ordinary, *streams.changes])
    committed = np.array([True, *(not one.aborted for one in window.streamed)])
    scopes = len(committed)
    rows = choose_rows(
        random, changes.tables * scopes + changes.scopes, workload.mix, window.relation_count, given
    )

    commits = begins + 1 + window.change_counts
    commits[0] += window.relation_count
    encoded = [
        encode_begins(clock.lsn(commits), clock.time(commits), window.xids, **version),
        encode_commits(clock.lsn(commits), clock.end_lsn(commits), clock.time(commits), **version),
        pa.array([message.data for message in other_messages], pa.binary()),
    ]
    positions = [begins, commits, np.array([message.position for message in other_messages], np.int64)]
    remaining_rows = []
    for number, (table, pool) in enumerate(zip(tables, make_pools(workload), strict=True)):
        span = slice(*np.searchsorted(rows.groups, [number * scopes, (number + 1) * scopes]).tolist())
        table_changes = _TableChanges(pool, table, window, changes, rows, span, proto_version)
        arrays, table_positions, remaining = table_changes.build(random, committed, scopes)
        encoded += arrays
        positions.append(table_positions)
        remaining_rows.append(remaining)

    order = np.empty(window.message_count, np.int64)
    order[np.concatenate(positions) - window.position] = np.arange(window.message_count)
    data = pa.concat_arrays(encoded).take(pa.array(order))
    lsns, times = _envelopes(window, clock, begins, commits, other_messages)
    if window.varied is not None:
        lsns, times, data = _with_varied(window.varied, window.position, lsns, times, data)
    return WindowMessages(window, pa.array(lsns), times, data, remaining_rows)


def _with_varied(
    varied: VariedMessages, position: int, lsns: IntArray, times: IntArray, data: pa.BinaryArray
) -> tuple[IntArray, IntArray, pa.BinaryArray]:
    """Insert varied transactions into LSNs, times and messages of a window that begins at a position."""
    numbers = len(data) + np.arange(len(varied.data))
    order = np.insert(np.arange(len(data)), varied.positions - position, numbers)
    both = pa.concat_arrays([data, varied.data])
    return (
        np.concatenate([lsns, varied.lsns])[order],
        np.concatenate([times, varied.times])[order],
        both.take(pa.array(order)),
    )


def _ordinary_changes(
    random: Random, window: Window, begins: IntArray, tables: Sequence[WorkloadTable], proto_version: int
) -> tuple[PlannedChanges, list[PlacedMessage]]:
    """Return the changes and the Relation messages of a window's transactions that are not streamed."""
    sizes, first = window.change_counts, window.relation_count
    count = int(sizes.sum())
    positions = np.repeat(begins + 1 - (np.cumsum(sizes) - sizes), sizes) + np.arange(count)
    positions[: sizes[0]] += np.minimum(np.arange(sizes[0]) + 1, first)
    table_indices = random.integers(0, len(tables), size=count)
    table_indices[:first] = np.arange(first)
    relations = [
        PlacedMessage(int(position) - 1, encode_for(fitted(table.relation, proto_version), proto_version), 0)
        for position, table in zip(positions[:first], tables, strict=False)
    ]
    return PlannedChanges.uniform(positions, table_indices), relations


def _apply_patterns(workload: Workload, window: Window, changes: PlannedChanges) -> IntArray:
    """Set the tables of the changes of ordinary transactions, and return their kinds.

    The first transaction of the workload has no pattern: it inserts a row into each table.
    """
    patterns = [np.array(pattern) for pattern in workload.patterns]
    chosen = window.patterns[bool(window.relation_count) :].tolist()
    coded = np.concatenate([np.empty(0, np.int64), *(patterns[number] for number in chosen)])
    changes.tables[window.relation_count :] = coded // 3
    return np.concatenate([np.zeros(window.relation_count, np.int64), coded % 3])


def _envelopes(
    window: Window,
    clock: WalClock,
    begins: IntArray,
    commits: IntArray,
    other_messages: Sequence[PlacedMessage],
) -> tuple[IntArray, IntArray]:
    """Return `wal_start` and send time of each XLogData envelope.

    The envelope of Begin has the LSN of the first change, and the envelope of Commit has the end LSN of the
    commit record (begin_cb_wrapper, commit_cb_wrapper).
    """
    positions = np.arange(window.position, window.position + window.message_count)
    lsns = clock.lsn(positions)
    first_changes = begins + 1
    first_changes[0] += window.relation_count > 0
    lsns[begins - window.position] = clock.lsn(first_changes)
    lsns[commits - window.position] = clock.end_lsn(commits)
    for message in other_messages:
        lsns[message.position - window.position] = message.lsn
    return lsns, clock.time(positions)


class _TableChanges(msgspec.Struct, frozen=True):
    """The changes of one table in a window of transactions."""

    pool: RowPool
    table: WorkloadTable
    window: Window
    changes: PlannedChanges
    rows: ChosenRows
    span: slice
    """Slice of the arrays in `rows` that contains the changes of the table."""
    proto_version: int

    def build(
        self, random: Random, committed: IntArray, scopes: int
    ) -> tuple[list[pa.BinaryArray], IntArray, RemainingRows]:
        """Return the messages of the table's changes, the messages' positions, and the `RemainingRows`."""
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
        last_changes = self.rows.last_change[inserted]
        kept = self.rows.is_live[inserted] & committed[self.rows.groups[last_changes] % scopes]
        remaining = by_change[last_changes[kept] - self.span.start]
        remaining_rows = RemainingRows(keys[remaining], pool_indices[remaining])
        return encoded, self.changes.positions[change_indices], remaining_rows

    def _encode(
        self, counts: IntArray, keys: IntArray, new: IntArray, old: IntArray, xids: IntArray
    ) -> Iterator[pa.BinaryArray]:
        """Yield the messages of each change class.

        Args:
            counts: Number of changes of each class.
            keys: Row number of each change.
            new: Index in the pool of the new row of each insert and update.
            old: Index in the pool of the old row of each change, for REPLICA IDENTITY FULL.
            xids: Xid of each change, 0 outside stream blocks.
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
                options["key"] = pool.key_columns(keys[part])
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
