"""Files of a recording are never lost, replaced or mixed with those of another recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from logicalrep.errors import RecordingError
from logicalrep.recorder import Connected, Recorder, Stored
from tests.recorder.lab import Lab, wait_until


@pytest.mark.parametrize("removed", [False, True])
def test_a_folder_moved_or_removed_while_recording_ends_the_recorder(
    lab: Lab, tmp_path: Path, removed: bool
) -> None:
    """The recorder does not touch files that another recorder writes to a new folder of the same name."""
    lab.run("CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t")
    with pytest.raises(RecordingError, match="the folder was moved or removed"), lab.recording() as one:  # noqa: PT012
        one.wait(Connected)
        lab.run("INSERT INTO t VALUES (1)")
        one.wait(Stored)
        moved = tmp_path / "moved"
        lab.folder.rename(moved)
        if removed:
            for path in moved.iterdir():
                path.unlink()
            moved.rmdir()
        other = Recorder(lab.dsn, f"{lab.slot}_two", ["p"], lab.folder, create_slot=True, segment_seconds=0.1)
        other.run(until="now")
        before = {path.name: path.read_bytes() for path in lab.folder.iterdir()}
        lab.run("INSERT INTO t VALUES (2)")
        one.join()
    assert {path.name: path.read_bytes() for path in lab.folder.iterdir()} == before
    other.run(until="now")
    assert {one.source.slot for one in lab.segments()} == {f"{lab.slot}_two"}


def test_a_segment_is_never_replaced(lab: Lab) -> None:
    lab.run("CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t")
    path = lab.folder / "0000000002.parquet"
    with pytest.raises(FileExistsError), lab.recording() as recording:  # noqa: PT012
        recording.wait(Connected)
        lab.run("INSERT INTO t VALUES (1)")
        recording.wait(Stored)
        path.write_bytes(b"of another")
        lab.run("INSERT INTO t VALUES (2)")
        recording.join()
    assert path.read_bytes() == b"of another"


def test_a_missing_last_segment_is_noticed(lab: Lab) -> None:
    lab.run("CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t", "SELECT 1")
    lab.record()
    for number in range(2):
        lab.run(f"INSERT INTO t VALUES ({number})")
        lab.record()
    (lab.folder / "0000000002.parquet").unlink()
    with pytest.raises(RecordingError, match=r"segments are missing, up to 0000000002"):
        lab.record()


def test_segments_of_another_recording_are_refused(lab: Lab, tmp_path: Path) -> None:
    lab.run("CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t")
    lab.record()
    lab.run("INSERT INTO t VALUES (1)")
    lab.record()
    segment = (lab.folder / "0000000001.parquet").read_bytes()
    lab.folder.rename(tmp_path / "old")
    lab.run(f"SELECT pg_drop_replication_slot('{lab.slot}')")
    lab.record()
    lab.run("INSERT INTO t VALUES (2)")
    lab.record()
    (lab.folder / "0000000001.parquet").write_bytes(segment)
    with pytest.raises(RecordingError, match="segment 1 belongs to the recording"):
        lab.record()


def test_a_read_only_folder_is_refused_before_a_slot_is_created(lab: Lab, tmp_path: Path) -> None:
    lab.run("CREATE TABLE t (id int)", "CREATE PUBLICATION p FOR TABLE t")
    read_only = Path("/proc/self")  # not even root can write there
    with pytest.raises((OSError, RecordingError)):
        Recorder(lab.dsn, lab.slot, ["p"], read_only, create_slot=True).run(until="now")
    wait_until(lambda: lab.slots() == [])
