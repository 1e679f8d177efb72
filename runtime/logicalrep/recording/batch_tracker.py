"""Update a `StreamState` with batches of messages, without a Python object per message.

Consecutive transactions that are wholly in the batch, each a Begin, changes and a Commit, are processed
together. Messages of all other transactions are processed one by one. Inserts, updates and deletes are never
decoded.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logicalrep._arrays import (
    binary_array,
    boolean_array,
    int64_values,
    replace_rows,
    value_bytes,
    value_offsets,
)
from logicalrep._fixed import FixedMessage, fixed_message
from logicalrep._roles import CHANGES, tags
from logicalrep.recording.segment_format import MESSAGE_SCHEMA
from logicalrep.recording.stream_state import StreamState

_Array: TypeAlias = npt.NDArray[Any]

_IS_COUNTED: Final = np.isin(np.arange(256), list(tags(*CHANGES) - tags("truncate")))
"""Whether a message is an insert, update or delete, for each value of the message's first byte."""

_MIN_MESSAGES: Final = 16
"""Minimum number of Begin, Commit and other non-change messages for which `_find_runs` saves time."""


class BatchTracker:
    """Updates a stream's state with a batch of messages, and selects the messages to store in a segment.

    Args:
        state: State of the stream before the batch; it is updated.
        position: Position that the first stored message of the batch gets.
        batch: The messages, in the columns of `MESSAGE_SCHEMA`.
        proto_version: Protocol version of the messages.
    """

    def __init__(self, state: StreamState, position: int, batch: pa.RecordBatch, proto_version: int) -> None:
        self._state = state
        self._position = position
        self._batch = batch
        self._begin = fixed_message("begin", proto_version)
        self._commit = fixed_message("commit", proto_version)
        data = batch["data"]
        self._lsns = int64_values(batch["lsn"])
        self._starts = value_offsets(data)
        self._content = value_bytes(data)
        self._kept = np.ones(len(batch), np.bool_)
        self._replaced: dict[int, bytes] = {}
        """Messages to store in place of the received messages, by row number in the batch."""
        self._left_out = 0
        """Number of rows of the batch that are not stored, so far."""
        self._next = 0
        """Index of the row after the last message that `_track_each` processed."""

    def track(self) -> pa.RecordBatch:
        """Update the state with all messages of the batch; return the messages to store.

        Messages of transactions that an earlier session stored are left out. If such a transaction was
        streamed, its commit or prepare is replaced by a Stream Abort.

        Raises:
            DecodeError: A message is invalid or out of place.
        """
        lengths = np.diff(self._starts)
        tags = np.zeros(len(self._batch), np.uint8)
        tags[lengths > 0] = self._content[self._starts[:-1][lengths > 0]]
        others = np.flatnonzero(~_IS_COUNTED[tags])
        done = 0
        if self._begin and self._commit and len(others) >= _MIN_MESSAGES:
            for first, end in _find_runs(self._begin, self._commit, tags[others], lengths[others]):
                self._track_each(others[done:first])
                rows = others[first:end]
                if not self._track_run(self._begin, self._commit, rows):
                    self._track_each(rows)
                done = end
        self._track_each(others[done:])
        if self._state.skipping:
            self._leave_out(self._next, len(self._batch))
        return self._stored()

    def _track_run(self, begin: FixedMessage, commit: FixedMessage, rows: _Array) -> bool:
        """Update the stream's state with consecutive whole transactions at once.

        Returns:
            True if done; False, with an unchanged state, if the messages must be processed one by one.

        Args:
            begin: Layout of the Begin messages.
            commit: Layout of the Commit messages.
            rows: Row numbers of the transactions' Begin and Commit messages, which alternate.
        """
        begins = begin.read(self._starts[rows[::2]], self._content)
        commits = commit.read(self._starts[rows[1::2]], self._content)
        if begins is None or commits is None or not self._state.takes_whole(int(begins["lsn"].min())):
            return False
        lsns = self._lsns[rows]
        known_lsns = lsns[lsns != 0]
        last_lsn = int(known_lsns[-1]) if len(known_lsns) else 0
        end_lsn, commit_time = int(commits["end_lsn"].max()), int(commits["time"][-1])
        self._state.feed_whole(len(begins), end_lsn, commit_time, last_lsn)
        return True

    def _track_each(self, rows: _Array) -> None:
        """Update the stream's state one message at a time; decide which messages are stored.

        Messages that an earlier session stored are left out of the result of `track`.

        Args:
            rows: Row numbers of the messages, none of which is an insert, update or delete.
        """
        for row in rows.tolist():
            if self._state.skipping:
                self._leave_out(self._next, row)
            data = self._content[self._starts[row] : self._starts[row + 1]].tobytes()
            stored = self._state.feed(data, self._position + row - self._left_out, int(self._lsns[row]))
            if stored is None:
                self._leave_out(row, row + 1)
            elif stored is not data:
                self._replaced[row] = stored
            self._next = row + 1

    def _leave_out(self, start: int, stop: int) -> None:
        self._kept[start:stop] = False
        self._left_out += stop - start

    def _stored(self) -> pa.RecordBatch:
        batch = self._batch
        if self._replaced:
            values = binary_array([*self._replaced.values()])
            data = replace_rows(batch["data"], np.array([*self._replaced]), values)
            batch = pa.record_batch([batch["lsn"], batch["received_at"], data], schema=MESSAGE_SCHEMA)
        return batch.filter(boolean_array(self._kept)) if self._left_out else batch


def _find_runs(
    begin: FixedMessage, commit: FixedMessage, tags: _Array, lengths: _Array
) -> list[tuple[int, int]]:
    """Return start and end, as indices in `tags`, of each run of alternating Begin and Commit messages.

    Args:
        begin: Layout of the Begin messages.
        commit: Layout of the Commit messages.
        tags: First bytes of the messages that are not changes.
        lengths: Lengths of the messages that are not changes, in bytes.
    """
    begins = (tags[:-1] == begin.tag) & (lengths[:-1] == begin.dtype.itemsize)
    pairs = begins & (tags[1:] == commit.tag) & (lengths[1:] == commit.dtype.itemsize)
    firsts = np.flatnonzero(pairs)
    if not len(firsts):
        return []
    breaks = np.flatnonzero(np.diff(firsts) != 2)
    run_starts = firsts[np.concatenate(([0], breaks + 1))]
    run_ends = firsts[np.concatenate((breaks, [len(firsts) - 1]))] + 2
    return list(zip(run_starts.tolist(), run_ends.tolist(), strict=True))
