"""Packs: a recording with short segments has few files, and all readers read it as before."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from logicalrep.errors import RecordingError
from logicalrep.recorder import Connected, Stored
from logicalrep.recorder.storage.packing import Packer
from logicalrep.recording import (
    Directory,
    Recording,
    RecordingReader,
    SegmentReader,
    find_segments,
    list_segments,
    locate,
    segment_name,
)
from logicalrep.views import ChangesView, plan_changes, read
from tests.kills import Killed, Kills
from tests.recorder.lab import Lab
from tests.recording import recordings

Run = Callable[..., SimpleNamespace]
NAME = "pg18_ws_p4_par_2pc_msg"
SECONDS = 2.0
"""Age at which a segment ends: five segments are packed at once."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    assert len(recordings.write(folder, recordings.source(NAME), recordings.sent(NAME), 6)) > 120
    return folder


def pack(unpacked: Path, folder: Path) -> Iterator[int]:
    """Store the segments of a recording in another folder, one after the other, and pack them."""
    folder.mkdir(exist_ok=True)
    with Directory(folder) as directory:
        packer = Packer(directory, SECONDS)
        for path in list_segments(unpacked):
            shutil.copy(path, folder / path.name)
            packer.add(int(path.stem))
            yield int(path.stem)


def pack_all(packer: Packer) -> None:
    while files := packer._next_files():
        packer._pack(files)


@pytest.fixture
def packed(tmp_path: Path, unpacked: Path) -> Path:
    for _ in pack(unpacked, tmp_path / "packed"):
        pass
    return tmp_path / "packed"


def rows(place: object) -> list[dict[str, object]]:
    with SegmentReader(str(place)) as segment:
        found: list[dict[str, object]] = pa.Table.from_batches(segment.batches()).to_pylist()
        return found


def changes(folder: Path, most: int | None = None) -> list[object]:
    recording = Recording(folder)
    found: list[object] = []
    for task in plan_changes(recording, recording.numbers[:most]):
        with SegmentReader(task.place) as segment:
            for batch in read(segment, ChangesView(segment, task, lambda relation: True)):
                found += batch.to_pylist()
    return found


def test_few_files_remain(unpacked: Path, packed: Path) -> None:
    count = len(list_segments(unpacked))
    names = sorted(path.name for path in packed.iterdir())
    assert len(names) < 4 + 9 + 5 + count // 50
    assert names[-1] == segment_name(count)  # the newest segment is not packed
    assert names[0] == "0000000001-0000000050.zip"


def test_the_number_of_files_grows_with_the_logarithm_of_the_segments(tmp_path: Path) -> None:
    with Directory(tmp_path) as directory:
        packer = Packer(directory, 1.0)
        for number in range(1, 1001):
            (tmp_path / segment_name(number)).write_bytes(b"x")
            packer.add(number)
            assert len(list(tmp_path.iterdir())) <= 10 + 9 + 9 + number // 500


def test_the_segments_are_the_same_bytes(unpacked: Path, packed: Path) -> None:
    contents: dict[str, bytes] = {}
    for path in packed.iterdir():
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as file:
                assert file.testzip() is None
                contents |= {name: file.read(name) for name in file.namelist()}
        else:
            contents[path.name] = path.read_bytes()
    assert contents == {path.name: path.read_bytes() for path in list_segments(unpacked)}


def test_all_readers_read_the_same(unpacked: Path, packed: Path, run: Run) -> None:
    Recording(packed).check()
    for one, other in zip(list_segments(packed), list_segments(unpacked), strict=True):
        assert one.name == other.name
        assert rows(one) == rows(other)
    with RecordingReader(packed) as reader, RecordingReader(unpacked) as expected:
        assert list(reader.records()) == list(expected.records())
    assert changes(packed) == changes(unpacked)
    done, before = (run("segments", "--json", folder) for folder in (packed, unpacked))
    assert (done.code, done.out) == (0, before.out)
    assert run("decode", packed / segment_name(7)).out == run("decode", unpacked / segment_name(7)).out


@pytest.mark.parametrize("pause", [1, 17, *(pytest.param(n, marks=pytest.mark.nightly) for n in (3, 60))])
def test_a_reader_follows_while_segments_are_packed(tmp_path: Path, unpacked: Path, pause: int) -> None:
    """A slow reader finds segments that are in packs before it has looked for them."""
    (tmp_path / "packed").mkdir()
    recording = Recording(tmp_path / "packed", may_be_empty=True)
    done = 0
    for stored in pack(unpacked, tmp_path / "packed"):
        if stored % pause == 0:
            recording.extend()
            assert recording.numbers[-1] == stored
            recording.check(range(max(done, 1), stored + 1))
            for number in range(done + 1, stored + 1):
                assert rows(Path(recording.path(number).path)) == rows(unpacked / segment_name(number))
            done = stored


