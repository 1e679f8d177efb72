"""Plan the transactions of a workload, and the positions of their messages in the stream.

A workload is generated in windows of consecutive transactions. No transaction is open at the end of a window,
and rows change only in the window that inserts them. Therefore windows are independent, and several processes
can generate them in parallel.

An ordinary transaction is sent as Begin, changes, Commit. A streamed transaction is sent in stream blocks
between ordinary transactions, as are varied transactions. The last changes of a stream block may belong to a
savepoint, which may be rolled back after the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput.messages import XLogData
from pgoutput.synth.workload.definition import Workload
from pgoutput.synth.workload.values import IntArray, Random
from pgoutput.synth.workload.varied import VariedPiece, VariedTransactions
from pgoutput.wire import from_datetime

WINDOW_BYTES: Final = 32 << 20
"""Approximate maximum size of the messages in a window of transactions, in bytes."""

WINDOW_MESSAGES: Final = 250_000
"""Approximate maximum number of messages in a window of transactions."""

_FIRST_XID: Final = 1_000
_LAST_XID: Final = (1 << 32) - 1
_XIDS_PER_TRANSACTION: Final = 8
"""Number of xids reserved for a streamed transaction and its savepoints; a stream block has at most one
savepoint."""

_XIDS_PER_VARIED: Final = 64
"""Number of xids reserved for each transaction of a workload with varied transactions."""

_MAX_BLOCKS: Final = 5
"""Maximum number of stream blocks of a transaction."""
_MAX_STREAMED_TABLES: Final = 3
"""Maximum number of tables that a streamed transaction changes."""

_START_LSN: Final = 0x1500000
_START_TIME: Final = from_datetime(datetime(2024, 1, 1, tzinfo=UTC))
_MESSAGE_INTERVAL: Final = 20
"""Time between consecutive messages, in microseconds."""

_COMMIT_RECORD_BYTES: Final = 48
"""Size of a commit record in the WAL, in bytes."""


class WalClock(msgspec.Struct, frozen=True):
    """Computes the LSN and time of a message from its position in the stream, for one window.

    Positions do not count the messages of varied transactions.
    """

    bytes_per_message: int
    """Distance between the LSNs of consecutive messages, in bytes."""
    varied_positions: list[int]
    """Position of the message that follows each piece of varied transactions, in order."""
    varied_bytes: list[int]
    """Bytes of WAL of all varied transactions before the window, and after each piece."""
    varied_times: list[int]
    """Duration of all varied transactions in microseconds, before the window and after each piece."""

    def lsn(self, position: Any) -> Any:
        """Return the start LSN of the WAL record for the message at `position`, which may be an array."""
        return _START_LSN + position * self.bytes_per_message + self._varied(self.varied_bytes, position)

    def end_lsn(self, position: Any) -> Any:
        """Return the end LSN of the commit record for the message at `position`, which may be an array."""
        return self.lsn(position) + _COMMIT_RECORD_BYTES

    def time(self, position: Any) -> Any:
        """Return the time of the message at `position`, in microseconds since 2000-01-01; accepts arrays."""
        return _START_TIME + position * _MESSAGE_INTERVAL + self._varied(self.varied_times, position)

    def _varied(self, totals: list[int], position: Any) -> Any:
        """Return the totals of the varied transactions before messages."""
        pieces = np.searchsorted(self.varied_positions, position, side="right")
        return np.array(totals)[pieces] if isinstance(position, np.ndarray) else totals[int(pieces)]


class Block(msgspec.Struct, frozen=True):
    """A stream block of a streamed transaction."""

    next_transaction: int
    """Index in `Window.xids` of the transaction before whose Begin the block is sent."""
    changes: int
    """Number of changes in the block, including the changes of its savepoint."""
    sends_relations: bool
    """Whether the block has Relation messages. If so, the block begins with one Relation message and one
    change for each table of the transaction."""
    savepoint_changes: int
    """Number of changes at the end of the block that belong to its savepoint; 0 without savepoint."""
    savepoint_xid: int | None
    """Xid of the block's savepoint (its subtransaction), or None without savepoint."""
    rolled_back: bool
    """Whether the block's savepoint is rolled back right after the block."""


