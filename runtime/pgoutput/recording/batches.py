"""What a writer of segments must know of a batch of messages, where no Python object is made of each.

Ordinary transactions that are wholly in the batch are followed all at once, the other messages one by one.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput import messages
from pgoutput._fixed import fixed_dtype
from pgoutput.recording.files import binary, mask
from pgoutput.recording.model import SENT
from pgoutput.recording.state import CHANGES, StreamState

_Numbers: TypeAlias = npt.NDArray[Any]

_IS_CHANGE: Final = np.isin(np.arange(256), list(CHANGES))
"""By the first byte of a message."""

_MANY: Final = 16
"""So many messages that are no changes are worth the look whether some can be followed at once."""

_BEGIN: Final = fixed_dtype(messages.Begin)
_COMMIT: Final = fixed_dtype(messages.Commit)


def follow(state: StreamState, position: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Have the state pass the messages of a batch; give what is to be stored of it, and as what.

    Args:
        state: What has passed before.
        position: Where the first one that is to be stored will stand.
        batch: The messages: in the columns of `SENT`.

    Raises:
        DecodeError: One is not a message of this stream, or no server sends it there.
    """
    return _Batch(state, position, batch).follow()


def offsets(data: pa.BinaryArray) -> _Numbers:
    """Where the messages begin in the array's buffer, and where the last one ends."""
    return _view(data, np.int32, len(data) + 1)


# Not np.asarray, which imports pandas where that is installed: 45 MB.
def _view(array: pa.Array, type_: type[np.generic], count: int) -> _Numbers:
    dtype = np.dtype(type_)
    return np.frombuffer(array.buffers()[1] or bytes(8), dtype, count, array.offset * dtype.itemsize)


class _Batch:
    def __init__(self, state: StreamState, position: int, batch: pa.RecordBatch) -> None:
        self._state = state
        self._position = position
        self._batch = batch
        data = batch["data"]
        self._lsns = _view(batch["lsn"], np.int64, len(batch))
        self._starts = offsets(data)
        self._content = np.frombuffer(data.buffers()[2] or b"", np.uint8)
        self._kept = np.ones(len(batch), np.bool_)
        self._changed: dict[int, bytes] = {}
        """Messages that are not stored as they were sent, by row."""
        self._left_out = 0
        self._next = 0
        """The row behind the last one that was taken by itself."""

    def follow(self) -> pa.RecordBatch:
        """See above."""
        lengths = np.diff(self._starts)
        tags = np.zeros(len(self._batch), np.uint8)
        tags[lengths > 0] = self._content[self._starts[:-1][lengths > 0]]
        others = np.flatnonzero(~_IS_CHANGE[tags])
        i = 0
        for first, last in _whole(tags[others], lengths[others]) if len(others) >= _MANY else ():
            self._one_by_one(others[i:first])
            rows = others[first:last]
            if not self._all_at_once(rows):
                self._one_by_one(rows)
            i = last
        self._one_by_one(others[i:])
        if self._state.skipping:
            self._leave_out(self._next, len(self._batch))
        return self._stored()

    def _all_at_once(self, rows: _Numbers) -> bool:
        """Pass a run of whole transactions; or not, if something about it is out of the ordinary."""
        begins, commits = (
            _read(layout, self._starts[rows[side::2]], self._content)
            for side, layout in enumerate((_BEGIN, _COMMIT))
        )
        if commits["flags"].any() or not self._state.takes_whole(int(begins["final_lsn"].min())):
            return False
        given = self._lsns[rows][self._lsns[rows] != 0]
        last_lsn = int(given[-1]) if len(given) else 0
        end_lsn, commit_time = int(commits["end_lsn"].max()), int(commits["commit_time"][-1])
        self._state.feed_whole(len(begins), end_lsn, commit_time, last_lsn)
        return True

    def _one_by_one(self, rows: _Numbers) -> None:
        """Pass messages that are no changes; leave out the changes between them where the state says so."""
        for row in rows.tolist():
            if self._state.skipping:
                self._leave_out(self._next, row)
            data = self._content[self._starts[row] : self._starts[row + 1]].tobytes()
            stored = self._state.feed(data, self._position + row - self._left_out, int(self._lsns[row]))
            if stored is None:
                self._leave_out(row, row + 1)
            elif stored is not data:
                self._changed[row] = stored
            self._next = row + 1

    def _leave_out(self, start: int, stop: int) -> None:
        self._kept[start:stop] = False
        self._left_out += stop - start

    def _stored(self) -> pa.RecordBatch:
        batch = self._batch
        if self._changed:
            changed = mask(np.isin(np.arange(len(batch)), list(self._changed)))
            data = pc.replace_with_mask(batch["data"], changed, binary(list(self._changed.values())))
            batch = pa.record_batch([batch["lsn"], batch["received_at"], data], schema=SENT)
        return batch.filter(mask(self._kept)) if self._left_out else batch


def _whole(tags: _Numbers, lengths: _Numbers) -> list[tuple[int, int]]:
    """Where Begin and Commit, Begin and Commit follow each other among the messages that are no changes."""
    begin, commit = ord(messages.Begin.wire_tag), ord(messages.Commit.wire_tag)
    begins = (tags[:-1] == begin) & (lengths[:-1] == _BEGIN.itemsize)
    pair = begins & (tags[1:] == commit) & (lengths[1:] == _COMMIT.itemsize)
    firsts = np.flatnonzero(pair)
    if not len(firsts):
        return []
    breaks = np.flatnonzero(np.diff(firsts) != 2)
    run_starts = firsts[np.concatenate(([0], breaks + 1))]
    run_ends = firsts[np.concatenate((breaks, [len(firsts) - 1]))] + 2
    return list(zip(run_starts.tolist(), run_ends.tolist(), strict=True))


def _read(layout: np.dtype[Any], starts: _Numbers, content: _Numbers) -> _Numbers:
    """Messages that begin at `starts`."""
    anywhere = np.ndarray((len(content) - layout.itemsize + 1,), layout, content, strides=(1,))
    return anywhere[starts]
