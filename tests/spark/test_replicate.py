"""Spark keeps Delta tables equal to their source, despite failures, stops and other writers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from logicalrep import messages as m
from logicalrep.apply.parts import commit_parts
from logicalrep.replica import TableResult, replica_tables, use_iceberg
from logicalrep.spark import replicate
from tests.recording.recordings import record, sent, source, write
from tests.replica.simulator import SimulatedServer, type_oid
from tests.replica.tables import different_tables, row_texts
from tests.replica.test_replicate import versions
from tests.targets.formats import iceberg_table
from tests.truth import true_tables

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


class Replica:
    """A recording of a simulated server with two tables, and a replica that Spark keeps."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self._session = session
        self.recording, self.target = folder / "recording", folder / "target"
        self.recording.mkdir()
        self.a = SimulatedServer(1, "a", {"k": "int4", "v": "text", "w": "text"}, keys=1)
        self.b = SimulatedServer(2, "b", {"k": "date", "n": "int4"}, keys=2)
        self._lsn = 100

    def send(self) -> None:
        """Record the new changes of both tables as one transaction, in a segment of its own."""
        self._lsn += 10
        record(
            self.recording,
            m.Begin(final_lsn=self._lsn, commit_time=5, xid=7),
            *messages(self.a),
            *messages(self.b),
            m.Commit(commit_lsn=self._lsn, end_lsn=self._lsn + 8, commit_time=5),
        )

    def run(self, **options: Any) -> list[Sequence[TableResult]]:
        """Apply the new segments; return the results of each micro-batch."""
        batches: list[Sequence[TableResult]] = []
        places = self.recording, self.target
        replicate(self._session, *places, on_batch=lambda _, results: batches.append(results), **options)
        return batches

    @property
    def different_tables(self) -> list[str]:
        return different_tables(self.target, [self.a.truth, self.b.truth])


def messages(server: SimulatedServer) -> Iterator[m.Message]:
    """Yield the new changes of a simulated server as messages of the output plugin."""

    def cells(row: dict[str, Any] | None) -> tuple[Any, ...] | None:
        return None if row is None else tuple(row.get(name, m.UNCHANGED) for name in server.columns)

    columns = [
        m.RelationColumn(
            flags=m.ColumnFlag(name in server.key),
            name=name,
            type_oid=type_oid(type_),
            type_modifier=server.modifiers.get(name, -1),
        )
        for name, type_ in server.columns.items()
    ]
    identity = m.ReplicaIdentity.FULL if server.full else m.ReplicaIdentity.DEFAULT
    yield m.Relation(
        oid=server.oid,
        namespace="public",
        name=server.name,
        replica_identity=identity,
        columns=tuple(columns),
    )
    for change in server.take().to_pylist():
        old, new = (change[name] and dict(change[name]) for name in ("before", "after"))
        tuples: dict[str, Any] = {"new": cells(new)}
        if old is not None:
            whole = {name: old.get(name) for name in server.columns}
            tuples["old" if server.full else "key"] = cells(whole)
        match change["operation"]:
            case "Insert":
                yield m.Insert(relation_oid=server.oid, **tuples)
            case "Update":
                yield m.Update(relation_oid=server.oid, **tuples)
            case "Delete":
                del tuples["new"]
                yield m.Delete(relation_oid=server.oid, **tuples)
            case "Truncate":
                yield m.Truncate(options=m.TruncateOption(0), relation_oids=(server.oid,))


