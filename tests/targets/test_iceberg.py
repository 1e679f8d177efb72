"""Iceberg tables: other programs between our commits, snapshots that expire, and answers that are lost."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.manifest import DataFileContent
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IntegerType

from logicalrep import catalog
from logicalrep.apply import DataFiles
from logicalrep.apply.chunks import Chunk
from logicalrep.apply.rows import key_index
from logicalrep.apply.rows.lookup import look_up_rows
from logicalrep.apply.schema import alter_table, follow_schema, make_layout, read_layout
from logicalrep.errors import ReplicaError
from logicalrep.recording import locate
from logicalrep.targets import NOTHING, ChangeRange, ConflictError, DataFile, Position, Table, registry
from logicalrep.targets.iceberg import IcebergFormat, cleaning
from logicalrep.targets.iceberg.columns import to_arrow, to_iceberg
from logicalrep.targets.iceberg.files import manifested_file
from logicalrep.targets.iceberg.table import _Table
from logicalrep.values import arrow_type
from logicalrep.views import ChangedRelation, Column
from logicalrep.views.relation_changes import AlteredNames
from tests.targets.formats import iceberg_table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("small", pa.int16()),
        pa.field("smalls", pa.list_(pa.field("element", pa.int16()))),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC"), metadata={"a key": "a text"}),
    ]
)
DAY, TIME = date(1969, 12, 31), datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def table(tmp_path: Path) -> _Table:
    made = IcebergFormat().create(locate(tmp_path / "public.t"), SCHEMA, {})
    assert isinstance(made, _Table)
    return made


def written(table: Table, *ids: int) -> list[DataFile]:
    rows = [{"id": one, "small": one, "smalls": [one], "day": DAY, "at": TIME} for one in ids]
    writer = table.writer(table.schema)
    writer.write([pa.RecordBatch.from_pylist(rows, table.schema)])
    return writer.close()


def change(lsn: int) -> ChangeRange:
    return ChangeRange(lsn - 5, Position(lsn, lsn, 0), 10 * lsn)


def read_ids(table: Table) -> list[int]:
    """Return the values of the column `id` as pyiceberg reads them."""
    rows = iceberg_table(Path(table.place.path)).scan().to_arrow()
    return sorted(rows["id"].to_pylist())


def reopened(table: Table) -> Table:
    found = IcebergFormat().open(table.place)
    assert found is not None
    return found


def test_columns_have_the_types_of_the_spec() -> None:
    for builtin in catalog.TYPES:
        type_ = IcebergFormat.types.get(builtin.oid) or arrow_type(builtin.oid)
        made = to_iceberg(pa.schema([pa.field("c", type_)]))
        assert str(made.find_type("c")) == builtin.iceberg, builtin.name
        assert to_arrow(made).field("c").type == type_, builtin.name


def test_readers_find_types_and_deleted_rows(table: Table) -> None:
    (file,) = written(table, *range(10))
    table.commit([file], [], change(100), deleted={file.path: np.array([9])})
    table.commit(written(table, 20), [], change(200), deleted={file.path: np.array([0, 3])})
    assert read_ids(table) == [1, 2, 4, 5, 6, 7, 8, 20]
    found = iceberg_table(Path(table.place.path))
    assert found.scan(row_filter="day = '1969-12-31' and id >= 20").to_arrow().to_pylist() == [
        {"id": 20, "small": 20, "smalls": [20], "day": DAY, "at": TIME}
    ]
    assert found.scan(row_filter="id > 20").to_arrow().num_rows == 0
    known = reopened(table)
    assert known.schema.equals(SCHEMA, check_metadata=True)
    files = {one.path: one for one in known.files()}
    first = files[file.path]
    assert (first.deleted, first.rows) == (3, 10)
    assert known.deleted_rows(first).tolist() == [0, 3, 9]
    assert (first.min_values, first.max_values) == (
        {"id": 0, "small": 0, "day": DAY},
        {"id": 9, "small": 9, "day": DAY},
    )
    summary = found.current_snapshot().summary.additional_properties  # type: ignore[union-attr]
    assert (summary["total-records"], summary["total-delete-files"]) == ("11", "1")
    assert summary["total-position-deletes"] == "3"


def test_a_column_that_another_program_renames_keeps_its_values(table: Table) -> None:
    table.commit(written(table, 7), [], change(100))
    with iceberg_table(Path(table.place.path)).update_schema() as update:
        update.rename_column("small", "other")
    found = reopened(table)
    (file,) = found.files()
    (batch,) = found.read(file, found.schema)
    assert batch.select(["id", "other"]).to_pylist() == [{"id": 7, "other": 7}]


def test_an_older_snapshot_has_its_own_position(table: Table) -> None:
    table.commit(written(table, 1), [], change(100))
    old = table.reader_version
    table.commit(written(table, 2), [], change(200))
    iceberg_table(Path(table.place.path)).manage_snapshots().set_current_snapshot(old).commit()
    found = reopened(table)
    assert (found.position, read_ids(found)) == (Position(100, 100, 0), [1])
    with pytest.raises(ConflictError):
        table.commit(written(table, 3), [], change(300))
    found.commit(written(found, 2), [], change(200))
    assert (found.version, read_ids(found)) == (3, [1, 2])


def test_the_position_outlives_snapshots_that_others_expire(table: Table) -> None:
    table.commit(written(table, 1), [], change(100))
    other = iceberg_table(Path(table.place.path))
    other.append(pa.Table.from_pylist([{"id": 5}], pa.schema([pa.field("id", pa.int64())])))
    other.maintenance.expire_snapshots().older_than(datetime(2100, 1, 1)).commit()
    found = reopened(table)
    assert found.position == Position(100, 100, 0)
    assert found.foreign_change() == "another program has changed rows: append in version 2"
    with pytest.raises(ReplicaError, match="the snapshot with sequence number 1 was expired"):
        found.at(1)


def test_what_logicalrep_does_not_read_is_refused(table: _Table) -> None:
    table.commit(written(table, 1), [], change(100))
    file = DataFile("e.parquet", 10, 1, {}, {}, {})
    deletes = manifested_file(table._folder, file, {}, (0,), DataFileContent.EQUALITY_DELETES)
    table._write_snapshot([deletes])
    with pytest.raises(ReplicaError, match="another program has added equality deletes"):
        reopened(table).files()
    catalog = iceberg_table(Path(table.place.path)).catalog
    catalog.create_table(("public", "u"), SCHEMA, properties={"format-version": "1"})
    with pytest.raises(ReplicaError, match="has format version 1, but logicalrep writes version 2"):
        IcebergFormat().open(table.place.parent / "public.u")


def test_a_commit_whose_answer_is_lost_is_recognized(table: _Table, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = SqlCatalog.commit_table

    def lost(catalog: SqlCatalog, *arguments: Any) -> None:
        commit(catalog, *arguments)
        raise CommitStateUnknownException("the connection was closed")

    def unsent(catalog: SqlCatalog, *arguments: Any) -> None:
        raise CommitStateUnknownException("the connection was closed")

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    table.commit(written(table, 1), [], change(100))
    monkeypatch.setattr(SqlCatalog, "commit_table", unsent)
    with pytest.raises(ConflictError, match="the connection was closed"):
        table.commit(written(table, 2), [], change(200))
    monkeypatch.undo()
    table.refresh()
    table.commit(written(table, 2), [], change(200))
    assert (table.version, read_ids(table)) == (2, [1, 2])


@pytest.mark.parametrize(
    ("hours", "kept"),
    [
        pytest.param([5, 4, 3, 0, 0], 3, id="the clock goes on"),
        pytest.param([0, 0, 3, 0, 0], 3, id="it went back, and all before expires"),
        pytest.param([5, 4, 3, -2, 0], 3, id="it went on and back"),
        pytest.param([0, 0, 0, 0, 0], 5, id="nothing is old"),
    ],
)
def test_a_snapshot_expires_with_all_before_it(hours: list[int], kept: int) -> None:
    """The snapshots are as many hours old; the child of a kept snapshot is kept, whatever the clock said."""
    now = int(time.time() * 1000)
    history = [
        Snapshot.model_validate(
            {
                "snapshot-id": number,
                "sequence-number": number,
                "timestamp-ms": now - age * 3_600_000,
                "manifest-list": "",
            }
        )
        for number, age in enumerate(hours, 20 - len(hours))
    ][::-1]
    metadata = SimpleNamespace(refs={}, properties=cleaning.PROPERTIES)
    gone = cleaning.expired(cast(TableMetadata, metadata), history)
    assert gone == history[kept:]


def test_old_snapshots_expire_with_their_files(table: _Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "_MAX_SNAPSHOTS", 10)
    monkeypatch.setattr(cleaning, "_COMMITS", 5)
    for number in range(100):
        removed = table.files() if number % 3 else []
        deleted = {one.path: np.array([0]) for one in table.files()} if not number % 3 else {}
        table.commit(written(table, number, 1000 + number), removed, change(100 * number), deleted=deleted)
    found = iceberg_table(Path(table.place.path))
    assert 10 <= len(found.metadata.snapshots) <= 15
    needed = cleaning.needed_files(found.io, found.metadata) | {found.metadata_location}
    folder = Path(table.place.path)
    on_disk = {f"file://{path}" for path in folder.rglob("*") if path.is_file()}
    assert on_disk == needed
    assert sum(len(one.manifests(found.io)) for one in found.metadata.snapshots) < 100
    assert read_ids(table) == sorted(row for file in table.files() for row in ids_of(table, file))


def ids_of(table: Table, file: DataFile) -> list[int]:
    gone = {*table.deleted_rows(file).tolist()}
    rows = [row for batch in table.read(file, table.schema) for row in batch["id"].to_pylist()]
    return [row for number, row in enumerate(rows) if number not in gone]


def test_branches_keep_their_snapshots(table: _Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "_MAX_SNAPSHOTS", 2)
    monkeypatch.setattr(cleaning, "_COMMITS", 2)
    table.commit(written(table, 1), [], change(100))
    iceberg_table(Path(table.place.path)).manage_snapshots().create_tag(table.reader_version, "kept").commit()
    table.refresh()
    for number in range(2, 10):
        table.commit(written(table, number), table.files(), change(100 * number))
    found = iceberg_table(Path(table.place.path))
    assert found.scan().use_ref("kept").to_arrow()["id"].to_pylist() == [1]
    assert len(found.metadata.snapshots) == 9


def test_a_new_table_has_no_snapshot(table: Table) -> None:
    assert (table.version, table.position, table.files()) == (0, NOTHING, [])
    table.commit(written(table, 1), [], change(100))
    assert (table.at(0).files(), len(table.at(1).files())) == ([], 1)


def int8(name: str) -> Column:
    return Column(name, 20, -1)


def keyed(folder: Path, *columns: Column) -> Table:
    """Create a table whose key is the column `id`."""
    target = locate(folder)
    registry.store_catalog(target, registry.IcebergCatalog())
    schema = make_layout(columns, target, history=False).schema
    return registry.create_table(target, 42, "public", "t", schema, "", '["id"]')


def altered(table: Table, *columns: Column, key: str = "id") -> None:
    """Give a table other columns, after an insert."""
    relation = ChangedRelation(42, "public", "t", columns, (key,))
    follow_schema(table, read_layout(table, "t"), Chunk(relation, one_change("Insert")), history=False)


def one_change(operation: str) -> pa.Table:
    sequence = dict(zip(Position._fields, (5, 5, 5), strict=True))
    times = pa.array([0], pa.timestamp("us", "UTC"))
    rows = {"operation": [operation], "commit_lsn": [5], "commit_time": times, "xid": [7]}
    return pa.table(rows | {"sequence": [sequence]})


def test_an_index_does_not_outlive_the_name_of_its_column(tmp_path: Path) -> None:
    """A key that gets the name of the former key is found in data files that have an index of the former."""
    count = key_index.MIN_ROWS
    table = keyed(tmp_path, int8("id"), int8("new_id"), int8("v"))
    ids = pa.array(np.arange(count))
    rescued = pa.nulls(count, table.schema.field("_rescued_data").type)
    files = DataFiles(table)
    rows = pa.record_batch([ids, pa.array(np.arange(count)[::-1]), ids, rescued], schema=table.schema)
    table.commit(files.write([rows]), [], change(1))

    def row_of_5() -> list[int]:
        layout, text = read_layout(table, "t"), pa.array(["5"])
        key = [("id", int8("id"))]
        return [*look_up_rows(DataFiles(table), layout, key, [text], 1, set(), unique=True).number]

    assert row_of_5() == [5]
    altered(table, int8("old_id"), int8("new_id"), int8("v"), key="old_id")
    altered(table, int8("old_id"), int8("id"), int8("v"))
    assert len(table.files()) == 1
    assert row_of_5() == [count - 6]


def test_a_table_is_copied_after_a_column_before_its_key_was_dropped(tmp_path: Path) -> None:
    table = keyed(tmp_path / "lake", int8("x"), int8("id"))
    altered(table, int8("id"), int8("z"))
    copies = locate(tmp_path / "copies")
    registry.copy_format(locate(tmp_path / "lake"), copies)
    table.copy(tmp_path / "copies" / "42")
    copy = registry.format_of(copies).open(copies / "42")
    assert isinstance(copy, _Table)
    assert copy.schema.equals(table.schema)
    assert copy._schema.identifier_field_names() == {"id"}


def test_a_sort_order_without_identifier_fields_does_not_stop_a_table(tmp_path: Path) -> None:
    keyed(tmp_path, int8("id"), int8("a"))
    with iceberg_table(tmp_path / "public.t").update_schema() as update:
        update.set_identifier_fields()
    table = registry.find_table(locate(tmp_path), 42)
    assert table is not None
    altered(table, Column("id", 23, -1), int8("a"))
    found = iceberg_table(tmp_path / "public.t")
    assert (found.sort_order().fields, found.schema().find_type("id")) == ([], IntegerType())


def test_an_earlier_schema_is_used_again(tmp_path: Path) -> None:
    """Catalogues give equal schemas one ID, and refuse another."""
    table = keyed(tmp_path, int8("id"), int8("a"), int8("v"))
    for name in "b", "a", "c":
        altered(table, int8("id"), int8(name), int8("v"))
    found = iceberg_table(tmp_path / "public.t")
    names = {one.schema_id: one.column_names[1] for one in found.metadata.schemas}
    assert (names, found.schema().schema_id) == ({0: "a", 1: "b", 2: "c"}, 2)
    assert [one.schema_id for one in found.metadata.snapshots] == [1, 0, 2]


def test_columns_swap_their_names_in_one_commit(tmp_path: Path) -> None:
    """After a kill between two commits, the next run would swap the names again."""
    table = keyed(tmp_path, int8("id"), int8("a"), int8("b"))
    ids = {one.name: one.field_id for one in iceberg_table(tmp_path / "public.t").schema().fields}
    names = AlteredNames({"id": "id", "b": "a", "a": "b"}, {}, frozenset())
    relation = ChangedRelation(42, "public", "t", (int8("id"), int8("b"), int8("a")), ("id",), names)
    chunk, version = Chunk(relation, one_change("AlterTable")), table.version
    alter_table(table, read_layout(table, "t"), chunk, history=False)
    assert (table.version, table.position) == (version + 1, Position(5, 5, 5))
    found = {one.name: one.field_id for one in iceberg_table(tmp_path / "public.t").schema().fields}
    assert found == ids | {"a": ids["b"], "b": ids["a"]}
