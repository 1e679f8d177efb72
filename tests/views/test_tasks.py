"""`group_tasks` groups small tasks, but makes enough groups for all cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from logicalrep import messages as m
from logicalrep.recording import Recording, SegmentReader
from logicalrep.views import Task, group_tasks, plan_messages
from tests.recording.conftest import Recorded
from tests.recording.recordings import record

MB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "least", "wanted"),
    [
        ([], 2, []),
        ([0, 0], 1, [2]),
        ([8] * 6, 2, [3, 3]),
        ([8] * 3, 4, [1, 1, 1]),
        ([64] * 4, 1, [2, 2]),
        ([64] * 4, 8, [1, 1, 1, 1]),
        ([300, 1, 1], 1, [1, 2]),
        ([1, 1, 1, 1, 60], 2, [5]),
    ],
)
def test_tasks_are_grouped_by_size(sizes: list[int], least: int, wanted: list[int]) -> None:
    tasks = [Task(str(number), whole=True, size=size * MB) for number, size in enumerate(sizes)]
    found = group_tasks(tasks, least)
    assert [len(some) for some in found] == wanted
    assert [task for some in found for task in some] == tasks


def test_task_sizes_are_those_of_the_segments(recorded: Recorded) -> None:
    recording = Recording(recorded("pg18_p1", 100))
    for number, task in zip(recording.numbers, plan_messages(recording, recording.numbers), strict=True):
        with SegmentReader(recording.path(number)) as segment:
            data = sum(batch["data"].nbytes for batch in segment.batches())
            assert data < task.size == segment.size < 2 * data + 10_000


def test_refresh_drops_the_metadata_of_earlier_segments(tmp_path: Path) -> None:
    """A process that follows a recording for months must not keep the metadata of all segments."""
    recording = Recording(tmp_path, may_be_empty=True)
    for lsn in (100, 200, 300):
        record(
            tmp_path,
            m.Begin(final_lsn=lsn, commit_time=1, xid=7),
            m.Commit(commit_lsn=lsn, end_lsn=lsn + 10, commit_time=0),
            lsn=lsn,
        )
        recording.refresh()
        assert recording.last is not None
        assert recording.last.end_lsn == lsn + 10
    assert len(recording._metadata) == 1
