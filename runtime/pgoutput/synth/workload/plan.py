"""Plan the transactions of a workload, and the positions of their messages in the stream.

A workload is generated in windows of consecutive transactions. No transaction is open at the end of a window,
and rows change only in the window that inserts them. Therefore windows are independent, and several processes
can generate them in parallel.

An ordinary transaction is sent as Begin, changes, Commit. A streamed transaction is sent in stream blocks
between ordinary transactions, as are varied transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from pgoutput.messages import XLogData
from pgoutput.synth.workload.definition import Workload
from pgoutput.synth.workload.values import IntArray, Random
from pgoutput.synth.workload.varied import VariedTransactions
from pgoutput.wire import from_datetime

WINDOW_BYTES: Final = 32 << 20
"""Approximate maximum size of the messages in a window of transactions, in bytes."""

WINDOW_MESSAGES: Final = 250_000
"""Approximate maximum number of messages in a window of transactions."""

_FIRST_XID: Final = 1_000
_LAST_XID: Final = (1 << 32) - 1
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
    """Position of the message that follows each run of varied transactions, in order."""
    varied_bytes: list[int]
    """Bytes of WAL of all varied transactions before the window, and after each run."""
    varied_times: list[int]
    """Duration of all varied transactions in microseconds, before the window and after each run."""

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
        runs = np.searchsorted(self.varied_positions, position, side="right")
        return np.array(totals)[runs] if isinstance(position, np.ndarray) else totals[int(runs)]


class StreamedTransaction(msgspec.Struct, frozen=True):
    """A transaction that is sent in stream blocks. The first block has the Relation messages."""

    xid: int
    tables: tuple[int, ...]
    """Numbers, from 0, of the tables that the transaction changes."""
    changes: tuple[int, ...]
    """Number of changes of each stream block."""
    next_transactions: tuple[int, ...]
    """For each stream block, and for the message that ends the transaction: index in `Window.xids` of the
    transaction before whose Begin it is sent."""
    aborted: bool
    """Whether the transaction is rolled back."""

    @property
    def message_counts(self) -> list[int]:
        """Number of messages of each stream block, and of the end of the transaction."""
        first, *others = (2 + changes for changes in self.changes)
        return [first + len(self.tables), *others, 1]


class VariedMessages(msgspec.Struct, frozen=True):
    """The messages of the varied transactions in a window, as parallel arrays."""

    positions: IntArray
    """Position of the message before which each message is sent, not counting varied transactions."""
    lsns: IntArray
    times: IntArray
    """LSN and send time of each envelope."""
    data: pa.BinaryArray
    """The encoded messages."""
    before: int
    """Number of messages of varied transactions before the window."""
    described: tuple[bytes, ...]
    """Encoded Type and Relation messages of varied transactions before the window."""
    rows: dict[str, pa.Table]
    """Rows of the tables of varied transactions, by name with schema; empty before the last window."""


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
    varied: VariedMessages | None = None
    """The varied transactions; None if the workload has none."""

    @property
    def first_position(self) -> int:
        """Position of the window's first message in the stream."""
        return self.position + (self.varied.before if self.varied else 0)

    @property
    def message_count(self) -> int:
        """Number of messages in the window, not counting varied transactions."""
        streamed = sum(sum(one.message_counts) for one in self.streamed)
        return int(self.change_counts.sum()) + 2 * len(self.change_counts) + self.relation_count + streamed


