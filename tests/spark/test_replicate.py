"""Streaming queries keep Delta tables equal to their source, despite failures, restarts and other writers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pgoutput.apply.parts import commit_parts
from pgoutput.replica import TableResult, replica_tables, use_iceberg
from pgoutput.spark import replicate
from pgoutput.targets import Position
from pgoutput.views import CHANGES
from tests.effort import mostly_nightly
from tests.recording.recordings import sent, source, write
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import different_tables, row_texts
from tests.targets.formats import iceberg_table
from tests.truth import true_tables

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

NOW = {"availableNow": True}


class Stream:
    """A source of micro-batches with the changes of two simulated servers, and a replica of these servers."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self.files = folder / "changes"
        self.files.mkdir()
        self.target = folder / "target"
        self.servers = [
            SimulatedServer(1, "a", {"k": "int4", "v": "text", "w": "text"}, keys=1),
            SimulatedServer(2, "b", {"k": "date", "n": "int4"}, keys=2),
        ]
        reader = session.readStream.schema(from_arrow_schema(CHANGES)).option("maxFilesPerTrigger", 1)
        self.changes = reader.parquet(str(self.files))
        self.batches: list[Sequence[TableResult]] = []

    def send(self) -> None:
        """Write the servers' new changes, unsorted, to a file that a query reads as one micro-batch."""
        changes = pa.concat_tables(server.take() for server in self.servers)
        backwards = changes.take(pa.array(range(changes.num_rows - 1, -1, -1)))
        pq.write_table(backwards, self.files / f"{len([*self.files.iterdir()])}.parquet")

    def run(self, *, history: bool = False) -> None:
        query = replicate(
            self.changes,
            self.target,
            history=history,
            trigger=NOW,
            on_batch=lambda number, results: self.batches.append(results),
        )
        query.awaitTermination()

    def forget_last_batch(self) -> None:
        """Change the checkpoint as if the query had crashed before committing the last micro-batch."""
        forget_last_batch(self.target / "_checkpoint")

    @property
    def versions(self) -> list[int]:
        return [DeltaTable(table.place).version() for table in replica_tables(self.target).values()]

    @property
    def different_tables(self) -> list[str]:
        return different_tables(self.target, [server.truth for server in self.servers])


def forget_last_batch(checkpoint: Path) -> None:
    """Change a checkpoint as if the query had crashed before committing the last micro-batch."""
    commits = checkpoint / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


@pytest.fixture
def stream(session: SparkSession, tmp_path: Path) -> Stream:
    return Stream(session, tmp_path)


def recording(session: SparkSession, folder: Path, name: str, view: str) -> DataFrame:
    folder.mkdir()
    write(folder, source(name), sent(name), 150)
    reader = session.readStream.format("pgoutput").option("path", str(folder)).option("view", view)
    return reader.option("maxFilesPerTrigger", "2").load()


@pytest.mark.parametrize("view", mostly_nightly(["batches", "changes"], kept=["changes"]))
def test_tables_equal_a_real_servers_tables(session: SparkSession, tmp_path: Path, view: str) -> None:
    """The recording has interleaved streamed and prepared transactions and is read in many micro-batches."""
    changes = recording(session, tmp_path / "recording", "pg18_p4_par_2pc", view)
    batches: list[int] = []
    target = tmp_path / "target"
    query = replicate(changes, target, trigger=NOW, on_batch=lambda number, results: batches.append(number))
    query.awaitTermination()
    assert len(batches) > 1
    assert different_tables(target, list(true_tables("pg18"))) == []


def test_changes_of_every_kind_are_applied(stream: Stream) -> None:
    a, b = stream.servers
    a.insert("1", "one", "toast", operation="Snapshot")
    b.insert("infinity", "1", operation="Snapshot")
    b.insert("infinity", "1")
    stream.send()
    a.update(0, ("w",), k="2", v="two")
    a.add_column("x", "timestamp")
    a.insert("1", "again", None, "2020-01-01 00:00:00")
    a.update(0, ("w",), x="infinity")
    b.delete(0)
    stream.send()
    a.drop_column("v")
    a.update(1, w="now")
    b.truncate()
    b.insert(None, None)
    stream.send()
    stream.run()
    assert stream.different_tables == []
    assert stream.batches[2] == [
        TableResult(1, "public", "a", {"Update": 1}, position=Position(100, 5, 0)),
        TableResult(2, "public", "b", {"Truncate": 1, "Insert": 1}, position=Position(100, 5, 0)),
    ]


