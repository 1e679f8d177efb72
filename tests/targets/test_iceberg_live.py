"""Iceberg tables of a real server: their types, as pyiceberg reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import ListType, StringType, UUIDType

from logicalrep.apply.rows import key_index
from logicalrep.errors import ReplicaError
from logicalrep.recorder import install_ddl_events
from logicalrep.replica import use_iceberg
from tests.recorder.lab import Lab
from tests.replica.tables import open_table
from tests.targets.formats import iceberg_table
from tests.verification.conftest import lab, replica, server
from tests.verification.replica import Replica

__all__ = ["lab", "replica", "server"]


@pytest.fixture
def target(replica: Replica) -> Replica:
    """The replica, with Iceberg tables."""
    use_iceberg(replica.target)
    return replica


def table(replica: Replica, name: str = "t") -> IcebergTable:
    return iceberg_table(Path(replica.table(name).place))


def rows(replica: Replica, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
    """Return the values of these columns as pyiceberg reads them, sorted."""
    found = table(replica).scan(selected_fields=columns, **options).to_arrow()
    return sorted(zip(*(found[name].to_pylist() for name in columns), strict=True), key=repr)


def sources(lab: Lab, *columns: str) -> list[tuple[Any, ...]]:
    """Return the values of these columns of the table `t` on the server, uuids as objects, sorted."""
    found = lab.rows(f"SELECT {', '.join(columns)} FROM t")
    return sorted(map(tuple, found), key=repr)


@pytest.mark.parametrize("updates", ["vectors", "rewrite"])
def test_uuids_are_values_and_keys(target: Replica, updates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MIN_ROWS", 100)  # the first file has an index, the others are read
    lab = target.lab
    lab.run(
        "CREATE TABLE t (k uuid PRIMARY KEY, other uuid, many uuid[], n int)",
        "INSERT INTO t SELECT md5(i::text)::uuid, CASE WHEN i % 3 > 0 THEN md5(i || 'x')::uuid END, "
        "ARRAY[md5(i || 'y')::uuid, NULL], i FROM generate_series(1, 200) i",
    )
    target.replicate()
    if updates == "rewrite":
        open_table(target.table("t").place).set_deletes_rows(False)
    lab.run(
        "UPDATE t SET n = -n WHERE n % 10 = 0",
        "DELETE FROM t WHERE n % 7 = 0",
        "UPDATE t SET k = md5(n || 'z')::uuid WHERE n = 5",
        "INSERT INTO t VALUES (md5('new')::uuid, NULL, '{}', 1000)",
    )
    target.replicate()
    columns = "k", "other", "many", "n"
    assert rows(target, *columns) == sources(lab, *columns)
    schema = table(target).schema()
    assert [schema.find_type(name) for name in ("k", "other")] == [UUIDType(), UUIDType()]
    many = schema.find_type("many")
    assert isinstance(many, ListType)
    assert many.element_type == UUIDType()
    ((wanted,),) = lab.rows("SELECT k FROM t WHERE n = 5")
    assert rows(target, "k", "n", row_filter=f"k = '{wanted}'") == [(UUID(str(wanted)), 5)]
    assert target.unequal() == []
    deleted = sum(file.deleted for file in open_table(target.table("t").place).files())
    assert (deleted > 0) == (updates == "vectors")


def key_of(replica: Replica) -> tuple[set[str], set[str], list[str]]:
    """Return the names of the identifier fields, of the required fields, and of the sort order's columns."""
    found = table(replica)
    order = [found.schema().find_column_name(one.source_id) for one in found.sort_order().fields]
    required = {field.name for field in found.schema().fields if field.required}
    return found.schema().identifier_field_names(), required, [name for name in order if name is not None]


def test_the_replica_identity_is_the_key_of_a_new_table(target: Replica) -> None:
    lab = target.lab
    lab.run(
        "CREATE TABLE t (v text, a int, b uuid, PRIMARY KEY (a, b))",
        "INSERT INTO t SELECT 'x', i, md5(i::text)::uuid FROM generate_series(1, 5) i",
    )
    target.replicate()
    assert key_of(target) == ({"a", "b"}, {"a", "b"}, ["a", "b"])
    lab.run("ALTER TABLE t ADD c int", "UPDATE t SET c = a", "DELETE FROM t WHERE a = 1")
    target.replicate()
    assert key_of(target) == ({"a", "b"}, {"a", "b"}, ["a", "b"])
    assert rows(target, "v", "a", "b", "c") == sources(lab, "v", "a", "b", "c")
    assert target.unequal() == []


