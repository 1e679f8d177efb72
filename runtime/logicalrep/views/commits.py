"""Find the commit that each change of a segment belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from logicalrep import _roles
from logicalrep._arrays import Mask, Numbers
from logicalrep._index import MessageIndex, tag_mask
from logicalrep.recording import Metadata
from logicalrep.views.tasks import Commit, Task


class CommitColumns(NamedTuple):
    """Several commits, one NumPy array per field."""

    wanted: Mask
    """For each commit, whether to read the transaction's changes; if not, the other fields are undefined for
    it."""
    xids: Numbers
    lsns: Numbers
    """Commit LSNs as signed integers; LSNs of 2**63 and more are negative."""
    times: Numbers
    """Commit times, in microseconds since 2000-01-01 00:00 UTC."""
    parts: Numbers
    """Index of each commit's transaction in the segment's list of `TransactionPart`, sorted by begin
    position; the length of the list for a transaction that is not in the list."""

    def take(self, numbers: Numbers | slice) -> CommitColumns:
        """Return the commits at these indices."""
        columns: Iterator[Any] = iter(self)
        return CommitColumns(*(values[numbers] for values in columns))

    def followed_by(self, others: CommitColumns) -> CommitColumns:
        """Return these commits concatenated with `others`."""
        pairs: Iterator[Any] = zip(self, others, strict=True)
        return CommitColumns(*(np.concatenate(pair) for pair in pairs))


_NONE: Final = Commit(0, 0, 0)

_NEVER: Final = (1 << 63) - 1
"""A position that no message has."""


class CommitTracker:
    """Tracks, batch by batch, which transaction the messages of a segment belong to.

    Args:
        metadata: Metadata of the segment.
        task: The task for the segment, with the transactions to read.
    """

    def __init__(self, metadata: Metadata, task: Task) -> None:
        begins = sorted(part.begin for part in metadata.parts)
        ordered = [task.commits.get(begin, _NONE) for begin in begins] + [_NONE]
        self._begins = np.array([*begins, _NEVER], np.int64)
        self._commits = CommitColumns(
            np.array([commit is not _NONE for commit in ordered], np.bool_),
            np.array([commit.xid for commit in ordered], np.int64),
            np.array([commit.lsn for commit in ordered], np.uint64).view(np.int64),
            np.array([commit.time for commit in ordered], np.int64),
            np.arange(len(ordered)),
        )
        rolled_back = [part << 32 | xid for part, commit in enumerate(ordered) for xid in commit.rolled_back]
        self._rolled_back = np.array(rolled_back, np.int64)
        # By xid, the begin position of each transaction that began before the segment. The keyframe opens
        # these transactions again, but its messages have only the xid and no position.
        self._begun = {
            part.xid: part.begin for part in metadata.parts if part.begin < metadata.first_position
        }
        self._whole = task.whole
        self._last = self._commits.take(slice(-1, None))

    def advance(self, index: MessageIndex, positions: Numbers) -> tuple[CommitColumns, Numbers]:
        """Return the commits of a batch, and for each message the index of its commit.

        Args:
            index: The messages. Each call continues where the batch of the previous call ended.
            positions: Positions of the messages; -1 in the keyframe.
        """
        is_border = _IS_BORDER[index.tags]
        rows = np.flatnonzero(is_border)
        commits = self._last.followed_by(self._after_borders(index, rows, positions[rows]))
        self._last = commits.take(slice(-1, None))
        return commits, np.cumsum(is_border)

    def not_rolled_back(
        self, index: MessageIndex, rows: Numbers, commits: CommitColumns, commit: Numbers
    ) -> Numbers:
        """Return the rows of changes whose subtransaction was not rolled back.

        Args:
            index: The messages of the batch.
            rows: Rows of changes.
            commits: The commits of the batch, as `advance` returned them.
            commit: Index of each message's commit, as `advance` returned it.
        """
        if not len(self._rolled_back):
            return rows
        keys = commits.parts[commit[rows]] << 32 | index.meaning("subxid", rows)
        return rows[~(index.has_meaning("subxid", rows) & np.isin(keys, self._rolled_back))]

    def is_rolled_back(self, subxid: int | None, commits: CommitColumns, commit: int) -> bool:
        """Return whether a subtransaction of a commit was rolled back while it was streamed.

        Args:
            subxid: The subtransaction; None if it is not known.
            commits: The commits of the batch, as `advance` returned them.
            commit: Index of the commit in `commits`.
        """
        return subxid is not None and int(commits.parts[commit]) << 32 | subxid in self._rolled_back

    def _after_borders(self, index: MessageIndex, rows: Numbers, positions: Numbers) -> CommitColumns:
        """Return for each border the commit of the messages between this border and the next one.

        A border is a message that opens or closes a transaction or a stream block. The commit's field
        `wanted` is false if no transaction is open after the border, or if the task does not read the
        transaction.

        Args:
            index: The messages of the batch.
            rows: Rows of the borders.
            positions: Positions of the borders; -1 in the keyframe.
        """
        tags = index.tags[rows]
        xids = index.meaning("xid", rows)
        begins = np.where(_OPENS[tags], positions, _NEVER)
        continued = begins < 0  # transactions that the keyframe opens again
        if (streams := _OPENS_BLOCK[tags]).any():
            continued |= streams & (index.meaning("first_block", rows) == 0)
        for border in np.flatnonzero(streams | continued).tolist():
            xid = int(xids[border])
            if continued[border]:
                begins[border] = self._begun.get(xid, _NEVER)
            else:
                self._begun[xid] = int(begins[border])
        found = np.searchsorted(self._begins, begins)
        is_part = (self._begins[found] == begins) & (begins != _NEVER)
        commits = self._commits.take(np.where(is_part, found, -1))
        if self._whole:
            whole = ~is_part & _BEGINS[tags]
            lsns, times = (index.meaning(meaning, rows) for meaning in ("lsn", "time"))
            columns: Iterator[Any] = zip(commits, (whole, xids, lsns, times, commits.parts), strict=True)
            commits = CommitColumns(*(np.where(whole, own, part) for part, own in columns))
        return commits


_OPENS: Final = tag_mask(*_roles.OPENERS)
_IS_BORDER: Final = tag_mask(*_roles.OPENERS, *_roles.CLOSERS)
"""Whether a message opens or closes a transaction or stream block, for each value of its first byte."""
_BEGINS: Final = tag_mask("begin")
_OPENS_BLOCK: Final = tag_mask("open_block")
