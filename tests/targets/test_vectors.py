"""Delta tables with deletion vectors: what pgoutput writes, other programs read, and the other way round."""

from __future__ import annotations

import json
import random
import struct
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from hypothesis import given, strategies as st

from pgoutput.apply.data_files import DataFiles, PendingFiles
from pgoutput.errors import ReplicaError
from pgoutput.recording import locate
from pgoutput.targets import ChangeRange, ConflictError, Position, Table
from pgoutput.targets.delta import DeltaFormat
from pgoutput.targets.delta.vectors import Vector, _to_z85, decode_vector, encode_vector

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


@pytest.mark.parametrize("work", [compact, clean, restore, delete_and_append])
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
        with pytest.raises(ReplicaError, match="deletion vector is damaged"):
            ours(copy)
    assert vector.cardinality == 3


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
