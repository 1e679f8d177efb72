"""A snapshot replaces all rows of a Delta table in one commit; with history, only differing rows change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from logicalrep.apply import apply_changes
from logicalrep.apply.rows.digests import RowSet, digest_rows
from logicalrep.apply.rows.lookup import look_up_rows
from logicalrep.errors import ReplicaError
from logicalrep.recording import locate
from logicalrep.replica import replica_tables
from logicalrep.targets.delta.table import _Table
from logicalrep.views import RelationChanges
from tests.kills import Killed, Kills
from tests.replica.changes_from_rows import from_rows
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import (
    apply,
    delta_table_of,
    files_of,
    read_table,
    rescued_last,
    row_texts,
    rows_of,
    table_of,
)
from tests.truth import equals_typed

pytestmark = pytest.mark.usefixtures("any_format")

MODES = pytest.mark.parametrize("history", [False, True])


@pytest.fixture
def server() -> SimulatedServer:
    server = SimulatedServer(1, "t", {"k": "int4", "v": "text"}, keys=1)
    for key in range(20):
        server.insert(str(key), "old")
    return server


def lose_changes(server: SimulatedServer) -> None:
    """Change rows of the server's table without sending the changes: 5 rows are gone, 6 differ, 7 are new."""
    del server.rows[:5]
    for row in server.rows[:6]:
        row["v"] = "new"
    server.rows += [{"k": str(key), "v": "new"} for key in range(100, 107)]


def current(target: Path, version: int | None = None) -> list[tuple[int, str]]:
    rows = read_table(replica_tables(target)[1].place, version).to_pylist()
    return sorted((row["k"], row["v"]) for row in rows if row.get("__END_AT") is None)


def true_rows(server: SimulatedServer) -> list[tuple[int, str]]:
    return sorted((int(str(row["k"])), str(row["v"])) for row in server.rows)


@MODES
def test_every_version_has_all_old_or_all_new_rows(
    history: bool, server: SimulatedServer, tmp_path: Path
) -> None:
    """The snapshot has more rows than a chunk, and the changes in it are part of the same commit."""
    apply(server.take().to_batches(), tmp_path, history=history, max_rows=4)
    first = table_of(tmp_path).version
    old = current(tmp_path)
    lose_changes(server)
    with server.snapshot():
        for key in range(200, 209):
            server.update(0, v=str(key))
            server.insert(str(key), "replayed")
            server.delete(3)
        server.update(1, ("v",), k="400")
    new = true_rows(server)
    server.insert("300", "later")
    apply(server.take().to_batches(), tmp_path, history=history, max_rows=4)
    assert [current(tmp_path, first + number) for number in range(3)] == [
        old,
        new,
        sorted([*new, (300, "later")]),
    ]
    assert table_of(tmp_path).version == first + 2


def test_rows_loaded_after_a_truncate_appear_at_once(server: SimulatedServer, tmp_path: Path) -> None:
    """The TRUNCATE and the rows after it are one transaction. The next transaction has its own commits."""
    apply(server.take().to_batches(), tmp_path)
    first = table_of(tmp_path).version
    old = current(tmp_path)
    server.commit()
    server.insert("50", "before")
    server.truncate()
    for key in range(20):
        server.insert(str(key), "loaded")
    server.update(3, v="changed")
    new = true_rows(server)
    server.commit()
    server.delete(0)
    apply(server.take().to_batches(3), tmp_path, max_rows=4)
    found = [current(tmp_path, first + number) for number in range(4)]
    assert found == [old, [*old, (50, "before")], new, new[1:]]
    assert table_of(tmp_path).version == first + 3


@MODES
def test_the_first_rows_of_a_table_appear_at_once(
    history: bool, server: SimulatedServer, tmp_path: Path
) -> None:
    server.take()
    with server.snapshot():
        pass
    apply(server.take().to_batches(), tmp_path, history=history, max_rows=4)
    assert [current(tmp_path, version) for version in range(2)] == [[], true_rows(server)]
    assert table_of(tmp_path).version == 1