class StreamedTransaction(msgspec.Struct, frozen=True):
    """A transaction that is sent in stream blocks."""

    xid: int
    tables: tuple[int, ...]
    """Numbers, from 0, of the tables that the transaction changes."""
    blocks: tuple[Block, ...]
    aborted: bool
    """Whether the whole transaction is rolled back."""

    @property
    def ending_xids(self) -> list[int]:
        """Xids in the messages that end the transaction.

        An aborted transaction ends with one Stream Abort for each savepoint that is not rolled back yet, and
        one for the transaction. A committed transaction ends with one Stream Commit.
        """
        remaining = [
            one.savepoint_xid for one in self.blocks if one.savepoint_xid is not None and not one.rolled_back
        ]
        return [*remaining, self.xid] if self.aborted else [self.xid]

    def message_count(self, block: Block) -> int:
        """Return the number of messages of a stream block, including the Stream Abort of its savepoint."""
        return 2 + block.changes + len(self.tables) * block.sends_relations + block.rolled_back


class Window(msgspec.Struct, frozen=True):
    """A window of a workload: consecutive transactions that are generated together."""

    number: int
    """Number of the window in the workload, from 0."""
    change_counts: IntArray
    """Number of changes of each transaction that is not streamed."""
    xids: IntArray
    """Xid of each transaction that is not streamed."""
    patterns: IntArray
    """Index in `Workload.patterns` of each transaction that is not streamed; empty without patterns."""
    streamed: tuple[StreamedTransaction, ...]
    """The streamed transactions of the window, in xid order."""
    relation_count: int
    """Number of Relation messages outside stream blocks: one per table in the first window, otherwise 0."""
    position: int
    """Position of the window's first message in the stream, not counting varied transactions."""
    clock: WalClock
    varied: tuple[VariedPiece, ...] = ()
    """The messages of varied transactions."""
    varied_before: int = 0
    """Number of messages of varied transactions before the window."""
    described: tuple[bytes, ...] = ()
    """Encoded Type and Relation messages of varied transactions before the window."""
    varied_rows: Mapping[str, pa.Table] | None = None
    """Rows of the tables of varied transactions, by name with schema; None before the last window."""

    @property
    def first_position(self) -> int:
        """Position of the window's first message in the stream."""
        return self.position + self.varied_before

    @property
    def varied_count(self) -> int:
        """Number of messages of varied transactions in the window."""
        return sum(len(piece.messages) for piece in self.varied)

    @property
    def message_count(self) -> int:
        """Number of messages in the window, not counting varied transactions."""
        streamed = sum(
            sum(map(one.message_count, one.blocks)) + len(one.ending_xids) for one in self.streamed
        )
        return int(self.change_counts.sum()) + 2 * len(self.change_counts) + self.relation_count + streamed


def plan_windows(workload: Workload, window_messages: int = WINDOW_MESSAGES) -> Iterator[Window]:
    """Split a workload into windows of consecutive transactions, and yield the windows.

    Args:
        workload: The workload.
        window_messages: Approximate number of messages per window; fewer if messages are large.
    """
    window_transactions = _window_transactions(workload, window_messages)
    position = 0
    clock = WalClock(64 + 8 * int(workload.mean_message_bytes / 8), [], [0], [0])
    weaver = _Weaver(VariedTransactions(workload)) if workload.varied else None
    for number, first in enumerate(range(0, workload.transactions, window_transactions)):
        count = min(window_transactions, workload.transactions - first)
        window, places = _plan_window(workload, number, first, count, position, clock)
        if weaver is not None:
            window = weaver.weave(window, places, first + count == workload.transactions)
            clock = window.clock
        yield window
        position += window.message_count


