"""Replicas follow the changes of a simulated server, case by case, and the capture files of real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from logicalrep.apply.batch import apply_changes
from logicalrep.apply.chunks import Chunk
from logicalrep.apply.data_files import Merged, PendingFiles
from logicalrep.apply.pending_chunks import PendingChunks
from logicalrep.errors import RecordingError, ReplicaError
from logicalrep.recording import locate
from logicalrep.replica import TableResult, replica_tables
from logicalrep.replica.ownership import claim_target
from logicalrep.targets import ConflictError, Position
from logicalrep.views import RelationChanges
from tests.replica.changes import captured_changes
from tests.replica.changes_from_rows import from_rows
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import (
    apply,
    delta_table_of,
    different_tables,
    files_of,
    open_table,
    rescued_last,
    row_texts,
    rows_of,
    table_of,
)
from tests.truth import equals_typed, true_tables

CAPTURES = (
    *("pg10_p1", "pg14_p2_stream", "pg16_p1", "pg16_p4_par_2pc", "pg18_p4_par_2pc"),
    "pg18_ws_p3_2pc_stream",
)


pytestmark = pytest.mark.usefixtures("any_format")


def follows(target: Path, server: SimulatedServer) -> bool:
    """Apply the simulated server's new changes; return whether the replica equals the server's table."""
    apply(server.take().to_batches(), target)
    found = rows_of(target, server.oid)
    return equals_typed(server.truth, rescued_last(found))


@pytest.fixture
def server() -> SimulatedServer:
    return SimulatedServer(1, "t", {"k": "int4", "v": "text", "w": "text"}, keys=1)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("pg10_p1", 100_000),
        ("pg18_p4_par_2pc", 100_000),
        ("pg18_p4_par_2pc", 3),
        *(
            pytest.param(name, rows, marks=pytest.mark.nightly)
            for name in CAPTURES
            for rows in (100_000, 3)
            if name != "pg18_p4_par_2pc" and (name, rows) != ("pg10_p1", 100_000)
        ),
    ],
)
def test_replicas_equal_the_servers_tables(name: str, rows: int, tmp_path: Path) -> None:
    changes = captured_changes(tmp_path / "recording", name, cut=50)
    target = tmp_path / "target"
    applied = apply(changes.to_batches(17), target, max_rows=rows)
    truth = list(true_tables(name.partition("_")[0]))
    assert different_tables(target, truth) == []
    assert sum(sum(one.changes.values()) for one in applied) == changes.num_rows


@pytest.mark.delta
def test_text_and_binary_format_give_equal_replicas(tmp_path: Path) -> None:
    for name in ("pg18_p2_stream", "pg18_p2_stream_bin"):
        changes = captured_changes(tmp_path / f"{name}.recording", name)
        apply(changes.to_batches(), tmp_path / name)
    text, binary = (replica_tables(tmp_path / name) for name in ("pg18_p2_stream", "pg18_p2_stream_bin"))
    assert text.keys() == binary.keys()
    for oid, table in text.items():
        sides = [DeltaTable(one.place).to_pyarrow_table() for one in (table, binary[oid])]
        assert sides[0].schema == sides[1].schema
        assert sides[0].num_rows == sides[1].num_rows


def test_unchanged_toasted_values_are_kept(server: SimulatedServer, tmp_path: Path) -> None:
    """Unchanged values come from the Delta table even if a micro-batch also changes keys and inserts rows."""
    server.insert("1", "old", "toast")
    assert follows(tmp_path, server)
    server.update(0, ("w",), v="new")
    assert follows(tmp_path, server)
    server.update(0, ("w",), k="2")
    server.update(0, ("w",), v="newer")
    server.insert("1", "other", "toast of the other")
    server.update(1, ("w", "v"), k="3")
    server.insert("4", "inserted", "toast of the third")
    server.update(2, ("w",), v="updated")
    assert follows(tmp_path, server)
    assert rows_of(tmp_path)["_rescued_data"].null_count == 3


def test_keys_are_swapped_in_one_commit(server: SimulatedServer, tmp_path: Path) -> None:
    server.insert("1", "one", "toast of one")
    server.insert("2", "two", "toast of two")
    assert follows(tmp_path, server)
    server.update(0, ("w",), k="0")
    server.update(1, ("w",), k="1")
    server.update(0, ("w",), k="2")
    assert follows(tmp_path, server)


def test_changes_of_rows_that_were_never_sent(server: SimulatedServer, tmp_path: Path) -> None:
    """An update adds the sent values as a row, a delete does nothing, an insert replaces a row of its key."""
    server.insert("1", "one", "never seen")
    server.insert("2", "two", "never seen")
    server.take()
    server.update(0, ("w",), v="now")
    server.delete(1)
    server.insert("3", "three", "stays")
    apply(server.take().to_batches(), tmp_path)
    assert rows_of(tmp_path).sort_by("k").to_pylist() == [
        {"k": 1, "v": "now", "w": None, "_rescued_data": [("w", None)]},
        {"k": 3, "v": "three", "w": "stays", "_rescued_data": None},
    ]
    server.delete(1)
    server.take()  # not sent, as if the publication did not contain the table
    server.insert("3", "again", "new")
    apply(server.take().to_batches(), tmp_path)
    assert sorted(rows_of(tmp_path)["v"].to_pylist()) == ["again", "now"]


def test_one_of_several_equal_rows_is_changed(tmp_path: Path) -> None:
    server = SimulatedServer(1, "t", {"a": "int4", "b": "float8", "c": "int4[]"}, keys=3)
    for _ in range(3):
        server.insert("1", "NaN", "{{1}}")
        server.insert(None, None, None)
        server.insert("1", "-0", "{1}")
        server.insert("1", "0", "{1}")
    assert follows(tmp_path, server)
    for at in (0, 0, 2):
        server.delete(at)
    server.update(1, c="{1,2}")
    assert follows(tmp_path, server)


def test_rescued_keys_find_their_rows(tmp_path: Path) -> None:
    server = SimulatedServer(1, "t", {"k": "date", "v": "text"}, keys=1)
    for key in ("infinity", "-infinity", "0044-03-15 BC", "2020-01-01"):
        server.insert(key, f"v of {key}")
    assert follows(tmp_path, server)
    server.update(0, ("v",), k="2020-01-02")
    server.delete(1)
    server.update(1, v="the ides")
    assert follows(tmp_path, server)


def test_a_truncate_is_committed_together_with_the_changes_after_it(
    server: SimulatedServer, tmp_path: Path
) -> None:
    server.insert("1", "one", None)
    assert follows(tmp_path, server)
    version = table_of(tmp_path).version
    server.update(0, v="x")
    server.truncate()
    server.insert("2", "two", None)
    assert follows(tmp_path, server)
    assert table_of(tmp_path).version == version + 2  # the update, and the truncate with the insert


def test_columns_are_added_dropped_and_retyped(server: SimulatedServer, tmp_path: Path) -> None:
    server.insert("1", "1.5", "w")
    server.add_column("n", "int4")
    server.insert("2", "2.50", "w", "7")
    assert follows(tmp_path, server)
    server.drop_column("w")
    server.columns["n"] = "text"
    server.update(0, v="3")
    assert follows(tmp_path, server)
    server.columns["v"] = "float8"
    server.rows[1]["v"] = "2.5"
    server.update(0, v="infinity")
    server.rows[0]["v"] = "Infinity"
    assert not follows(tmp_path, server)  # a server sends Infinity, not infinity
    found = rows_of(tmp_path)
    assert found.schema.names == ["k", "v", "n", "_rescued_data"]
    assert {row["k"]: row_texts(row)["v"] for row in found.to_pylist()} == {1: "infinity", 2: "2.5"}


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ("int4", "text", "5", "5"),
        ("text", "int4", "5", "5"),
        ("text", "int4", "five", "five"),
        ("bool", "text", "t", "true"),
        ("bool", "varchar", "f", "false"),
        ("bool[]", "text[]", "{t,NULL,f}", "{true,NULL,false}"),
        ("float8", "int4", "2.5", "2"),
        ("float4", "float8", "0.1", "0.10000000149011612"),
        ("float8", "numeric", "1e+20", "100000000000000000000"),
        ("float8", "numeric", "0.12345678901234568", "0.123456789012346"),
        ("float8", "numeric", "-0", "0"),
        ("float8", "numeric", "NaN", "NaN"),
        ("float8", "numeric", "-Infinity", "-Infinity"),
        ("float4", "numeric", "16777216", "16777200"),
        ("float4", "numeric", "0.1", "0.1"),
        ("float8[]", "numeric[]", "{0.12345678901234568}", "{0.123456789012346}"),
        ("float8[]", "int4[]", "{2.5,NULL}", "{2,NULL}"),
        ("timestamp[]", "date[]", '{"2020-01-01 10:00:00"}', "{2020-01-01}"),
        ("date[]", "timestamp[]", "{2020-01-01}", '{"2020-01-01 00:00:00"}'),
        ("bool", "int4", "t", "1"),
        ("float8", "text", "1e+20", "1e+20"),
        ("timestamp", "date", "2020-01-01 10:00:00", "2020-01-01"),
        ("date", "timestamp", "2020-01-01", "2020-01-01 00:00:00"),
        ("timestamptz", "text", "2020-01-01 10:00:00.5+00", "2020-01-01 10:00:00.5+00"),
        ("date", "text", "infinity", "infinity"),
        ("bytea", "text", "\\x00ff", "\\x00ff"),
        ("int4[]", "text", "{1,NULL}", "{1,NULL}"),
        ("int4[]", "int8[]", "{{1}}", "{{1}}"),
    ],
)
def test_retyped_columns_are_converted(old: str, new: str, before: str, after: str, tmp_path: Path) -> None:
    server = SimulatedServer(1, "t", {"k": "int4", "v": old}, keys=1)
    server.insert("1", before)
    server.insert("2", None)
    assert follows(tmp_path, server)
    server.columns["v"] = new
    server.rows[0]["v"] = after
    server.insert("3", None)
    assert follows(tmp_path, server)


@pytest.mark.parametrize("type_", ["timestamp", "timestamp[]"])
def test_timestamps_without_time_zone_can_be_added(type_: str, tmp_path: Path) -> None:
    """Adding a timestamp column without time zone enables the Delta table feature timestampNtz."""
    server = SimulatedServer(1, "t", {"k": "int4"}, keys=1)
    server.insert("1")
    assert follows(tmp_path, server)
    server.add_column("at", type_)
    server.insert("2", None)
    assert follows(tmp_path, server)


def test_names_with_special_characters(tmp_path: Path) -> None:
    """Columns and tables have names that differ only in case, look like a path, or equal `_rescued_data`."""
    columns = {"id": "int4", "ID": "text", 'a."b`/%': "text", "_rescued_data": "text", "": "text"}
    server = SimulatedServer(1, "../x y/%2F é", columns, keys=1)
    server.insert("1", "a", "b", "c", "d")
    apply(server.take().to_batches(), tmp_path)
    server.update(0, ("ID", "_rescued_data", ""), id="2")
    apply(server.take().to_batches(), tmp_path)
    assert [folder.name for folder in tmp_path.iterdir() if folder.name[0] != "_"] == [
        "public.~2E~2E~2Fx y~2F~252F é"
    ]
    assert rows_of(tmp_path).to_pylist() == [
        {"id": 2, "ID_": "a", 'a."b`/%': "b", "_rescued_data": "c", "_": "d", "_rescued_data_": None}
    ]


def test_folders_stay_with_their_relations(tmp_path: Path) -> None:
    """A renamed table and a new table with the old name have separate folders, also without a registry."""
    first = SimulatedServer(1, "t", {"k": "int4"}, keys=1)
    first.insert("1")
    assert follows(tmp_path, first)
    (tmp_path / "_relations" / "1").unlink()  # as after a crash
    first.insert("2")
    assert follows(tmp_path, first)
    first.name = "renamed"
    second = SimulatedServer(2, "t", {"k": "int4"}, keys=1)
    second.insert("3")
    assert follows(tmp_path, second)
    first.insert("4")
    assert follows(tmp_path, first)
    assert {oid: Path(table.place).name for oid, table in replica_tables(tmp_path).items()} == {
        1: "public.t",
        2: "public.t@2",
    }


def test_many_commits_leave_few_files(server: SimulatedServer, tmp_path: Path) -> None:
    for batch in range(40):
        server.insert(str(batch), "v", "w")
        assert follows(tmp_path, server)
    assert len(files_of(tmp_path)) <= 11


def test_history_keeps_all_versions(tmp_path: Path) -> None:
    server = SimulatedServer(1, "t", {"k": "int4", "v": "text", "w": "text"}, keys=1)
    server.insert("1", "a", "toast")
    server.commit()
    server.update(0, ("w",), v="b")
    apply(server.take().to_batches(), tmp_path, history=True)
    server.commit()
    server.update(0, ("w",), v="c")
    server.truncate()
    apply(server.take().to_batches(), tmp_path, history=True)
    rows = rows_of(tmp_path).sort_by("v").to_pylist()
    moments = [(row["__START_AT"], row["__END_AT"]) for row in rows]
    assert [(row["k"], row["v"], row["w"]) for row in rows] == [(1, v, "toast") for v in "abc"]
    assert [(start["commit_lsn"], start["position"]) for start, _ in moments] == [
        (100, 1),
        (110, 2),
        (120, 3),
    ]
    assert [end["position"] for _, end in moments] == [2, 3, 4]
    assert moments[0][1] == moments[1][0]


@pytest.mark.parametrize("applied", [1, 2, 4])
def test_concurrent_runs_apply_changes_once(server: SimulatedServer, tmp_path: Path, applied: int) -> None:
    """While a run reads changes, another applies some of them, such as a task of a killed Spark session."""
    server.insert("1", "a", "b")
    apply(server.take().to_batches(), tmp_path)
    server.insert("2", "a", "b")
    server.update(0, ("w",), v="c")
    server.delete(1)
    server.insert("2", "d", "e")
    changes = pa.Table.from_batches(server.take().to_batches()).combine_chunks()
    others = iter([changes.slice(0, applied)])

    def read() -> Iterator[RelationChanges]:
        for other in others:
            apply(other.to_batches(), tmp_path)
        yield from from_rows(changes.to_batches()[0])

    result = apply_changes(read, locate(tmp_path), 1, "", history=False, max_rows=1)
    assert result is None if applied == 4 else result is not None and not result.error
    assert replica_tables(tmp_path)[1].may_differ == ()
    found = rows_of(tmp_path)
    assert equals_typed(server.truth, rescued_last(found))


@pytest.fixture
def combined(server: SimulatedServer, tmp_path: Path) -> Iterator[DeltaTable]:
    """Make a table with ten rows, and changes of it that are several chunks and one micro-batch."""
    for key in range(10):
        server.insert(str(key), "a", "b")
    assert follows(tmp_path, server)
    for row in (1, 5, 1, 6):
        server.update(row, ("w",), v="c")
        server.delete(2)
    table = delta_table_of(tmp_path)
    yield table
    table.update_incremental()
    assert equals_typed(server.truth, rescued_last(table.to_pyarrow_table()))


def unused_files(table: DeltaTable) -> set[str]:
    """Return the names of the data files in a table's folder that no version of the table has."""
    versions = [commit["version"] for commit in table.history()]
    used = {path for version in versions for path in DeltaTable(table.table_uri, version).file_uris()}
    folder = Path(table.table_uri.removeprefix("file://"))
    return {path.name for path in folder.glob("*.parquet")} - {Path(one).name for one in used}


