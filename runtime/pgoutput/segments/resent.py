"""Transactions that a server sends again, compared with what is recorded of them.

A server that was restored from a copy of its data folder stays on its timeline, and its slot stands where the
copy was made. Its WAL may have grown past the end of the recording with other transactions. What it sends
again from there on tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from pgoutput import messages
from pgoutput.columns.parts import offsets
from pgoutput.errors import ReplicationError
from pgoutput.segments.reader import Segment
from pgoutput.versions import CODECS
from pgoutput.wire import format_lsn

_COMMITS: Final = [ord(message.wire_tag) for message in (messages.Commit, messages.StreamCommit)]
_ADVICE: Final = "it was restored from a backup, or is another server: record anew in another folder"


class RecordedCommit(msgspec.Struct, frozen=True):
    """A commit in the recording."""

    time: int
    """commit_time, in microseconds since 2000."""
    streamed: bool
    """Whether it ended a streamed transaction. These may have no changes, and are not always sent then."""


def recorded_commits(paths: Iterable[Path], after_lsn: int) -> dict[int, RecordedCommit]:
    """Return the commits in segments, by their LSN.

    Args:
        paths: The segments.
        after_lsn: Those that ended up to here are left out.

    Raises:
        CaptureError: A segment cannot be read.
    """
    found = {}
    for path in paths:
        with Segment(path) as segment:
            if segment.metadata.kind == "snapshot" or segment.metadata.end_lsn <= after_lsn:
                continue
            decode = CODECS[segment.metadata.source.proto_version].decode
            for batch in segment.batches():
                data = batch["data"]
                tags = np.frombuffer(data.buffers()[2], np.uint8)[offsets(data)[:-1]]
                for row in np.flatnonzero(np.isin(tags, _COMMITS)).tolist():
                    commit = decode(data[row].as_py())
                    assert isinstance(commit, messages.Commit | messages.StreamCommit)
                    if commit.end_lsn > after_lsn:
                        streamed = isinstance(commit, messages.StreamCommit)
                        found[commit.commit_lsn] = RecordedCommit(commit.commit_time, streamed)
    return found


class Resent:
    """Checks that a server sends what was recorded, where it sends it again.

    Attributes:
        settled: Whether all of it has come.

    Args:
        recorded: The commits that were recorded behind the slot's confirmed LSN.
    """

    def __init__(self, recorded: Mapping[int, RecordedCommit]) -> None:
        self._recorded = recorded
        self._missing = {lsn for lsn, commit in recorded.items() if not commit.streamed}
        self.settled = not recorded

    def see(self, lsn: int, time: int, *, has_changes: bool = True) -> None:
        """Take a transaction that is not stored again, because it lies before the recording's end.

        Raises:
            ReplicationError: The recording does not have it.
        """
        if self.settled:
            return
        known = self._recorded.get(lsn)
        if has_changes and (known is None or known.time != time):
            raise ReplicationError(
                f"the server sends a transaction that committed at {format_lsn(lsn)}, which lies before the "
                f"end of the recording but is not in it: {_ADVICE}"
            )
        self._missing.discard(lsn)

    def settle(self) -> None:
        """Take note that the server has passed the end of the recording.

        Raises:
            ReplicationError: It did not send all that was recorded.
        """
        if self._missing:
            raise ReplicationError(
                f"the server does not have the transaction that was recorded at "
                f"{format_lsn(min(self._missing))}: {_ADVICE}"
            )
        self.settled = True