ALTERED_KEYS = {
    "another key": "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (other)",
    "a wider key": "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, other)",
    "no key": "ALTER TABLE t REPLICA IDENTITY FULL",
    "another type": "ALTER TABLE t ALTER id TYPE bigint",
    "the column is gone": "ALTER TABLE t DROP id, ADD PRIMARY KEY (other)",
    "NULL in the key": "UPDATE t SET id = 'infinity' WHERE other = 3",
}
"""SQL after which the columns that were the key identify no row any more."""


@pytest.mark.parametrize("statement", ALTERED_KEYS.values(), ids=ALTERED_KEYS)
def test_a_key_that_changes_is_removed(target: Replica, statement: str) -> None:
    lab = target.lab
    type_, first = ("date", "current_date + i") if "infinity" in statement else ("int", "i")
    lab.run(
        f"CREATE TABLE t (id {type_} PRIMARY KEY, other int NOT NULL, v text)",
        f"INSERT INTO t SELECT {first}, i, 'x' FROM generate_series(1, 5) i",
    )
    target.replicate()
    assert key_of(target) == ({"id"}, {"id"}, ["id"])
    lab.run(statement, "UPDATE t SET v = 'y' WHERE other = 2")
    target.replicate()
    assert key_of(target) == (set(), set(), [])
    assert table(target).scan().to_arrow().num_rows == 5
    assert target.unequal() == []
    lab.run("UPDATE t SET v = 'z'")
    target.replicate()
    assert target.unequal() == []


def ids_of_fields(replica: Replica) -> dict[str, int]:
    return {field.name: field.field_id for field in table(replica).schema().fields}


def files_of(replica: Replica) -> set[str]:
    return {task.file.file_path for task in table(replica).scan().plan_files()}


@pytest.mark.parametrize("is_described", [False, True], ids=["inferred", "recorded"])
def test_a_renamed_column_keeps_its_field_and_files(target: Replica, is_described: bool) -> None:
    lab = target.lab
    if is_described:
        install_ddl_events(lab.dsn)
    lab.run(
        "CREATE TABLE t (v text, a int, b uuid, w text, PRIMARY KEY (a, b))",
        "INSERT INTO t SELECT 'x', i, md5(i::text)::uuid, 'w' || i FROM generate_series(1, 5) i",
    )
    target.replicate()
    ids, files = ids_of_fields(target), files_of(target)
    lab.run("ALTER TABLE t RENAME a TO d", "INSERT INTO t VALUES ('y', 6, md5('6')::uuid, 'w6')")
    target.replicate()
    found = ids_of_fields(target)
    columns: tuple[str, ...] = ("v", "d", "b", "w")
    assert found == {"d" if name == "a" else name: number for name, number in ids.items()}
    assert files < files_of(target)
    assert key_of(target) == ({"d", "b"}, {"d", "b"}, ["d", "b"])
    assert rows(target, *columns) == sources(lab, *columns)
    lab.run("DELETE FROM t WHERE d = 1", "UPDATE t SET w = 'z' WHERE d = 2")
    if is_described:  # and another column gets the old name
        lab.run("BEGIN; ALTER TABLE t RENAME v TO u; ALTER TABLE t ADD v int; COMMIT")
        lab.run("UPDATE t SET v = 2 * d")
        columns += ("u",)
    target.replicate()
    assert rows(target, *columns) == sources(lab, *columns)
    if is_described:
        found = ids_of_fields(target)
        assert (found["u"], found["v"] in ids.values()) == (ids["v"], False)
    assert target.unequal() == []


