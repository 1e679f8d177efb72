"""Plan the tasks of a view, so that each committed change is read exactly once.

A task reads one segment and is independent of other tasks. If a transaction spans several segments, the
metadata of the segment with its commit lists all these segments. The plan for the commit's segment then has a
task for each segment with changes of the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from logicalrep import _roles
from logicalrep.errors import RecordingError
from logicalrep.recording import Recording

_COMMITS: Final = frozenset(kind.__name__ for kind in _roles.classes(*_roles.COMMITS))
"""Values of `TransactionEnd.type` that are commits."""

_GROUP_BYTES: Final = 128 << 20
"""Target size of a group of tasks, in bytes: the default of spark.sql.files.maxPartitionBytes."""


class Commit(msgspec.Struct, frozen=True):
    """The commit of a transaction."""

    xid: int
    lsn: int
    """Commit LSN."""
    time: int
    """Commit time, in microseconds since 2000-01-01 00:00 UTC."""
    rolled_back: frozenset[int] = frozenset()
    """Xids of the subtransactions that were rolled back while the transaction was streamed."""


class Task(msgspec.Struct, frozen=True):
    """The part of one segment that a view reads."""

    place: str
    """Path or URI of the segment, as `logicalrep.recording.locate` takes it."""
    whole: bool
    """Whether to read transactions that are wholly inside the segment, neither streamed nor prepared."""
    commits: dict[int, Commit] = {}
    """Commits of the other transactions to read (streamed, prepared, or not wholly inside the segment), by
    the position where the transaction begins."""
    size: int = 0
    """Size of the segment's rows before compression, in bytes."""


class LsnRange(NamedTuple):
    """A range of commit LSNs; both bounds are included."""

    first: int = 0
    """Lowest LSN of the range."""
    last: int = 2**64 - 1
    """Highest LSN of the range, inclusive."""

    def __contains__(self, lsn: object) -> bool:
        return isinstance(lsn, int) and self.first <= lsn <= self.last


ALL_LSNS: Final = LsnRange()


def plan_messages(recording: Recording, numbers: Sequence[int]) -> list[Task]:
    """Return the tasks that read all messages of these segments.

    Args:
        recording: The recording.
        numbers: Numbers of the segments.

    Raises:
        RecordingError: A segment is missing or damaged, or its file has the wrong name.
    """
    recording.metadata(numbers)
    return [_task(recording, number, whole=True, commits={}) for number in numbers]


def plan_changes(recording: Recording, numbers: Sequence[int], lsns: LsnRange = ALL_LSNS) -> list[Task]:
    """Return the tasks that read the changes of the transactions that commit in these segments.

    Args:
        recording: The recording.
        numbers: Numbers of the segments with the transactions' commits.
        lsns: Commit LSNs of the transactions to read. The tasks may also read other transactions.

    Raises:
        RecordingError: A segment is missing or damaged, or its file has the wrong name.
    """
    whole: set[int] = set()
    commits: dict[int, dict[int, Commit]] = {}
    for segment in recording.metadata(numbers):
        # The transactions of the segment end after start_lsn, up to end_lsn. A commit LSN is lower than the
        # LSN of the transaction's end, so it can equal start_lsn.
        if segment.start_lsn <= lsns.last and segment.end_lsn >= lsns.first:
            whole.add(segment.number)
        for end in segment.ends:
            if end.type not in _COMMITS or end.begin is None:
                continue
            if end.lsn is None or end.time is None:
                path = recording.path(segment.number)
                raise RecordingError(
                    f"{path}: the metadata of the segment is damaged: a {end.type} without LSN or time. "
                    "Restore the file from a copy"
                )
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
    """Group consecutive small tasks, so that the groups have similar sizes in bytes.

    Args:
        tasks: The tasks.
        at_least: Number of groups to aim for. There are more groups if groups would be larger than
            `_GROUP_BYTES`, and never more groups than tasks.
    """
    total = sum(task.size for task in tasks)
    count = max(min(at_least, len(tasks)), total // _GROUP_BYTES)
    begins = accumulate((task.size for task in tasks), initial=0)
    numbered = zip((begin * count // max(total, 1) for begin in begins), tasks, strict=False)
    return [[task for _, task in group] for _, group in groupby(numbered, key=itemgetter(0))]
