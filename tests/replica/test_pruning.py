"""A recording can be pruned at any moment: readers keep the segments that they need, or are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from logicalrep.errors import RecordingError
from logicalrep.recorder.snapshots import copied_rows
from logicalrep.recorder.storage.packing import Packer
from logicalrep.recording import (
    Directory,
    Reader,
    Recording,
    RecordingReader,
    last_acknowledged,
    list_segments,
    locate,
    prune,
    pruning,
    read_beginning,
    read_readers,
    reader_file,
    segment_name,
)
from logicalrep.replica import Query, recorded_changes, registration, replica_tables, replicate
from logicalrep.spark.source import LogicalrepDataSource
from logicalrep.targets import NOTHING, Position, write_file
from logicalrep.views import schema_versions
from tests.effort import mostly_nightly
from tests.kills import Killed, Kills
from tests.recording.recordings import sent, source, write
from tests.replica.tables import different_tables, read_table
from tests.truth import true_tables

pytestmark = pytest.mark.usefixtures("any_format")

NAME = "pg18_p4_par_2pc"
SECONDS = 2.0
"""Age at which a segment ends: five segments are packed at once."""

Run = Callable[..., SimpleNamespace]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with interleaved streamed and prepared transactions, in many segments."""
    folder = tmp_path_factory.mktemp("whole")
    write(folder, source(NAME), sent(NAME), 6)
    return folder


