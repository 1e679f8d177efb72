"""What a writer of segments must know of a batch of messages, where no Python object is made of each.

Ordinary transactions that are wholly in the batch are followed all at once, the other messages one by one.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput import messages
from pgoutput.errors import StreamError
from pgoutput.fixed import fixed_dtype
from pgoutput.segments.state import CHANGES, StreamState

_Numbers: TypeAlias = npt.NDArray[Any]

_IS_CHANGE: Final = np.isin(np.arange(256), list(CHANGES))
"""By the first byte of a message."""

_BEGIN: Final = fixed_dtype(messages.Begin)
_COMMIT: Final = fixed_dtype(messages.Commit)


def follow(state: StreamState, position: int, lsns: pa.Array, data: pa.BinaryArray) -> None:
    """Have the state pass the messages of a batch.

    Args:
        state: What has passed before.
        position: Of the first message.
        lsns: The LSNs of their envelopes, int64.
        data: The messages.

    Raises:
        DecodeError: One is not a message of this stream, or no server sends it there.
        StreamError: One is not to be stored, or not as it is: `SegmentWriter.write` is for such.
    """
    starts, content = _starts(data), np.frombuffer(data.buffers()[2] or b"", np.uint8)
    lengths = np.diff(starts)
    tags = np.zeros(len(data), np.uint8)
    tags[lengths > 0] = content[starts[:-1][lengths > 0]]
    others = np.flatnonzero(~_IS_CHANGE[tags])
    envelopes = np.asarray(lsns)
    i = 0
    for first, last in _whole(tags[others], lengths[others]):
        _one_by_one(state, position, others[i:first], envelopes, data)
        rows = others[first:last]
        if not _all_at_once(state, rows, starts, content, envelopes):
            _one_by_one(state, position, rows, envelopes, data)
        i = last
    _one_by_one(state, position, others[i:], envelopes, data)


def _starts(data: pa.BinaryArray) -> _Numbers:
    """Where the messages begin, and where the last one ends."""
    offsets = data.buffers()[1] or bytes(4)
    return np.frombuffer(offsets, np.int32, len(data) + 1, data.offset * 4).astype(np.int64)


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


def _all_at_once(
    state: StreamState, rows: _Numbers, starts: _Numbers, content: _Numbers, lsns: _Numbers
) -> bool:
    """Pass a run of whole transactions; or not, if something about it is out of the ordinary."""
    begins, commits = (
        _read(layout, starts[rows[side::2]], content) for side, layout in enumerate((_BEGIN, _COMMIT))
    )
    if commits["flags"].any() or not state.takes_whole(int(begins["final_lsn"].min())):
        return False
    given = lsns[rows][lsns[rows] != 0]
    last_lsn = int(given[-1]) if len(given) else 0
    end_lsn, commit_time = int(commits["end_lsn"].max()), int(commits["commit_time"][-1])
    state.feed_whole(len(begins), end_lsn, commit_time, last_lsn)
    return True


def _read(layout: np.dtype[Any], starts: _Numbers, content: _Numbers) -> _Numbers:
    """Messages that begin at `starts`."""
    anywhere = np.ndarray((len(content) - layout.itemsize + 1,), layout, content, strides=(1,))
    return anywhere[starts]


def _one_by_one(
    state: StreamState, position: int, rows: _Numbers, lsns: _Numbers, data: pa.BinaryArray
) -> None:
    for row in rows.tolist():
        message = data[row].as_py()
        kept = state.feed(message, position + row, int(lsns[row]))
        if kept is not message or state.skipping:
            raise StreamError(
                f"position {position + row}: what was stored before is sent again, or says nothing"
            )