@pytest.fixture
def replica(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replica:
    monkeypatch.setattr("logicalrep.replica.replication.SEGMENTS_PER_BATCH", 1)
    return Replica(session, tmp_path)


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    """A recording with interleaved streamed and prepared transactions, in many segments."""
    folder = tmp_path / "recording"
    folder.mkdir()
    write(folder, source("pg18_p4_par_2pc"), sent("pg18_p4_par_2pc"), 150)
    return folder


def test_tables_equal_a_real_servers_tables(
    session: SparkSession, captured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logicalrep.replica.replication.SEGMENTS_PER_BATCH", 3)
    batches: list[int] = []
    target = tmp_path / "target"
    replicate(session, captured, target, on_batch=lambda segment, results: batches.append(segment))
    assert len(batches) > 1
    assert different_tables(target, list(true_tables("pg18"))) == []
    before = versions(target)
    (target / "_reached.json").unlink()
    replicate(session, captured, target)
    assert versions(target) == before


def test_a_stop_interrupts_the_tasks_and_is_resumed(
    session: SparkSession, captured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks would end after a minute."""
    target, ended, stop = tmp_path / "target", tmp_path / "ended", threading.Event()

    def wait_long(*_: Any) -> Iterator[Any]:
        time.sleep(60)
        ended.touch()
        yield from ()

    with monkeypatch.context() as patched:
        patched.setattr("logicalrep.spark.engine._read_partition", wait_long)
        replicate(session, captured, target, stop=stop, on_progress=lambda _: stop.set())
    assert not ended.exists()
    assert not replica_tables(target)
    replicate(session, captured, target)
    assert different_tables(target, list(true_tables("pg18"))) == []


def test_a_damaged_segment_ends_the_call(session: SparkSession, captured: Path, tmp_path: Path) -> None:
    """The driver reads only the metadata at the end of the file."""
    whole = (segment := sorted(captured.iterdir())[2]).read_bytes()
    segment.write_bytes(whole[:200] + bytes(100) + whole[300:])
    with pytest.raises(PySparkException, match=f"RecordingError: {segment}"):
        replicate(session, captured, tmp_path / "target")
    segment.write_bytes(whole)
    replicate(session, captured, tmp_path / "target")
    assert different_tables(tmp_path / "target", list(true_tables("pg18"))) == []


def test_changes_of_every_kind_are_applied(replica: Replica) -> None:
    a, b = replica.a, replica.b
    a.insert("1", "one", "toast")
    b.insert("infinity", "1")
    b.insert("infinity", "1")
    replica.send()
    a.update(0, ("w",), k="2", v="two")
    a.add_column("x", "timestamp")
    a.insert("1", "again", None, "2020-01-01 00:00:00")
    a.update(0, ("w",), x="infinity")
    b.delete(0)
    replica.send()
    a.drop_column("v")
    a.update(1, w="now")
    b.truncate()
    b.insert(None, None)
    replica.send()
    batches = replica.run()
    assert replica.different_tables == []
    assert [{one.name: one.changes for one in results} for results in batches] == [
        {"a": {"Insert": 1}, "b": {"Insert": 2}},
        {"a": {"Update": 2, "Insert": 1}, "b": {"Delete": 1}},
        {"a": {"Update": 1}, "b": {"Truncate": 1, "Insert": 1}},
    ]


def test_a_failed_table_is_retried(replica: Replica) -> None:
    replica.b.insert("2020-01-01", "1")
    replica.send()
    replica.run()
    obstacle = replica.target / "public.a"
    obstacle.write_text("no table")
    replica.a.insert("1", "one", "toast")
    replica.b.insert("2020-01-01", "1")
    replica.send()
    errors = [one.error for results in replica.run() for one in results if one.name == "a"]
    assert "public.a" in errors[0]
    assert different_tables(replica.target, [replica.b.truth]) == []
    obstacle.unlink()
    replica.run()
    assert replica.different_tables == []


def test_a_relation_with_many_changes_is_divided(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table then has one commit for each micro-batch, except one with an update that moves a row."""
    monkeypatch.setattr("logicalrep.spark.engine.MAX_ROWS", 50)
    in_parts: list[int] = []

    def commit(*arguments: Any) -> TableResult:
        result = commit_parts(*arguments)
        in_parts.append(result.oid)
        return result

    monkeypatch.setattr("logicalrep.spark.engine.commit_parts", commit)
    a, b = replica.a, replica.b
    for round in range(6):
        for key in range(60):
            a.insert(str(100 * round + key), "old", "toast")
            b.insert("2020-01-01", str(key))
        for at in range(0, len(a.rows), 3):
            a.update(at, ("w",), v=f"new {round}")
        for _ in range(10):
            a.delete(0)
        if round == 3:
            a.update(0, k="-1")
        replica.send()
    batches = replica.run()
    assert replica.different_tables == []
    counts = [{one.oid: sum(one.changes.values()) for one in results} for results in batches]
    assert [one[2] for one in counts] == [60] * 6
    assert in_parts == [1, 1, 1]


def test_a_partitioned_iceberg_table_is_divided(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics and partitions of data files, such as dates, reach the driver as they are."""
    monkeypatch.setattr("logicalrep.spark.engine.MAX_ROWS", 50)
    use_iceberg(replica.target, partition=["v", "bucket(2, k)"])
    a = replica.a = SimulatedServer(1, "a", {"k": "int4", "v": "date", "w": "text"}, keys=1)
    for round in range(3):
        for key in range(60):
            a.insert(str(100 * round + key), f"2026-01-0{1 + key % 2}", "toast")
        for at in range(0, len(a.rows), 3):
            a.update(at, ("w",), v="2026-01-03")
        for _ in range(10):
            a.delete(0)
        replica.send()
    replica.run()
    assert replica.different_tables == []
    (table,) = replica_tables(replica.target).values()
    files = iceberg_table(Path(table.place)).scan().plan_files()
    assert {(one.file.partition[0], one.file.partition[1]) for one in files} == {
        (day, bucket) for day in (20454, 20455, 20456) for bucket in (0, 1)
    }


def test_history_keeps_all_versions(replica: Replica) -> None:
    replica.a.insert("1", "one", "toast")
    replica.send()
    replica.a.update(0, ("w",), v="two")
    replica.send()
    replica.run(history=True)
    rows = DeltaTable(replica_tables(replica.target)[1].place).to_pyarrow_table().to_pylist()
    found = {row["v"]: (row_texts(row)["w"], row["__END_AT"] is None) for row in rows}
    assert found == {"one": ("toast", False), "two": ("toast", True)}


CONNECT = """
import sys
from pyspark.sql import SparkSession
from logicalrep.spark import replicate

recording, target = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "2")
replicate(spark, recording, target, on_batch=lambda segment, results: print(segment, len(results) > 9))
spark.stop()
"""


@pytest.mark.nightly
def test_replicate_works_with_spark_connect(session: SparkSession, captured: Path, tmp_path: Path) -> None:
    """`replicate` runs in another process, which inherits this session's environment to find Java."""
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, captured, tmp_path / "target"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == f"{len([*captured.iterdir()])} True\n", done.stderr[-3000:]
    assert different_tables(tmp_path / "target", list(true_tables("pg18"))) == []
