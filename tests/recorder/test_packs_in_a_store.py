"""Packs in an object store: readers read on, kills and faults lose nothing, and the lease is respected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from logicalrep.errors import RecordingError
from logicalrep.recorder import Connected, Stored
from logicalrep.recorder.storage import lease
from logicalrep.recorder.storage.packing import Packer
from logicalrep.recorder.storage.store_folder import StoreDirectory
from logicalrep.recording import (
    ObjectStore,
    Recording,
    SegmentReader,
    list_segments,
    packed_numbers,
    prune,
    segment_name,
)
from tests import store
from tests.kills import Killed, Kills
from tests.recorder.conftest import some
from tests.recorder.lab import Lab
from tests.recorder.test_packing import NAME, SECONDS, pack_all, rows
from tests.recording import recordings


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("recording")
    recordings.write(folder, recordings.source(NAME), recordings.sent(NAME), 6)
    return list_segments(folder)[:26]


@pytest.fixture
def stored(direct: None, url: str, unpacked: list[Path]) -> ObjectStore:
    """A recording of 26 segments in a store."""
    objects = ObjectStore(url)
    for path in unpacked:
        objects.create(path.name, path)
    return objects


@contextmanager
def directory(folder: Path, objects: ObjectStore) -> Iterator[StoreDirectory]:
    """The recording as a recorder with a new lease sees it."""
    folder.mkdir(exist_ok=True)
    taken = lease.Lease(objects, str(folder), lambda: False)
    with closing(StoreDirectory(folder, objects)) as opened:
        opened.fence(taken)
        yield opened
    taken._ended.set()


def pack_twice(packer: Packer) -> None:
    packer._pack(packer._files[:5])
    packer._pack(packer._files[:6])


def segment_objects(objects: ObjectStore) -> list[str]:
    """Return the names of segments and packs."""
    return [name for name in objects.sizes() if name[0].isdigit()]


def test_an_opened_segment_is_read_on_after_it_was_packed(
    stored: ObjectStore, url: str, unpacked: list[Path], tmp_path: Path
) -> None:
    with SegmentReader(f"{url}/{segment_name(3)}") as reader, directory(tmp_path / "a", stored) as opened:
        packer = Packer(opened, SECONDS)
        packer._pack(packer._files[:5])
        with SegmentReader(f"{url}/{segment_name(3)}") as packed:
            packer._pack(packer._files[:21])
            assert segment_objects(stored) == ["0000000001-0000000025.zip", segment_name(26)]
            for one in (reader, packed):
                assert pa.Table.from_batches(one.batches()).to_pylist() == rows(unpacked[2])


@pytest.mark.parametrize("request_", range(1, 5))
@pytest.mark.parametrize(
    "is_done",
    [
        True,
        pytest.param(False, marks=pytest.mark.nightly),  # the store is as after the request before
    ],
)
def test_a_kill_at_any_request_loses_nothing(
    stored: ObjectStore,
    url: str,
    unpacked: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_: int,
    is_done: bool,
) -> None:
    """Two packs are made, with two requests each; `is_done` tells whether the store has got the last one."""
    kills = Kills(request_)
    with directory(tmp_path / "a", stored) as opened:
        packer = Packer(opened, SECONDS, [1])
        with monkeypatch.context() as patched:
            for name in ("create", "delete"):
                watched = kills.watch(getattr(ObjectStore, name), before=not is_done, after=is_done)
                patched.setattr(ObjectStore, name, watched)
            with pytest.raises(Killed):
                pack_twice(packer)
    Recording(url).check()
    with directory(tmp_path / "a", stored) as opened:
        packer = Packer(opened, SECONDS, [1])
        assert sum(file.segments for file in packer._files) == 26  # no segment is in two files
        pack_all(packer)
    names = segment_objects(stored)
    assert [name for name in names if not packed_numbers(name)] == [segment_name(1), segment_name(26)]
    assert len(names) <= 5
    recording = Recording(url)
    recording.check()
    assert [rows(recording.path(number)) for number in recording.numbers] == [*map(rows, unpacked)]


def test_a_recorder_without_the_lease_removes_nothing(
    stored: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first recorder was paused, and has not noticed that it has lost the lease."""
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.3)
    with directory(tmp_path / "paused", stored) as paused:
        packer = Packer(paused, SECONDS)
        paused._lease._ended.set()
        with directory(tmp_path / "next", stored):
            for files in (packer._files[:5], packer._files[5:10]):
                paused._lease._error = None
                with pytest.raises(RecordingError, match="has taken the lease of the recording"):
                    packer._pack(files)
            assert {*map(segment_name, range(1, 27))} < {*segment_objects(stored)}