def plan_windows(workload: Workload, window_messages: int = WINDOW_MESSAGES) -> Iterator[Window]:
    """Split a workload into windows of consecutive transactions, and yield the windows.

    Args:
        workload: The workload.
        window_messages: Approximate number of messages per window; fewer if messages are large.
    """
    bounded = min(window_messages, WINDOW_BYTES / workload.mean_message_bytes)
    window_transactions = max(1, int(bounded / workload.mean_transaction_messages))
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
        last = window.clock
        clock = WalClock(last.bytes_per_message, [], last.varied_bytes[-1:], last.varied_times[-1:])
        run = self._transactions.run
        sent = [self._run(clock, int(begins[place]), xid, run) for place, xid in places]
        sent.append(self._run(clock, int(begins[-1]), None, self._transactions.end_transactions))
        messages = [message for run in sent for message in run]
        varied = VariedMessages(
            positions=np.repeat(np.array(clock.varied_positions, np.int64), list(map(len, sent))),
            lsns=np.array([message.wal_start for message in messages], np.int64),
            times=np.array([message.send_time for message in messages], np.int64),
            data=pa.array([message.data for message in messages], pa.binary()),
            before=self._messages,
            described=described,
            rows=self._transactions.rows() if is_last else {},
        )
        self._messages += len(messages)
        return msgspec.structs.replace(window, clock=clock, varied=varied)

    def _run(
        self, clock: WalClock, position: int, xid: int | None, run: Callable[[], list[XLogData]]
    ) -> list[XLogData]:
        """Run varied transactions before the message at `position`, and add their WAL to the clock."""
        wal, lsn, time = self._transactions.wal, clock.lsn(position), clock.time(position)
        wal.advance(lsn, time, xid)
        sent = run()
        clock.varied_positions.append(position)
        clock.varied_bytes.append(clock.varied_bytes[-1] + wal.end_lsn - lsn)
        clock.varied_times.append(clock.varied_times[-1] + wal.time - time)
        return sent


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
    step = _XIDS_PER_VARIED if workload.varied else 1
    xids = _FIRST_XID + (first + np.arange(count, dtype=np.int64)) * step % (_LAST_XID - _FIRST_XID)
    sizes[is_large] = workload.large_changes
    is_large &= workload.is_streamed
    ordinary = np.flatnonzero(~(is_large | is_varied))
    varied = np.flatnonzero(is_varied)
    window = Window(
        number=number,
        change_counts=sizes[ordinary],
        xids=xids[ordinary],
        patterns=patterns[ordinary] if workload.patterns else patterns,
        streamed=tuple(
            _plan_streamed(
                workload, random, int(xids[i]), int(np.searchsorted(ordinary, i)), len(ordinary) - 1
            )
            for i in np.flatnonzero(is_large)
        ),
        relation_count=0 if number else workload.table_count,
        position=position,
        clock=clock,
    )
    return window, list(zip(np.searchsorted(ordinary, varied).tolist(), xids[varied].tolist(), strict=True))


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
    places = np.minimum(
        next_transaction + np.sort(random.integers(0, 4 * count, size=count)), last_transaction
    ).tolist()
    return StreamedTransaction(
        xid,
        tuple(tables.tolist()),
        tuple((workload.large_changes + i) // count for i in range(count)),
        (*places, places[-1]),
        bool(random.random() < workload.rolled_back),
    )


def place_messages(window: Window) -> tuple[IntArray, list[tuple[int, int, int]]]:
    """Return the positions of a window's Begin messages, and of each stream block and end.

    A stream block or end is given as index of its transaction in `Window.streamed`, number of the block in
    the transaction (the number of blocks for the end), and position of its first message.
    """
    pieces = [
        (place, number, block, length)
        for number, one in enumerate(window.streamed)
        for block, (place, length) in enumerate(zip(one.next_transactions, one.message_counts, strict=True))
    ]
    pieces.sort(key=lambda piece: piece[0])  # stable: pieces of one transaction stay in order
    sizes = window.change_counts + 2
    sizes[0] += window.relation_count
    begins = window.position + np.concatenate(([0], np.cumsum(sizes)[:-1]))
    if not pieces:
        return begins, []
    places, numbers, blocks, lengths = map(np.array, zip(*pieces, strict=True))
    before = np.concatenate(([0], np.cumsum(lengths)))
    starts = begins[places] + before[:-1]
    begins = begins + before[np.searchsorted(places, np.arange(len(begins)), side="right")]
    return begins, list(zip(numbers.tolist(), blocks.tolist(), starts.tolist(), strict=True))
