"""A target follows some tables of a recording; tables that are added later have all their rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Event, Thread

import msgspec
import pytest

from logicalrep import messages as m
from logicalrep.errors import RecordingError, ReplicaError
from logicalrep.recording import Recording, locate, prune
from logicalrep.replica import (
    positions as positions_module,
    replica_tables,
    replicate,
    select_tables,
    selected_tables,
    selection as selection_module,
)
from logicalrep.replica.selection import Selection
from tests.effort import mostly_nightly
from tests.kills import Killed
from tests.messages import make_column, make_relation
from tests.recorder.lab import wait_until
from tests.recording.recordings import record, sent, source, write
from tests.replica.tables import different_tables, read_table
from tests.replica.test_replicate import copy_segments
from tests.truth import TrueTable, true_tables

pytestmark = pytest.mark.usefixtures("any_format")

NAME = "pg18_p4_par_2pc"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with interleaved streamed and prepared transactions, in many segments."""
    folder = tmp_path_factory.mktemp("whole")
    write(folder, source(NAME), sent(NAME), 40)
    return folder


@pytest.fixture(scope="module")
def truth(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> list[TrueTable]:
    """The final tables of the server that have a Delta table."""
    target = tmp_path_factory.mktemp("truth") / "lake"
    replicate(whole, target)
    return [table for table in true_tables("pg18") if table.oid in replica_tables(target)]


@pytest.mark.parametrize("seed", mostly_nightly(range(20), [0]))
def test_added_tables_equal_a_real_servers_tables(
    whole: Path, truth: list[TrueTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Tables are added at any time, and the run is killed at any write of an added table, and goes on."""
    random, folder, target = Random(seed), tmp_path / "recording", tmp_path / "lake"
    names = [table.name for table in truth]
    random.shuffle(names)
    last = max(len(list(whole.iterdir())) - 1, 1)
    stages = sorted(random.sample(range(1, last), 6))
    for module, function in ((selection_module, "replace_file"), (positions_module, "write_file")):
        monkeypatch.setattr(module, function, killing(getattr(module, function), random))
    wanted: set[str] = set()
    for count in [*stages, None]:
        copy_segments(whole, folder, count)
        added = {names.pop() for _ in range(4)}
        while not added <= wanted:
            with suppress(Killed):
                select_tables(folder, target, added)
                wanted |= added
            if wanted:  # otherwise the query would follow all tables
                replicate_despite_kills(folder, target)
        if count is not None and random.random() < 0.5:
            (target / "_reached.json").unlink(missing_ok=True)
        replicate_despite_kills(folder, target)
    assert selected_tables(locate(target)) == frozenset(wanted)
    replicate_despite_kills(folder, target)
    assert different_tables(target, [table for table in truth if table.name in wanted]) == []
    followed = {oid for oid, table in replica_tables(target).items() if not table.error}
    assert {table.name for table in truth if table.oid in followed} == wanted


def replicate_despite_kills(folder: Path, target: Path) -> None:
    """Do what `logicalrep replicate` does, again after each kill."""
    while True:
        with suppress(Killed):
            run(folder, target)
            return


def killing(function: Callable[..., None], random: Random) -> Callable[..., None]:
    """Return a function that kills in a third of the calls, before or after its effect."""

    def call(*arguments: object) -> None:
        moment = random.randrange(6)
        if moment == 0:
            raise Killed
        function(*arguments)
        if moment == 1:
            raise Killed

    return call


def insert(folder: Path, name: str, *values: int, oid: int = 1, drop: int | None = None) -> None:
    """Record a transaction in a segment of its own; it inserts rows into a table of this name."""
    relation = make_relation(make_column("id", 23, key=True), oid=oid, name=name)
    folder.mkdir(exist_ok=True)
    n = max(Recording(folder, may_be_empty=True).numbers, default=0) + 1
    changes = [
        relation,
        m.Begin(final_lsn=n * 100, commit_time=n, xid=n),
        *(m.Insert(relation_oid=oid, new=(str(one),)) for one in values),
    ]
    record(folder, *changes, m.Commit(commit_lsn=n * 100, end_lsn=n * 100 + 10, commit_time=n))
    (folder / "_recording.json").write_text(json.dumps({"last_segment": n}))


def rows(target: Path) -> dict[str, list[int]]:
    """Return the rows of the tables of a target, and the tables' errors, by the tables' names."""
    return {
        table.name: sorted(read_table(table.place)["id"].to_pylist())
        for table in replica_tables(target).values()
        if table.place and not table.error
    }


def run(folder: Path, target: Path, *tables: str) -> None:
    """Do what `logicalrep replicate` does."""
    if tables:
        select_tables(folder, target, tables)
    replicate(folder, target)


def test_tables_that_are_not_selected_are_left_out(tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    insert(folder, "a", 1)
    insert(folder, "b", 2, oid=2)
    assert select_tables(folder, target, ["public.a", "public.c"]) == ["public.c"]
    run(folder, target)
    assert rows(target) == {"a": [1]}
    insert(folder, "c", 3, oid=3)
    insert(folder, "b", 4, oid=2)
    run(folder, target)
    assert rows(target) == {"a": [1], "c": [3]}
    run(folder, target, "public.b")
    assert rows(target) == {"a": [1], "c": [3], "b": [2, 4]}
    insert(folder, "b", 5, oid=2)
    run(folder, target)
    assert rows(target) == {"a": [1], "c": [3], "b": [2, 4, 5]}


def test_a_renamed_table_is_followed_further(tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    insert(folder, "a", 1)
    run(folder, target, "public.a")
    insert(folder, "b", 2)
    insert(folder, "a", 3, oid=2)  # another relation gets the selected name
    run(folder, target)
    assert {oid: one.name for oid, one in replica_tables(target).items()} == {1: "b", 2: "a"}
    assert rows(target) == {"b": [1, 2], "a": [3]}


@pytest.mark.parametrize("between", [0, 1])
def test_a_table_that_gets_a_selected_name_has_its_earlier_rows(tmp_path: Path, between: int) -> None:
    """Whether it was renamed within a micro-batch, or after a micro-batch that has skipped its changes."""
    folder, target = tmp_path / "recording", tmp_path / "lake"
    insert(folder, "old", 1)
    select_tables(folder, target, ["public.a"])
    if between:
        replicate(folder, target)
    insert(folder, "old", 2)
    insert(folder, "a", 3)
    replicate(folder, target)
    (table,) = replica_tables(target).values()
    assert not table.error
    insert(folder, "a", 4)
    replicate(folder, target)
    run(folder, target)
    assert rows(target) == {"a": [1, 2, 3, 4]}


def test_skipped_changes_that_were_pruned_are_noticed(tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    insert(folder, "a", 1)
    insert(folder, "b", 2, oid=2)
    run(folder, target, "public.a")
    insert(folder, "a", 3)
    insert(folder, "c", 4, oid=3)
    run(folder, target)
    assert prune(folder, keep=0).first_segment == 4
    with pytest.raises(RecordingError, match=r"public\.b cannot be added: .*segment 1 was pruned"):
        select_tables(folder, target, ["public.b"])
    assert selected_tables(locate(target)) == frozenset({"public.a"})
    insert(folder, "b", 5, oid=2)
    run(folder, target, "public.c")  # its changes were not pruned
    assert rows(target) == {"a": [1, 3], "c": [4]}
    insert(folder, "c", 6, oid=2)  # a relation with pruned changes gets a selected name
    run(folder, target)
    run(folder, target)
    assert "segment 1" in replica_tables(target)[2].error
    assert rows(target) == {"a": [1, 3], "c": [4]}


def test_tables_are_added_to_a_target_that_follows_some_tables(tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    insert(folder, "a", 1)
    run(folder, target)
    with pytest.raises(ReplicaError, match="the target follows all tables"):
        select_tables(folder, target, ["public.a"])
    other = tmp_path / "other"
    run(folder, other, "public.a")
    (other / "_selected_tables.json").write_text("[")
    insert(folder, "a", 2)
    with pytest.raises(ReplicaError, match=r"_selected_tables\.json: "):
        replicate(folder, other)


def test_a_running_query_applies_added_tables(tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    insert(folder, "a", 1)
    insert(folder, "b", 2, oid=2)
    select_tables(folder, target, ["public.a"])
    stop = Event()
    query = Thread(target=replicate, args=(folder, target), kwargs={"follow": True, "stop": stop})
    query.start()
    try:
        wait_until(lambda: rows(target) == {"a": [1]})
        select_tables(folder, target, ["public.b"])
        insert(folder, "b", 3, oid=2)
        wait_until(lambda: rows(target) == {"a": [1], "b": [2, 3]})
    finally:
        stop.set()
        query.join()


def test_a_waiting_query_learns_of_added_tables(tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    select_tables(folder, target, ["public.a"])
    insert(folder, "a", 1)
    selection = Selection(Recording(folder), locate(target))
    select_tables(folder, target, ["public.b"])
    insert(folder, "b", 2, oid=2)
    for one, last, expected in (
        (selection, 1, {1: 1}),
        (Selection(Recording(folder), locate(target)), 2, {1: 1, 2: 2}),
    ):
        assert one.first_segments(last) == expected
        assert one.oids() == expected.keys()


def test_tables_are_added_with_the_recording_of_the_target(tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    insert(folder, "a", 1)
    insert(folder, "b", 2, oid=2)
    run(folder, target, "public.a")
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    for file in other.glob("*.parquet"):
        file.unlink()
    write(other, msgspec.structs.replace(source(NAME), recording="another"), sent(NAME), 40)
    with pytest.raises(ReplicaError, match="tables cannot be added"):
        select_tables(other, target, ["public.b"])


def test_missed_segments_are_kept(tmp_path: Path) -> None:
    folder, target = tmp_path / "recording", tmp_path / "lake"
    insert(folder, "a", 1)
    insert(folder, "b", 2, oid=2)
    insert(folder, "a", 3)
    run(folder, target, "public.a")
    select_tables(folder, target, ["public.b"])
    assert prune(folder, keep=0).first_segment <= 2
    run(folder, target)
    assert rows(target) == {"a": [1, 3], "b": [2]}
