"""A Delta table with many commits has few files."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from logicalrep.apply.data_files import DataFiles, small_files
from logicalrep.recording import Location
from logicalrep.replica import Maintenance, TableResult, maintain_tables, replicate
from logicalrep.targets import ChangeRange, Position, Table
from logicalrep.targets.delta.cleaning import PROPERTIES
from logicalrep.targets.registry import OID
from tests.recording.recordings import sent, source, write
from tests.replica.tables import different_tables, open_table
from tests.truth import true_tables

SCHEMA = pa.schema([("id", pa.int64())])
COMMITS = 110


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    write(folder, source("pg18_p4_par_2pc"), sent("pg18_p4_par_2pc"), 20)
    return folder


def make_table(folder: Path, properties: dict[str, str | None], commits: int) -> DeltaTable:
    """Make a Delta table with one row for each commit; small files are combined as in a replica."""
    DeltaTable.create(folder, SCHEMA, configuration=properties, raise_if_key_not_exists=False)
    for number in range(commits):
        if number % 7 == 0:
            table = open_table(folder)
        files = DataFiles(table)
        paths = small_files(files)
        small = [file for file in files if file.path in paths]
        rows = [pa.record_batch([[number]], schema=SCHEMA)]
        rows += [batch for file in small for batch in files.read(file)]
        changes = ChangeRange(number, Position(number, 0, 0), 0)
        table.commit(files.write(rows), small, changes)
    return DeltaTable(folder)


def test_replaced_files_and_old_commits_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logicalrep.targets.delta.cleaning._HOURS", 0)
    table = make_table(tmp_path, PROPERTIES | {"delta.logRetentionDuration": "interval 0 seconds"}, COMMITS)
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(COMMITS))
    assert len(list(tmp_path.glob("*.parquet"))) <= 20
    assert len(list((tmp_path / "_delta_log").iterdir())) <= 20 + 5
    assert open_table(tmp_path).position == Position(COMMITS - 1, 0, 0)


def test_a_new_table_keeps_replaced_files_for_an_hour(tmp_path: Path) -> None:
    table = make_table(tmp_path, PROPERTIES, 40)
    assert len(list(tmp_path.glob("*.parquet"))) == 40
    assert not any(commit["operation"].startswith("VACUUM") for commit in table.history())


def test_the_retention_time_of_the_table_is_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logicalrep.targets.delta.cleaning._HOURS", 0)
    make_table(tmp_path, {"delta.deletedFileRetentionDuration": "interval 3 days"}, 20)
    assert len(list(tmp_path.glob("*.parquet"))) == 20


@pytest.mark.parametrize(("retention", "kept"), [("1 minute", [1]), ("2 days", [1, 25])])
def test_unused_files_are_kept_for_a_day_and_the_retention_time(
    retention: str, kept: list[int], tmp_path: Path
) -> None:
    make_table(tmp_path, {"delta.deletedFileRetentionDuration": f"interval {retention}"}, 3)
    for hours in (1, 25, 49):
        (path := tmp_path / f"part-{hours}.parquet").write_bytes(b"not committed")
        os.utime(path, (time.time() - hours * 3600,) * 2)
    open_table(tmp_path).remove_unused()
    assert [hours for hours in (1, 25, 49) if (tmp_path / f"part-{hours}.parquet").exists()] == kept


def test_files_that_cannot_be_removed_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> list[str]:
        raise OSError("no permission")

    monkeypatch.setattr(DeltaTable, "vacuum", refuse)
    assert make_table(tmp_path, {}, 21).version() == 21


def test_a_commit_of_properties_delays_a_checkpoint_by_one_commit(tmp_path: Path) -> None:
    make_table(tmp_path, PROPERTIES | {"delta.checkpointInterval": "0"}, 8)  # 0 is invalid: as 10
    table = open_table(tmp_path)
    for number in (9, 11):
        table.commit([], [], ChangeRange(number, Position(number, 0, 0), 0))
        table.set_properties({"note": str(number)})
    assert [path.name for path in tmp_path.glob("_delta_log/*.checkpoint.parquet")] == [
        f"{11:020}.checkpoint.parquet"
    ]


def make_replica(target: Path) -> DeltaTable:
    """Make a replica with one Delta table."""
    table = make_table(target / "t", PROPERTIES | {OID: "1"}, 30)
    (target / "_relations").mkdir()
    (target / "_relations" / "1").write_text("t")
    return table


def test_a_table_without_new_changes_is_maintained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last commit removes nothing, and there are files of a commit that was never made."""
    table = make_replica(tmp_path)
    rows, version = table.to_pyarrow_table(), table.version()
    folder = tmp_path / "t"
    for name, hours in (("part-old.parquet", 25), ("part-new.parquet", 1)):
        (folder / name).write_bytes(b"not committed")
        time_ = time.time() - hours * 3600
        os.utime(folder / name, (time_, time_))
    assert maintain_tables(tmp_path) == 1
    assert {path.name for path in folder.glob("part-???.parquet")} == {"part-new.parquet"}
    monkeypatch.setattr("logicalrep.targets.delta.cleaning._UNUSED_HOURS", 0)
    assert maintain_tables(tmp_path) > 10
    assert maintain_tables(tmp_path) == 0
    remaining = DeltaTable(folder)
    assert remaining.to_pyarrow_table().equals(rows)
    assert len(list(folder.glob("part-*.parquet"))) == len(remaining.file_uris())
    assert remaining.version() == version
    assert open_table(folder).position == Position(29, 0, 0)