@pytest.mark.delta
def test_several_chunks_are_one_commit(combined: DeltaTable, server: SimulatedServer, tmp_path: Path) -> None:
    changes, version = server.take().to_batches(), combined.version()
    for _ in range(2):  # the second time, nothing is left to do
        apply(changes, tmp_path, max_rows=1)
        combined.update_incremental()
        assert combined.version() == version + 1
    assert open_table(combined.table_uri).position.position == changes[-1]["position"][-1].as_py()
    assert not unused_files(combined)


@pytest.mark.delta
def test_chunks_are_applied_again_after_a_conflict(
    combined: DeltaTable, server: SimulatedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = PendingFiles.merge
    conflicts = iter([False, True, True, False, True])

    def conflicting(files: PendingFiles) -> Merged:
        if next(conflicts, False):
            table_of(tmp_path).set_properties({"note": "changed"})
        return merge(files)

    monkeypatch.setattr(PendingFiles, "merge", conflicting)
    monkeypatch.setattr(
        "logicalrep.apply.pending_chunks.MAX_SMALL_FILES", 0
    )  # so that there are several commits
    (result,) = apply(server.take().to_batches(), tmp_path, max_rows=1)
    assert result.changes == {"Update": 4, "Delete": 4}


@pytest.mark.delta
def test_a_conflict_before_the_commit_leaves_no_files(
    combined: DeltaTable, server: SimulatedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conflict(*arguments: object) -> None:
        monkeypatch.undo()
        raise ConflictError("another commit")

    monkeypatch.setattr("logicalrep.apply.batch.store_unmatched", conflict)
    apply(server.take().to_batches(), tmp_path, max_rows=1)
    combined.update_incremental()
    assert not unused_files(combined)


@pytest.mark.delta
def test_rows_of_another_program_mark_the_table_until_a_snapshot(
    server: SimulatedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.insert("1", "a", "b")
    assert follows(tmp_path, server)
    server.update(0, ("w",), v="c")
    merge = PendingFiles.merge

    def conflicting(files: PendingFiles) -> Merged:
        monkeypatch.undo()
        delta_table_of(tmp_path).update({"w": "'x'"})
        return merge(files)

    monkeypatch.setattr(PendingFiles, "merge", conflicting)
    assert not follows(tmp_path, server)
    reason = "another program has changed rows: UPDATE in version 2"
    assert [one.reason for one in replica_tables(tmp_path)[1].may_differ] == [reason]
    server.update(0, ("w",), v="d")
    assert not follows(tmp_path, server)
    with server.snapshot():
        pass
    assert follows(tmp_path, server)
    assert replica_tables(tmp_path)[1].may_differ == ()


@pytest.mark.delta
def test_unread_changes_leave_no_files(combined: DeltaTable, server: SimulatedServer, tmp_path: Path) -> None:
    changes = server.take().to_batches()

    def unreadable() -> Iterator[RelationChanges]:
        yield from from_rows(changes[0].slice(0, 4))
        raise RecordingError("the segment is damaged")

    with pytest.raises(RecordingError, match="damaged"):
        apply_changes(unreadable, locate(tmp_path), 1, "", history=False, max_rows=1)
    assert not unused_files(combined)
    apply(changes, tmp_path)


@pytest.mark.delta
def test_chunks_before_an_error_are_committed(
    combined: DeltaTable, server: SimulatedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, version = server.take().to_batches(), combined.version()
    fold, left = PendingChunks.fold, iter(range(3))

    def failing(pending: PendingChunks, chunk: Chunk) -> None:
        if next(left, None) is None:
            raise OSError("no space is left")
        fold(pending, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(PendingChunks, "fold", failing)
        with pytest.raises(ReplicaError, match="no space is left"):
            apply(changes, tmp_path, max_rows=1)
    combined.update_incremental()
    assert combined.version() == version + 1
    assert open_table(combined.table_uri).position.position == changes[0]["position"][2].as_py()
    apply(changes, tmp_path, max_rows=1)


def test_a_result_counts_the_applied_changes(server: SimulatedServer, tmp_path: Path) -> None:
    server.insert("1", "a", "b")
    server.insert("2", "a", "b")
    server.delete(0)
    applied = apply(server.take().to_batches(), tmp_path)
    counts = {"Insert": 2, "Delete": 1}
    assert applied == [TableResult(1, "public", "t", counts, position=Position(100, 3, 0))]


@pytest.mark.delta
def test_tables_need_no_special_reader_features(server: SimulatedServer, tmp_path: Path) -> None:
    server.insert("1", "a", "b")
    assert follows(tmp_path, server)
    protocol = delta_table_of(tmp_path).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_chunks_are_limited_by_their_size(
    server: SimulatedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PendingChunks, "is_full", True)  # each chunk is a commit
    for key in range(5):
        server.insert(str(key), "x" * 100, None)
    apply(server.take().to_batches(), tmp_path, max_bytes=250)
    assert table_of(tmp_path).version == 3  # the creation, then commits of two, two and one changes
    assert rows_of(tmp_path).num_rows == 5


def test_a_target_belongs_to_one_recording(tmp_path: Path) -> None:
    owner = claim_target(tmp_path, "tables", "a")
    assert claim_target(tmp_path, "tables", "a") == owner
    with pytest.raises(ReplicaError, match=r"the target contains tables\. Write history to another target"):
        claim_target(tmp_path, "history", "a")
    with pytest.raises(ReplicaError, match=r"belongs to recording a, and this is recording b\. Give"):
        claim_target(tmp_path, "tables", "b")
    (tmp_path / "other" / "something").mkdir(parents=True)
    with pytest.raises(
        ReplicaError, match="expected a target or an empty folder, found the file or folder something"
    ):
        claim_target(tmp_path / "other", "tables", "a")
    (tmp_path / "_owner.json").write_text('{"query": "q", "output": "tables", "recording": "a"}')
    with pytest.raises(ReplicaError, match="damaged, or was written by an earlier version of logicalrep"):
        claim_target(tmp_path, "tables", "a")


@pytest.mark.parametrize("history", [False, True])
def test_replica_identity_full_ignores_columns_that_were_never_sent(history: bool, tmp_path: Path) -> None:
    """ADD COLUMN … DEFAULT gives existing rows a value, which the server first sends in an old tuple."""
    server = SimulatedServer(1, "t", {"a": "int4", "b": "text"}, keys=2)
    for a in ("1", "2", "2", "3"):
        server.insert(a, "b")
    apply(server.take().to_batches(), tmp_path, history=history)
    server.add_column("c", "int4")
    for row in server.rows:
        row["c"] = "7"
    server.insert("4", "b", None)
    server.update(0, b="c")
    server.delete(1)
    apply(server.take().to_batches(), tmp_path, history=history)
    server.delete(3)
    apply(server.take().to_batches(), tmp_path, history=history)
    found = rows_of(tmp_path).to_pylist()
    rows = [(row["a"], row["b"], row["c"], row["_rescued_data"]) for row in found if not row.get("__END_AT")]
    assert sorted(rows, key=str) == [
        (1, "c", 7, None),
        (2, "b", None, [("c", None)]),
        (3, "b", None, [("c", None)]),
    ]


def test_a_value_that_was_never_sent_stays_marked_when_its_column_is_retyped(tmp_path: Path) -> None:
    server = SimulatedServer(1, "t", {"k": "int4", "v": "int4[]"}, keys=1)
    server.insert("1", "{1}")
    server.take()
    server.update(0, ("v",))
    apply(server.take().to_batches(), tmp_path)
    server.columns["v"] = "text"
    server.insert("2", "b")
    apply(server.take().to_batches(), tmp_path)
    rows = rows_of(tmp_path).sort_by("k").to_pylist()
    assert [row["_rescued_data"] for row in rows] == [[("v", None)], None]