def count_windows(workload: Workload, window_messages: int) -> int:
    """Return the number of windows into which `plan_windows` splits a workload."""
    return -(-workload.transactions // _window_transactions(workload, window_messages))


def _window_transactions(workload: Workload, window_messages: int) -> int:
    """Return the number of transactions of each window but the last."""
    messages_per_window = min(window_messages, WINDOW_BYTES / workload.mean_message_bytes)
    return max(1, int(messages_per_window / workload.mean_transaction_messages))


class _Weaver:
    """Places varied transactions between the other transactions of a workload's windows."""

    def __init__(self, transactions: VariedTransactions) -> None:
        self._transactions = transactions
        self._messages = 0

    def weave(self, window: Window, places: Sequence[tuple[int, int]], is_last: bool) -> Window:
        """Return the window with varied transactions.

        Args:
            window: The window without varied transactions.
            places: For each varied transaction, the index in `Window.xids` of the next transaction, and the
                first of the xids reserved for the varied transaction.
            is_last: Whether the window is the last one of the workload.
        """
        described = self._transactions.described()
        begins, _ = place_messages(window)
        clock = WalClock(
            window.clock.bytes_per_message, [], window.clock.varied_bytes[-1:], window.clock.varied_times[-1:]
        )
        pieces = [
            self._piece(clock, int(begins[place]), xid, partial(self._transactions.run, 1))
            for place, xid in places
        ]
        pieces.append(self._piece(clock, int(begins[-1]), None, self._transactions.end_transactions))
        before, self._messages = self._messages, self._messages + sum(len(one.messages) for one in pieces)
        return msgspec.structs.replace(
            window,
            clock=clock,
            varied=tuple(pieces),
            varied_before=before,
            described=described,
            varied_rows=self._transactions.rows() if is_last else None,
        )

    def _piece(
        self, clock: WalClock, position: int, xid: int | None, run: Callable[[], list[XLogData]]
    ) -> VariedPiece:
        """Run varied transactions before the message at `position`, and add their WAL to the clock."""
        wal, lsn, time = self._transactions.wal, clock.lsn(position), clock.time(position)
        wal.advance(lsn, time, xid)
        piece = VariedPiece(position, run())
        clock.varied_positions.append(position)
        clock.varied_bytes.append(clock.varied_bytes[-1] + wal.end_lsn - lsn)
        clock.varied_times.append(clock.varied_times[-1] + wal.time - time)
        return piece


def _plan_window(
    workload: Workload, number: int, first: int, count: int, position: int, clock: WalClock
) -> tuple[Window, list[tuple[int, int]]]:
    """Return a window without varied transactions, and for `_Weaver.weave` the places of these."""
    random = np.random.default_rng([workload.seed, 0, number])
    sizes = random.integers(workload.changes.first, workload.changes.last, size=count, endpoint=True)
    patterns = np.empty(0, np.int64)
    if workload.patterns:
        patterns = random.integers(0, len(workload.patterns), size=count)
        sizes = np.array([len(pattern) for pattern in workload.patterns])[patterns]
    is_large = random.random(count) < workload.large
    is_varied = random.random(count) < workload.varied
    is_varied[-1] = False  # a window ends with the Commit of an ordinary transaction
    if not number:  # the first transaction changes every table, after its Relation message
        is_varied[0] = is_large[0] = False
        sizes[0] = workload.table_count if workload.patterns else max(sizes[0], workload.table_count)
    is_large[-1] = False
    is_large &= ~is_varied
    step = _XIDS_PER_VARIED if workload.varied else _XIDS_PER_TRANSACTION if workload.is_streamed else 1
    xids = _FIRST_XID + (first + np.arange(count, dtype=np.int64)) * step % (_LAST_XID - _FIRST_XID)
    streamed: list[StreamedTransaction] = []
    if not workload.is_streamed:
        sizes[is_large] = workload.large_changes
        is_large[:] = False
    ordinary = np.flatnonzero(~(is_large | is_varied))
    if workload.is_streamed:
        for place in np.flatnonzero(is_large):
            next_transaction = int(np.searchsorted(ordinary, place))
            streamed.append(
                _plan_streamed(workload, random, int(xids[place]), next_transaction, len(ordinary) - 1)
            )
    varied = np.flatnonzero(is_varied)
    places = list(zip(np.searchsorted(ordinary, varied).tolist(), xids[varied].tolist(), strict=True))
    relation_count = 0 if number else workload.table_count
    window = Window(
        number=number,
        change_counts=sizes[ordinary],
        xids=xids[ordinary],
        patterns=patterns[ordinary] if workload.patterns else patterns,
        streamed=tuple(streamed),
        relation_count=relation_count,
        position=position,
        clock=clock,
    )
    return window, places


def _plan_streamed(
    workload: Workload, random: Random, xid: int, next_transaction: int, last_transaction: int
) -> StreamedTransaction:
    """Return a streamed transaction with random stream blocks.

    Each stream block is sent before the Begin of a transaction that is not streamed. The index of this
    transaction in `Window.xids` is from `next_transaction` to `last_transaction`.
    """
    count = int(random.integers(2, _MAX_BLOCKS, endpoint=True))
    tables = random.choice(
        workload.table_count, size=min(_MAX_STREAMED_TABLES, workload.table_count), replace=False
    )
    next_transactions = np.minimum(
        next_transaction + np.sort(random.integers(0, 4 * count, size=count)), last_transaction
    )
    blocks: list[Block] = []
    remaining = workload.large_changes
    sends_relations = True
    for i, next_index in enumerate(next_transactions.tolist()):
        changes = remaining // (count - i)
        remaining -= changes
        has_savepoint = random.random() < 0.5
        savepoint_changes = int(random.integers(1, changes // 2)) if has_savepoint else 0
        rolled_back = has_savepoint and bool(random.random() < workload.rolled_back)
        savepoint_xid = xid + 1 + i if has_savepoint else None
        blocks.append(
            Block(next_index, changes, sends_relations, savepoint_changes, savepoint_xid, rolled_back)
        )
        sends_relations = rolled_back  # pgoutput_stream_abort resets the sent relations
    aborted = bool(random.random() < workload.rolled_back)
    return StreamedTransaction(xid, tuple(tables.tolist()), tuple(blocks), aborted)


class PlacedPiece(msgspec.Struct, frozen=True):
    """A stream block, or the messages that end a streamed transaction, with their position in the stream."""

    streamed_index: int
    """Index of the streamed transaction in `Window.streamed`."""
    block: Block | None
    """The stream block; None for the messages that end the transaction."""
    position: int
    """Position in the stream of the first message of the block or of the transaction's end."""


def place_messages(window: Window) -> tuple[IntArray, list[PlacedPiece]]:
    """Return the positions of a window's Begin messages, and a `PlacedPiece` for each stream block or end."""
    pieces: list[tuple[int, int, Block | None, int]] = []
    for number, one in enumerate(window.streamed):
        pieces += [(block.next_transaction, number, block, one.message_count(block)) for block in one.blocks]
        pieces.append((one.blocks[-1].next_transaction, number, None, len(one.ending_xids)))
    pieces.sort(key=lambda piece: piece[0])  # stable: pieces of one transaction stay in order
    sizes = window.change_counts + 2
    sizes[0] += window.relation_count
    begins = window.position + np.concatenate(([0], np.cumsum(sizes)[:-1]))
    if not pieces:
        return begins, []
    lengths = np.array([piece[3] for piece in pieces])
    before = np.concatenate(([0], np.cumsum(lengths)))
    next_transactions = np.array([piece[0] for piece in pieces])
    starts = begins[next_transactions] + before[:-1]
    begins = begins + before[np.searchsorted(next_transactions, np.arange(len(begins)), side="right")]
    placed = zip(pieces, starts.tolist(), strict=True)
    return begins, [PlacedPiece(number, block, start) for (_, number, block, _), start in placed]
