"""Check that the transactions that a server sends again equal the recorded transactions.

A server that is restored from a copy of its data folder keeps its timeline ID, while WAL and slot return to
the time of the copy. The restored server may then commit other transactions than the recorded ones, even at
LSNs beyond the end of the recording. A comparison of commits sent again with recorded commits reveals such a
server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from logicalrep._arrays import value_bytes, value_offsets
from logicalrep._roles import ROLES, meaning_of, tags
from logicalrep.errors import ChangesLost
from logicalrep.recording.location import Location, PathOrUri
from logicalrep.recording.reader import SegmentReader
from logicalrep.versions import CODECS
from logicalrep.wire import format_lsn

_COMMIT_TAGS: Final = list(tags("commit", "commit_streamed"))
_ADVICE: Final = "the server was restored from a backup, or is another one: record anew in another folder"

RecordedCommits: TypeAlias = npt.NDArray[np.void]
"""NumPy structured array of the commits in a recording, sorted by LSN.

The fields are `lsn` (commit_lsn), `time` (commit_time, in microseconds since 2000-01-01 00:00 UTC) and
`streamed` (whether the transaction was streamed; a server need not send a streamed transaction without
changes again).
"""

_COMMIT: Final = np.dtype([("lsn", np.uint64), ("time", np.int64), ("streamed", np.bool_)])

NO_COMMITS: Final[RecordedCommits] = np.empty(0, _COMMIT)
"""An empty array of commits."""


def recorded_commits(paths: Sequence[PathOrUri | Location], after_lsn: int) -> RecordedCommits:
    """Return the commits of a recording with a commit LSN of at least `after_lsn`.

    Args:
        paths: The segments of the recording, in order. Segments whose end LSN is at most `after_lsn` are not
            read: all their commit LSNs are lower.
        after_lsn: The lowest commit LSN to return.

    Raises:
        RecordingError: A segment cannot be read.
    """
    commits: list[tuple[int, int, bool]] = []
    for path in reversed(paths):
        with SegmentReader(path) as segment:
            if segment.metadata.end_lsn <= after_lsn:
                break
            if segment.metadata.kind == "stream":
                commits += _commits(segment, after_lsn)
    return np.unique(np.array(commits, _COMMIT))


def _commits(segment: SegmentReader, after_lsn: int) -> Iterator[tuple[int, int, bool]]:
    decode = CODECS[segment.metadata.source.proto_version].decode
    for batch in segment.batches():
        data = batch["data"]
        content = value_bytes(data)
        tags = content[value_offsets(data)[:-1]] if len(content) else content
        for row in np.flatnonzero(np.isin(tags, _COMMIT_TAGS)):
            commit = decode(data[int(row)].as_py())
            lsn = meaning_of(commit, "lsn")
            if lsn >= after_lsn:  # as SnapBuildXactNeedsSkip decides
                yield lsn, meaning_of(commit, "time"), ROLES[type(commit)] == "commit_streamed"


class ResentCommitCheck:
    """Checks that the transactions that a server sends again are those in the recording.

    Attributes:
        settled: Whether the check is finished, because the server has sent all recorded commits again.

    Args:
        recorded: The recorded commits after the slot's confirmed flush LSN.
    """

    def __init__(self, recorded: RecordedCommits = NO_COMMITS) -> None:
        self._recorded = recorded
        self._resent = recorded["streamed"].copy()  # empty streamed transactions may be missing
        self.settled: bool = not len(recorded)

    def check(self, lsn: int, time: int, *, has_changes: bool = True) -> None:
        """Check that a transaction that the server sends again was recorded.

        Args:
            lsn: Commit LSN of the transaction.
            time: Commit time of the transaction, in microseconds since 2000-01-01 00:00 UTC.
            has_changes: Whether the transaction has changes; an empty transaction need not be recorded.

        Raises:
            ChangesLost: The recording lacks the transaction.
        """
        if self.settled:
            return
        number = int(np.searchsorted(self._recorded["lsn"], np.uint64(lsn)))
        known = self._recorded[number : number + 1]
        if len(known) and (known["lsn"][0], known["time"][0]) == (lsn, time):
            self._resent[number] = True
        elif has_changes:
            raise ChangesLost(
                f"the server sends a transaction with commit LSN {format_lsn(lsn)}, before the end of the "
                f"recording, but the recording does not have it: {_ADVICE}"
            )

    def settle(self) -> None:
        """Check that the server has sent all recorded transactions again, and finish the check.

        Call it when the server's stream has reached the end of the recording.

        Raises:
            ChangesLost: The server did not send all recorded transactions again.
        """
        if not self._resent.all():
            missing = int(self._recorded["lsn"][self._resent.argmin()])
            raise ChangesLost(
                f"the server lacks the recorded transaction with commit LSN {format_lsn(missing)}: {_ADVICE}"
            )
        self.settled = True
