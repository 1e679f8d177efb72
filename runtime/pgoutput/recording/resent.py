"""Transactions that a server sends again, compared with what is recorded of them.

A server that was restored from a copy of its data folder stays on its timeline, and its slot stands where the
copy was made. Its WAL may have grown past the end of the recording with other transactions. What it sends
again from there on tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pgoutput import messages
from pgoutput.columns.parts import offsets
from pgoutput.errors import ReplicationError
from pgoutput.recording.reader import SegmentReader
from pgoutput.versions import CODECS
from pgoutput.wire import format_lsn

_COMMITS: Final = [ord(message.wire_tag) for message in (messages.Commit, messages.StreamCommit)]
_ADVICE: Final = "it was restored from a backup, or is another server: record anew in another folder"

RecordedCommits: TypeAlias = npt.NDArray[np.void]
"""Commits in a recording, by LSN: an array with the fields `lsn`, `time` (commit_time, in microseconds since
2000) and `streamed` (whether a streamed transaction ended; one without changes is not always sent)."""

_COMMIT: Final = np.dtype([("lsn", np.uint64), ("time", np.int64), ("streamed", np.bool_)])

NOTHING_RECORDED: Final[RecordedCommits] = np.empty(0, _COMMIT)


def recorded_commits(paths: Sequence[Path], after_lsn: int) -> RecordedCommits:
    """Return the commits in the last segments of a recording.

    Args:
        paths: The segments, in order.
        after_lsn: Commits before it are left out.

    Raises:
        RecordingError: A segment cannot be read.
    """
    found: list[tuple[int, int, bool]] = []
    for path in reversed(paths):
        with SegmentReader(path) as segment:
            if segment.metadata.end_lsn <= after_lsn:
                break
            if segment.metadata.kind == "stream":
                found += _commits(segment, after_lsn)
    return np.unique(np.array(found, _COMMIT))


def _commits(segment: SegmentReader, after_lsn: int) -> Iterator[tuple[int, int, bool]]:
    decode = CODECS[segment.metadata.source.proto_version].decode
    for batch in segment.batches():
        data = batch["data"]
        content = np.frombuffer(data.buffers()[2] or b"", np.uint8)
        rows = np.flatnonzero(np.isin(content[offsets(data)[:-1]], _COMMITS)) if len(content) else ()
        for row in rows:
            commit = decode(data[int(row)].as_py())
            assert isinstance(commit, messages.Commit | messages.StreamCommit)
            if commit.commit_lsn >= after_lsn:  # as SnapBuildXactNeedsSkip decides
                yield commit.commit_lsn, commit.commit_time, isinstance(commit, messages.StreamCommit)


class Resent:
    """Checks that a server sends what was recorded, where it sends it again.

    Attributes:
        settled: Whether all of it has come.

    Args:
        recorded: The commits that were recorded behind the slot's confirmed LSN.
    """

    def __init__(self, recorded: RecordedCommits = NOTHING_RECORDED) -> None:
        self._recorded = recorded
        self._seen = recorded["streamed"].copy()
        self.settled = not len(recorded)

    def see(self, lsn: int, time: int, *, has_changes: bool = True) -> None:
        """Take a transaction that is not stored again, because it lies before the recording's end.

        Raises:
            ReplicationError: The recording does not have it.
        """
        if self.settled:
            return
        place = int(np.searchsorted(self._recorded["lsn"], np.uint64(lsn)))
        known = self._recorded[place : place + 1]
        if len(known) and (known["lsn"][0], known["time"][0]) == (lsn, time):
            self._seen[place] = True
        elif has_changes:
            raise ReplicationError(
                f"the server sends a transaction that committed at {format_lsn(lsn)}, which lies before the "
                f"end of the recording but is not in it: {_ADVICE}"
            )

    def settle(self) -> None:
        """Take note that the server has passed the end of the recording.

        Raises:
            ReplicationError: It did not send all that was recorded.
        """
        if not self._seen.all():
            missing = int(self._recorded["lsn"][self._seen.argmin()])
            raise ReplicationError(
                f"the server lacks the transaction that was recorded at {format_lsn(missing)}: {_ADVICE}"
            )
        self.settled = True
