"""The plan of a workload: which transactions there are, and where their messages stand.

A workload is made in windows: some transactions that follow each other, and of which none is open where the
next window begins. Rows change in the window that inserts them only; behind it they are final. So each
window can be made alone, and nothing must be remembered of those before but how much they were.

An ordinary transaction is Begin, changes, Commit. A large one that is streamed comes in blocks between
others; a part of a block may be a savepoint's, and may be rolled back behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pgoutput.synth.workload import Workload
from pgoutput.wire import from_datetime

Numbers: TypeAlias = npt.NDArray[Any]
Random: TypeAlias = np.random.Generator

WINDOW_BYTES: Final = 32 << 20
"""About what a window has."""

WINDOW_MESSAGES: Final = 250_000

_FIRST_XID: Final = 1_000
_LAST_XID: Final = (1 << 32) - 1
_XIDS: Final = 8
"""What a streamed transaction has for itself and its savepoints, one in a block."""

_MOST_BLOCKS: Final = 5
_MOST_TABLES: Final = 3
"""Of a streamed transaction."""

_BEGINNING_LSN: Final = 0x1500000
_BEGINNING: Final = from_datetime(datetime(2024, 1, 1, tzinfo=UTC))
_MICROSECONDS: Final = 20
"""Between messages."""

_COMMIT_RECORD: Final = 48
"""Bytes of a commit's record in the WAL."""


class Clock(msgspec.Struct, frozen=True):
    """LSN and time of a message, which follow from its position."""

    step: int
    """Bytes of WAL for a message."""

    def lsn(self, position: Any) -> Any:
        """Where its record begins; positions may be an array."""
        return _BEGINNING_LSN + position * self.step

    def end_lsn(self, position: Any) -> Any:
        """Where the record of a Commit there ends."""
        return self.lsn(position) + _COMMIT_RECORD

    def time(self, position: Any) -> Any:
        """When it was written, in microseconds since 2000."""
        return _BEGINNING + position * _MICROSECONDS


class Block(msgspec.Struct, frozen=True):
    """A block of a streamed transaction."""

    gap: int
    """The ordinary transaction that follows."""
    changes: int
    describes: bool
    """Whether its first changes are of each of the tables, and each comes behind its Relation."""
    in_savepoint: int
    """How many of its last changes are a savepoint's."""
    savepoint: int | None
    """The savepoint's xid."""
    rolled_back: bool
    """Whether the savepoint is rolled back, right behind the block."""


class Streamed(msgspec.Struct, frozen=True):
    """A transaction that comes in blocks."""

    xid: int
    tables: tuple[int, ...]
    blocks: tuple[Block, ...]
    aborted: bool

    @property
    def ending(self) -> list[int]:
        """The xids of what ends with it, if it is aborted: savepoints that still are, then its own."""
        left = [one.savepoint for one in self.blocks if one.savepoint is not None and not one.rolled_back]
        return [*left, self.xid] if self.aborted else [self.xid]

    def messages(self, block: Block) -> int:
        """How many a block has, with the abort behind it."""
        return 2 + block.changes + len(self.tables) * block.describes + block.rolled_back


class Window(msgspec.Struct, frozen=True):
    """A window of the workload."""

    number: int
    first_transaction: int
    sizes: Numbers
    """Changes of its ordinary transactions."""
    xids: Numbers
    """Theirs."""
    streamed: tuple[Streamed, ...]
    describes: int
    """The first so many changes each come behind the Relation of their table."""
    position: int
    """Of its first message."""

    @property
    def messages(self) -> int:
        """How many it has."""
        streamed = sum(sum(map(one.messages, one.blocks)) + len(one.ending) for one in self.streamed)
        return int(self.sizes.sum()) + 2 * len(self.sizes) + self.describes + streamed

    @property
    def last_position(self) -> int:
        """Of its last message, which is a Commit."""
        return self.position + self.messages - 1


def clock(workload: Workload) -> Clock:
    """The LSNs and times of a workload."""
    return Clock(64 + 8 * int(workload.message_bytes / 8))