def test_a_failed_query_can_be_resumed(stream: Stream) -> None:
    a, b = stream.servers
    a.insert("1", "one", "toast")
    stream.send()
    stream.run()
    obstacle = stream.target / "public.b"
    obstacle.write_text("no table")
    a.update(0, ("w",), k="2")
    a.insert("1", "other", "other")
    b.insert("2020-01-01", "1")
    stream.send()
    with pytest.raises(StreamingQueryException, match=r"public\.b"):
        stream.run()
    obstacle.unlink()
    b.insert("2020-01-01", "1")
    stream.send()
    stream.run()
    assert stream.different_tables == []


def test_a_repeated_batch_changes_nothing(stream: Stream) -> None:
    a, b = stream.servers
    a.insert("1", "one", "toast")
    b.insert("2020-01-01", "1")
    b.insert("2020-01-01", "1")
    stream.send()
    stream.run()
    before = stream.versions
    stream.forget_last_batch()
    stream.run()
    assert stream.versions == before
    assert stream.batches[1:] == [[]]
    b.delete(0)
    stream.send()
    stream.run()
    assert stream.different_tables == []


def test_a_relation_with_many_changes_is_divided(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table then has one commit for each micro-batch, except one with an update that moves a row."""
    monkeypatch.setattr("pgoutput.spark.tables.MAX_ROWS", 50)
    in_parts: list[int] = []

    def commit(*arguments: Any) -> TableResult:
        result = commit_parts(*arguments)
        in_parts.append(result.oid)
        return result

    monkeypatch.setattr("pgoutput.spark.tables.commit_parts", commit)
    a, b = stream.servers
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
        stream.send()
    stream.run()
    assert stream.different_tables == []
    counts = [{one.oid: sum(one.changes.values()) for one in results} for results in stream.batches]
    assert [one[2] for one in counts] == [60] * 6
    assert in_parts == [1, 1, 1]
    stream.forget_last_batch()
    before = stream.versions
    stream.run()
    assert stream.versions == before
    assert not stream.batches[-1]


def test_a_partitioned_iceberg_table_is_divided(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics and partitions of data files, such as dates, reach the driver as they are."""
    monkeypatch.setattr("pgoutput.spark.tables.MAX_ROWS", 50)
    use_iceberg(stream.target, partition=["v", "bucket(2, k)"])
    a = stream.servers[0] = SimulatedServer(1, "a", {"k": "int4", "v": "date", "w": "text"}, keys=1)
    for round in range(3):
        for key in range(60):
            a.insert(str(100 * round + key), f"2026-01-0{1 + key % 2}", "toast")
        for at in range(0, len(a.rows), 3):
            a.update(at, ("w",), v="2026-01-03")
        for _ in range(10):
            a.delete(0)
        stream.send()
    stream.run()
    assert stream.different_tables == []
    (table,) = replica_tables(stream.target).values()
    files = iceberg_table(Path(table.place)).scan().plan_files()
    assert {(one.file.partition[0], one.file.partition[1]) for one in files} == {
        (day, bucket) for day in (20454, 20455, 20456) for bucket in (0, 1)
    }


def test_history_keeps_all_versions(stream: Stream) -> None:
    a, _ = stream.servers
    a.insert("1", "one", "toast")
    stream.send()
    a.update(0, ("w",), v="two")
    stream.send()
    stream.run(history=True)
    rows = DeltaTable(replica_tables(stream.target)[1].place).to_pyarrow_table().to_pylist()
    found = {row["v"]: (row_texts(row)["w"], row["__END_AT"] is None) for row in rows}
    assert found == {"one": ("toast", False), "two": ("toast", True)}


def test_another_query_continues(stream: Stream, tmp_path: Path) -> None:
    """Each table has its position: a query without its checkpoint reads all changes, and skips most."""
    stream.servers[0].insert("1", "one", "toast")
    stream.send()
    stream.run()
    before = stream.versions
    query = replicate(stream.changes, stream.target, checkpoint=tmp_path / "other", trigger=NOW)
    query.awaitTermination()
    shutil.rmtree(stream.target / "_checkpoint")
    stream.run()
    assert stream.versions == before
    assert stream.different_tables == []


def test_a_target_belongs_to_one_recording(session: SparkSession, tmp_path: Path) -> None:
    """Another recording is refused, with the old or a new checkpoint."""
    folder = tmp_path / "recording"
    changes = recording(session, folder, "pg10_p1", "changes")
    target = tmp_path / "tables"
    replicate(changes, target, trigger=NOW).awaitTermination()
    before = contents(target)
    shutil.rmtree(folder)
    folder.mkdir()
    write(folder, msgspec.structs.replace(source("pg10_p1"), recording="another"), sent("pg10_p1"), 100)
    for checkpoint, words in (
        (target / "_checkpoint", "this is recording another, but the checkpoint belongs to recording"),
        (tmp_path / "new", "this is recording another. Give the target's own recording, or begin anew"),
    ):
        with pytest.raises(StreamingQueryException, match=words):
            replicate(changes, target, checkpoint=checkpoint, trigger=NOW).awaitTermination()
    assert contents(target) == before


def contents(target: Path) -> dict[str, bytes]:
    """Return the contents of all files in a target, by path; files of the checkpoint are left out."""
    files = [path for path in target.rglob("*") if path.is_file() and "_checkpoint" not in path.parts]
    return {str(path): path.read_bytes() for path in files}


def test_a_target_that_is_gone_is_written_again(session: SparkSession, tmp_path: Path) -> None:
    """The driver applies what the tables lack before a micro-batch, unless the changes may be filtered."""
    folder, target, checkpoint = tmp_path / "recording", tmp_path / "target", tmp_path / "checkpoint"
    changes = recording(session, folder, "pg18_p4_par_2pc", "batches")
    replicate(changes, target, checkpoint=checkpoint, trigger=NOW).awaitTermination()
    shutil.rmtree(target)
    forget_last_batch(checkpoint)
    view = session.readStream.format("pgoutput").option("path", str(folder)).load()
    with pytest.raises(StreamingQueryException, match="lack changes before segment"):
        replicate(view, target, checkpoint=checkpoint, trigger=NOW).awaitTermination()
    replicate(changes, target, checkpoint=checkpoint, trigger=NOW).awaitTermination()
    assert different_tables(target, list(true_tables("pg18"))) == []


def test_other_dataframes_are_refused(session: SparkSession, stream: Stream) -> None:
    with pytest.raises(ValueError, match="expected a streaming DataFrame of changes"):
        replicate(session.range(1), stream.target)
    with pytest.raises(ValueError, match="lacks the columns operation, relation"):
        replicate(session.readStream.format("rate").load(), stream.target)


CONNECT = """
import sys
from pyspark.sql import SparkSession
from pgoutput.spark import PgoutputDataSource, replicate

recording, target = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.dataSource.register(PgoutputDataSource)
spark.conf.set("spark.sql.shuffle.partitions", "2")
changes = spark.readStream.format("pgoutput").option("path", recording).load()
query = replicate(changes, target, trigger={"availableNow": True})
query.awaitTermination()
print(type(query).__module__)
spark.stop()
"""


@pytest.mark.nightly
def test_replicate_works_with_spark_connect(session: SparkSession, tmp_path: Path) -> None:
    """`replicate` runs in another process, which inherits this session's environment to find Java."""
    folder, target = tmp_path / "recording", tmp_path / "target"
    recording(session, folder, "pg10_p1", "batches")
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, folder, target], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "pyspark.sql.connect.streaming.query\n", done.stderr[-3000:]
    assert different_tables(target, list(true_tables("pg10"))) == []
