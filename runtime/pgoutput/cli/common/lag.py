"""Lag in seconds, from commit times, or from the times at which the end of a WAL or recording moved."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from math import inf
from typing import Final

from pgoutput.recording import Recording
from pgoutput.wire import to_datetime

_MAX_SAMPLES: Final = 4096

_MAX_SEGMENTS: Final = 100
"""Maximum number of segments whose metadata are searched for a commit time."""


def last_commit_time(recording: Recording, segment: int) -> datetime | None:
    """Return the time of the last commit up to the end of a segment; None if none is found.

    Few segments have no commit: those of a snapshot, and those with a part of a large transaction.

    Args:
        recording: The recording.
        segment: Number of the segment.
    """
    numbers = [number for number in recording.numbers if number <= segment]
    return _first_time(recording, reversed(numbers))


def seconds_behind(recording: Recording, segment: int, now: float) -> float | None:
    """Return the age, in seconds, of the last commit in the first segment after `segment` that has commits.

    The last commit of this segment counts, because a replica can apply a segment only after the segment's
    end.

    Args:
        recording: The recording.
        segment: Number of the segment; 0 for the beginning of the recording.
        now: Seconds since 1970.

    Returns:
        0 if no segment follows; None if no commit is found.
    """
    later = recording.numbers[bisect_right(recording.numbers, segment) :]
    if not later:
        return 0.0
    committed = _first_time(recording, later)
    return None if committed is None else max(0.0, now - committed.timestamp())


def _first_time(recording: Recording, numbers: Iterable[int]) -> datetime | None:
    """Return the time of the last commit in the first of several segments that has commits.

    At most 100 segments are searched, in the order of `numbers`; None if these have no commit.
    """
    for number in islice(numbers, _MAX_SEGMENTS):
        time = recording.metadata([number])[0].last_commit_time
        if time is not None:
            return to_datetime(time)
    return None


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
