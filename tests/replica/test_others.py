"""What others do to a target: its tables end equal to the server's, or the trouble is named, never silent."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from logicalrep.errors import LogicalrepError, RecordingError, ReplicaError
from logicalrep.replica import replica_tables, replicate, reset_tables, select_tables, versions_at
from tests.recorder.lab import Lab
from tests.recording.recordings import sent, source, write
from tests.replica.tables import row_texts


class Target:
    """A recording and its replica, with copies of both from before the last changes.

    Attributes:
        path: The folder of the replica.
        older: The copy of the replica.
        older_recording: The copy of the recording.
        reports: Errors of tables, and reasons why they may differ, of the last run.
    """

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.path, self.older, self.older_recording = folder / "lake", folder / "older", folder / "older_r"
        self.reports: list[str] = []
        lab.run(
            "CREATE PUBLICATION p FOR ALL TABLES",
            *(f"CREATE TABLE {name} (id int PRIMARY KEY, a text)" for name in ("t", "u", "idle")),
        )
        lab.record()
        lab.run(
            "INSERT INTO t SELECT g, 'one' FROM generate_series(1, 50) g",
            "INSERT INTO u VALUES (1, 'one')",
            "INSERT INTO idle VALUES (1, 'one')",
        )
        self.follow()
        shutil.copytree(self.path, self.older)
        shutil.copytree(lab.folder, self.older_recording)
        lab.run("UPDATE t SET a = 'two' WHERE id % 3 = 0", "DELETE FROM t WHERE id < 4")
        self.follow()
        lab.run("INSERT INTO t VALUES (100, 'three')", "INSERT INTO u VALUES (2, 'two')")
        self.follow()

    def follow(self) -> None:
        """Record, and run a query."""
        self.lab.record()
        self.reports = []

        def report(segment: int, results: object) -> None:
            for one in results:  # type: ignore[attr-defined]
                self.reports += [one.error] if one.error else []
                self.reports += [difference.reason for difference in one.may_differ]

        replicate(self.lab.folder, self.path, on_batch=report)

    def table(self, name: str) -> Path:
        return self.path / f"public.{name}"

    def different(self) -> list[str]:
        """Return the tables that differ from the server's, by a SELECT of the test."""
        return [name for name in ("t", "u", "idle") if self.rows(name) != self.expected(name)]

    def expected(self, name: str) -> Counter[tuple[str | None, ...]]:
        return Counter(self.lab.rows(f"SELECT id::text, a FROM {name}"))

    def rows(self, name: str) -> Counter[tuple[str | None, ...]]:
        """Return the rows of the table that `replica_tables` names."""
        (place,) = (one.place for one in replica_tables(self.path).values() if one.name == name)
        rows = pa.table(DeltaTable(place).scan()).select(["id", "a", "_rescued_data"])
        found = map(row_texts, rows.to_pylist())
        return Counter((row["id"], row["a"]) for row in found)

    def named(self) -> list[str]:
        """Return the tables that `replica_tables` reports."""
        tables = replica_tables(self.path).values()
        return sorted(one.name for one in tables if one.error or one.may_differ)


@pytest.fixture
def target(lab: Lab, tmp_path: Path) -> Target:
    made = Target(lab, tmp_path)
    assert made.different() == []
    return made


def replace(old: Path, new: Path) -> None:
    """Replace a file or folder by an older copy, which may not exist."""
    shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    if new.is_dir():
        shutil.copytree(new, old)
    elif new.exists():
        shutil.copy(new, old)


def older_target(target: Target) -> None:
    replace(target.path, target.older)


def older_table(target: Target) -> None:
    replace(target.table("t"), target.older / "public.t")


def newer_cache(target: Target) -> None:
    """All tables are older, and the cache is not."""
    kept = (target.path / "_reached.json").read_text()
    replace(target.path, target.older)
    (target.path / "_reached.json").write_text(kept)


def older_cache(target: Target) -> None:
    replace(target.path / "_reached.json", target.older / "_reached.json")


def no_cache(target: Target) -> None:
    (target.path / "_reached.json").unlink()


def lost_commits(target: Target) -> None:
    """The last entries of a log are lost in a crash."""
    log = sorted((target.table("t") / "_delta_log").glob("*.json"))
    for file in log[-2:]:
        file.unlink()


def lost_table(target: Target) -> None:
    """The folder of a table is removed, with its entry in the registry."""
    (entry,) = (one for one in (target.path / "_relations").iterdir() if one.read_text() == "public.t")
    entry.unlink()
    shutil.rmtree(target.table("t"))


def lost_tables(target: Target) -> None:
    """The target is emptied, except for the file that names its recording."""
    for path in target.path.iterdir():
        if path.name != "_owner.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def cache_of_another(target: Target) -> None:
    """The cache of a target that follows fewer tables, of which one has no table here."""
    other = target.path.parent / "other"
    select_tables(target.lab.folder, other, ["public.u"])
    replicate(target.lab.folder, other)
    lost_table(target)
    shutil.copy(other / "_reached.json", target.path / "_reached.json")