def test_deleted_rows_are_removed_from_data_files(tmp_path: Path) -> None:
    make_replica(tmp_path)
    table = open_table(tmp_path / "t")
    table.set_deletes_rows(True)
    files = DataFiles(table)
    rows = pa.record_batch([pa.array(range(1000), table.schema[0].type)], schema=table.schema)
    first, second = files.write([rows]), files.write([rows])
    changes = ChangeRange(40, Position(40, 0, 0), 0)
    deleted = {first[0].path: np.arange(51), second[0].path: np.arange(50)}
    table.commit([*first, *second], None, changes, deleted=deleted)
    maintain_tables(tmp_path)
    table = open_table(tmp_path / "t")
    assert sorted((file.rows, file.deleted) for file in table.files()) == [(949, 0), (1000, 50)]
    assert table.position == changes.last


def test_a_query_commits_while_its_tables_are_maintained(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of both are repeated after a conflict, and no change is applied twice."""
    monkeypatch.setattr("logicalrep.replica.replication.SEGMENTS_PER_BATCH", 1)
    stop, removed, results = threading.Event(), list[int](), list[TableResult]()

    def maintain() -> None:
        while not stop.is_set():
            for log in (tmp_path / "lake").glob("*/_delta_log"):
                (log.parent / "part-old.parquet").write_bytes(b"not committed")
                os.utime(log.parent / "part-old.parquet", (0, 0))
            removed.append(maintain_tables(tmp_path / "lake"))
            stop.wait(0.2)

    thread = threading.Thread(target=maintain)
    thread.start()
    try:
        replicate(recording, tmp_path / "lake", on_batch=lambda batch, applied: results.extend(applied))
    finally:
        stop.set()
        thread.join(60)
    assert [one.error for one in results if one.error] == []
    assert different_tables(tmp_path / "lake", list(true_tables("pg18"))) == []
    assert sum(removed)


def test_a_table_with_an_error_is_left_for_the_next_maintenance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_replica(tmp_path)
    (tmp_path / "_relations" / "0").write_text("gone")
    (tmp_path / "t" / "part-old.parquet").write_bytes(b"not committed")
    os.utime(tmp_path / "t" / "part-old.parquet", (0, 0))
    with caplog.at_level("INFO"):
        assert maintain_tables(tmp_path) == 1
        monkeypatch.setattr("logicalrep.replica.maintenance.write_again", fill_disk)
        assert maintain_tables(tmp_path) == 0
    assert caplog.text.count("the table with OID 0 of") == 2
    assert "the table with OID 1 of" in caplog.text
    assert "No space left" in caplog.text


def fill_disk(table: Table) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_maintenance_ends_between_two_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_relations").mkdir()
    for oid in "12":
        (tmp_path / "_relations" / oid).write_text("t")
    maintenance, begun, found = Maintenance(tmp_path), threading.Event(), list[int]()

    def find(target: Location, oid: int) -> None:
        found.append(oid)
        begun.set()
        assert maintenance._stop.wait(60)

    monkeypatch.setattr("logicalrep.replica.maintenance.find_table", find)
    with maintenance:
        assert begun.wait(60)
    assert found == [1]