@pytest.mark.delta
@MODES
def test_a_killed_replacement_leaves_only_files_that_vacuum_removes(
    history: bool, server: SimulatedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(server.take().to_batches(), tmp_path, history=history)
    lose_changes(server)
    with server.snapshot():
        server.update(0, v="replayed")
    changes = server.take().to_batches()
    before = table_of(tmp_path).version, current(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(_Table, "commit", Kills(1).watch(_Table.commit))
        with pytest.raises(Killed):
            apply(changes, tmp_path, history=history, max_rows=4)
    assert (table_of(tmp_path).version, current(tmp_path)) == before
    assert unnamed_files(tmp_path)
    for _ in range(2):  # applying the changes again changes nothing
        apply(changes, tmp_path, history=history, max_rows=4)
        assert table_of(tmp_path).version == before[0] + 1
        assert current(tmp_path) == true_rows(server)
    delta_table_of(tmp_path).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    assert unnamed_files(tmp_path) == set()
    assert current(tmp_path) == true_rows(server)


def unnamed_files(target: Path) -> set[str]:
    """Return the names of the data files in a table's folder that its current version does not have."""
    files = {file.name for file in Path(replica_tables(target)[1].place).rglob("*.parquet")}
    return files - {*files_of(target)}


@MODES
def test_a_replacement_leaves_no_other_files(history: bool, server: SimulatedServer, tmp_path: Path) -> None:
    server.take()
    with server.snapshot():
        for _ in range(9):
            server.update(0, v="replayed")
    apply(server.take().to_batches(), tmp_path, history=history, max_rows=4)
    assert unnamed_files(tmp_path) == set()
    assert len(files_of(tmp_path)) < 3  # not one for each chunk


@MODES
def test_a_full_disk_keeps_the_rows_and_no_other_files(
    history: bool, server: SimulatedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(server.take().to_batches(), tmp_path, history=history)
    old = current(tmp_path)
    lose_changes(server)
    with server.snapshot():
        for _ in range(9):
            server.update(0, v="replayed")
    changes = server.take().to_batches()
    with monkeypatch.context() as patch:
        patch.setattr("logicalrep.apply.rows.chunk_writer.look_up_rows", failing_after(7))
        with pytest.raises(ReplicaError, match=r"^\[Errno 28\] No space left on device"):
            apply(changes, tmp_path, history=history, max_rows=4)
    assert unnamed_files(tmp_path) == set()
    assert current(tmp_path) == old
    apply(changes, tmp_path, history=history, max_rows=4)
    assert current(tmp_path) == true_rows(server)


def failing_after(calls: int) -> Any:
    """Return a replacement for `look_up_rows` that works for a number of calls."""
    left = iter(range(calls))

    def look_up(*arguments: Any, **options: Any) -> Any:
        if next(left, None) is None:
            raise OSError(28, "No space left on device")
        return look_up_rows(*arguments, **options)

    return look_up


@pytest.mark.delta
@MODES
def test_a_replacement_is_committed_after_a_concurrent_compaction(
    history: bool, server: SimulatedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes can be read only once, so the data files that were written are committed again."""
    apply(server.take().to_batches(), tmp_path, history=history, max_rows=4)
    lose_changes(server)
    with server.snapshot():
        pass
    commit = _Table.commit
    compactions: list[int] = []

    def compact_first(*arguments: Any, **schema: Any) -> None:
        if not compactions:
            compactions.append(delta_table_of(tmp_path).optimize.compact()["numFilesRemoved"])
        commit(*arguments, **schema)

    monkeypatch.setattr(_Table, "commit", compact_first)
    apply(server.take().to_batches(), tmp_path, history=history, max_rows=4)
    assert compactions == [5]
    assert current(tmp_path) == true_rows(server)


@pytest.mark.parametrize("batch_rows", [3, 1000])
def test_history_ends_and_begins_only_versions_that_differ(
    batch_rows: int, server: SimulatedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logicalrep.targets.parquet._BATCH_ROWS", batch_rows)
    apply(server.take().to_batches(), tmp_path, history=True)
    (file,) = files_of(tmp_path)
    old = {row["k"]: row for row in rows_of(tmp_path).to_pylist()}
    with server.snapshot():
        pass
    apply(server.take().to_batches(), tmp_path, history=True)
    assert files_of(tmp_path) == [file]
    lose_changes(server)
    truncated = server.position + 1
    with server.snapshot():
        server.update(0, v="replayed")
        server.delete(1)
    apply(server.take().to_batches(), tmp_path, history=True)
    rows = rows_of(tmp_path).to_pylist()
    began = {row["k"]: row["v"] for row in rows if row["__START_AT"]["position"] == truncated}
    ended = {row["k"] for row in rows if row["__END_AT"] is not None}
    assert began == {5: "replayed", 7: "new", **dict.fromkeys([8, 9, 10, *range(100, 107)], "new")}
    assert ended == {*range(11)}
    assert {row["__END_AT"]["position"] for row in rows if row["k"] in ended and row["v"] == "old"} == {
        truncated
    }
    assert [row for row in rows if row["k"] in range(11, 20)] == [old[key] for key in range(11, 20)]


def test_a_truncate_of_the_server_ends_all_versions(server: SimulatedServer, tmp_path: Path) -> None:
    """Equal rows that are inserted after the TRUNCATE are new versions."""
    apply(server.take().to_batches(), tmp_path, history=True)
    server.commit()
    server.truncate()
    for key in range(20):
        server.insert(str(key), "old")
    apply(server.take().to_batches(), tmp_path, history=True)
    rows = rows_of(tmp_path).to_pylist()
    assert Counter(row["__END_AT"] is None for row in rows) == {True: 20, False: 20}


@MODES
def test_an_empty_snapshot_removes_all_rows(history: bool, server: SimulatedServer, tmp_path: Path) -> None:
    apply(server.take().to_batches(), tmp_path, history=history)
    server.rows.clear()
    with server.snapshot():
        pass
    apply(server.take().to_batches(), tmp_path, history=history)
    assert current(tmp_path) == []


@MODES
def test_a_truncate_within_a_snapshot_removes_the_rows_before_it(
    history: bool, server: SimulatedServer, tmp_path: Path
) -> None:
    apply(server.take().to_batches(), tmp_path, history=history)
    version = table_of(tmp_path).version
    with server.snapshot():
        server.truncate()
        server.insert("1", "old")
        server.insert("2", "new")
    apply(server.take().to_batches(), tmp_path, history=history, max_rows=4)
    assert current(tmp_path) == [(1, "old"), (2, "new")]
    assert table_of(tmp_path).version == version + 1


@pytest.mark.delta
def test_two_snapshots_are_two_commits(server: SimulatedServer, tmp_path: Path) -> None:
    for value in ("first", "second"):
        server.rows[0]["v"] = value
        with server.snapshot():
            pass
    server.changes = [one for one in server.changes if one["xid"] == 0]
    apply(server.take().to_batches(), tmp_path, history=True)
    versions = [row["v"] for row in rows_of(tmp_path).to_pylist() if row["k"] == 0]
    assert sorted(versions) == ["first", "second"]
    assert sum("logicalrep.commit_lsn" in one for one in delta_table_of(tmp_path).history()) == 2


def test_equal_rows_of_a_table_without_key_are_counted(tmp_path: Path) -> None:
    server = SimulatedServer(1, "t", {"a": "int4", "b": "float8", "c": "int4[]"}, keys=3)
    kinds = [("1", "NaN", "{{1}}"), (None, None, None), ("1", "-0", "{1}"), ("1", "0", "{NULL}")]
    for row, count in zip(kinds, (5, 4, 3, 2), strict=True):
        for _ in range(count):
            server.insert(*row)
    apply(server.take().to_batches(), tmp_path, history=True)
    server.rows = [
        dict(zip("abc", row, strict=True))
        for row, count in zip(kinds, (2, 4, 6, 0), strict=True)
        for _ in range(count)
    ]
    with server.snapshot():
        pass
    apply(server.take().to_batches(), tmp_path, history=True, max_rows=3)
    rows = rows_of(tmp_path).to_pylist()
    found = Counter((row_texts(row)["b"], row_texts(row)["c"], row["__END_AT"] is None) for row in rows)
    assert found == {
        ("NaN", "{{1}}", True): 2,
        ("NaN", "{{1}}", False): 3,
        (None, None, True): 4,
        ("-0", "{1}", True): 6,
        ("0", "{NULL}", False): 2,
    }
    assert sum(row["__START_AT"]["commit_lsn"] > 100 for row in rows) == 3


@pytest.mark.delta
@MODES
@pytest.mark.parametrize("keys", [1, 3])
def test_columns_change_before_and_within_a_snapshot(history: bool, keys: int, tmp_path: Path) -> None:
    """The rows before the snapshot have other columns, and so have the changes at its end."""
    server = SimulatedServer(1, "t", {"k": "date", "v": "int4", "gone": "text"}, keys=keys)
    for day in range(10, 20):
        server.insert(f"2020-01-{day}", "1", "x")
    apply(server.take().to_batches(), tmp_path, history=history)
    version = table_of(tmp_path).version
    server.drop_column("gone")
    server.columns["v"] = "int8"
    server.add_column("at", "timestamp")
    for row in server.rows[:3]:
        row["at"] = "2020-01-01 00:00:00"
    server.rows[3]["k"] = "infinity"
    server.rows[4]["at"] = "-infinity"
    with server.snapshot():
        server.update(0, v="5000000000")
        server.add_column("n", "text")
        server.insert("2020-01-30", "7", None, "n")
        server.update(4, n="n of infinity")
        server.delete(5)
    apply(server.take().to_batches(), tmp_path, history=history, max_rows=4)
    rows = rows_of(tmp_path).to_pylist()
    texts = Counter(
        tuple(row_texts(row)[name] for name in server.columns) for row in rows if not row.get("__END_AT")
    )
    assert texts == Counter(tuple(row.values()) for row in server.rows)
    if not history:
        names = table_of(tmp_path).schema.names
        assert list(names) == ["k", "v", "at", "n", "_rescued_data"]
        changed = [one for one in delta_table_of(tmp_path).history() if one["version"] > version]
        assert [one["operation"] for one in changed].count("WRITE") == 1


@pytest.mark.delta
@MODES
def test_columns_are_renamed_and_retyped_within_a_snapshot(history: bool, tmp_path: Path) -> None:
    """The rows of the snapshot get the columns of the changes after them, as rows of a Delta table do."""
    server = SimulatedServer(1, "t", {"k": "int4", "v": "date", "w": "text"}, keys=1)
    for key, date in enumerate(["infinity", "2020-01-01", None]):
        server.insert(str(key), date, "w")
    apply(server.take().to_batches(), tmp_path, history=history)
    with server.snapshot():
        server.rename_column("v", "renamed")
        server.update(0)
        server.columns["renamed"] = "text"
        server.insert("4", "text", "w")
    apply(server.take().to_batches(), tmp_path, history=history, max_rows=2)
    rows = rows_of(tmp_path).to_pylist()
    delta_table_of(tmp_path).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert unnamed_files(tmp_path) == set()  # the files with the old columns are deleted
    found = sorted((row["k"], row["renamed"], row["_rescued_data"]) for row in rows)
    assert found == [(0, "infinity", None), (1, "2020-01-01", None), (2, None, None), (4, "text", None)]


def test_reasons_are_removed_by_a_snapshot_and_added_by_changes_in_it(
    server: SimulatedServer, tmp_path: Path
) -> None:
    apply(server.take().to_batches(), tmp_path)
    server.add_column("n", "int4")
    server.insert("50", "v", "1")
    (applied,) = apply(server.take().to_batches(), tmp_path)
    assert [one.reason[:14] for one in applied.may_differ] == ["column n was a"]
    with server.snapshot():
        pass
    (applied,) = apply(server.take().to_batches(), tmp_path)
    assert applied.may_differ == replica_tables(tmp_path)[1].may_differ == ()
    with server.snapshot():
        server.add_column("m", "int4")
        server.insert("51", "v", "1", "1")
    (applied,) = apply(server.take().to_batches(), tmp_path)
    assert [one.reason[:14] for one in applied.may_differ] == ["column m was a"]
    assert replica_tables(tmp_path)[1].may_differ == applied.may_differ


def test_rows_of_the_snapshot_may_differ_after_a_column_was_added(
    server: SimulatedServer, tmp_path: Path
) -> None:
    """The Delta table itself has no rows yet."""
    server.take()
    with server.snapshot():
        server.add_column("n", "int4")
        server.insert("50", "v", "1")
    (applied,) = apply(server.take().to_batches(), tmp_path)
    assert [one.reason[:14] for one in applied.may_differ] == ["column n was a"]


def test_a_type_modifier_that_changed_with_the_snapshot_is_stored(tmp_path: Path) -> None:
    """The columns of the Delta table stay the same. The next change does not report an altered column."""
    server = SimulatedServer(1, "t", {"k": "int4", "v": "varchar"}, keys=1)
    server.insert("1", "a")
    apply(server.take().to_batches(), tmp_path)
    server.modifiers["v"] = 9
    with server.snapshot():
        pass
    server.insert("2", "b")
    (applied,) = apply(server.take().to_batches(), tmp_path)
    assert applied.may_differ == ()


@MODES
def test_a_replacement_needs_bounded_memory(
    history: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = SimulatedServer(1, "t", {"k": "int4", "v": "text"}, keys=1)
    changes = []
    with server.snapshot():
        for chunk in range(20):
            for key in range(10):
                server.insert(str(10 * chunk + key), f"{chunk}" * (1 << 16))
            changes += server.take().to_batches()
    written = tmp_path / "changes"
    with pa.OSFile(str(written), "wb") as file, pa.ipc.new_file(file, changes[0].schema) as writer:
        for batch in changes:
            writer.write_batch(batch)
    size = sum(batch.nbytes for batch in changes)
    del batch, changes, server
    before = pa.total_allocated_bytes()
    held: list[int] = []

    def read() -> Iterator[RelationChanges]:
        with pa.memory_map(str(written)) as source, pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                yield from from_rows(reader.get_batch(number))
                held.append(pa.total_allocated_bytes() - before)

    monkeypatch.setattr("logicalrep.targets.parquet.FILE_BYTES", 1 << 20)
    result = apply_changes(read, locate(tmp_path / "target"), 1, "", history=history, max_rows=10)
    assert result is not None
    assert not result.error
    assert max(held) < size / 2
    assert rows_of(tmp_path / "target").num_rows == 200


@given(st.lists(st.lists(st.sampled_from("abcd"))), st.lists(st.sampled_from("abcde")))
def test_rows_are_taken_from_a_set_as_often_as_it_contains_them(
    taken: list[list[str]], contained: list[str]
) -> None:
    rows = RowSet([digests([one]) for one in contained], len(contained))
    left = Counter(contained)
    for batch in taken:
        expected = []
        for one in batch:
            expected.append(left[one] > 0)
            left[one] -= left[one] > 0
        assert rows.take(digests(batch)).tolist() == expected


def digests(texts: list[str]) -> Any:
    columns = {"v": pa.array(texts, pa.string()), "r": pa.nulls(len(texts), pa.map_("string", "string"))}
    return digest_rows(pa.record_batch(columns), ["v"], "r")


CELLS = st.sampled_from([None, "", ":", "a", "1:a", ":1:", "a:", "1"])


RESCUED = st.sampled_from([None, [], [("v", None)], [("w", "a")], [("dropped", "a")], [("dropped", None)]])


@given(st.lists(st.tuples(CELLS, CELLS, RESCUED)))
def test_digests_are_equal_only_for_equal_rows(rows: list[tuple[Any, Any, Any]]) -> None:
    v, w, rescued = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [pa.array(v, pa.string()), pa.array(w, pa.string())]
    batch = pa.record_batch([*arrays, pa.array(rescued, pa.map_("string", "string"))], names=["v", "w", "r"])
    found = digest_rows(batch, ["v", "w"], "r").tolist()
    compared = {(v, w, str([cell for cell in cells or () if cell[0] in "vw"])) for v, w, cells in rows}
    assert len(set(found)) == len(compared)


def test_a_replacement_keeps_the_true_values(tmp_path: Path) -> None:
    """Rescued values and NULLs of the snapshot equal the server's, also after they are taken anew."""
    server = SimulatedServer(1, "t", {"k": "date", "n": "numeric", "b": "bytea"}, keys=1)
    for batch in range(2):
        for day in ("infinity", "2020-01-01", "0044-03-15 BC"):
            if not batch:
                server.insert(day, "NaN", "\\x00")
        with server.snapshot():
            server.update(0, n=str(batch), b=None)
        apply(server.take().to_batches(), tmp_path)
        assert equals_typed(server.truth, rescued_last(rows_of(tmp_path)))
