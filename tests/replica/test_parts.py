"""Changes of a relation that are applied in parts give the same table as changes applied in their order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from logicalrep.apply.parts import (
    Part,
    PartsError,
    commit_parts,
    discard_files,
    find_version,
    fold_part,
    plan_rewrites,
    rewrite_files,
)
from logicalrep.errors import ReplicaError
from logicalrep.recording import locate
from logicalrep.replica import replica_tables
from logicalrep.targets import ConflictError
from logicalrep.targets.delta.table import _Table
from tests.effort import examples
from tests.kills import Killed
from tests.replica.changes_from_rows import from_rows
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import apply, delta_table_of, files_of, read_table, rescued_last, rows_of, table_of
from tests.replica.test_random import change, compare_history, keep_files, killing
from tests.truth import equals_typed

pytestmark = pytest.mark.usefixtures("any_format")

KINDS = ("insert", "update", "delete", "commit")


def key_of(row: dict[str, Any]) -> str:
    """Return the old key of a change, by which changes are divided."""
    values = dict(row["before"] or row["after"] or [])
    return repr([values.get(name) for name in row["key_columns"]])


def divide(changes: pa.Table, count: int) -> Iterator[pa.Table]:
    """Yield the parts of changes that have changes, divided by key."""
    rows = changes.select(["key_columns", "before", "after"]).to_pylist()
    numbers = pa.array([crc32(key_of(row).encode()) % count for row in rows])
    for number in range(count):
        part = changes.filter(pc.equal(numbers, number))
        if part.num_rows:
            yield part


def fold(target: Path, changes: pa.Table, count: int, rows: int = 100) -> list[Part]:
    """Fold changes in a number of parts; return no part if the changes have to be applied in their order."""
    version = find_version(locate(target), 1, "")
    if version is None:
        return []
    divided = (map(from_rows, one.to_batches()) for one in divide(changes, count))
    parts = (fold_part(chain.from_iterable(one), version, max_rows=rows) for one in divided)
    return [part for part in parts if part is not None]


def apply_in_parts(target: Path, changes: pa.Table, count: int, rows: int = 100) -> str:
    """Apply changes in parts; return why they cannot be, or an empty string."""
    version = find_version(locate(target), 1, "")
    if version is None:
        return "the table does not exist"
    if not (parts := fold(target, changes, count, rows)):
        return ""  # the table has all changes
    try:
        rewrites = plan_rewrites(1, version, parts)
        result = commit_parts(version, parts, rewrites, [*map(rewrite_files, rewrites)])
    except (PartsError, ReplicaError) as error:
        discard_files(version, [file for part in parts for file in part.added])
        return str(error)
    assert 0 < sum(result.changes.values()) <= changes.num_rows
    return ""


@pytest.fixture
def server() -> SimulatedServer:
    return SimulatedServer(1, "t", {"k": "int4", "v": "text", "w": "text"}, keys=1)


@given(data=st.data(), history=st.booleans())
@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
def test_parts_follow_random_changes(data: st.DataObject, history: bool) -> None:
    """Each micro-batch is applied in parts, or in its order after a crash of one that was."""
    server = SimulatedServer(1, "t", {"k": "date", "i": "int4", "t": "text", "f": "float8", "a": "int4[]"}, 1)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        keep_files(patch)
        target = Path(folder)
        server.insert("2020-01-01", "1", "a", "1.5", "{}")
        apply(server.take().to_batches(), target, history=history)
        for batch in range(1, data.draw(st.integers(2, 4), label="batches")):
            kinds = data.draw(st.sampled_from([KINDS, (*KINDS, "truncate", "add", "retype")]))
            for _ in range(data.draw(st.integers(1, 20), label="changes")):
                change(server, data, "key", kinds)
            if not (changes := server.take()).num_rows:
                continue
            rows = data.draw(st.sampled_from([1, 2, 100]), label="rows")
            updates = data.draw(st.sampled_from([None, "vectors", "rewrite"]), label="updates")
            if data.draw(st.booleans(), label="killed"):
                kill_in_order(target, changes, batch, history, rows, data.draw(st.integers(1, 4)))
            refusal = apply_in_parts(target, changes, data.draw(st.integers(1, 4)), rows)
            done = table_of(target).version
            apply(changes.to_batches(), target, history=history, max_rows=rows, updates=updates)
            assert refusal or table_of(target).version == done
        found = read_table(replica_tables(target)[1].place)
    if history:
        compare_history(server, found)
    elif [*server.states.values()][-1][0] == list(server.columns):
        assert equals_typed(server.truth, rescued_last(found))


def kill_in_order(
    target: Path, changes: pa.Table, batch: int, history: bool, rows: int, commits: int
) -> None:
    """Apply changes in their order until some commit, where a crash is simulated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Table, "commit", killing(_Table, commits, True))
        try:
            apply(changes.to_batches(), target, history=history, max_rows=rows)
        except Killed:
            return


