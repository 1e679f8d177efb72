"""Lag in seconds, from commit times, or from the times at which the end of a WAL or recording moved."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf
from typing import Final

from logicalrep.recording import Recording
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS, TIMES

_MAX_SAMPLES: Final = 4096

_MAX_SEGMENTS: Final = 100
"""Maximum number of segments whose metadata are searched for a commit time."""

_EARLIER_SEGMENTS: Final = 10
"""Number of segments before which no later commit can have been made."""

_CLOCK_SECONDS: Final = 60.0
"""Largest difference of two right clocks, and by which a commit may seem older than the one before it."""

_STALE_SECONDS: Final = 366 * 86_400.0
"""Age from which a commit time is stale: no slot retains WAL for so long."""


def last_commit_time(recording: Recording, segment: int) -> int | None:
    """Return the time of the last commit up to the end of a segment; None if none is found.

    Few segments have no commit: those of a snapshot, and those with a part of a large transaction.

    Args:
        recording: The recording.
        segment: Number of the segment.
    """
    earlier = recording.numbers[: bisect_right(recording.numbers, segment)]
    return next(_times(recording, reversed(earlier)), None)


def seconds_behind(recording: Recording, segment: int, now: float) -> float | None:
    """Return the age, in seconds, of the last commit in the first segment after `segment` that has commits.

    The last commit of this segment counts, because a replica can apply a segment only after the segment's
    end. A segment is skipped if `commit_age` does not know the age of its last commit.

    Args:
        recording: The recording.
        segment: Number of the segment; 0 for the beginning of the recording.
        now: Seconds since 1970.

    Returns:
        0 if no segment follows; None if no such commit is found.
    """
    first = bisect_right(recording.numbers, segment)
    earlier, later = recording.numbers[max(0, first - _EARLIER_SEGMENTS) : first], recording.numbers[first:]
    if not later:
        return 0.0
    ages = (commit_age(unix_seconds(time), now) for time in _times(recording, earlier))
    applied = min((age for age in ages if age is not None), default=inf)
    ages = (commit_age(unix_seconds(time), now, applied) for time in _times(recording, later))
    return next((age for age in ages if age is not None), None)


def unix_seconds(time: int) -> float | None:
    """Return a message's timestamp in seconds since 1970; None outside the years 1 to 9999."""
    return (time + EPOCH_UNIX_MICROSECONDS) / 1e6 if time in TIMES else None


def commit_age(committed: float | None, now: float, earlier: float = inf) -> float | None:
    """Return how many seconds ago a commit was; None if the time cannot be that of a commit in this stream.

    With a replication origin, a commit can have any time: one in the future, or one long before the commits
    that precede it in the stream. Such a time says nothing about a lag.

    Args:
        committed: The commit time, as `unix_seconds` returns it.
        now: Seconds since 1970.
        earlier: Age of an earlier commit, in seconds.
    """
    if committed is None:
        return None
    age = now - committed
    greatest = min(earlier + _CLOCK_SECONDS, _STALE_SECONDS)
    return max(0.0, age) if -_CLOCK_SECONDS <= age <= greatest else None


def _times(recording: Recording, numbers: Iterable[int]) -> Iterator[int]:
    """Yield the time of the last commit of each segment that has one; at most 100 segments are searched."""
    for number in islice(numbers, _MAX_SEGMENTS):
        time = recording.metadata([number])[0].last_commit_time
        if time is not None:
            yield time


class LagClock:
    """Measures how long ago the end of a log (a WAL or a recording) moved past a place in the log.

    The argument `position` gives the place: an LSN, or the number of a segment. The number of stored samples
    is limited, so a long lag is less exact than a short lag.
    """

    def __init__(self) -> None:
        self._samples: list[tuple[int, float]] = []
        """LSNs or segment numbers, and the times at which the log ended there, ascending."""
        self._step = 0.0
        """Smallest number of seconds between the last sample and a new one."""

    def saw_end(self, position: int, time: float) -> None:
        """Store that the log ended at an LSN or segment (`position`) at `time`, in seconds since 1970."""
        index = bisect_left(self._samples, (position, -inf))
        if index < len(self._samples):
            if self._samples[index][0] == position:
                return
        elif self._samples and time < self._samples[-1][1] + self._step:
            return
        self._samples.insert(index, (position, time))
        if len(self._samples) > _MAX_SAMPLES:
            del self._samples[1::2]
            self._step = 2 * (self._samples[-1][1] - self._samples[0][1]) / _MAX_SAMPLES

    def forget(self, position: int) -> None:
        """Remove the samples up to an LSN or segment (`position`).

        A sample is an earlier end of the log, with the time at which the log ended there. Later calls of
        `behind` must not have a lower `position`.
        """
        del self._samples[: bisect_right(self._samples, (position, inf))]
        if not self._samples:
            self._step = 0.0

    def behind(self, position: int, now: float) -> float:
        """Return how many seconds ago the log's end moved past an LSN or segment; 0 if that was not seen."""
        index = bisect_right(self._samples, (position, inf))
        return max(0.0, now - self._samples[index][1]) if index < len(self._samples) else 0.0
