"""Which commit the changes in a segment belong to: what opens and closes transactions says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from pgoutput import messages
from pgoutput.columns.index import Index, Mask, Numbers, by_tag


class Commit(msgspec.Struct, frozen=True):
    """The commit of a transaction; LSN and time as on the wire."""

    xid: int
    lsn: int
    time: int
    rolled_back: frozenset[int] = frozenset()
    """Xids of subtransactions that were rolled back while they were streamed."""


class Commits(NamedTuple):
    """Commits, side by side."""

    wanted: Mask
    """Whether it is one that is wanted; else the others say nothing."""
    xids: Numbers
    lsns: Numbers
    """As in `Commit`, but those of 2**63 and more are negative."""
    times: Numbers
    parts: Numbers
    """Which of the transactions it is that are streamed, prepared or divided."""

    def take(self, places: Numbers | slice) -> Commits:
        """Those in some places."""
        fields: Iterator[Any] = iter(self)
        return Commits(*(values[places] for values in fields))

    def followed_by(self, others: Commits) -> Commits:
        """These and others behind them."""
        both: Iterator[Any] = zip(self, others, strict=True)
        return Commits(*(np.concatenate(one) for one in both))


_NONE: Final = Commit(0, 0, 0)

_NEVER: Final = (1 << 63) - 1
"""A position that no message has."""


class CommitsByRow:
    """Follows what opens and closes transactions.

    Args:
        parts: The positions where those transactions begin that are streamed, prepared or divided.
        commits: Those of them that are wanted, by that position.
        begun: That position, by xid, for those that began before the segment.
        whole: Whether the other transactions are wanted.
    """

    def __init__(
        self, parts: Sequence[int], commits: Mapping[int, Commit], begun: Mapping[int, int], *, whole: bool
    ) -> None:
        begins = sorted(parts)
        given = [commits.get(begin, _NONE) for begin in begins] + [_NONE]
        self._begins = np.array([*begins, _NEVER], np.int64)
        self._commits = Commits(
            np.array([one is not _NONE for one in given], np.bool_),
            np.array([one.xid for one in given], np.int64),
            np.array([one.lsn for one in given], np.uint64).view(np.int64),
            np.array([one.time for one in given], np.int64),
            np.arange(len(given)),
        )
        rolled_back = [part << 32 | xid for part, one in enumerate(given) for xid in one.rolled_back]
        self._rolled_back = np.array(rolled_back, np.int64)
        self._begun = dict(begun)
        self._whole = whole
        self._last = self._commits.take(slice(-1, None))

    def follow(self, index: Index, positions: Numbers) -> tuple[Commits, Numbers]:
        """The commits, and for each message of a batch the place of its own.

        Args:
            index: The messages, which follow those of the last call.
            positions: Of the messages; -1 in the keyframe.
        """
        borders = _BORDERS[index.tags]
        rows = np.flatnonzero(borders)
        commits = self._last.followed_by(self._opened(index, rows, positions[rows]))
        self._last = commits.take(slice(-1, None))
        return commits, np.cumsum(borders)

    def not_rolled_back(self, index: Index, rows: Numbers, commits: Commits, of: Numbers) -> Numbers:
        """The rows of changes without those that were rolled back with their subtransactions.

        Args:
            index: The messages.
            rows: Of the changes.
            commits: What `follow` gave.
            of: Likewise.
        """
        if not len(self._rolled_back):
            return rows
        xids, there = index.field("xid")
        keys = commits.parts[of[rows]] << 32 | xids[rows]
        return rows[~(there[rows] & np.isin(keys, self._rolled_back))]

    def _opened(self, index: Index, rows: Numbers, positions: Numbers) -> Commits:
        """The commits of what messages open; none that is wanted where they close it."""
        tags = index.tags[rows]
        xids = index.field("xid").values[rows]
        begins = np.where(_OPENS[tags], positions, _NEVER)
        again = begins < 0
        if (streams := tags == _STREAM_START).any():
            again |= streams & (index.field("first_segment").values[rows] == 0)
        for place in np.flatnonzero(streams | again).tolist():
            xid = int(xids[place])
            if again[place]:
                begins[place] = self._begun.get(xid, _NEVER)
            else:
                self._begun[xid] = int(begins[place])
        found = np.searchsorted(self._begins, begins)
        is_part = (self._begins[found] == begins) & (begins != _NEVER)
        commits = self._commits.take(np.where(is_part, found, -1))
        if self._whole:
            whole = ~is_part & (tags == _BEGIN)
            lsns, times = (index.field(name).values[rows] for name in ("final_lsn", "commit_time"))
            fields: Iterator[Any] = zip(commits, (whole, xids, lsns, times, commits.parts), strict=True)
            commits = Commits(*(np.where(whole, own, part) for part, own in fields))
        return commits


_OPENING: Final = (messages.Begin, messages.BeginPrepare, messages.StreamStart)
_OPENS: Final = by_tag(_OPENING)
_BORDERS: Final = _OPENS | by_tag((messages.Commit, messages.Prepare, messages.StreamStop))
_BEGIN, _STREAM_START = (ord(kind.wire_tag) for kind in (messages.Begin, messages.StreamStart))