def test_a_renamed_column_with_rescued_values_keeps_its_field(target: Replica) -> None:
    """A row names the columns of its rescued values, so the rows are written again."""
    lab = target.lab
    install_ddl_events(lab.dsn)
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, day date, a int, b int)",
        "INSERT INTO t VALUES (1, 'infinity', 1, 2), (2, '2026-01-01', 3, 4)",
    )
    target.replicate()
    ids = ids_of_fields(target)
    swap = "ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME c TO b"
    lab.run(
        f"BEGIN; ALTER TABLE t RENAME day TO date; {swap}; COMMIT", "INSERT INTO t VALUES (3, NULL, 5, 6)"
    )
    target.replicate()
    found = ids_of_fields(target)
    assert [found[name] for name in ("id", "date", "b", "a")] == [
        ids[name] for name in ("id", "day", "a", "b")
    ]
    assert rows(target, "id", "a", "b") == sources(lab, "id", "a", "b")
    assert target.unequal() == []


def test_columns_become_uuids_and_other_types(target: Replica) -> None:
    """An ALTER TABLE changes the type in Iceberg; the rows are written again."""
    lab = target.lab
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, a uuid, b text)",
        "INSERT INTO t SELECT i, md5(i::text)::uuid, upper(md5(i::text)) FROM generate_series(1, 5) i",
        "INSERT INTO t VALUES (6)",
    )
    target.replicate()
    lab.run(
        "ALTER TABLE t ALTER a TYPE text, ALTER b TYPE uuid USING b::uuid, ADD c uuid",
        "INSERT INTO t VALUES (7, 'x', md5('y')::uuid, md5('z')::uuid)",
    )
    target.replicate()
    columns = "id", "a", "b", "c"
    assert rows(target, *columns) == sources(lab, *columns)
    schema = table(target).schema()
    assert [schema.find_type(name) for name in "abc"] == [StringType(), UUIDType(), UUIDType()]
    assert target.unequal() == []


def partitions(replica: Replica) -> dict[tuple[Any, ...], int]:
    """Return the number of rows, deleted or not, in the data files of each partition of the table `t`."""
    found: dict[tuple[Any, ...], int] = {}
    for task in table(replica).scan().plan_files():
        record = task.file.partition
        key = tuple(record[number] for number in range(len(record)))
        found[key] = found.get(key, 0) + task.file.record_count
    return found


@pytest.mark.parametrize("updates", ["vectors", "rewrite"])
def test_rows_move_between_partitions(replica: Replica, updates: str) -> None:
    use_iceberg(replica.target, partition=["day(at)", "bucket(4, k)", "missing"])
    lab = replica.lab
    lab.run(
        "CREATE TABLE t (k int PRIMARY KEY, at timestamptz, n int)",
        "CREATE TABLE other (k text PRIMARY KEY, at text)",
        "INSERT INTO t SELECT i, '2026-01-01 12:00+00'::timestamptz + i % 3 * interval '1 day', i "
        "FROM generate_series(1, 300) i",
        "INSERT INTO t VALUES (0, NULL, 0), (-1, '9999-12-31 00:00+00', 0), (-2, 'infinity', 0)",
        "INSERT INTO other SELECT i::text, 'never' FROM generate_series(1, 10) i",
    )
    replica.replicate()
    assert {one[0] for one in partitions(replica)} == {20454, 20455, 20456, 2932896, None}
    assert {one[1] for one in partitions(replica)} == {0, 1, 2, 3}
    if updates == "rewrite":
        for name in ("t", "other"):
            open_table(replica.table(name).place).set_deletes_rows(False)
    for at in range(12):  # enough commits to combine the small files of each partition
        lab.run(
            f"UPDATE t SET at = at + interval '1 day' WHERE k % 30 = {at}",
            f"UPDATE t SET n = n + 1 WHERE k % 29 = {at}",
            f"DELETE FROM t WHERE k % 31 = {at}",
        )
        replica.replicate()
    assert replica.unequal() == []
    assert rows(replica, "k", "n") == sources(lab, "k", "n")
    found = table(replica).scan(row_filter="at >= '2026-01-03T00:00:00+00:00'", selected_fields=("k",))
    ((late,),) = lab.rows("SELECT count(*) FROM t WHERE at >= '2026-01-03' AND at < 'infinity'")
    assert found.to_arrow().num_rows == late
    assert len(list(found.plan_files())) < len(list(table(replica).scan().plan_files()))
    for name, wanted in ("t", ["at_day", "k_bucket"]), ("other", ["k_bucket"]):  # a text has no day
        assert [field.name for field in table(replica, name).spec().fields] == wanted


