"""`replicate` applies a recording without Spark, and resumes after a stop, a kill, and a query of Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from logicalrep.apply.sorted_changes import SortedChanges
from logicalrep.errors import RecordingError, ReplicaError
from logicalrep.replica import Progress, TableResult, replica_tables, replicate
from logicalrep.replica.applied import log_batch
from logicalrep.views import RelationChanges
from tests.recording.recordings import sent, source, write
from tests.replica.changes import recorded_changes, sorted_changes as sorted_table
from tests.replica.changes_from_rows import from_rows
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import apply, different_tables, open_table
from tests.truth import true_tables

pytestmark = pytest.mark.usefixtures("any_format")

NAME = "pg18_p4_par_2pc"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with interleaved streamed and prepared transactions, in many segments."""
    folder = tmp_path_factory.mktemp("recording")
    write(folder, source(NAME), sent(NAME), 150)
    return folder


def copy_segments(source: Path, folder: Path, count: int | None = None) -> None:
    """Copy the first segments of a recording to a folder, as a recorder stores them: complete at once."""
    folder.mkdir(exist_ok=True)
    for path in sorted(source.iterdir())[:count]:
        if not (folder / path.name).exists():
            shutil.copy(path, part := folder / f".{path.name}")
            part.rename(folder / path.name)


def versions(target: Path) -> list[int]:
    return [open_table(table.place).version for table in replica_tables(target).values()]


def test_tables_equal_a_real_servers_tables(recording: Path, tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    results: list[TableResult] = []
    for count in (3, 4, None):
        copy_segments(recording, folder, count)
        replicate(folder, target, on_batch=lambda segment, applied: results.extend(applied))
    assert different_tables(target, list(true_tables("pg18"))) == []
    before = versions(target)
    for content in (None, "", "{}", stored := (target / "_reached.json").read_text(), stored[:-9]):
        (target / "_reached.json").unlink()
        if content is not None:
            (target / "_reached.json").write_text(content)
        replicate(folder, target)
        assert versions(target) == before
    assert not any(one.error for one in results)


def test_no_package_of_spark_is_imported(recording: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from logicalrep.replica import replicate; replicate(*sys.argv[1:]); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, recording, tmp_path / "lake"], capture_output=True, text=True, check=True
    )
    assert not {"pyspark", "py4j"} & {*done.stdout.split()}


def test_with_latency_the_segments_of_a_time_are_one_micro_batch(recording: Path, tmp_path: Path) -> None:
    """Each micro-batch is a commit to each changed table; the last changes wait no longer than the others."""
    folder, target, latency = tmp_path / "recording", tmp_path / "lake", 1.5
    copy_segments(recording, folder, 1)
    stop, applied = threading.Event(), list[int]()
    query = threading.Thread(
        target=replicate,
        args=(folder, target),
        kwargs={
            "follow": True,
            "latency": latency,
            "stop": stop,
            "on_batch": lambda segment, _: applied.append(segment),
        },
    )
    began, last = time.monotonic(), len(list(recording.iterdir()))
    query.start()
    try:
        for count in range(2, last + 1):
            copy_segments(recording, folder, count)
            time.sleep(0.1)
        while (applied or [0])[-1] < last and time.monotonic() < began + 60:
            time.sleep(0.02)
    finally:
        stop.set()
        query.join(60)
    assert different_tables(target, list(true_tables("pg18"))) == []
    assert 2 <= len(applied) <= 1 + (time.monotonic() - began) / latency


def test_a_stop_is_resumed(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query is stopped wherever it shows progress; the tables have each change once in the end."""
    monkeypatch.setattr("logicalrep.replica.replication.SEGMENTS_PER_BATCH", 5)
    stops = 0
    for allowed in range(0, 400, 3):
        stop, seen = threading.Event(), 0

        def count(progress: Progress, stop: threading.Event = stop, allowed: int = allowed) -> None:
            nonlocal seen
            seen += 1
            assert progress.applied <= progress.changes
            if seen > allowed:
                stop.set()

        replicate(recording, tmp_path / "lake", stop=stop, on_progress=count)
        if not stop.is_set():
            break
        stops += 1
    assert stops > 3
    assert different_tables(tmp_path / "lake", list(true_tables("pg18"))) == []


def test_a_following_query_sees_a_segment_at_once(recording: Path, tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    folder.mkdir()
    stop, times = threading.Event(), []
    query = threading.Thread(
        target=replicate,
        args=(folder, target),
        kwargs={"follow": True, "stop": stop, "on_progress": lambda progress: times.append(time.monotonic())},
    )
    copy_segments(recording, folder, 1)
    query.start()
    try:
        end = time.monotonic() + 60
        while not (target / "_reached.json").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(0.2)
        times.clear()
        copied = time.monotonic()
        copy_segments(recording, folder, 2)
        while not times:
            assert time.monotonic() < copied + 5
            time.sleep(0.01)
        assert times[0] < copied + 1
    finally:
        stop.set()
        query.join(60)
    assert not query.is_alive()


@pytest.mark.parametrize("memory", [0, 50_000, 1 << 30])
def test_changes_are_sorted_in_memory_and_in_a_file(recording: Path, memory: int) -> None:
    expected = sorted_table(recorded_changes(recording))
    with SortedChanges(memory) as changes:
        for batch in recorded_changes(recording):
            for first in range(0, batch.num_rows, 7):
                for one in from_rows(batch.slice(first, 7)):
                    changes.append(one)
        assert (changes._file is None) == (memory == 1 << 30)
        assert changes.counts.total() == expected.num_rows
        found = [row for oid in sorted(changes.counts) for one in changes.sorted(oid) for row in listed(one)]
    assert found == [
        row for batch in expected.to_batches() for one in from_rows(batch) for row in listed(one)
    ]


def listed(changes: RelationChanges) -> list[tuple[Any, ...]]:
    rows = changes.rows.select(["sequence", "new", "old"]).to_pylist()
    return [(changes.relation, *row.values()) for row in rows]


def test_lost_segments_and_other_recordings_are_refused(recording: Path, tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    copy_segments(recording, folder, 3)
    replicate(folder, target)
    before = versions(target)
    (folder / "0000000003.parquet").unlink()
    with pytest.raises(
        RecordingError, match="but no segment ends at this LSN: segments are missing or were replaced"
    ):
        replicate(folder, target)
    shutil.rmtree(folder)
    folder.mkdir()
    write(folder, msgspec.structs.replace(source("pg10_p1"), recording="another"), sent("pg10_p1"), 100)
    with pytest.raises(ReplicaError, match="the target belongs to recording"):
        replicate(folder, target)
    shutil.rmtree(folder)
    copy_segments(recording, folder)
    (folder / "0000000005.parquet").unlink()
    with pytest.raises(RecordingError, match=r"0000000005\.parquet"):
        replicate(folder, target)
    assert versions(target) == before


@pytest.mark.delta
def test_vectors_are_recommended_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logicalrep.replica.applied._MIN_ROWS", 100)
    caplog.set_level("INFO", "logicalrep.replica")
    server = SimulatedServer(1, "advised", {"k": "int4", "v": "text"}, keys=1)
    for key in range(1000):
        server.insert(str(key), "old")
    apply(server.take().to_batches(), tmp_path)
    for updates in ("rewrite", "rewrite", "vectors"):
        server.update(7, v=f"new {server.position}")
        log_batch(1, apply(server.take().to_batches(), tmp_path, updates=updates))
    found = [one for one in caplog.messages if "--updates vectors" in one]
    assert found == [
        "public.advised: 999 rows were written again for 1 change. With --updates vectors, commits mark the "
        "changed rows instead"
    ]