def test_no_segment_of_an_old_recorder_takes_the_place_of_a_packed_one(
    direct: None, url: str, unpacked: list[Path], tmp_path: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment of a recorder that was paused arrives when the next recorder has packed its own segments."""
    monkeypatch.setattr("logicalrep.recorder.storage.packing.FILE_SECONDS", 0.2)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.3)
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    lab.record(recording=url)
    objects = ObjectStore(url)
    with directory(tmp_path / "paused", objects) as paused:
        paused._lease._ended.set()
        paused._lease._thread.join()
        record(lab, url, 0, 12)
        with paused.create(segment_name(1)) as file:
            file.write(b"late")
        with pytest.raises(RecordingError, match="has taken the lease of the recording"):
            paused.publish(segment_name(1))
    assert any(1 in packed_numbers(name) for name in objects.sizes())
    lab.assert_equal(folder=url)


def record(lab: Lab, url: str, first: int, count: int) -> None:
    """Insert rows, each in a segment of its own."""
    with lab.recording(recording=url, segment_seconds=0.05) as recording:
        recording.wait(Connected)
        for stored in range(1, count + 1):
            lab.run(f"INSERT INTO t VALUES ({first + stored})")
            recording.wait(Stored, stored)


@pytest.mark.parametrize(
    ("count", "objects", "largest"),
    [
        pytest.param(10, 16, 4, id="packs"),
        pytest.param(30, 25, 40, id="packs of packs", marks=pytest.mark.nightly),
    ],
)
def test_readers_find_each_segment_once_while_a_recorder_packs(
    lab: Lab,
    direct: None,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    objects: int,
    largest: int,
) -> None:
    """Two recorders store `count` segments each, and pack them into fewer than `objects`."""
    monkeypatch.setattr("logicalrep.recorder.storage.packing.FILE_SECONDS", 0.2)
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    lab.record(recording=url)
    lab.run("INSERT INTO t VALUES (0)")
    lab.record(recording=url)
    failures: list[str] = []
    listings: list[int] = []
    over = threading.Event()

    def positions(recording: Recording, numbers: list[int]) -> list[object]:
        found = [row["position"] for number in numbers for row in rows(recording.path(number))]
        return [position for position in found if position is not None]

    def list_all() -> None:
        recording = Recording(url)
        recording.check()
        assert recording.numbers == [*range(1, recording.numbers[-1] + 1)]
        found = positions(recording, recording.numbers)
        assert found == [*range(len(found))]
        listings.append(len(found))

    followed = Recording(url)

    def follow() -> None:
        done = followed.numbers[-1]
        followed.extend()
        positions(followed, [*range(done + 1, followed.numbers[-1] + 1)])
        over.wait(0.5)  # the next segments may be in packs then

    def repeat(read: Callable[[], None]) -> None:
        try:
            while not over.is_set():
                read()
        except BaseException as error:
            failures.append(repr(error))

    readers = [threading.Thread(target=repeat, args=(read,)) for read in (list_all, follow)]
    for thread in readers:
        thread.start()
    try:
        for first in (0, count):  # the second recorder continues a recording with packs
            record(lab, url, first, count)
    finally:
        over.set()
        for thread in readers:
            thread.join()
    assert failures == []
    assert len(listings) > count // 10
    follow()
    assert followed.numbers == Recording(url).numbers
    names = segment_objects(ObjectStore(url))
    assert len(names) < objects, names
    assert any(len(packed_numbers(name)) >= largest for name in names)
    lab.assert_equal(folder=url)
    assert prune(url, keep=0).files
    Recording(url).check()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(some(0.2, "refuse"), id="503", marks=pytest.mark.nightly),
        pytest.param(some(0.3, "drop-answer", "PUT", "POST", "DELETE"), id="lost-answers"),
    ],
)
def test_faults_while_segments_are_packed(
    lab: Lab,
    proxy: store.Proxy,
    url: str,
    fault: Callable[[str, str], store.Fault],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("logicalrep.recorder.storage.packing.FILE_SECONDS", 0.2)
    lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
    proxy.fault = fault
    record(lab, url, 0, 8)
    proxy.fault = lambda method, path: ""
    record(lab, url, 8, 4)
    lab.assert_equal(folder=url)
    names = segment_objects(ObjectStore(url))
    assert len(names) < 10, names
