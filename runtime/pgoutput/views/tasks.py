"""What has to be read of which segments, so that each committed change is read once.

A task is one segment and names all that is wanted of it; tasks are independent of each other. A transaction
that is spread over segments belongs to the segment in which it commits; what it changed is read then, from
the segments that the index names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from pgoutput.errors import RecordingError
from pgoutput.recording import (
    Location,
    Metadata,
    Place,
    SegmentReader,
    find_gaps,
    find_missing_end,
    find_segments,
    last_acknowledged,
    locate,
    segment_name,
    segment_number,
)
from pgoutput.views.commits import Commit

_COMMITS: Final = frozenset({"Commit", "StreamCommit", "CommitPrepared"})
_TASK_BYTES: Final = 128 << 20
"""What is put together, at most: as Spark's spark.sql.files.maxPartitionBytes."""
_READERS: Final = 16
"""Footers that are read at once: they may be far away."""


class Task(msgspec.Struct, frozen=True):
    """What has to be read of a segment."""

    place: str
    """Where it is, as `locate` takes it."""
    whole: bool
    """Whether transactions that lie wholly inside are wanted."""
    commits: dict[int, Commit] = {}
    """The others that are wanted, by the position where they begin."""
    size: int = 0
    """Bytes of the segment."""


class Lsns(NamedTuple):
    """A range of commit LSNs, both ends included."""

    first: int = 0
    last: int = 2**64 - 1

    def __contains__(self, lsn: object) -> bool:
        return isinstance(lsn, int) and self.first <= lsn <= self.last


ALL_LSNS: Final = Lsns()


class Recording:
    """A folder of segments, wherever it is; what its metadata says is read once, until `refresh`.

    Args:
        place: The folder, or one segment: what its transactions have in others is read there.
        may_be_empty: Whether a folder without segments will do, if it is there.

    Raises:
        RecordingError: There are no segments.
    """

    def __init__(self, place: Place, *, may_be_empty: bool = False) -> None:
        self.location = self._folder = locate(place)
        if _is_segment(self.location):
            self._folder = self.location.parent
        self._metadata: dict[int, tuple[Metadata, int]] = {}
        self._paths: dict[int, Location] = {}
        self.refresh()
        if not self._paths and not (may_be_empty and self.location.is_folder):
            raise RecordingError(f"{self.location}: no segments are here; `pgoutput record` writes them")

    @property
    def numbers(self) -> list[int]:
        """The numbers of the segments, in their order."""
        return sorted(self._paths)

    @property
    def last(self) -> Metadata | None:
        """Metadata of the last segment; None if there are no segments.

        Raises:
            RecordingError: As `metadata`.
        """
        return self.metadata([self.numbers[-1]])[0] if self._paths else None

    @property
    def identity(self) -> str:
        """UUID of the recording, as its last segment has it; empty if there are no segments.

        Raises:
            RecordingError: As `metadata`.
        """
        return self.last.source.recording if self.last else ""

    def refresh(self) -> None:
        """See which segments there are now. Forget the metadata of all but the last one.

        Raises:
            RecordingError: A file has the name of no segment, two have the same, or the last ones that the
                recorder acknowledged are missing.
        """
        if _is_segment(self.location):
            self._paths = {segment_number(self.location): self.location}
            return
        last = last_acknowledged(self.location)
        found = find_segments(self.location)
        self._paths = {segment_number(path): path for path in found}
        if len(self._paths) < len(found):
            raise RecordingError(f"{self.location}: two segments have one number")
        newest = max(self._paths, default=0)
        self._metadata = {number: one for number, one in self._metadata.items() if number == newest}
        for gap in find_missing_end(newest, last):
            raise RecordingError(f"{self.location}: {gap}")

    def metadata(self, numbers: Iterable[int]) -> list[Metadata]:
        """What segments say of themselves.

        Raises:
            RecordingError: One is not there, is damaged, or is another than its name says.
        """
        wanted = list(numbers)
        unread = [self.path(number) for number in wanted if number not in self._metadata]
        with ThreadPoolExecutor(_READERS) as pool:
            for path, (one, size) in zip(unread, pool.map(_read, unread), strict=True):
                if one.number != segment_number(path):
                    raise RecordingError(f"{path}: the file has the wrong name: it is segment {one.number}")
                self._metadata[one.number] = one, size
        return [self._metadata[number][0] for number in wanted]

    def task(self, number: int, *, whole: bool, commits: dict[int, Commit]) -> Task:
        """What has to be read of a segment.

        Raises:
            RecordingError: As `metadata`.
        """
        self.metadata([number])
        return Task(self.path(number).place, whole, commits, self._metadata[number][1])

    def path(self, number: int) -> Location:
        """Where a segment is."""
        return self._paths.get(number) or self._folder / segment_name(number)

    def check(self, numbers: Sequence[int] | None = None) -> None:
        """See that segments belong together.

        Args:
            numbers: Some that follow each other; all of the recording if None.

        Raises:
            RecordingError: They do not.
        """
        some = self.numbers if numbers is None else numbers
        is_whole = numbers is None and not _is_segment(self.location)
        first = 1 if is_whole else min(some, default=1)
        if gaps := list(find_gaps(self.metadata(some), first)):
            raise RecordingError(f"{self.location}: {'; '.join(gaps)}")


def _read(path: Location) -> tuple[Metadata, int]:
    """What a segment says of itself, and how large it is."""
    with SegmentReader(path) as segment:
        return segment.metadata, segment.size


def _is_segment(location: Location) -> bool:
    return location.path.endswith(".parquet")


def every_message(recording: Recording, numbers: Sequence[int]) -> list[Task]:
    """The tasks that read all messages of segments."""
    recording.metadata(numbers)
    return [recording.task(number, whole=True, commits={}) for number in numbers]


def committed_changes(recording: Recording, numbers: Sequence[int], lsns: Lsns = ALL_LSNS) -> list[Task]:
    """The tasks that read what was committed in segments.

    Args:
        recording: Where they are.
        numbers: The segments that have the commits.
        lsns: LSNs of the commits that are wanted. Others may come too.
    """
    whole: set[int] = set()
    commits: dict[int, dict[int, Commit]] = {}
    for segment in recording.metadata(numbers):
        # All that ended before start_lsn was recorded before; a commit's end is behind its LSN.
        if segment.start_lsn <= lsns.last and segment.end_lsn >= lsns.first:
            whole.add(segment.number)
        for end in segment.ends:
            if end.type not in _COMMITS or end.begin is None:
                continue
            if end.lsn is None or end.time is None:
                place = recording.path(segment.number)
                raise RecordingError(f"{place}: its metadata has a {end.type} without LSN or time")
            if end.lsn in lsns:
                commit = Commit(end.xid, end.lsn, end.time, frozenset(end.rolled_back))
                for number in end.segments:
                    commits.setdefault(number, {})[end.begin] = commit
    wanted = sorted(whole | commits.keys())
    recording.metadata(wanted)
    return [recording.task(one, whole=one in whole, commits=commits.get(one, {})) for one in wanted]


def put_together(tasks: Sequence[Task], least: int) -> list[list[Task]]:
    """Tasks that follow each other as one, so that none is too small to be worth its start.

    Args:
        tasks: The tasks.
        least: How many there are to be in the end, if there are as many.
    """
    total = sum(task.size for task in tasks)
    count = max(min(least, len(tasks)), total // _TASK_BYTES)
    begins = accumulate((task.size for task in tasks), initial=0)
    numbered = zip((begin * count // max(total, 1) for begin in begins), tasks, strict=False)
    return [[task for _, task in some] for _, some in groupby(numbered, key=itemgetter(0))]