@pytest.mark.parametrize("statement", ["DROP place", "ALTER place TYPE bigint"])
def test_a_partition_column_is_renamed_and_altered(replica: Replica, statement: str) -> None:
    use_iceberg(replica.target, partition=["region"])
    lab = replica.lab
    lab.run(
        "CREATE TABLE t (k int PRIMARY KEY, region int, n int)",
        "INSERT INTO t SELECT i, i % 2, i FROM generate_series(1, 100) i",
    )
    replica.replicate()
    assert partitions(replica) == {(0,): 50, (1,): 50}
    lab.run("ALTER TABLE t RENAME region TO place", "INSERT INTO t VALUES (101, 2, 1)")
    replica.replicate()
    assert partitions(replica) == {(0,): 50, (1,): 50, (2,): 1}
    lab.run(
        f"ALTER TABLE t {statement}", "DELETE FROM t WHERE k % 4 = 0", "INSERT INTO t (k, n) VALUES (102, 2)"
    )
    replica.replicate()
    assert partitions(replica)[()] >= 1
    assert table(replica).spec().is_unpartitioned()
    assert replica.unequal() == []
    lab.run(
        "UPDATE t SET n = n + 1",
        "TRUNCATE t",
        "INSERT INTO t (k, n) SELECT i, i FROM generate_series(1, 9) i",
    )
    replica.replicate()
    assert partitions(replica) == {(): 9}
    assert replica.unequal() == []


def test_another_program_partitions_a_table(target: Replica) -> None:
    lab = target.lab
    lab.run(
        "CREATE TABLE t (k int PRIMARY KEY, d date, n int)",
        "INSERT INTO t SELECT i, '2026-01-01'::date + i % 2, i FROM generate_series(1, 100) i",
    )
    target.replicate()
    with table(target).update_spec() as spec:
        spec.add_field("d", "month")
    lab.run("UPDATE t SET d = '2026-02-01' WHERE k <= 10", "DELETE FROM t WHERE k > 90")
    target.replicate()
    assert partitions(target) == {(): 100, (673,): 10}
    with table(target).update_spec() as spec:
        spec.remove_field("d_month")
        spec.add_field("n", "truncate[50]")
    lab.run("UPDATE t SET n = 200 WHERE k BETWEEN 5 AND 15", "INSERT INTO t VALUES (0, NULL, NULL)")
    target.replicate()
    assert target.unequal() == []
    assert rows(target, "k", "d", "n") == sources(lab, "k", "d", "n")
    specs = {task.file.spec_id for task in table(target).scan().plan_files()}
    assert specs == {0, 2}  # the rows of the partition 2026-02 have another n, and moved


def test_partitions_that_are_not_valid_are_refused(target: Replica, caplog: pytest.LogCaptureFixture) -> None:
    for wrong in (["day(at"], ["week(at)"], ["bucket(0, k)"], ["bucket(k)"], [""], ["k", "bucket(4, k)"]):
        with pytest.raises(ReplicaError, match=r"--partition .*: expected COLUMN, year"):
            use_iceberg(target.target, partition=wrong)
    lab = target.lab
    lab.run("CREATE TABLE t (k int PRIMARY KEY, f float8)", "INSERT INTO t VALUES (1, 'NaN')")
    use_iceberg(target.target, partition=["f"])  # which no table can have
    target.replicate()
    assert table(target).spec().is_unpartitioned()
    with table(target).update_spec() as spec:
        spec.add_identity("f")
    lab.run("INSERT INTO t VALUES (2, 'NaN')")
    with pytest.raises(AssertionError):
        target.replicate()
    assert "cannot write the partition field f (identity)" in caplog.text


def test_new_tables_get_the_partitions_that_were_given_last(target: Replica) -> None:
    lab = target.lab
    lab.run("CREATE TABLE t (k int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    target.replicate()
    use_iceberg(target.target, partition=["bucket(2, k)"])
    use_iceberg(target.target)
    lab.run(
        "CREATE TABLE later (k int PRIMARY KEY)", "INSERT INTO later VALUES (1)", "INSERT INTO t VALUES (2)"
    )
    target.replicate()
    assert table(target).spec().is_unpartitioned()
    assert [str(one.transform) for one in table(target, "later").spec().fields] == ["bucket[2]"]
    assert target.unequal() == []
