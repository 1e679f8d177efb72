"""A failed table does not stop other tables, and the next run applies the changes that it lacks."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from logicalrep import messages as m
from logicalrep._pauses import Pauses
from logicalrep.apply.rows import chunk_writer
from logicalrep.apply.rows.lookup import look_up_rows
from logicalrep.errors import RecordingError, ReplicaError
from logicalrep.recording import Recording, list_segments, locate
from logicalrep.replica import TableResult, positions, replica_tables, replicate, replication, reset_tables
from tests.messages import make_column, make_relation
from tests.recorder.lab import wait_until
from tests.recording.recordings import record
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import apply_tables, open_table, read_table
from tests.targets.formats import Format

pytestmark = pytest.mark.usefixtures("any_format")

COLUMNS = (
    make_column("k", 23, key=True),
    make_column("v"),
)
RELATIONS = [make_relation(*COLUMNS, oid=oid, name=name) for oid, name in ((1, "a"), (2, "b"))]


class Setup:
    """A recording of the tables a and b, with one segment per transaction, and a replica of the recording."""

    def __init__(self, folder: Path) -> None:
        self.recording = folder / "recording"
        self.recording.mkdir()
        self.target = folder / "target"

    def send(self, *changes: m.Message) -> None:
        """Record a transaction as a new segment."""
        number = sum(1 for _ in self.recording.iterdir()) + 1
        lsn = 100 * number
        record(
            self.recording,
            *RELATIONS,
            m.Begin(final_lsn=lsn, commit_time=1, xid=7),
            *changes,
            m.Commit(commit_lsn=lsn, end_lsn=lsn + 10, commit_time=0),
            lsn=lsn,
        )

    def apply(self, *changes: m.Message) -> dict[str, TableResult]:
        """Record changes, if there are any, and run a query; return its last result of each table."""
        if changes:
            self.send(*changes)
        results: dict[str, TableResult] = {}
        replicate(
            self.recording,
            self.target,
            on_batch=lambda segment, applied: results.update({one.name: one for one in applied}),
        )
        return results

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """Move the folders of tables away during a `with` block."""
        for name in names:
            (self.target / f"public.{name}").rename(self.target.parent / name)
        yield
        for name in names:
            (self.target.parent / name).rename(self.target / f"public.{name}")

    def rows(self, oid: int) -> list[tuple[int, str]]:
        rows = read_table(replica_tables(self.target)[oid].place).to_pylist()
        return sorted((row["k"], row["v"]) for row in rows)

    def version(self, oid: int) -> int:
        return open_table(replica_tables(self.target)[oid].place).version


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    setup = Setup(tmp_path)
    setup.apply(*(m.Insert(relation_oid=oid, new=(str(key), "v")) for oid in (1, 2) for key in range(3)))
    return setup


def test_a_table_that_fails_does_not_stop_the_others(setup: Setup) -> None:
    """After the failed table is repaired, the next run applies all changes that it lacks, in order."""
    lost = setup.target / "public.b"
    kept = lost.rename(setup.target.parent / "kept")
    for value in ("first", "second"):
        applied = setup.apply(*(m.Update(relation_oid=oid, new=(str(oid), value)) for oid in (1, 2)))
        assert applied["a"].changes == {"Update": 1}
        assert "is missing" in applied["b"].error
        assert "public.b: the " in replica_tables(setup.target)[2].error
    assert setup.rows(1) == [(0, "v"), (1, "second"), (2, "v")]
    kept.rename(lost)
    assert setup.apply()["b"].changes == {"Update": 2}
    assert setup.rows(2) == [(0, "v"), (1, "v"), (2, "second")]
    assert replica_tables(setup.target)[2].error == ""
    assert not [*(setup.target / "_failed_tables").iterdir()]
    assert setup.apply() == {}
    assert setup.apply(m.Delete(relation_oid=2, key=("2", None)))["b"].changes == {"Delete": 1}


def test_a_query_that_follows_applies_the_changes_of_a_failed_table_again(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault passes while the query runs: at first the table's folder is gone, then it is back."""
    monkeypatch.setattr(positions, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(replication, "_REPORT_SECONDS", 0.1)
    stop, results = threading.Event(), list[TableResult]()

    def follow() -> None:
        replicate(
            setup.recording,
            setup.target,
            follow=True,
            stop=stop,
            on_batch=lambda segment, applied: results.extend(applied),
        )

    with ThreadPoolExecutor() as pool, ExitStack() as ended:
        ended.callback(stop.set)
        with setup.without("b"):
            setup.send(m.Update(relation_oid=1, new=("1", "x")), m.Update(relation_oid=2, new=("1", "x")))
            pool.submit(follow)
            wait_until(lambda: {"a", "b"} <= {one.name for one in results})
            assert setup.rows(1) == [(0, "v"), (1, "x"), (2, "v")]
            wait_until(lambda: len([one for one in results if one.error]) > 2)  # each attempt is reported
        wait_until(lambda: results[-1].name == "b" and not results[-1].error)
    assert all(re.search(r"; the next attempt is in \d+ s$", one.error) for one in results if one.error)
    assert setup.rows(2) == [(0, "v"), (1, "x"), (2, "v")]
    assert replica_tables(setup.target)[2].error == ""


def test_a_table_whose_snapshot_came_without_a_result_is_continued(setup: Setup) -> None:
    """A task of Spark that is repeated after its commit has no result."""
    setup.send(m.Update(relation_oid=2, new=("1", "x")))
    known = positions.Positions(Recording(setup.recording), locate(setup.target))
    known.gaps |= {1, 2}
    replicate(setup.recording, setup.target)
    known.advance(2, [])
    assert known.gaps == {1}


def test_pauses_between_attempts_double(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pauses, attempts = Pauses(5, 300), list[float]()
    pauses.begin(7)
    for now in range(1000):
        if pauses.ended():
            attempts.append(now)
            pauses.begin(7)
    assert attempts == [5, 15, 35, 75, 155, 315, 615, 915]
    pauses.forget(7)
    assert pauses.ended() == set()


@pytest.mark.parametrize("damage", ["data", "log", "folder"])
def test_a_table_whose_files_are_lost_is_built_anew(damage: str, setup: Setup) -> None:
    folder = setup.target / "public.b"
    lost = {"data": "**/*.parquet", "log": "*/*.json", "folder": "**/*"}[damage]
    for file in [one for one in folder.glob(lost) if one.is_file()]:
        file.write_text("") if damage == "log" else file.unlink()
    assert setup.apply(m.Update(relation_oid=2, new=("1", "x")))["b"].error
    with pytest.raises(ReplicaError, match=r"the target has no table public\.other to reset"):
        reset_tables(setup.recording, setup.target, ["public.b", "public.other"])
    assert setup.apply()["b"].error
    reset_tables(setup.recording, setup.target, ["public.b"])
    assert setup.apply()["b"].error == ""
    assert setup.rows(2) == [(0, "v"), (1, "x"), (2, "v")]
    assert setup.rows(1) == [(0, "v"), (1, "v"), (2, "v")]
    assert replica_tables(setup.target)[2].error == ""


@pytest.mark.parametrize("commits", [0, 1])
def test_a_partly_applied_transaction_is_continued(
    commits: int, setup: Setup, any_format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run makes only those commits that the first one did not make."""
    commit = any_format.table.commit
    count = 0

    def failing_commit(*arguments: Any, **schema: Any) -> None:
        nonlocal count
        count += 1
        if count == commits + 1:
            raise OSError(28, "No space left on device")
        commit(*arguments, **schema)

    with monkeypatch.context() as patch:
        patch.setattr(any_format.table, "commit", failing_commit)
        applied = setup.apply(
            m.Insert(relation_oid=2, new=("10", "before")),
            m.Truncate(options=m.TruncateOption(0), relation_oids=(2,)),
            m.Insert(relation_oid=2, new=("11", "after")),
            m.Truncate(options=m.TruncateOption(0), relation_oids=(2,)),
            m.Insert(relation_oid=2, new=("12", "last")),
        )
        assert applied["b"].error == "[Errno 28] No space left on device"
    version = setup.version(2)
    assert setup.apply()["b"].error == ""
    assert setup.rows(2) == [(12, "last")]
    assert setup.version(2) == version + 2 - commits


def test_an_unexpected_error_affects_one_table_only(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_look_up(*arguments: Any, **options: Any) -> Any:
        keys = arguments[3]
        if keys[0].to_pylist() == ["7"]:
            raise ArithmeticError("unexpected")
        return look_up_rows(*arguments, **options)

    setup.apply(m.Insert(relation_oid=1, new=("7", "v")))
    with monkeypatch.context() as patch:
        patch.setattr(chunk_writer, "look_up_rows", failing_look_up)
        updates = m.Update(relation_oid=1, new=("7", "w")), m.Update(relation_oid=2, new=("1", "w"))
        applied = setup.apply(*updates)
    assert applied["a"].error == "ArithmeticError: unexpected"
    assert applied["b"].changes == {"Update": 1}
    assert setup.apply()["a"].changes == {"Update": 1}


@pytest.mark.parametrize("content", [None, "", "{}"])
def test_a_table_is_continued_even_if_its_error_is_lost(content: str | None, setup: Setup) -> None:
    """A power failure may remove or truncate the file that contains the table's error."""
    with setup.without("b"):
        setup.apply(m.Insert(relation_oid=2, new=("10", "v")))
    file = setup.target / "_failed_tables" / "2"
    file.unlink()
    if content is not None:
        file.write_text(content)
        unknown = "the error of the table is unknown: the file in _failed_tables is damaged"
        assert replica_tables(setup.target)[2].error == unknown
    assert setup.apply(m.Insert(relation_oid=2, new=("11", "v")))["b"].changes == {"Insert": 2}
    assert replica_tables(setup.target)[2].error == ""
    assert setup.rows(2)[-2:] == [(10, "v"), (11, "v")]


def test_a_table_that_cannot_be_created_is_listed_with_its_error(setup: Setup) -> None:
    blocked = setup.target / "public.c"
    blocked.write_text("not a folder")
    relation = make_relation(*COLUMNS, oid=3, name="c")
    applied = setup.apply(relation, m.Insert(relation_oid=3, new=("1", "v")))
    assert "public.c: " in applied["c"].error
    listed = replica_tables(setup.target)[3]
    assert (listed.namespace, listed.name, listed.place) == ("public", "c", "")
    assert listed.error == applied["c"].error
    blocked.unlink()
    assert setup.apply()["c"].error == ""
    assert setup.rows(3) == [(1, "v")]


def test_a_run_is_refused_while_segments_are_gone(setup: Setup) -> None:
    with setup.without("b"):
        setup.apply(m.Insert(relation_oid=2, new=("10", "v")))
        setup.apply(m.Insert(relation_oid=1, new=("10", "v")))
    segment = list_segments(setup.recording)[1]
    moved = segment.rename(segment.with_suffix(".moved"))
    with pytest.raises(RecordingError, match=segment.name):
        setup.apply()
    moved.rename(segment)
    assert setup.apply()["b"].changes == {"Insert": 1}
    assert setup.rows(2)[-1] == (10, "v")


def test_a_table_of_another_recording_is_refused(tmp_path: Path) -> None:
    """A Delta table that was copied into the target from another target is not changed."""
    server = SimulatedServer(1, "t", {"k": "int4"}, keys=1)
    for number, recording in enumerate(["one", "two"]):
        server.insert(str(number))
        (applied,) = apply_tables(server.take().to_batches(), tmp_path, recording=recording)
    assert "public.t: the table belongs to recording one, but this is recording two" in applied.error
    (listed,) = replica_tables(tmp_path).values()
    assert (listed.recording, read_table(listed.place).num_rows) == ("one", 1)