class Recorder:
    """Stores the segments of a recording in another folder, one after the other, and packs them."""

    def __init__(self, whole: Path, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._left = iter(list_segments(whole))
        self._folder = folder
        self._directory = Directory(folder)
        self._packer = Packer(self._directory, SECONDS)

    def store(self, count: int) -> bool:
        """Store and acknowledge the next segments; return whether there were any."""
        number = 0
        for path in islice(self._left, count):
            shutil.copy(path, part := self._folder / f".{path.name}")
            part.rename(self._folder / path.name)
            number = int(path.stem)
            self._directory.replace("_recording.json", json.dumps({"last_segment": number}).encode())
            self._packer.add(number)
        return bool(number)

    def store_all(self) -> None:
        self.store(1 << 30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recording"


@pytest.fixture
def recorder(whole: Path, folder: Path) -> Iterator[Recorder]:
    recorder = Recorder(whole, folder)
    yield recorder
    recorder._directory.close()


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> Kills:
    """Let `prune` be killed at its changes of files."""
    kills = Kills()
    for owner, name in ((pruning, "_remove"), (Directory, "create"), (Directory, "rename")):
        monkeypatch.setattr(owner, name, kills.watch(getattr(owner, name)))
    return kills


def is_sound(folder: Path) -> None:
    """Check that a pruned recording can be read from its beginning, without an error."""
    recording = Recording(folder)
    recording.check()
    assert recording.numbers[0] == read_beginning(locate(folder)).segment
    assert recording.numbers[-1] == last_acknowledged(locate(folder))
    with RecordingReader(folder) as reader:
        for one in reader.transactions():
            assert one.commit_lsn


def history(target: Path) -> dict[int, list[str]]:
    """Return the rows of the tables of a replica as texts, sorted, by OID."""
    return {
        oid: sorted(map(repr, read_table(table.place).to_pylist()))
        for oid, table in replica_tables(target).items()
    }


@pytest.mark.parametrize("seed", mostly_nightly(range(2), [0]))
def test_readers_do_not_notice_that_a_recording_is_pruned(
    whole: Path,
    recorder: Recorder,
    folder: Path,
    tmp_path: Path,
    seed: int,
    kills: Kills,
) -> None:
    """`prune` runs at random moments, and is killed at random changes of files."""
    random = Random(seed)
    targets = tmp_path / "tables", tmp_path / "history"
    beginnings = set[int]()
    while recorder.store(random.randrange(5, 40)):
        for target in targets:
            if not beginnings or random.random() < 0.7:
                replicate(folder, target, history=target.name == "history")
        kills.left = random.randrange(9)
        with suppress(Killed):
            prune(folder, keep=0)
        kills.left = 0
        is_sound(folder)
        beginnings.add(read_beginning(locate(folder)).segment)
    for target in targets:
        replicate(folder, target, history=target.name == "history")
    assert different_tables(targets[0], list(true_tables("pg18"))) == []
    replicate(whole, tmp_path / "expected", history=True)
    assert history(targets[1]) == history(tmp_path / "expected")
    assert len(beginnings) > 2


def test_a_killed_prune_is_completed_by_the_next(
    whole: Path,
    folder: Path,
    tmp_path: Path,
    kills: Kills,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Packer, "add", lambda self, number: None)
    recorder = Recorder(whole, folder)
    recorder.store(30)
    replicate(folder, tmp_path / "lake")
    expected = prune(folder, keep=0, dry_run=True)
    assert expected.files > 5
    for number in range(1, 100):
        kills.left = number
        try:
            prune(folder, keep=0)
        except Killed:
            is_sound(folder)
        else:
            break
    kills.left = 0
    assert number > 5
    assert read_beginning(locate(folder)).segment == expected.first_segment
    numbers = Recording(folder).numbers
    assert numbers[0] == expected.first_segment
    assert {file.last >= numbers[0] for file in pruning._stored_files(locate(folder))} == {True}
    is_sound(folder)
    replicate(folder, tmp_path / "lake")


def test_transactions_keep_their_segments(whole: Path, folder: Path, recorder: Recorder) -> None:
    """Wherever a recording is pruned, it has all segments of the transactions that end in it later."""
    recorder.store_all()
    segments = Recording(whole).metadata(Recording(whole).numbers)
    lowered = 0
    for first in range(1, len(segments) + 1):
        begin = pruning._first_of_transactions(segments, first)
        needed = [number for one in segments[begin - 1 :] for end in one.ends for number in end.segments]
        assert min([begin, *needed]) == begin
        lowered += begin < first
    assert lowered > 5


def test_an_open_transaction_keeps_its_segments(whole: Path, folder: Path, recorder: Recorder) -> None:
    segments = Recording(whole).metadata(Recording(whole).numbers)
    end = next(end for one in segments for end in one.ends if len(end.segments) > 1)
    before = [one for one in segments if one.number < end.segments[-1]]
    assert pruning._first_of_transactions(before, len(before)) <= end.segments[0]


@pytest.mark.parametrize("is_packed", [False, True], ids=["files", "packs"])
def test_readers_that_come_too_late_are_refused(
    whole: Path, folder: Path, tmp_path: Path, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_packed:
        monkeypatch.setattr(Packer, "add", lambda self, number: None)
    recorder = Recorder(whole, folder)
    recorder.store(20)
    replicate(folder, tmp_path / "old")
    (old,) = read_readers(locate(folder))
    recorder.store_all()
    replicate(folder, tmp_path / "lake")
    done = prune(folder, keep=0, forget=[old.id])
    assert done.first_segment > 30
    assert {file.last - file.first for file in pruning._stored_files(locate(folder))} >= {4} or not is_packed
    begins = f"the recording begins with segment {done.first_segment}"
    for target in ("new", "old"):
        with pytest.raises(RecordingError, match=f"segment 1 was pruned: {begins}"):
            replicate(folder, tmp_path / target)
    assert [one.target for one in read_readers(locate(folder))] == [str(tmp_path / "lake")]
    assert not (tmp_path / "new").exists()
    for query_start in (0, 20):
        stream = LogicalrepDataSource({"path": str(folder)})
        reader = stream.streamReader(stream.schema())
        start = {"segment": query_start, "recording": Recording(folder).identity}
        refused = pytest.raises(RecordingError, match=f"segment {query_start + 1} was pruned: {begins}")
        with refused:
            reader.latestOffset(start, ReadAllAvailable())
        with refused:
            reader.partitions(start, start | {"segment": 40})
    replicate(folder, tmp_path / "lake")


def test_a_reader_is_refused_while_it_runs(folder: Path, recorder: Recorder, tmp_path: Path) -> None:
    """A reader that was forgotten finds out when it reads the next segments, and is not registered again."""
    recorder.store(20)
    query = replicate_stepwise(folder, tmp_path / "lake")
    next(query)
    recorder.store_all()
    (reader,) = read_readers(locate(folder))
    prune(folder, keep=0, forget=[reader.id])
    assert read_beginning(locate(folder)).segment > 21
    with pytest.raises(RecordingError, match=r"segment \d+ was pruned"):
        next(query)
    assert read_readers(locate(folder)) == []


def replicate_stepwise(folder: Path, target: Path) -> Iterator[None]:
    """Apply the new segments of a recording at each step, with the same query."""
    query = Query(
        folder,
        target,
        history=False,
        updates=None,
        dropped="keep",
        stop=None,
        on_batch=None,
        on_progress=None,
    )
    while True:
        query.run(follow=False)
        yield


def test_segments_are_kept_for_whoever_needs_them(folder: Path, recorder: Recorder, tmp_path: Path) -> None:
    recorder.store_all()
    assert "too new" in prune(folder, keep=3600).kept
    replicate(folder, tmp_path / "lake")
    (reader,) = read_readers(locate(folder))
    assert reader.segment == last_acknowledged(locate(folder))
    (last,) = Recording(folder).metadata([reader.segment])
    assert reader.lsn == last.end_lsn
    register(folder, msgspec.structs.replace(reader, id="behind", segment=9))
    done = prune(folder, keep=0)
    assert "reader behind needs it" in done.kept or "a transaction" in done.kept
    assert 1 < done.first_segment <= 9
    (folder / ".tables.partial").mkdir()
    before = prune(folder, keep=0, forget=["behind"])
    assert (before.first_segment, before.files) == (done.first_segment, 0)
    assert "copies tables" in before.kept
    (folder / ".tables.partial").rmdir()
    (folder / "_recording.json").write_text('{"last_segment": 20}')
    assert 9 < prune(folder, keep=0, dry_run=True).first_segment <= 20


def register(folder: Path, reader: Reader) -> None:
    path = Path(reader_file(locate(folder), reader.id).path)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.encode(reader))


def test_a_failed_table_keeps_the_segments_that_it_has_missed(
    folder: Path, recorder: Recorder, tmp_path: Path
) -> None:
    target = tmp_path / "lake"
    recorder.store(20)
    replicate(folder, target)
    place = Path(next(iter(replica_tables(target).values())).place)
    moved = place.rename(tmp_path / "moved")
    recorder.store_all()
    replicate(folder, target)
    assert 1 < prune(folder, keep=0).first_segment <= 20
    moved.rename(place)
    replicate(folder, target)
    assert not any(one.error for one in replica_tables(target).values())
    assert prune(folder, keep=0).first_segment > 20


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_reader_that_registers_while_the_beginning_changes_is_noticed(
    folder: Path, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """One of both notices the other, whichever writes first."""
    recorder.store_all()
    write_beginning = pruning._write
    registered: list[bool] = []

    def register_too(*arguments: object) -> None:
        if moment == "after":
            write_beginning(*arguments)  # type: ignore[arg-type]
        if not registered:
            registered.append(True)
            if moment == "after":
                with pytest.raises(RecordingError, match="segment 1 was pruned"):
                    replicate(folder, tmp_path / "lake")
            else:
                replicate(folder, tmp_path / "lake")
                (reader,) = read_readers(locate(folder))
                register(folder, msgspec.structs.replace(reader, segment=0))
        if moment == "before":
            write_beginning(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pruning, "_write", register_too)
    done = prune(folder, keep=0)
    if moment == "after":
        assert done.first_segment > 30
    else:
        assert (done.first_segment, done.files, len(done.readers)) == (1, 0, 1)
        assert (folder / segment_name(1)).exists() or Recording(folder).numbers[0] == 1


def test_a_reader_that_registers_too_late_is_refused(
    folder: Path, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recording is pruned after the reader has looked where it begins, before the reader registers."""
    recorder.store_all()

    def prune_first(*arguments: object) -> None:
        prune(folder, keep=0)
        write_file(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(registration, "write_file", prune_first)
    with pytest.raises(RecordingError, match="segment 1 was pruned"):
        replicate(folder, tmp_path / "lake")
    assert read_readers(locate(folder)) == []


def test_schema_versions_of_pruned_segments_are_known(whole: Path, folder: Path, recorder: Recorder) -> None:
    recorder.store_all()
    prune(folder, keep=0)
    recording, before = Recording(folder), Recording(whole)
    assert recording.numbers[0] > 30
    last = {one.relation.oid: one.relation for one in schema_versions(before.metadata(before.numbers))}
    versions = schema_versions(recording.metadata(recording.numbers), recording.beginning.relations)
    assert {one.relation.oid: one.relation for one in versions} == last
    rows = LogicalrepDataSource({"path": str(folder), "view": "table", "table": "app.tr_a"})
    assert "after" in rows.schema().names


def test_pruned_changes_are_not_taken_for_missing_ones(folder: Path, recorder: Recorder) -> None:
    """Rows as of an LSN, and rows that are copied, need all changes since some LSN."""
    recorder.store_all()
    prune(folder, keep=0)
    recording = Recording(folder)
    begins = recording.beginning.lsn
    with pytest.raises(RecordingError, match="was pruned"):
        recorded_changes.read_missing(recording, {1: NOTHING}, begins + 1)
    recorded_changes.read_missing(recording, {1: Position(begins, 0, 0)}, begins + 1)
    with pytest.raises(RecordingError, match="was pruned"):
        list(copied_rows._later_transactions(recording, begins - 1))
    assert list(copied_rows._later_transactions(recording, begins))


def test_only_recordings_of_the_recorder_are_pruned(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"_recording\.json is missing"):
        prune(whole, keep=0)
    replicate(whole, tmp_path / "lake")
    assert not (whole / "_readers").exists()


def test_the_command_prints_what_it_removes(
    run: Run, folder: Path, recorder: Recorder, tmp_path: Path
) -> None:
    recorder.store_all()
    assert "0 files, 0 bytes removed" in run("prune", "--recording", folder).out
    replicate(folder, tmp_path / "lake")
    (reader,) = read_readers(locate(folder))
    gone = msgspec.structs.replace(reader, id="gone", segment=5, time="2026-01-31 12:00:00+00:00")
    register(folder, gone)
    printed = run("prune", "--recording", folder, "--keep", "0s", "--dry-run")
    assert (printed.code, "would be removed" in printed.out) == (0, True)
    assert f"{reader.id}  tables " in printed.out
    assert "reader gone has read nothing since 2026-01-31 12:00:00+00:00" in printed.err
    done = run("prune", "--recording", folder, "--keep", "0s", "--forget", "gone", "--json")
    assert json.loads(done.out)["first_segment"] > 30
    unknown = run("prune", "--recording", folder, "--forget", "gone")
    assert (unknown.code, "reader gone is not registered" in unknown.err) == (2, True)
    assert run("prune", "--recording", folder, "--keep", "7").code == 2
    listed = run("segments", folder)
    assert listed.code == 0
    assert "earlier segments were pruned" in listed.out
    assert reader.id in listed.out
    assert run("check", folder).code == 0
