"""Plan the transactions of a workload, and the positions of their messages in the stream.

A workload is generated in windows of consecutive transactions. No transaction is open at the end of a window,
and rows change only in the window that inserts them. Therefore windows are independent, and several processes
can generate them in parallel.

An ordinary transaction is sent as Begin, changes, Commit. A streamed transaction is sent as stream blocks and
Stream Commit. Varied transactions (those with all kinds of messages, see `Profile`) are sent between ordinary
and streamed transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from logicalrep.messages import XLogData
from logicalrep.synth.workload.definition import Workload
from logicalrep.synth.workload.values import IntArray
from logicalrep.synth.workload.varied import VariedTransactions
from logicalrep.wire import from_datetime

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
_STREAMED_TABLES: Final = 3
"""Maximum number of tables that a streamed transaction changes."""

_START_LSN: Final = 0x1500000
_START_TIME: Final = from_datetime(datetime(2024, 1, 1, tzinfo=UTC))
_MESSAGE_INTERVAL: Final = 20
"""Time between consecutive messages, in microseconds."""

_COMMIT_RECORD_BYTES: Final = 48
"""Size of a commit record in the WAL, in bytes."""


class WalClock(msgspec.Struct, frozen=True):
    """Computes the LSN and time of messages from their positions in the stream, for one window.

    A position is a number or an array. Positions do not count the messages of varied transactions, which are
    those with all kinds of messages.
    """

    bytes_per_message: int
    """Distance between the LSNs of consecutive messages, in bytes."""
    varied_positions: list[int]
    """For each run of consecutive varied transactions: position of the message that follows the run."""
    varied_bytes: list[int]
    """Running total of the WAL of varied transactions, in bytes: before the window, then after each run."""
    varied_times: list[int]
    """Running total of the time of varied transactions, in microseconds; items as in `varied_bytes`."""

    def lsn(self, position: Any) -> Any:
        """Return the start LSN of the WAL record of the message at a position."""
        return _START_LSN + position * self.bytes_per_message + self._varied(self.varied_bytes, position)

    def end_lsn(self, position: Any) -> Any:
        """Return the end LSN of the commit record of the Commit message at a position."""
        return self.lsn(position) + _COMMIT_RECORD_BYTES

    def time(self, position: Any) -> Any:
        """Return the time of the message at a position, in microseconds since 2000-01-01 00:00 UTC."""
        return _START_TIME + position * _MESSAGE_INTERVAL + self._varied(self.varied_times, position)

    def _varied(self, totals: list[int], position: Any) -> Any:
        """Return the size of the WAL or the time of all varied transactions before a position.

        `totals` is `varied_bytes` for the WAL, in bytes, or `varied_times` for the time, in microseconds. The
        result for an array of positions is an array.
        """
        runs = np.searchsorted(self.varied_positions, position, side="right")
        return np.array(totals)[runs] if isinstance(position, np.ndarray) else totals[int(runs)]


class VariedMessages(msgspec.Struct, frozen=True):
    """The messages of a window's varied transactions, which are those with all kinds of messages.

    `positions`, `lsns`, `times` and `data` are parallel: each has one item per message.
    """

    positions: IntArray
    """For each message: position of the next message that is not in a varied transaction (see `WalClock`)."""
    lsns: IntArray
    times: IntArray
    """LSN (`lsns`) and send time (`times`) of each envelope."""
    data: pa.BinaryArray
    """The encoded messages."""
    before: int
    """Number of messages of varied transactions before the window."""
    described: tuple[bytes, ...]
    """Encoded Type and Relation messages that varied transactions have sent before the window."""
    rows: dict[str, pa.Table]
    """Rows of the tables of varied transactions, by name with schema; empty except in the last window."""


class Window(msgspec.Struct, frozen=True):
    """A window of a workload: consecutive transactions that are generated together.

    Each array has one item per transaction, without the varied transactions (those with all kinds of
    messages), which are in `varied`.
    """

    number: int
    """Number of the window in the workload, from 0."""
    xids: IntArray
    """Xid of each transaction."""
    change_counts: IntArray
    """Number of changes of each transaction."""
    relation_counts: IntArray
    """Number of Relation messages of each transaction. Each precedes one of the transaction's changes."""
    block_counts: IntArray
    """Number of stream blocks of each transaction; 0 for a transaction that is not streamed."""
    patterns: IntArray
    """For each transaction: index of its pattern in `Workload.patterns`. Empty without patterns."""
    position: int
    """Position of the window's first message in the stream, not counting varied transactions."""
    clock: WalClock
    varied: VariedMessages | None = None
    """The varied transactions; None if the workload has none."""

    @property
    def first_position(self) -> int:
        """Position of the window's first message in the stream.

        Unlike `position`, this position counts the messages of varied transactions (those with all kinds of
        messages).
        """
        return self.position + (self.varied.before if self.varied else 0)

    @property
    def message_counts(self) -> IntArray:
        """Number of messages of each transaction."""
        framing = np.where(self.block_counts, 2 * self.block_counts + 1, 2)
        counts: IntArray = self.change_counts + self.relation_counts + framing
        return counts

    @property
    def begins(self) -> IntArray:
        """Position in the stream of each transaction's first message.

        As in `WalClock`, positions do not count the messages of varied transactions.
        """
        counts = self.message_counts
        firsts: IntArray = self.position + np.cumsum(counts) - counts
        return firsts


