"""Delta tables with deletion vectors: what logicalrep writes, others read, and the other way round."""

from __future__ import annotations

import json
import random
import struct
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import quote
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import given, strategies as st

from logicalrep.apply.data_files import DataFiles, PendingFiles, write_again
from logicalrep.errors import ReplicaError
from logicalrep.recording import locate
from logicalrep.targets import ChangeRange, ConflictError, DataFile, Position, Table
from logicalrep.targets.delta import DeltaFormat
from logicalrep.targets.delta.vectors import Vector, _to_z85, decode_vector, encode_vector

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32())])
ROWS = 1000


@given(st.sets(st.integers(0, 2**32 - 1)), st.sets(st.integers(0, 70_000)))
def test_vectors_are_decoded_as_they_were_encoded(far: set[int], near: set[int]) -> None:
    rows = np.array(sorted(far | near), np.int64)
    vector = encode_vector(rows)
    assert vector.cardinality == len(rows)
    assert decode_vector(vector, lambda *_: b"").tolist() == rows.tolist()


def test_the_path_of_a_vector() -> None:
    """The example of "Derived Fields" in the Delta protocol."""
    vector = Vector("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6)
    assert vector.path == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_damaged_vectors_are_refused() -> None:
    numbers = random.Random(1)
    whole = encode_vector(np.arange(0, 300_000, 7))
    data = bytearray(struct.pack("<iqi", 1681511377, 1, 0))
    for _ in range(2000):
        data = bytearray(numbers.randbytes(numbers.randrange(200))) if numbers.random() < 0.3 else data
        vector = msgspec.structs.replace(
            whole, path_or_inline_dv=_to_z85(bytes(data)), size_in_bytes=len(data)
        )
        with pytest.raises(ValueError, match=r"deletion vector|deserial|bitmap"):
            decode_vector(vector, lambda *_: b"")
        data = bytearray(struct.pack("<iqi", 1681511377, 1, 0)) + numbers.randbytes(numbers.randrange(99))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with the ids from 0 to 999 in one file."""
    made = DeltaFormat().create(locate(tmp_path / "t"), SCHEMA, {})
    made.set_deletes_rows(True)
    made.commit(DataFiles(made).write(batches(*range(ROWS))), [], change(1))
    return made


def batches(*ids: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(ids), pa.array([1] * len(ids), pa.date32())], schema=SCHEMA)]


def change(lsn: int) -> ChangeRange:
    return ChangeRange(lsn, Position(lsn, lsn, 0), lsn)


def delete(table: Table, *ids: int, lsn: int) -> None:
    """Delete rows by id, and insert a row whose id is 10,000 greater for each of them."""
    files = DataFiles(table)
    deleted = {}
    for file in files:
        found = pa.Table.from_batches(files.read_all(file, ["id"]))["id"].to_numpy()
        numbers = np.setdiff1d(np.flatnonzero(np.isin(found, ids)), files.deleted(file))
        if len(numbers):
            deleted[file.path] = numbers
    added = files.write(batches(*(one + 10_000 for one in ids)))
    table.commit(added, [], change(lsn), deleted=deleted)


def ours(table: Table) -> list[int]:
    files = DataFiles(table)
    return sorted(row["id"] for file in files for batch in files.read(file) for row in batch.to_pylist())


def theirs(table: Table) -> list[int]:
    return sorted(pa.table(DeltaTable(table.place.place).scan(["id"]))["id"].to_pylist())


def newest(table: Table) -> Table:
    found = DeltaFormat().open(table.place)
    assert found is not None
    return found


def expected(*deleted: int) -> list[int]:
    return sorted([*({*range(ROWS)} - {*deleted}), *(one + 10_000 for one in deleted)])


def test_others_read_the_rows_through_commits_and_checkpoints(table: Table) -> None:
    for number in range(25):
        delete(table if number % 3 else newest(table), 2 * number, 2 * number + 1, lsn=number + 2)
        table.refresh()
        assert ours(table) == theirs(table) == expected(*range(2 * number + 2))
    assert list(Path(table.place.path, "_delta_log").glob("*.checkpoint.parquet"))
    (file,) = (one for one in newest(table).files() if one.deleted)
    assert (file.rows, file.deleted, file.min_values) == (ROWS, 50, {"id": 0, "day": file.min_values["day"]})
    assert (newest(table).position, table.foreign_change()) == (Position(26, 26, 0), "")
    assert ours(table.at(5)) == expected(*range(6))
    actions = [json.loads(line) for line in commit(table).splitlines()]
    (added,) = (one["add"] for one in actions if "add" in one and "deletionVector" in one["add"])
    assert json.loads(added["stats"])["tightBounds"] is False
    (removed,) = (one["remove"] for one in actions if "remove" in one)
    assert removed["deletionVector"] != added["deletionVector"]


def commit(table: Table) -> str:
    return Path(table.place.path, "_delta_log", f"{table.version:020}.json").read_text()


def compact(table: DeltaTable) -> None:
    assert table.optimize.compact()["numFilesRemoved"]


def clean(table: DeltaTable) -> None:
    table.create_checkpoint()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    table.cleanup_metadata()


def restore(table: DeltaTable) -> None:
    """Restore the rows of the version before, and then those of the newest version again."""
    version = table.version()
    table.restore(version - 1)
    table.restore(version)


def delete_and_append(table: DeltaTable) -> None:
    rows = pa.table(table.scan()).filter(pa.compute.equal(pa.table(table.scan())["id"], 500))
    table.delete("id = 500")
    write_deltalake(table, rows.cast(SCHEMA), mode="append")


def merge(table: DeltaTable) -> None:
    rows = pa.table(table.scan()).filter(pa.compute.equal(pa.table(table.scan())["id"], 500)).cast(SCHEMA)
    merger = table.merge(rows, "s.id = t.id", source_alias="s", target_alias="t")
    assert merger.when_matched_update_all().execute()["num_target_rows_updated"] == 1


@pytest.mark.parametrize("work", [compact, clean, restore, delete_and_append, merge])
def test_the_work_of_deltalake_between_commits(work: Callable[[DeltaTable], None], table: Table) -> None:
    delete(table, 1, 2, 3, lsn=2)
    table.refresh()
    work(DeltaTable(table.place.place))
    assert ours(newest(table)) == expected(1, 2, 3)
    with nullcontext() if work is clean else pytest.raises(ConflictError):
        delete(table, 9, lsn=3)
    table = newest(table)
    delete(table, *({8, 9, 4} & {*ours(table)}), lsn=4)
    assert ours(table) == theirs(table) == expected(*({1, 2, 3, 4, 8, 9}))
    table.remove_unused()
    assert theirs(table) == expected(1, 2, 3, 4, 8, 9)


def test_a_vector_in_a_file_is_continued_and_copied(table: Table, tmp_path: Path) -> None:
    """Spark writes vectors to files of their own; VACUUM of delta-rs takes them for unused."""
    (file,) = table.files()
    vector = encode_vector(np.array([5, 6, 7]))
    data = struct.pack("<iqi", 1681511377, 1, 0) + _bitmap(5, 6, 7)
    name = uuid.uuid4()
    path = Path(table.place.path, f"deletion_vector_{name}.bin")
    path.write_bytes(b"\1" + struct.pack(">i", len(data)) + data + struct.pack(">I", crc32(data)))
    lines = [json.loads(line) for line in commit(table).splitlines()]
    (added,) = (one["add"] for one in lines if "add" in one)
    stored = {"storageType": "u", "pathOrInlineDv": _to_z85(name.bytes), "offset": 1}
    stored |= {"sizeInBytes": len(data), "cardinality": 3}
    removed = {"path": file.path, "deletionTimestamp": 0, "dataChange": True}
    log = Path(table.place.path, "_delta_log", f"{table.version + 1:020}.json")
    actions = {"remove": removed}, {"add": added | {"deletionVector": stored}}
    log.write_text("\n".join(map(json.dumps, actions)))
    table.refresh()
    assert ours(table) == theirs(table) == [one for one in range(ROWS) if one not in (5, 6, 7)]
    assert "another program has changed rows" in table.foreign_change()
    table.remove_unused()
    table.copy(tmp_path / "copy")
    delete(table, 8, lsn=2)
    assert ours(table) == theirs(table) == [*(one for one in range(ROWS) if not 5 <= one <= 8), 10_008]
    copy = DeltaFormat().open(locate(tmp_path / "copy"))
    assert copy is not None
    assert len(ours(copy)) == ROWS - 3
    for damage in (data[:-1] + b"\0", b""):
        Path(copy.place.path, path.name).unlink()
        Path(copy.place.path, path.name).write_bytes(b"\1" + struct.pack(">i", len(data)) + damage)
        with pytest.raises(ReplicaError, match=r"deletion vector in .* is damaged"):
            ours(newest(copy))
    assert vector.cardinality == 3


def test_vacuum_spares_the_files_of_older_versions(table: Table) -> None:
    """An action that changes the vector of a file has no time: delta-rs removes the file at once later."""
    for number in range(12):
        delete(table, number, lsn=number + 2)
    before = newest(table)
    files = DataFiles(table)
    (marked,) = (file for file in files if file.rows == ROWS)
    table.commit(files.write(files.read(marked)), [marked], change(20))
    for full in (False, True):
        table.remove_unused()
        DeltaTable(table.place.place).vacuum(1, dry_run=False, enforce_retention_duration=False, full=full)
        assert ours(table) == theirs(table) == expected(*range(12))
        assert ours(before) == expected(*range(12))


def test_checkpoints_have_no_vectors_of_older_versions(table: Table) -> None:
    for number in range(60):
        delete(table, *range(5 * number, 5 * number + 5), lsn=number + 2)
    newest_one = sorted(Path(table.place.path, "_delta_log").glob("*.checkpoint.parquet"))[-1]
    removed = pq.read_table(newest_one, columns=["remove"])["remove"].drop_null().to_pylist()
    assert [one["path"] for one in removed if one["deletionVector"] is not None] == []


def test_rows_that_only_move_are_no_change(table: Table) -> None:
    """A compaction must not disturb the readers that follow the changes of a table."""
    delete(table, *range(100), lsn=2)
    table.refresh()
    write_again(table)
    assert [file.deleted for file in newest(table).files()] == [0, 0]
    assert ours(newest(table)) == theirs(table) == expected(*range(100))
    actions = [action for line in commit(table).splitlines() for action in json.loads(line).items()]
    assert {one["dataChange"] for kind, one in actions if kind in ("add", "remove")} == {False}
    assert (newest(table).position, newest(table).foreign_change()) == (Position(2, 2, 0), "")
    version = table.version
    write_again(newest(table))
    delete(newest(table), 200, lsn=3)  # few of the rows
    write_again(newest(table))
    assert newest(table).version == version + 1


@pytest.mark.parametrize("is_changed", [False, True], ids=["beside", "the same file"])
def test_a_commit_while_rows_are_moved(
    table: Table, is_changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete(table, *range(100), lsn=2)
    (marked,) = (file for file in table.files() if file.deleted)
    write = DataFiles.write

    def write_and_commit(files: DataFiles, rows: Iterator[pa.RecordBatch]) -> list[DataFile]:
        monkeypatch.setattr(DataFiles, "write", write)
        added = write(files, rows)
        delete(newest(table), 200 if is_changed else 10_001, lsn=3)
        return added

    monkeypatch.setattr(DataFiles, "write", write_and_commit)
    write_again(newest(table))
    rows = expected(*range(100), 200) if is_changed else [*expected(*range(100)), 20_001]
    rows = [one for one in rows if is_changed or one != 10_001]
    assert ours(newest(table)) == theirs(table) == sorted(rows)
    assert (marked.path in {file.path for file in newest(table).files()}) == is_changed
    known = {path for version in range(newest(table).version + 1) for path in paths(table.at(version))}
    assert {path.name for path in Path(table.place.path).glob("*.parquet")} <= known


def paths(table: Table) -> list[str]:
    return [file.path for file in table.files()]


def test_appends_of_deltalake_between_commits_are_kept(table: Table) -> None:
    """An append of deltalake that began before our commit fails; its writers try again."""

    def write() -> None:
        for number in range(5):
            while True:
                one = newest(table)
                try:
                    delete(one, number, lsn=one.position.commit_lsn + 1)
                    break
                except ConflictError:
                    pass

    def append() -> None:
        for number in range(5):
            while True:
                try:
                    rows = pa.Table.from_batches(batches(20_000 + number))
                    write_deltalake(table.place.place, rows, mode="append")
                    break
                except DeltaError:
                    pass

    with ThreadPoolExecutor(2) as threads:
        for done in (threads.submit(write), threads.submit(append)):
            done.result()
    assert ours(newest(table)) == theirs(table) == sorted([*expected(*range(5)), *range(20_000, 20_005)])


def _bitmap(*rows: int) -> bytes:
    """Return a Roaring bitmap of row numbers below 65,536."""
    return struct.pack(f"<IIHHI{len(rows)}H", 12346, 1, 0, len(rows) - 1, 16, *rows)


def test_writers_at_once_lose_nothing(table: Table) -> None:
    def write(number: int) -> None:
        for step in range(8):
            while True:
                one = newest(table)
                try:
                    delete(one, 100 * number + step, lsn=one.position.commit_lsn + 1)
                except ConflictError:
                    continue
                break

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, range(3)))
    deleted = [100 * number + step for number in range(3) for step in range(8)]
    assert ours(newest(table)) == theirs(table) == expected(*deleted)
    assert newest(table).version == 2 + len(deleted)


def test_tables_are_switched_in_both_directions(table: Table) -> None:
    delete(table, 1, 2, lsn=2)
    table.set_deletes_rows(False)
    assert (table.deletes_rows, ours(table)) == (False, expected(1, 2))
    files = PendingFiles(table)
    files.change(batches(20_000), {})
    merged = files.merge()
    table.commit(merged.added, merged.removed, change(3), deleted=merged.deleted)
    rows = DeltaTable(table.place.place).to_pyarrow_table()  # which refuses tables with the feature
    assert sorted(rows["id"].to_pylist()) == ours(newest(table)) == sorted([*expected(1, 2), 20_000])
    table = newest(table)
    table.set_deletes_rows(True)
    delete(table, 3, lsn=4)
    assert ours(table) == theirs(table) == sorted([*expected(1, 2, 3), 20_000])


def test_a_table_with_unknown_features_is_refused(table: Table) -> None:
    delta = DeltaTable(table.place.place)
    delta.alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    with pytest.raises(ReplicaError, match="does not write: rowTracking"):
        delete(newest(table), 1, lsn=2)


def test_a_log_without_a_commit_is_named(table: Table) -> None:
    delete(table, 1, lsn=2)
    Path(table.place.path, "_delta_log", f"{2:020}.json").unlink()
    with pytest.raises(ReplicaError, match=r"lacks the commit of version 2|cannot be read"):
        ours(newest(table))


def test_properties_enable_no_features(tmp_path: Path) -> None:
    """Deltalake's own function enables `variantType`, which few readers know."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    table = DeltaFormat().create(locate(tmp_path / "t"), schema, {"a": "1"})
    before = DeltaTable(table.place.place).protocol()
    table.set_properties({"a": "2", "b": "3"})
    table.change_columns([pa.field("n", pa.int32())], [pa.field("id", pa.int64(), metadata={"k": "v"})])
    protocol = DeltaTable(table.place.place).protocol()
    assert (protocol.reader_features, before.reader_features) == (["timestampNtz"], ["timestampNtz"])
    assert {key: newest(table).properties[key] for key in "ab"} == {"a": "2", "b": "3"}


@pytest.fixture(params=["commits", "checkpoint", "checkpoint of two files"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A table as Delta's own tools write it, with the ids from 0 to 99 in four data files.

    Two of their vectors are in one file in a folder with a random name, one in a file that is named by its
    URI, and one in the log. The ids 10 to 17 are deleted in the first three, the id 90 in the last.
    """
    folder = tmp_path / "g"
    DeltaFormat().create(locate(folder), SCHEMA, {}).set_deletes_rows(True)
    log = folder / "_delta_log"
    names = ["id=a%20b/part 0.parquet", "part-1.c000.snappy.parquet", "xY/part-2.parquet", "part-3.parquet"]
    adds = []
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(exist_ok=True)
        rows = pa.table({"id": range(25 * number, 25 * number + 25), "day": pa.nulls(25, pa.date32())})
        pq.write_table(rows, folder / name)
        add = {"path": quote(name, safe="=/"), "size": (folder / name).stat().st_size, "partitionValues": {}}
        stats = {"numRecords": 25, "tightBounds": number % 2 == 0}
        adds.append(
            add
            | {"modificationTime": 1_700_000_000_000, "dataChange": True, "stats": json.dumps(stats)}
            | {"tags": {"INSERTION_TIME": "1700000000000000", "OPTIMIZE_TARGET_SIZE": "268435456"}}
        )
    (log / f"{2:020}.json").write_text("\n".join(json.dumps({"add": one}) for one in adds))
    two, one = uuid.uuid4(), uuid.uuid4()
    first, second = (_framed(*rows) for rows in ((10, 11, 12), (0, 24)))
    (folder / "ab").mkdir()
    (folder / "ab" / f"deletion_vector_{two}.bin").write_bytes(b"\1" + first + second)
    absolute = folder / f"deletion_vector_{one}.bin"
    absolute.write_bytes(b"\1" + _framed(5))
    inline = encode_vector(np.array([15]))
    vectors = [
        {"storageType": "u", "pathOrInlineDv": f"ab{_to_z85(two.bytes)}", "offset": 1}
        | {"sizeInBytes": len(first) - 8, "cardinality": 3},
        {"storageType": "u", "pathOrInlineDv": f"ab{_to_z85(two.bytes)}", "offset": 1 + len(first)}
        | {"sizeInBytes": len(second) - 8, "cardinality": 2},
        {"storageType": "p", "pathOrInlineDv": absolute.as_uri(), "offset": 1}
        | {"sizeInBytes": len(_framed(5)) - 8, "cardinality": 1},
        msgspec.to_builtins(inline),
    ]
    removed = [
        {"path": one["path"], "deletionTimestamp": 1_700_000_000_000, "dataChange": True, "size": one["size"]}
        for one in adds
    ]
    actions = [{"remove": one} for one in removed]
    actions += [{"add": a | {"deletionVector": vector}} for a, vector in zip(adds, vectors, strict=True)]
    (log / f"{3:020}.json").write_text("\n".join(map(json.dumps, actions)))
    if request.param != "commits":
        DeltaTable(str(folder)).create_checkpoint()
        for path in log.glob("*.json"):
            path.unlink()
    if request.param == "checkpoint of two files":
        (path,) = log.glob(f"{3:020}.checkpoint.parquet")
        rows = pq.read_table(path)
        for part, of in enumerate((rows.slice(0, 5), rows.slice(5)), 1):
            pq.write_table(of, log / f"{3:020}.checkpoint.{part:010}.{2:010}.parquet")
        for old in (*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint"):
            old.unlink()
        (log / "_last_checkpoint").write_text(json.dumps({"version": 3, "size": len(rows), "parts": 2}))
    found = DeltaFormat().open(locate(folder))
    assert found is not None
    return found


DELETED = 10, 11, 12, 25, 49, 55, 90


def _framed(*rows: int) -> bytes:
    """Return a vector as it is in a file: between its size and its checksum."""
    data = struct.pack("<iqi", 1681511377, 1, 0) + _bitmap(*rows)
    return struct.pack(">i", len(data)) + data + struct.pack(">I", crc32(data))


def test_a_table_of_other_tools_is_continued(golden: Table, tmp_path: Path) -> None:
    kept = [one for one in range(100) if one not in DELETED]
    assert ours(golden) == theirs(golden) == kept
    assert sorted(file.deleted for file in golden.files()) == [1, 1, 2, 3]
    delete(golden, 0, 26, 54, 91, lsn=2)
    more = [10_000, 10_026, 10_054, 10_091]
    kept = sorted({*kept, *more} - {0, 26, 54, 91})
    assert ours(golden) == ours(newest(golden)) == theirs(golden) == kept
    golden.copy(tmp_path / "copy")
    copy = DeltaFormat().open(locate(tmp_path / "copy"))
    assert copy is not None
    assert ours(copy) == kept
    added = [json.loads(line)["add"] for line in commit(golden).splitlines() if line.startswith('{"add"')]
    assert [one["tags"]["OPTIMIZE_TARGET_SIZE"] for one in added if "tags" in one] == ["268435456"] * 4
    golden.remove_unused()
    clean(DeltaTable(golden.place.place))
    assert ours(newest(golden)) == theirs(golden) == kept
    write_again(newest(golden))
    assert ours(newest(golden)) == theirs(golden) == kept
    assert sum(file.deleted for file in newest(golden).files()) == 0
    delete(newest(golden), 99, lsn=3)
    assert ours(newest(golden)) == theirs(golden) == sorted({*kept, 10_099} - {99})