def prepare(server: SimulatedServer, target: Path, history: bool = False) -> pa.Table:
    """Write a table of 200 rows; return changes of these rows and of new ones, several of the same rows."""
    for key in range(200):
        server.insert(str(key), "old", "toast")
    apply(server.take().to_batches(), target, history=history, max_rows=60)
    for at in range(0, 150, 3):
        server.update(at, ("w",), v="new")
        server.update(at, ("w",), v="newer")
    for key in range(200, 260):
        server.insert(str(key), "new", "toast")
    for _ in range(30):
        server.delete(len(server.rows) - 1)
        server.delete(7)
    for key in (8, 20):  # with history, a version that has ended must not end again
        server.insert(str(key), "again", "toast")
    for at in range(0, 120, 5):
        server.update(at, ("w",), v="newest")
    return server.take()


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("rows", [7, 100_000])
def test_a_batch_in_parts_is_one_commit(
    server: SimulatedServer, tmp_path: Path, history: bool, rows: int
) -> None:
    """Rows that an earlier chunk of the part has begun are found by later ones; unsent values are kept."""
    changes = prepare(server, tmp_path, history)
    before = table_of(tmp_path).version
    assert apply_in_parts(tmp_path, changes, 3, rows) == ""
    assert table_of(tmp_path).version == before + 1
    if history:
        compare_history(server, rows_of(tmp_path))
    else:
        assert equals_typed(server.truth, rescued_last(rows_of(tmp_path)))
    apply(changes.to_batches(), tmp_path, history=history, max_rows=7)
    assert table_of(tmp_path).version == before + 1
    server.insert("1000", "a", "b")
    apply(server.take().to_batches(), tmp_path, history=history)
    assert table_of(tmp_path).version == before + 2


def test_data_files_without_removed_rows_stay(server: SimulatedServer, tmp_path: Path) -> None:
    changes = prepare(server, tmp_path)
    before = set(files_of(tmp_path))
    only = changes.filter(pc.equal(changes["operation"], "Insert")).slice(40, 20)
    assert apply_in_parts(tmp_path, only, 3) == ""
    assert before < set(files_of(tmp_path))


def test_new_files_are_in_the_table_or_deleted(server: SimulatedServer, tmp_path: Path) -> None:
    """Files that were rewritten before the commit are deleted after it, and files of refused parts too."""
    changes = prepare(server, tmp_path)
    known = data_files(tmp_path)
    assert apply_in_parts(tmp_path, changes, 3, 7) == ""
    in_table = {Path(uri).name for uri in files_of(tmp_path)}
    assert data_files(tmp_path) - known <= in_table
    known = data_files(tmp_path)
    for key in range(2000, 2020):
        server.insert(str(key), "a", "b")
    server.update(1, k="-1")
    assert "another key" in apply_in_parts(tmp_path, server.take(), 3, 1)
    assert data_files(tmp_path) == known


def data_files(target: Path) -> set[str]:
    return {file.name for file in target.glob("*/*.parquet")}


def truncate(server: SimulatedServer) -> None:
    server.truncate()


def add_column(server: SimulatedServer) -> None:
    server.add_column("x", "int4")
    server.insert("1000", "a", "b", "1")


def move(server: SimulatedServer) -> None:
    server.update(3, k="1000")


def copy(server: SimulatedServer) -> None:
    with server.snapshot():
        server.delete(0)


def change_key(server: SimulatedServer) -> None:
    server.key = ["k", "v"]
    server.update(0, v="z")


def identify_by_all(server: SimulatedServer) -> None:
    server.key, server.full = list(server.columns), True
    server.update(0, v="z")


ALTERATIONS = (truncate, add_column, move, copy, change_key, identify_by_all)


@pytest.mark.parametrize("alter", ALTERATIONS)
def test_other_changes_are_refused(
    server: SimulatedServer, tmp_path: Path, alter: Callable[[SimulatedServer], None]
) -> None:
    """Nothing is committed then; the changes can be applied in their order."""
    apply(prepare(server, tmp_path).to_batches(), tmp_path)
    before = table_of(tmp_path).version
    for key in range(300, 320):
        server.insert(str(key), "a", "b")
    alter(server)
    changes = server.take()
    assert apply_in_parts(tmp_path, changes, 3)
    assert table_of(tmp_path).version == before
    apply(changes.to_batches(), tmp_path)
    assert equals_typed(server.truth, rescued_last(rows_of(tmp_path)))


@pytest.mark.delta
def test_rows_that_are_written_again_are_counted(server: SimulatedServer, tmp_path: Path) -> None:
    """The advice to delete rows by vectors depends on the number, as of changes in their order."""
    for key in range(200):
        server.insert(str(key), "a", "b")
    apply(server.take().to_batches(), tmp_path)
    version = find_version(locate(tmp_path), 1, "")
    assert version is not None
    for row in range(10):
        server.update(row, v="c")
    parts = fold(tmp_path, server.take(), 3)
    rewrites = plan_rewrites(1, version, parts)
    result = commit_parts(version, parts, rewrites, [*map(rewrite_files, rewrites)])
    assert (result.written_again, len(rows_of(tmp_path))) == (190, 200)


@pytest.mark.delta
def test_another_commit_in_between_is_noticed(server: SimulatedServer, tmp_path: Path) -> None:
    """Parts name row numbers of data files, which another program may have combined."""
    changes = prepare(server, tmp_path)
    version = find_version(locate(tmp_path), 1, "")
    assert version is not None
    parts = fold(tmp_path, changes, 2)
    rewrites = plan_rewrites(1, version, parts)
    delta_table_of(tmp_path).optimize.compact()
    with pytest.raises(ConflictError):
        commit_parts(version, parts, rewrites, [*map(rewrite_files, rewrites)])
    apply(changes.to_batches(), tmp_path)
    assert equals_typed(server.truth, rescued_last(rows_of(tmp_path)))


@pytest.mark.delta
def test_a_data_file_that_is_gone_is_an_error(server: SimulatedServer, tmp_path: Path) -> None:
    changes = prepare(server, tmp_path)
    version = find_version(locate(tmp_path), 1, "")
    assert version is not None
    parts = fold(tmp_path, changes, 2)
    rewrites = plan_rewrites(1, version, parts)
    for name in data_files(tmp_path):
        (tmp_path / "public.t" / name).unlink()
    assert "the file is missing" in fold(tmp_path, changes, 2)[0].refusal
    with pytest.raises(PartsError, match="the file is missing"):
        commit_parts(version, parts, rewrites, [*map(rewrite_files, rewrites)])