def windows(workload: Workload, window_messages: int = WINDOW_MESSAGES) -> Iterator[Window]:
    """The windows of a workload.

    Args:
        workload: The workload.
        window_messages: How many messages a window has, about; fewer if they are large.
    """
    wanted = min(window_messages, WINDOW_BYTES / workload.message_bytes)
    most = max(1, int(wanted / workload.transaction_messages))
    position = 0
    for number, first in enumerate(range(0, workload.transactions, most)):
        count = min(most, workload.transactions - first)
        window = _window(workload, number, first, count, position)
        yield window
        position += window.messages


def _window(workload: Workload, number: int, first: int, count: int, position: int) -> Window:
    random = np.random.default_rng([workload.seed, 0, number])
    sizes = random.integers(workload.changes.first, workload.changes.last, size=count, endpoint=True)
    is_large = random.random(count) < workload.large
    is_large[-1] = False  # a window ends with a Commit
    if not number:  # the first transaction is where all tables come up
        is_large[0] = False
        sizes[0] = max(sizes[0], workload.tables)
    step = _XIDS if workload.is_streamed else 1
    xids = _FIRST_XID + (first + np.arange(count, dtype=np.int64)) * step % (_LAST_XID - _FIRST_XID)
    streamed: list[Streamed] = []
    if workload.is_streamed:
        ordinary = np.flatnonzero(~is_large)
        for place in np.flatnonzero(is_large):
            gap = int(np.searchsorted(ordinary, place))
            streamed.append(_streamed(workload, random, int(xids[place]), gap, len(ordinary) - 1))
        sizes, xids = sizes[ordinary], xids[ordinary]
    else:
        sizes[is_large] = workload.large_changes
    describes = 0 if number else workload.tables
    return Window(number, first, sizes, xids, tuple(streamed), describes, position)


def _streamed(workload: Workload, random: Random, xid: int, gap: int, last_gap: int) -> Streamed:
    """A streamed transaction that begins before some ordinary one, and ends before the last one."""
    count = int(random.integers(2, _MOST_BLOCKS, endpoint=True))
    tables = random.choice(workload.tables, size=min(_MOST_TABLES, workload.tables), replace=False)
    gaps = np.minimum(gap + np.sort(random.integers(0, 4 * count, size=count)), last_gap)
    blocks: list[Block] = []
    left = workload.large_changes
    describes = True
    for i, at in enumerate(gaps.tolist()):
        changes = left // (count - i)
        left -= changes
        has_savepoint = random.random() < 0.5
        in_savepoint = int(random.integers(1, changes // 2)) if has_savepoint else 0
        rolled_back = has_savepoint and bool(random.random() < workload.rolled_back)
        savepoint = xid + 1 + i if has_savepoint else None
        blocks.append(Block(at, changes, describes, in_savepoint, savepoint, rolled_back))
        describes = rolled_back  # pgoutput_stream_abort has it forget which relations it has described
    aborted = bool(random.random() < workload.rolled_back)
    return Streamed(xid, tuple(tables.tolist()), tuple(blocks), aborted)


class Piece(msgspec.Struct, frozen=True):
    """What stands together between ordinary transactions: a block, or the end of a streamed one."""

    transaction: int
    """Place in `Window.streamed`."""
    block: Block | None
    """None: the end."""
    position: int


def place(window: Window) -> tuple[Numbers, list[Piece]]:
    """Where the ordinary transactions begin, and the pieces of the streamed ones."""
    pieces: list[tuple[int, int, Block | None, int]] = []
    for number, one in enumerate(window.streamed):
        pieces += [(block.gap, number, block, one.messages(block)) for block in one.blocks]
        pieces.append((one.blocks[-1].gap, number, None, len(one.ending)))
    pieces.sort(key=lambda piece: piece[0])  # those of a transaction stay in their order
    sizes = window.sizes + 2
    sizes[0] += window.describes
    begins = window.position + np.concatenate(([0], np.cumsum(sizes)[:-1]))
    if not pieces:
        return begins, []
    lengths = np.array([piece[3] for piece in pieces])
    before = np.concatenate(([0], np.cumsum(lengths)))
    gaps = np.array([piece[0] for piece in pieces])
    starts = begins[gaps] + before[:-1]
    begins = begins + before[np.searchsorted(gaps, np.arange(len(begins)), side="right")]
    placed = zip(pieces, starts.tolist(), strict=True)
    return begins, [Piece(number, block, start) for (_, number, block, _), start in placed]
