"""A recording is pruned while a server is recorded and replicas follow."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from logicalrep.errors import RecordingError
from logicalrep.recorder import is_requested, request_snapshot
from logicalrep.recorder.storage.status import stored_lsn
from logicalrep.recording import Recording, find_segments, locate, prune, read_beginning, read_readers
from logicalrep.replica import replica_tables, replicate, reset_tables, select_tables
from tests.recorder.lab import Lab, wait_until
from tests.server import VERSION, Server

SECONDS = 6.0
"""How long rows are changed while the recording is pruned."""

PRUNE = """
import sys
from logicalrep.recording import prune
print("started", flush=True)
while True:
    prune(sys.argv[1], keep=0)
"""


class Query:
    """A query that follows a recording in a thread."""

    def __init__(self, folder: Path, target: Path, **options: Any) -> None:
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(folder, target), kwargs=options)
        self._thread.start()

    def stop(self) -> None:
        """Stop the query; if it has failed, raise its error."""
        self._stop.set()
        self._thread.join(60)
        if self._failure is not None:
            raise self._failure

    def _run(self, folder: Path, target: Path, **options: Any) -> None:
        try:
            replicate(folder, target, follow=True, stop=self._stop, **options)
        except BaseException as failure:
            self._failure = failure


@contextmanager
def pruning(folder: Path, random: Random) -> Iterator[list[int]]:
    """Prune a recording over and over in a process that is killed at random moments; yield its exit codes."""
    stop, codes = threading.Event(), list[int]()

    def run() -> None:
        while not stop.is_set():
            command = [sys.executable, "-c", PRUNE, str(folder)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.readline()
                stop.wait(random.uniform(0.3, 1.5))
                process.kill()
            codes.append(process.returncode)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield codes
    finally:
        stop.set()
        thread.join(60)


def change_rows(lab: Lab, seconds: float, random: Random) -> None:
    """Change rows in transactions of many sizes, some of which are open for long, streamed or rolled back."""
    end = time.monotonic() + seconds
    number = int(lab.value("SELECT coalesce(max(abs(id)), 0) FROM t"))
    with lab.connect() as slow:
        slow.autocommit = False
        while time.monotonic() < end:
            count = random.choice((1, 1, 5, 50, 1500))
            first, number = number + 1, number + count
            insert = f"INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series({first}, {number}) g"
            where = f"WHERE id % 7 = {random.randrange(7)} AND id <= {first}"
            if random.random() < 0.3:
                slow.execute(f"INSERT INTO t SELECT -g, 'slow' FROM generate_series({first}, {number}) g")
            if random.random() < 0.2:
                slow.rollback() if random.random() < 0.3 else slow.commit()
            lab.run(insert, f"UPDATE t SET a = '{number}' {where}")
            if random.random() < 0.2:
                lab.run(f"DELETE FROM t {where} AND id > 0")
            time.sleep(random.choice((0.0, 0.05, 0.2)))
        slow.commit()


def rows(target: Path, *, history: bool) -> list[tuple[int, str]]:
    (table,) = replica_tables(target).values()
    found = DeltaTable(table.place).to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["a"]) for row in found if not history or row["__END_AT"] is None)


def test_replicas_follow_while_the_recording_is_pruned(lab: Lab, tmp_path: Path) -> None:
    """Neither recorder nor replicas notice it, whenever `prune` is killed."""
    random = Random(4)
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "CREATE PUBLICATION p FOR TABLE t")
    lab.run("INSERT INTO t VALUES (0, 'before')")
    targets = {tmp_path / "tables": False, tmp_path / "history": True}
    beginnings: list[int] = []
    for _ in range(2):
        with lab.recording(snapshot=True, segment_seconds=0.03):
            wait_until(lambda: bool(find_segments(locate(lab.folder))))
            queries = [Query(lab.folder, target, history=history) for target, history in targets.items()]
            wait_until(lambda: len(read_readers(locate(lab.folder))) == 2)
            with pruning(lab.folder, random) as codes:
                change_rows(lab, SECONDS / 2, random)
                before = max(beginnings, default=5)
                while read_beginning(locate(lab.folder)).segment <= before:  # a slow machine
                    change_rows(lab, 0.5, random)
            for query in queries:
                query.stop()
            assert set(codes) == {-9}
        beginnings.append(read_beginning(locate(lab.folder)).segment)
    lab.record(segment_seconds=0.03)
    for target, history in targets.items():
        replicate(lab.folder, target, history=history)
    expected = sorted(lab.rows("SELECT id, a FROM t"))
    for target, history in targets.items():
        assert rows(target, history=history) == expected
    Recording(lab.folder).check()


def test_a_table_with_pruned_changes_is_added_or_reset_after_a_snapshot(lab: Lab, tmp_path: Path) -> None:
    target = tmp_path / "target"
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "CREATE TABLE u (id int PRIMARY KEY, a text)",
        "CREATE PUBLICATION p FOR TABLE t, u",
        "INSERT INTO u SELECT g, 'before' FROM generate_series(1, 9) g",
    )

    def apply(*statements: str) -> None:
        lab.run(*statements)
        lsn = lab.lsn()
        lab.run("INSERT INTO t SELECT count(*) FROM t")
        wait_until(lambda: stored_lsn(lab.folder) >= lsn)
        replicate(lab.folder, target)

    with lab.recording(snapshot=True, segment_seconds=0.03):
        wait_until(lambda: bool(find_segments(locate(lab.folder))))
        select_tables(lab.folder, target, ["public.t"])
        apply("DELETE FROM u WHERE id = 1")
        apply("INSERT INTO u VALUES (10, 'skipped')")
        assert prune(lab.folder, keep=0).first_segment > 1
        with pytest.raises(RecordingError, match=r"public\.u cannot be added: .*logicalrep snapshot"):
            select_tables(lab.folder, target, ["public.u"])
        request = request_snapshot(lab.folder, ["public.u"])
        wait_until(lambda: not is_requested(request))
        apply("UPDATE u SET a = 'after' WHERE id = 2")
        select_tables(lab.folder, target, ["public.u"])
        shutil.rmtree(target / "public.t")
        with pytest.raises(RecordingError, match=r"public\.t cannot be reset: .*snapshot`, and then repeat"):
            reset_tables(lab.folder, target, ["public.t"])
        request = request_snapshot(lab.folder, ["public.t"])
        wait_until(lambda: not is_requested(request))
        reset_tables(lab.folder, target, ["public.t"])
        apply("INSERT INTO u VALUES (11, 'last')")
    replicate(lab.folder, target)
    for one in replica_tables(target).values():
        assert one.error == ""
        found = DeltaTable(one.place).to_pyarrow_table().select(["id", "a"]).to_pylist()
        present = {(row["id"], row["a"]) for row in found}
        assert present == {*lab.rows(f"SELECT id, a FROM {one.name}")}


def test_pruned_commits_that_the_server_sends_again_are_not_missed(tmp_path: Path) -> None:
    """After a crash of the server, its slot can stand before the beginning of the recording."""
    with Server(VERSION) as server, Lab(server, tmp_path) as lab:
        lab.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "CREATE PUBLICATION p FOR TABLE t")
        lab.record()
        lab.run("CHECKPOINT")
        for number in range(4):
            lab.run(f"INSERT INTO t VALUES ({number}, 'old')")
            lab.record()
        replicate(lab.folder, tmp_path / "lake")
        done = prune(lab.folder, keep=0)
        assert done.first_segment == done.last_segment > 3
        server.crash()
        server.start()
        lab.reconnect()
        assert lab.confirmed_lsn() < read_beginning(locate(lab.folder)).lsn
        lab.run("INSERT INTO t VALUES (4, 'new')")
        lab.record()
        replicate(lab.folder, tmp_path / "lake")
        assert rows(tmp_path / "lake", history=False) == lab.rows("SELECT id, a FROM t ORDER BY id")
        Recording(lab.folder).check()
