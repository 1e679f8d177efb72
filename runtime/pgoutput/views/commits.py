"""Which commit the changes in a segment belong to: what opens and closes transactions says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pgoutput import messages
from pgoutput.columns.index import Index, Mask, Numbers
from pgoutput.views.shapes import by_tag


class Commit(msgspec.Struct, frozen=True):
    """The commit of a transaction; LSN and time as on the wire."""

    xid: int
    lsn: int
    time: int
    rolled_back: frozenset[int] = frozenset()
    """Xids of subtransactions that were rolled back while they were streamed."""


Commits: TypeAlias = npt.NDArray[Any]
"""Commits, as an array with these fields:

- `wanted`: Whether it is one that is wanted; else the others say nothing.
- `xid`, `lsn`, `time`: As in `Commit`; LSNs of 2**63 and more are negative.
- `part`: Which of the transactions it is that do not lie wholly inside the segment.
"""

_COMMIT: Final = np.dtype([("wanted", "?"), *((name, "i8") for name in ("xid", "lsn", "time", "part"))])

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
        self._begins = np.array([*sorted(parts), _NEVER], np.int64)
        self._begun = dict(begun)
        self._whole = whole
        self._parts = np.zeros(len(self._begins), _COMMIT)
        self._parts["part"] = np.arange(len(self._begins))
        rolled_back = []
        for number, begin in enumerate(sorted(parts)):
            if (commit := commits.get(begin)) is not None:
                lsn = commit.lsn - (commit.lsn >> 63 << 64)
                self._parts[number] = True, commit.xid, lsn, commit.time, number
                rolled_back += [number << 32 | xid for xid in commit.rolled_back]
        self._rolled_back = np.array(rolled_back, np.int64)
        self._last = np.zeros(1, _COMMIT)

    def follow(self, index: Index, positions: Numbers) -> tuple[Commits, Numbers]:
        """The commits, and for each message of a batch the place of its own.

        Args:
            index: The messages, which follow those of the last call.
            positions: Of the messages; -1 in the keyframe.
        """
        borders = _BORDERS[index.tags]
        rows = np.flatnonzero(borders)
        commits = np.concatenate((self._last, self._opened(index, rows, positions[rows])))
        self._last = commits[-1:]
        return commits, np.cumsum(borders)

    def rolled_back(self, index: Index, rows: Numbers, commits: Commits) -> Mask:
        """Which changes were rolled back with their subtransactions.

        Args:
            index: The messages.
            rows: Of the changes.
            commits: Of each.
        """
        if not len(self._rolled_back):
            return np.zeros(len(rows), np.bool_)
        values, there = index.field("xid")
        keys = commits["part"] << 32 | values[rows]
        return there[rows] & np.isin(keys, self._rolled_back)

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
        commits = self._parts[np.where(is_part, found, -1)]
        if self._whole and (whole := ~is_part & (tags == _BEGIN)).any():
            commits["wanted"] |= whole
            commits["xid"][whole] = xids[whole]
            for name, field in (("lsn", "final_lsn"), ("time", "commit_time")):
                commits[name][whole] = index.field(field).values[rows[whole]]
        return commits


_OPENING: Final = (messages.Begin, messages.BeginPrepare, messages.StreamStart)
_OPENS: Final = by_tag(_OPENING)
_BORDERS: Final = _OPENS | by_tag((messages.Commit, messages.Prepare, messages.StreamStop))
_BEGIN, _STREAM_START = (ord(kind.wire_tag) for kind in (messages.Begin, messages.StreamStart))
