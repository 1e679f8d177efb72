"""Replicas equal the tables of a running PostgreSQL server."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from logicalrep.recorder import Connected, TableComplete, request_snapshot
from logicalrep.recorder.snapshots.table_copy import TableCopy
from logicalrep.recording import Recording, SegmentReader
from logicalrep.replica import TableResult, replica_tables, replicate, replication, reset_tables
from logicalrep.views import ChangesView, plan_changes, read
from tests.recorder.lab import Lab
from tests.recorder.test_table_snapshots import complete
from tests.replica.changes import sorted_changes
from tests.replica.live import Replica
from tests.replica.tables import apply, different_tables, read_table, table_of
from tests.truth import TrueTable

pytestmark = pytest.mark.usefixtures("any_format")


@pytest.mark.parametrize("history", [False, True])
def test_rows_of_a_table_without_columns_are_deleted(history: bool, lab: Lab, tmp_path: Path) -> None:
    """Rows are deleted in the micro-batch that inserts them, and in a later micro-batch."""
    lab.run(
        "CREATE TABLE bare ()",
        "ALTER TABLE bare REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE bare",
    )
    lab.record()
    insert, delete = (
        "INSERT INTO bare DEFAULT VALUES",
        "DELETE FROM bare WHERE ctid = (SELECT min(ctid) FROM bare)",
    )
    lab.run(*[insert] * 4, delete)
    lab.record()
    replica = Replica(lab, tmp_path / "target", history=history)
    replica.follow()
    assert len(replica.rows("bare")) == 3
    lab.run(delete, insert, delete)
    lab.record()
    replica.follow()
    assert len(replica.rows("bare")) == lab.value("SELECT count(*) FROM bare") == 2


def test_a_streamed_transaction_that_commits_right_after_copied_rows_is_applied_after_them(
    lab: Lab, monkeypatch: Any, tmp_path: Path
) -> None:
    """The commit record of the transaction begins where the commit record before the copied rows ends."""
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE late (id int PRIMARY KEY)",
        "INSERT INTO late SELECT generate_series(1, 9)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    copying, changed = threading.Event(), threading.Event()
    run = TableCopy.run

    def run_after_changes(*arguments: Any) -> Any:
        copying.set()
        changed.wait()
        return run(*arguments)

    with lab.recording(snapshot=True) as recording, lab.connect() as writer:
        recording.wait(Connected)
        monkeypatch.setattr(TableCopy, "run", run_after_changes)
        lab.run("ALTER PUBLICATION p ADD TABLE late")
        assert copying.wait(60)
        writer.execute("BEGIN; INSERT INTO late SELECT generate_series(10, 3000)")
        lab.run("INSERT INTO t VALUES (1)")
        changed.set()
        recording.wait(TableComplete)
        writer.execute("COMMIT")
    lab.record(snapshot=True)
    replica = Replica(lab, tmp_path / "target")
    replica.follow()
    replica.assert_equal("late")


def test_a_table_whose_data_is_lost_is_continued_with_a_snapshot(lab: Lab, tmp_path: Path) -> None:
    """The table fails at the changes before the snapshot, whether a query knows that or not."""
    lab.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE t")
    lab.run("INSERT INTO t SELECT generate_series(1, 9), 'old'")
    lab.record(snapshot=True)
    replica = Replica(lab, tmp_path / "target")
    replica.follow()
    for file in Path(replica.table("t").place).rglob("*.parquet"):
        file.unlink()
    lab.run("UPDATE t SET v = 'new' WHERE id = 1")
    lab.record(snapshot=True)
    with pytest.raises(AssertionError):
        replica.follow()
    assert replica.table("t").error
    request_snapshot(lab.folder, ["public.t"])
    assert complete(lab.record(snapshot=True)) == ["public.t"]
    lab.run("UPDATE t SET v = 'newer' WHERE id = 2")
    lab.record(snapshot=True)
    results: list[TableResult] = []
    replicate(lab.folder, replica.target, on_batch=lambda _, applied: results.extend(applied))
    assert [bool(one.error) for one in results] == [True, False]
    assert replica.table("t").error == ""
    replica.assert_equal()


@pytest.mark.parametrize("fails_before", [False, True])
def test_tables_that_cannot_be_opened_are_built_anew_from_a_snapshot(
    fails_before: bool, lab: Lab, tmp_path: Path
) -> None:
    """A commit of the log, a checkpoint or the folder is lost; two runs fail before the snapshot, or none."""
    names = ["gap", "checkpoint", "folder"]
    for name in names:
        lab.run(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", f"INSERT INTO {name} VALUES (1, 'old')")
    lab.run("CREATE PUBLICATION p FOR ALL TABLES")
    lab.record(snapshot=True)
    replica = Replica(lab, tmp_path / "target")
    for number in range(12):
        replica.follow()
        lab.run(*(f"UPDATE {name} SET v = 'new {number}'" for name in names))
        lab.record(snapshot=True)
    gap, checkpoint, folder = (Path(replica.table(name).place) for name in names)
    for file in sorted(gap.glob("_delta_log/*.json"))[-2:-1] or gap.glob("metadata/*.metadata.json"):
        file.unlink()
    for file in checkpoint.rglob("*.checkpoint.parquet"):
        file.write_bytes(file.read_bytes()[:-20])
    shutil.rmtree(folder)
    for _ in range(2 if fails_before else 0):
        replicate(lab.folder, replica.target)
        assert replica.table("folder").error
    request_snapshot(lab.folder, [f"public.{name}" for name in names])
    lab.record(snapshot=True)
    replicate(lab.folder, replica.target)
    assert [replica.table(name).error for name in names] == [""] * 3
    for name in names:
        replica.assert_equal(name)


def test_a_table_with_history_that_cannot_be_opened_stays_failed_until_it_is_reset(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot lacks the old versions of rows. A later micro-batch does not end its failure."""
    lab.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE t")
    lab.run("INSERT INTO t SELECT generate_series(1, 9), 'old'")
    lab.record(snapshot=True)
    replica = Replica(lab, tmp_path / "target", history=True)
    replica.follow()
    shutil.rmtree(replica.table("t").place)
    replicate(lab.folder, replica.target, history=True)
    request_snapshot(lab.folder, ["public.t"])
    lab.run("UPDATE t SET v = 'new' WHERE id = 1")
    lab.record(snapshot=True)
    monkeypatch.setattr(replication, "SEGMENTS_PER_BATCH", 1)
    replicate(lab.folder, replica.target, history=True)
    assert [*(replica.target / "_failed_tables").iterdir()]
    reset_tables(lab.folder, replica.target, ["public.t"])
    replica.follow()
    assert replica.table("t").error == ""
    replica.assert_equal()