def copied_table(target: Target) -> None:
    """The folder of a table is copied inside the target; a reader's name for it comes first."""
    shutil.copytree(target.table("t"), target.path / "a backup of t")


def optimized(target: Target) -> None:
    table = DeltaTable(target.table("t"))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@pytest.mark.parametrize(
    "change",
    [
        older_target, older_table, newer_cache, older_cache, no_cache, lost_commits, lost_table, lost_tables,
        copied_table, optimized, cache_of_another,
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_changed", [False, True], ids=["idle", "changed"])
def test_tables_are_equal_after_the_next_run(
    target: Target, change: Callable[[Target], None], is_changed: bool
) -> None:
    """Whether the table changes afterwards or not. The recording has all its segments."""
    change(target)
    if is_changed:
        target.lab.run("UPDATE t SET a = 'four' WHERE id % 5 = 0", "INSERT INTO t VALUES (101, 'four')")
    target.follow()
    assert (target.different(), target.reports) == ([], [])
    target.follow()
    assert target.different() == []


def test_a_lost_registry_is_restored(target: Target) -> None:
    """The tables are not changed afterwards, and a copy of a table in the target is left alone."""
    registry, cache = target.path / "_relations", target.path / "_reached.json"
    entries, reached = {one.name: one.read_text() for one in registry.iterdir()}, cache.read_text()
    copied_table(target)
    shutil.rmtree(registry)
    tables = replica_tables(target.path)
    assert {one.name for one in tables.values()} == {"t", "u", "idle"}
    assert all(f"{registry}/{oid}: the file is missing" in one.error for oid, one in tables.items())
    with pytest.raises(ReplicaError, match=rf"{registry}/\d+: the file is missing, .*`logicalrep replicate`"):
        versions_at(target.path)
    target.lab.run("CREATE TABLE new (id int)", "INSERT INTO new VALUES (1)")
    target.follow()
    assert {one.name: one.read_text() for one in registry.iterdir() if one.name in entries} == entries
    found, before = (json.loads(text)["tables"] for text in (cache.read_text(), reached))
    assert [found[oid]["position"] for oid in before] == [one["position"] for one in before.values()]
    assert (target.different(), target.named()) == ([], [])


def removed(target: Target) -> None:
    shutil.rmtree(target.path)


def without_owner(target: Target) -> None:
    (target.path / "_owner.json").unlink()


def other_target(target: Target) -> None:
    shutil.rmtree(target.path)
    replicate(target.lab.folder, target.path)


@pytest.mark.parametrize("change", [removed, without_owner, other_target])
def test_a_run_ends_when_its_target_is_removed_or_replaced(
    target: Target, change: Callable[[Target], None]
) -> None:
    stop, began = threading.Event(), threading.Event()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(
            replicate,
            target.lab.folder,
            target.path,
            follow=True,
            stop=stop,
            on_progress=lambda progress: began.set(),
        )
        try:
            began.wait()
            change(target)
            before = sorted(target.path.rglob("*"))
            target.lab.run("INSERT INTO t VALUES (101, 'four')")
            target.lab.record()
            expected = r"_owner\.json: the file (is missing|has another ID), .* while this run wrote to it"
            with pytest.raises(ReplicaError, match=expected):
                run.result(60)
        finally:
            stop.set()
    assert sorted(target.path.rglob("*")) == before
    if change is without_owner:
        with pytest.raises(ReplicaError, match=r"_owner\.json: the file is missing, .* Put the file back"):
            target.follow()
    else:
        target.follow()
        assert target.different() == []


def appended(target: Target) -> None:
    rows = DeltaTable(target.table("t")).to_pyarrow_table()
    write_deltalake(target.table("t"), rows.slice(0, 1), mode="append")


def deleted(target: Target) -> None:
    DeltaTable(target.table("t")).delete("id = 100")


def updated(target: Target) -> None:
    DeltaTable(target.table("t")).update({"a": "'other'"}, predicate="id = 100")


def overwritten(target: Target) -> None:
    rows = DeltaTable(target.table("t")).to_pyarrow_table()
    write_deltalake(target.table("t"), rows.slice(0, 5), mode="overwrite")


def restored(target: Target) -> None:
    table = DeltaTable(target.table("t"))
    table.restore(table.version() - 1)


@pytest.mark.parametrize("change", [appended, deleted, updated, overwritten, restored])
@pytest.mark.parametrize("is_changed", [False, True], ids=["idle", "changed"])
def test_rows_that_others_change_are_named(
    target: Target, change: Callable[[Target], None], is_changed: bool
) -> None:
    change(target)
    if is_changed:
        target.lab.run("UPDATE u SET a = 'four'", "INSERT INTO t VALUES (101, 'four')")
    target.follow()
    assert target.different() == target.named() == ["t"]
    (reason,) = target.reports
    assert "another program has changed rows: " in reason
    target.follow()
    assert target.reports == []  # it is reported once, and stays listed
    assert target.named() == ["t"]


def moved_away(target: Target) -> None:
    target.table("t").rename(target.path.parent / "moved")


def flipped_log(target: Target) -> None:
    for file in (target.table("t") / "_delta_log").iterdir():
        file.write_bytes(b"{" + file.read_bytes()[1:-1])


def lost_data(target: Target) -> None:
    for path in DeltaTable(target.table("t")).file_uris():
        Path(path).unlink()


def append_only(target: Target) -> None:
    DeltaTable(target.table("t")).alter.set_table_properties({"delta.appendOnly": "true"})


def deletion_vector(target: Target) -> None:
    """The first row of a data file is deleted by a vector in the log, as Spark does it."""
    table = DeltaTable(target.table("t"))
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    log = target.table("t") / "_delta_log"
    lines = [line for file in sorted(log.glob("0*.json")) for line in file.read_text().splitlines()]
    commits = map(json.loads, lines)
    added = next(one["add"] for one in reversed([*commits]) if "add" in one)
    # One bitmap, of the rows 0 to 65,535, with the row 0.
    rows = struct.pack("<iqiIIHHIH", 1_681_511_377, 1, 0, 12346, 1, 0, 0, 16, 0)
    encoded = base64.b85encode(rows + bytes(-len(rows) % 4)).translate(_TO_Z85).decode()
    vector = {"storageType": "i", "pathOrInlineDv": encoded, "sizeInBytes": len(rows), "cardinality": 1}
    removed = {"path": added["path"], "deletionTimestamp": 0, "dataChange": True}
    actions = {"remove": removed}, {"add": added | {"deletionVector": vector}}
    text = "\n".join(json.dumps(one) for one in actions)
    (log / f"{table.version() + 1:020}.json").write_text(text)
    assert pa.table(DeltaTable(target.table("t")).deletion_vectors()).num_rows == 1


_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85 = bytes.maketrans(_B85, _Z85)


@pytest.mark.parametrize("change", [moved_away, flipped_log, lost_data, append_only])
def test_a_table_that_cannot_be_written_fails(target: Target, change: Callable[[Target], None]) -> None:
    change(target)
    target.lab.run("UPDATE t SET a = 'four' WHERE id > 40", "UPDATE u SET a = 'four'")
    target.follow()
    assert target.named() == ["t"]
    assert target.reports
    assert target.rows("u") == target.expected("u")


@pytest.mark.parametrize("is_changed", [False, True], ids=["idle", "changed"])
def test_a_deletion_vector_of_another_program_is_named_and_kept(target: Target, is_changed: bool) -> None:
    deletion_vector(target)
    if is_changed:
        target.lab.run("UPDATE t SET a = 'four' WHERE id > 40", "UPDATE u SET a = 'four'")
    target.follow()
    assert target.named() == ["t"]
    assert target.different() == ([] if is_changed else ["t"])  # an update writes the deleted row again
    assert "another program has changed rows: " in target.reports[0]
    reset_tables(target.lab.folder, target.path, ["public.t"])
    target.follow()
    assert target.different() == []


def test_a_recording_with_an_earlier_end_is_refused(target: Target) -> None:
    replace(target.lab.folder, target.older_recording)
    before = target.rows("t")
    with pytest.raises(
        RecordingError, match="no segment ends at this LSN: segments are missing or were replaced"
    ):
        replicate(target.lab.folder, target.path)
    assert target.rows("t") == before


def test_a_recording_that_was_made_again_is_refused(tmp_path: Path) -> None:
    """It has the same UUID, and other segments: positions may be others too."""
    folder, name = tmp_path / "recording", "pg18_p4_par_2pc"
    for number, size in enumerate((150, 110)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write(folder, source(name), sent(name), size)
        if number:
            with pytest.raises(RecordingError, match="no segment ends at this LSN"):
                replicate(folder, tmp_path / "lake")
            continue
        last = sorted(folder.iterdir())[-1]
        kept = last.rename(tmp_path / last.name)
        replicate(folder, tmp_path / "lake")
        kept.rename(last)


def test_two_runs_at_the_same_time_apply_each_change_once(target: Target) -> None:
    errors: list[BaseException] = []

    def run(stop: threading.Event) -> None:
        try:
            replicate(target.lab.folder, target.path, follow=True, stop=stop)
        except LogicalrepError as error:
            errors.append(error)

    stop = threading.Event()
    runs = [threading.Thread(target=run, args=(stop,)) for _ in range(2)]
    for one in runs:
        one.start()
    try:
        for number in range(8):
            target.lab.run(
                f"INSERT INTO t SELECT 1000 * {number} + g, 'x' FROM generate_series(200, 400) g",
                "UPDATE t SET a = a || 'y' WHERE id % 7 = 0",
            )
            target.lab.record()
    finally:
        stop.set()
        for one in runs:
            one.join()
    target.follow()
    assert (errors, target.different(), target.named()) == ([], [], [])
