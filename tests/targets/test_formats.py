"""Each table format keeps the promises of the protocol, and a replica in it equals the source."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from logicalrep.apply.data_files import DataFiles
from logicalrep.errors import ReplicaError
from logicalrep.recording import locate
from logicalrep.replica import replica_tables, replicate, versions_at
from logicalrep.targets import (
    NOTHING,
    ChangeRange,
    ConflictError,
    DataFile,
    Position,
    State,
    Table,
    Version,
    registry,
)
from tests.recording.recordings import sent, source, write
from tests.replica.tables import different_tables, read_table
from tests.targets.formats import FORMATS, Format
from tests.truth import true_tables
from tests.verification.conftest import lab, replica, server
from tests.verification.replica import Replica

__all__ = ["lab", "replica", "server"]

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string(), metadata={"a key": "a text"})])


@pytest.fixture(params=FORMATS)
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Format:
    """The format of all tables of a test."""
    monkeypatch.setattr(registry, "format_of", lambda target: FORMATS[request.param].format)
    return FORMATS[request.param]


@pytest.fixture
def table(made: Format, tmp_path: Path) -> Table:
    return made.format.create(locate(tmp_path / "t"), SCHEMA, {"owner": "a test"})


def opened(made: Format, table: Table) -> Table:
    found = made.format.open(table.place)
    assert found is not None
    return found


def rows(*ids: int, schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    return [pa.record_batch([ids, [f"note {one}" for one in ids]], schema=schema)]


def written(table: Table, *ids: int) -> list[DataFile]:
    return DataFiles(table).write(rows(*ids))


def ids(table: Table) -> list[int]:
    files = DataFiles(table)
    return [row["id"] for file in files for batch in files.read(file) for row in batch.to_pylist()]


def change(lsn: int) -> ChangeRange:
    return ChangeRange(lsn - 5, Position(lsn, lsn, 0), lsn * 10)


def test_a_new_table_is_empty(made: Format, table: Table) -> None:
    for one in (table, opened(made, table)):
        assert (one.version, one.position, one.files(), one.foreign_change()) == (0, NOTHING, [], "")
        assert one.schema == SCHEMA
        assert one.schema.field("note").metadata == {b"a key": b"a text"}
        assert one.properties["owner"] == "a test"


def test_no_table_is_none(made: Format, tmp_path: Path) -> None:
    assert made.format.open(locate(tmp_path / "none")) is None


def test_rows_and_position_change_in_one_commit(made: Format, table: Table) -> None:
    table.commit(written(table, 1, 2), [], change(100))
    (file,) = table.files()
    assert (file.rows, file.min_values["id"], file.max_values["id"], file.null_counts["note"]) == (2, 1, 2, 0)
    table.commit(written(table, 2, 3), [file], change(200))
    for one in (table, opened(made, table)):
        assert (one.version, one.position, ids(one)) == (2, Position(200, 200, 0), [2, 3])
    assert (ids(table.at(1)), table.at(1).position) == ([1, 2], Position(100, 100, 0))
    table.commit(written(table, 4), None)
    assert (ids(table), table.position) == ([4], Position(200, 200, 0))


def test_a_conflict_commits_nothing(made: Format, table: Table) -> None:
    table.commit(written(table, 1), [], change(100))
    other = opened(made, table)
    table.commit(written(table, 2), table.files(), change(200))
    for removed in (other.files(), None):
        with pytest.raises(ConflictError):
            other.commit(written(other, 3), removed, change(300))
    other.refresh()
    assert (ids(other), other.position, other.version) == ([2], Position(200, 200, 0), 2)
    other.commit(written(other, 3), other.files(), change(300))
    assert ids(opened(made, table)) == [3]


def test_properties_are_added_and_changed(made: Format, table: Table) -> None:
    table.commit(written(table, 1), [], change(100))
    table.set_properties({"owner": "another", "new": ""})
    for one in (table, opened(made, table)):
        assert {key: one.properties[key] for key in ("owner", "new")} == {"owner": "another", "new": ""}
        assert (ids(one), one.position) == ([1], Position(100, 100, 0))


def test_columns_are_added_and_described(made: Format, table: Table) -> None:
    table.commit(written(table, 1), [], change(100))
    added = [pa.field("at", pa.timestamp("us")), pa.field("tags", pa.list_(pa.string()))]
    table.change_columns(added, [pa.field("note", pa.string(), metadata={"a key": "another"})])
    for one in (table, opened(made, table)):
        assert one.schema.names == ["id", "note", "at", "tags"]
        assert one.schema.field("note").metadata == {b"a key": b"another"}
        (file,) = one.files()
        (batch,) = one.read(file, one.schema)
        assert batch.to_pylist() == [{"id": 1, "note": "note 1", "at": None, "tags": None}]


def test_all_rows_are_replaced_with_other_columns(made: Format, table: Table) -> None:
    table.commit(written(table, 1), [], change(100))
    schema = pa.schema([pa.field("id", pa.string()), pa.field("time", pa.timestamp("us"))])
    writer = table.writer(schema)
    writer.write([pa.record_batch([["x"], [0]], schema=schema)])
    table.commit(writer.close(), None, change(200), schema)
    assert opened(made, table).schema.equals(schema)
    assert [str(one) for one in ids(table)] == ["x"]
    assert ids(table.at(1)) == [1]


def test_states_and_versions_are_told(table: Table) -> None:
    table.commit(written(table, 1), [], change(100))
    table.set_properties({"owner": "another"})
    table.commit(written(table, 2), [], change(200))
    table.commit([], [], change(300))
    assert list(table.states(400)) == [
        State(4, 300, 400, 3000),
        State(3, 200, 295, 2000),
        State(1, 100, 195, 1000),
        State(None, -1, 95, None),
    ]
    assert table.version_before(1000) == Version(4, Position(300, 300, 0))
    assert table.version_before(300) == Version(3, Position(200, 200, 0))
    assert table.version_before(150).applied == Position(100, 100, 0)
    assert table.version_before(100).applied == NOTHING


def test_changes_of_other_programs_are_seen(made: Format, table: Table) -> None:
    table.commit(written(table, 1), [], change(100))
    made.append(Path(table.place.path), pa.Table.from_batches(rows(5)))
    table.refresh()
    assert table.foreign_change() == f"another program has changed rows: {made.operation} in version 2"
    table.commit(written(table, 2), None, change(200))
    assert table.foreign_change() == ""


def test_a_copy_is_another_table(made: Format, table: Table, tmp_path: Path) -> None:
    table.commit(written(table, 1), [], change(100))
    table.commit(written(table, 2), [], change(200))
    table.at(1).copy(tmp_path / "copy")
    copy = made.format.open(locate(tmp_path / "copy"))
    assert copy is not None
    assert (ids(copy), copy.position) == ([1], Position(100, 100, 0))
    copy.commit(written(copy, 9), None, change(150))
    assert (ids(copy), sorted(ids(opened(made, table)))) == ([9], [1, 2])


def test_a_table_is_moved_and_removed(made: Format, table: Table, tmp_path: Path) -> None:
    table.commit(written(table, 1), [], change(100))
    to = locate(tmp_path / "elsewhere")
    made.format.move(table.place, to)
    assert made.format.open(table.place) is None
    moved = made.format.open(to)
    assert moved is not None
    assert ids(moved) == [1]
    made.format.remove(to)
    assert made.format.open(to) is None
    assert not Path(to.path).exists()


def test_a_lost_data_file_is_named(table: Table) -> None:
    table.commit(written(table, 1), [], change(100))
    (file,) = table.files()
    table.delete([file.path, "part-that-never-was.parquet"])
    with pytest.raises(ReplicaError, match=file.path):
        ids(table)


def test_files_that_no_commit_has_are_removed_after_a_day(made: Format, tmp_path: Path) -> None:
    place = locate(tmp_path / "t")
    table = made.format.create(place, SCHEMA, {})
    table.commit(written(table, 1), [], change(100))
    written(table, 2)
    (old,) = written(table, 3)
    (path,) = (tmp_path / "t").rglob(old.path)
    os.utime(path, (0, 0))
    assert table.remove_unused() == 1
    assert not path.exists()
    assert len([*(tmp_path / "t").rglob("*.parquet")]) == 2
    assert ids(table) == [1]


def test_a_replica_equals_its_source(made: Format, tmp_path: Path) -> None:
    name = "pg18_p4_par_2pc"
    recording, target = tmp_path / "recording", tmp_path / "lake"
    recording.mkdir()
    write(recording, source(name), sent(name), 150)
    replicate(recording, target)
    truth = list(true_tables("pg18"))
    assert not any(one.error for one in replica_tables(target).values())
    assert different_tables(target, truth, made.read) == []
    cut = versions_at(target)
    assert cut.tables.keys() == replica_tables(target).keys()
    for one in cut.tables.values():
        assert one.version is not None
        found, newest = made.read(one.place, one.version), made.read(one.place, None)
        assert repr(found.to_pylist()) == repr(newest.to_pylist())  # NaN is not equal to itself


def test_verify_reads_the_rows_of_a_version(made: Format, replica: Replica) -> None:
    """The rows as of an LSN are those of an older version, completed with recorded changes."""
    replica.lab.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    replica.replicate()
    replica.lab.run("UPDATE t SET a = 'c' WHERE id = 2", "INSERT INTO t VALUES (3, 'd')")
    (verdict,) = replica.verify()
    assert (verdict.is_equal, verdict.rows, verdict.pending) == (True, 3, 2)
    place = replica.table("t").place
    made.append(Path(place), read_table(place).slice(0, 1))
    assert [one.different_rows for one in replica.unequal()] == [1]