def plan_windows(workload: Workload, window_messages: int = WINDOW_MESSAGES) -> Iterator[Window]:
    """Split a workload into windows with about `window_messages` messages, fewer if messages are large."""
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
        position += int(window.message_counts.sum())


class _Weaver:
    """Inserts varied transactions (those with all kinds of messages) between a workload's other ones."""

    def __init__(self, transactions: VariedTransactions) -> None:
        self._transactions = transactions
        self._messages = 0

    def weave(self, window: Window, places: Sequence[tuple[int, int]], is_last: bool) -> Window:
        """Return the window with varied transactions (those with all kinds of messages).

        Args:
            window: The window without varied transactions.
            places: For each varied transaction, the index in `Window.xids` of the next transaction, and the
                first of the xids reserved for the varied transaction.
            is_last: Whether the window is the last one of the workload. `varied.rows` of the last window has
                the rows of the varied transactions' tables.
        """
        described = self._transactions.described()
        begins, last = window.begins, window.clock
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
        """Call `run`, which makes varied transactions, at the LSN and time of the message at `position`.

        Add the WAL and time of these transactions to `clock`, so that this message and all later ones follow
        them. `xid` is the first xid of these transactions; None continues after the last xid of the varied
        transactions before them.

        Return the messages of the varied transactions.
        """
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
    """Return a window without its varied transactions, and where `_Weaver.weave` inserts them.

    Args:
        workload: The workload.
        number: Number of the window, from 0.
        first: Number of the window's first transaction.
        count: Number of the window's transactions, including varied ones (those with all kinds of messages).
        position: Position of the window's first message, not counting varied transactions.
        clock: Clock of the previous window.

    Returns:
        The window, and a pair for each varied transaction: index in `Window.xids` of the transaction before
        which to insert it, and the first of the xids reserved for it.
    """
    random = np.random.default_rng([workload.seed, 0, number])
    sizes = random.integers(workload.changes.first, workload.changes.last, size=count, endpoint=True)
    patterns = np.empty(0, np.int64)
    if workload.patterns:
        patterns = random.integers(0, len(workload.patterns), size=count)
        sizes = np.array([len(pattern) for pattern in workload.patterns])[patterns]
    is_large = random.random(count) < workload.large
    is_varied = random.random(count) < workload.varied
    is_varied[-1] = False  # a window ends with the Commit of an ordinary transaction
    if not number:  # the first transaction sends all Relation messages and changes every table
        is_varied[0] = is_large[0] = False
        sizes[0] = workload.table_count if workload.patterns else max(sizes[0], workload.table_count)
    is_large[-1] = False
    is_large &= ~is_varied
    sizes[is_large] = workload.large_changes
    step = _XIDS_PER_VARIED if workload.varied else 1
    xids = _FIRST_XID + (first + np.arange(count, dtype=np.int64)) * step % (_LAST_XID - _FIRST_XID)
    streamed = is_large & workload.is_streamed
    blocks = random.integers(2, _MAX_BLOCKS, size=count, endpoint=True) * streamed
    relations = min(_STREAMED_TABLES, workload.table_count) * streamed.astype(np.int64)
    if not number:
        relations[0] = workload.table_count
    ordinary, varied = np.flatnonzero(~is_varied), np.flatnonzero(is_varied)
    window = Window(
        number=number,
        xids=xids[ordinary],
        change_counts=sizes[ordinary],
        relation_counts=relations[ordinary],
        block_counts=blocks[ordinary],
        patterns=patterns[ordinary] if workload.patterns else patterns,
        position=position,
        clock=clock,
    )
    return window, list(zip(np.searchsorted(ordinary, varied).tolist(), xids[varied].tolist(), strict=True))