@pytest.mark.parametrize("history", [False, True])
def test_a_snapshot_arrives_in_one_micro_batch(history: bool, lab: Lab, tmp_path: Path) -> None:
    """The snapshot fills several segments, and each micro-batch reads one segment."""
    lab.run(
        "CREATE TABLE late (id int PRIMARY KEY, v text)",
        "CREATE TABLE t (id int)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    lab.record(snapshot=True)
    lab.run("INSERT INTO late SELECT i, repeat('x', 100) FROM generate_series(1, 900) i")
    lab.run("ALTER PUBLICATION p ADD TABLE late", "UPDATE late SET v = 'y' WHERE id < 100")
    assert complete(lab.record(snapshot=True, segment_bytes=20_000)) == ["public.late"]
    assert [one.kind for one in lab.segments()].count("snapshot") > 2
    lab.run("DELETE FROM late WHERE id = 5")
    lab.record(snapshot=True)
    oid = lab.value("SELECT 'late'::regclass::oid::int8")
    batches = [changes_of(lab.folder, number) for number in Recording(lab.folder).numbers]
    target = tmp_path / "target"
    for changes in batches:
        apply(changes.to_batches(), target, history=history, max_rows=120)
    assert sum("Snapshot" in batch["operation"].to_pylist() for batch in batches) == 1
    rows: list[Any] = [tuple(map(str, row)) for row in lab.rows("SELECT id, v FROM late")]
    if not history:
        assert different_tables(target, [TrueTable(oid, "late", ("id", "v"), rows)]) == []
    sizes = []
    for version in range(table_of(target, oid).version + 1):
        found = read_table(replica_tables(target)[oid].place, version).to_pylist()
        sizes.append(sum(row.get("__END_AT") is None for row in found))
    assert {*sizes} <= {0, 99, 900, 899}
    assert sizes[-1] == 899


def changes_of(folder: Path, number: int) -> pa.Table:
    """Return the changes of a micro-batch that consists of one segment."""
    rows: list[pa.RecordBatch] = []
    for task in plan_changes(Recording(folder), [number]):
        with SegmentReader(task.place) as segment:
            rows += read(segment, ChangesView(segment, task, lambda shape: True))
    return sorted_changes(rows)