def test_segments_are_read_that_were_listed_before_they_were_packed(tmp_path: Path, unpacked: Path) -> None:
    expected = [rows(path) for path in list_segments(unpacked)]
    failures: list[str] = []
    over = threading.Event()
    folder = tmp_path / "packed"
    shutil.copytree(unpacked, folder)

    def read_all() -> None:
        while not over.is_set():
            try:
                if [rows(path) for path in list_segments(folder)] != expected:
                    failures.append("other rows")
                Recording(folder).check()
            except BaseException as error:
                failures.append(repr(error))
                return

    readers = [threading.Thread(target=read_all) for _ in range(2)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for thread in readers:
            thread.start()
        with Directory(folder) as directory:
            pack_all(Packer(directory, SECONDS))
    finally:
        over.set()
        for thread in readers:
            thread.join()
        sys.setswitchinterval(switch)
    assert failures == []


@pytest.mark.parametrize(
    "operation", [1, 2, 3, 4, 5, 6, 30, *(pytest.param(n, marks=pytest.mark.nightly) for n in (7, 17, 29))]
)
def test_a_kill_at_any_file_operation_loses_nothing(
    tmp_path: Path, unpacked: Path, monkeypatch: pytest.MonkeyPatch, operation: int
) -> None:
    """The pack is made in five operations; one for each segment follows."""
    folder = tmp_path / "packed"
    folder.mkdir()
    for path in list_segments(unpacked)[:26]:
        shutil.copy(path, folder / path.name)
    with Directory(folder) as directory:
        with monkeypatch.context() as patched:
            kills = Kills(operation)
            for name in ("link", "unlink", "rename", "fsync"):
                patched.setattr(os, name, kills.watch(getattr(os, name)))
            patched.setattr(Directory, "create", kills.watch(Directory.create))
            with pytest.raises(Killed):
                pack_all(Packer(directory, SECONDS))
        Recording(folder).check()
        directory.remove_partial()
        packer = Packer(directory, SECONDS)
        assert sum(file.segments for file in packer._files) == 26  # no segment is in two files
        pack_all(packer)
    assert len(list(folder.iterdir())) == 2
    assert changes(folder) == changes(unpacked, 26)


def test_segments_that_are_pruned_meanwhile_are_not_packed(tmp_path: Path) -> None:
    with Directory(tmp_path) as directory:
        packer = Packer(directory, SECONDS)
        for number in range(1, 7):
            (tmp_path / segment_name(number)).touch()
            if number == 6:
                (tmp_path / segment_name(1)).unlink()
            packer.add(number)
    assert sorted(path.name for path in tmp_path.iterdir()) == [segment_name(one) for one in range(2, 7)]


def test_large_files_are_not_packed_and_do_not_keep_others_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logicalrep.recorder.storage.packing._PACK_BYTES", 1000)
    with Directory(tmp_path) as directory:
        packer = Packer(directory, 2.5)
        for number in range(1, 102):
            (tmp_path / segment_name(number)).write_bytes(bytes(900 if number % 7 == 0 else 10))
            packer.add(number)
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert len(sizes) < 45
    assert sum(size >= 900 for size in sizes) == 14


def test_long_segments_are_not_packed(tmp_path: Path) -> None:
    with Directory(tmp_path) as directory:
        packer = Packer(directory, 10.0)
        for number in range(1, 200):
            (tmp_path / segment_name(number)).write_bytes(b"x")
            packer.add(number)
    assert len(list(tmp_path.iterdir())) == 199


@pytest.mark.parametrize("damage", ["cut", "empty", "directory", "header", "rows"])
def test_a_damaged_pack_is_reported(packed: Path, damage: str) -> None:
    path = packed / "0000000001-0000000050.zip"
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        begin, directory = file.infolist()[6].header_offset, file.start_dir
    step = (len(raw) - 22 - directory) // 50
    damaged: dict[str, Callable[[], bytes]] = {
        "cut": lambda: raw[:-30],
        "empty": lambda: b"",
        "directory": lambda: raw[: directory + 6 * step] + bytes(step) + raw[directory + 7 * step :],
        "header": lambda: raw[:begin] + bytes(30) + raw[begin + 30 :],
        "rows": lambda: raw[: begin + 60] + bytes(400) + raw[begin + 460 :],
    }
    path.write_bytes(damaged[damage]())
    with pytest.raises(RecordingError, match=segment_name(7)) as caught:
        rows(packed / segment_name(7))
    assert damage == "rows" or path.name in str(caught.value)
    if damage in ("directory", "header", "rows"):
        rows(packed / segment_name(8))


def test_a_removed_pack_is_reported(packed: Path) -> None:
    (packed / "0000000001-0000000050.zip").unlink()
    with pytest.raises(RecordingError, match="segments 1 to 50 are missing"):
        Recording(packed).check()
    with pytest.raises(RecordingError, match=f"{segment_name(7)}: cannot be read as a Parquet file"):
        rows(packed / segment_name(7))


def test_recordings_at_uris_have_packs(unpacked: Path, packed: Path) -> None:
    place = find_segments(locate(packed.as_uri()))[3]
    with SegmentReader(place.place) as segment:
        assert pa.Table.from_batches(segment.batches()).to_pylist() == rows(unpacked / segment_name(4))


def test_a_recorder_packs_what_it_records(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logicalrep.recorder.storage.packing.FILE_SECONDS", 0.2)
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    for first in (0, 12):  # the second recorder continues a recording with packs
        with lab.recording("p", segment_seconds=0.05) as recording:
            recording.wait(Connected)
            for stored in range(1, 13):
                lab.run(f"INSERT INTO t VALUES ({first + stored})")
                recording.wait(Stored, stored)
    assert len(lab.segments()) >= 20
    assert len([path for path in lab.folder.iterdir() if path.name[0].isdigit()]) <= 12
    lab.assert_equal()
