"""Plan which segments a view reads, and what of each, so that each committed change is read once.

A task reads one segment and is independent of the other tasks. The changes of a transaction that spans
several segments are read together with the segment in which it commits, from the segments that the metadata
names.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from pgoutput.errors import RecordingError
from pgoutput.recording import Recording
from pgoutput.views.commits import Commit

_COMMITS: Final = frozenset({"Commit", "StreamCommit", "CommitPrepared"})
"""Types of `TransactionEnd` that are commits."""

_GROUP_BYTES: Final = 128 << 20
"""Target size of a group of tasks, in bytes: the default of spark.sql.files.maxPartitionBytes."""


class Task(msgspec.Struct, frozen=True):
    """What a view reads of one segment."""

    place: str
    """Path or URI of the segment, as `pgoutput.recording.locate` takes it."""
    whole: bool
    """Whether to read transactions that are wholly inside the segment."""
    commits: dict[int, Commit] = {}
    """Commits of the streamed, prepared and divided transactions to read, by the position where the
    transaction begins."""
    size: int = 0
    """Size of the segment's rows before compression, in bytes."""


class LsnRange(NamedTuple):
    """A range of commit LSNs."""

    first: int = 0
    """Lowest LSN of the range."""
    last: int = 2**64 - 1
    """Highest LSN of the range; it belongs to the range."""

    def __contains__(self, lsn: object) -> bool:
        return isinstance(lsn, int) and self.first <= lsn <= self.last


ALL_LSNS: Final = LsnRange()


def plan_messages(recording: Recording, numbers: Sequence[int]) -> list[Task]:
    """Return the tasks that read all messages of segments.

    Args:
        recording: The recording.
        numbers: Numbers of the segments.

    Raises:
        RecordingError: A segment is missing or damaged, or its file has the wrong name.
    """
    recording.metadata(numbers)
    return [_task(recording, number, whole=True, commits={}) for number in numbers]


def plan_changes(recording: Recording, numbers: Sequence[int], lsns: LsnRange = ALL_LSNS) -> list[Task]:
    """Return the tasks that read the changes of transactions that commit in segments.

    Args:
        recording: The recording.
        numbers: Numbers of the segments that have the commits.
        lsns: LSNs of the wanted commits. The tasks may also read other commits.

    Raises:
        RecordingError: A segment is missing or damaged, or its file has the wrong name.
    """
    whole: set[int] = set()
    commits: dict[int, dict[int, Commit]] = {}
    for segment in recording.metadata(numbers):
        # A transaction ends after its commit LSN; those that end before start_lsn are in earlier segments.
        if segment.start_lsn <= lsns.last and segment.end_lsn >= lsns.first:
            whole.add(segment.number)
        for end in segment.ends:
            if end.type not in _COMMITS or end.begin is None:
                continue
            if end.lsn is None or end.time is None:
                path = recording.path(segment.number)
                raise RecordingError(f"{path}: its metadata has a {end.type} without LSN or time")
            if end.lsn in lsns:
                commit = Commit(end.xid, end.lsn, end.time, frozenset(end.rolled_back))
                for number in end.segments:
                    commits.setdefault(number, {})[end.begin] = commit
    planned = sorted(whole | commits.keys())
    recording.metadata(planned)
    return [
        _task(recording, number, whole=number in whole, commits=commits.get(number, {})) for number in planned
    ]


def _task(recording: Recording, number: int, *, whole: bool, commits: dict[int, Commit]) -> Task:
    return Task(recording.path(number).place, whole, commits, recording.size(number))


def group_tasks(tasks: Sequence[Task], at_least: int) -> list[list[Task]]:
    """Return consecutive tasks in groups of similar size, so that small tasks do not dominate.

    Args:
        tasks: The tasks.
        at_least: Least number of groups, if there are as many tasks.
    """
    total = sum(task.size for task in tasks)
    count = max(min(at_least, len(tasks)), total // _GROUP_BYTES)
    begins = accumulate((task.size for task in tasks), initial=0)
    numbered = zip((begin * count // max(total, 1) for begin in begins), tasks, strict=False)
    return [[task for _, task in group] for _, group in groupby(numbered, key=itemgetter(0))]
