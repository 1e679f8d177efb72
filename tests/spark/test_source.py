"""The data source returns the rows of the views, in batch and in streaming, in every kind of Spark session.

The tests run with classic Spark in this process. `make nightly` runs them again in other processes: with
Spark Connect, and with a local cluster, whose executors are separate processes. In `make test`,
`tests.spark.test_decode` reads the data source with Spark Connect.
"""

from __future__ import annotations

import io
import json
import os
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
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.readwriter import DataStreamWriter

from logicalrep import messages as m
from logicalrep.recording import list_segments, pack_name, segment_name, write_pack
from logicalrep.spark import LogicalrepDataSource
from logicalrep.views import CHANGES, RESCUED
from tests.codec.test_replay import truth
from tests.messages import make_column, make_relation, transaction_of
from tests.recorder.lab import wait_until
from tests.recording import recordings
from tests.recording.recordings import PARALLEL, record
from tests.spark.conftest import KIND, SESSIONS
from tests.truth import equals_typed
from tests.views import rows
from tests.views.rows import Row, in_order, replay
from tests.views.test_errors import forged
from tests.views.test_table import WILD, comparable

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

CAPTURE, BINARY, CUT = "pg18_p4_par_2pc", "pg18_p4_gen_par_bin", 150
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a recording of six segments, with transactions that span several segments; return its folder."""
    folder = tmp_path_factory.mktemp("recording")
    recordings.write(folder, recordings.source(CAPTURE), recordings.sent(CAPTURE), CUT)
    return folder


def load(session: SparkSession, place: Path | str, **options: str) -> DataFrame:
    return session.read.format("pgoutput").options(**options).load(str(place))


def found(frame: DataFrame) -> list[Row]:
    list_of_rows: list[Row] = frame.toArrow().to_pylist()
    return list_of_rows


def test_changes_are_those_of_the_view(session: SparkSession, folder: Path) -> None:
    """The data source is used by name and after registration; the recording is given as URI and as path."""
    expected = in_order(rows.changes(folder))
    table = load(session, folder.as_uri()).toArrow()
    assert in_order(table.to_pylist()) == expected
    assert [(field.name, field.nullable) for field in table.schema] == [
        (field.name, field.nullable) for field in CHANGES
    ]
    session.dataSource.register(LogicalrepDataSource)
    registered = load(session, folder, view="changes").where("operation = 'Truncate'")
    assert in_order(found(registered)) == [row for row in expected if row["operation"] == "Truncate"]


def test_messages_are_read_in_one_partition_for_each_core(session: SparkSession, folder: Path) -> None:
    """A Spark partition is one segment, or several consecutive segments."""
    messages = load(session, folder, view="messages")
    numbered = found(messages.withColumn("partition", spark_partition_id()))
    partitions = {row["position"] // CUT: row["partition"] for row in numbered}
    assert [partitions[segment] for segment in range(6)] == sorted(partitions.values())
    assert len({*partitions.values()}) == min(6, os.cpu_count() or 1)
    assert len({(row["position"] // CUT, row["partition"]) for row in numbered}) == 6
    without = [rows.without(row, "partition") for row in numbered]
    assert sorted(without, key=lambda row: row["position"]) == rows.messages(folder)


def test_schema_versions_are_those_of_the_view(session: SparkSession, folder: Path) -> None:
    assert found(load(session, folder, view="schema").orderBy("position")) == rows.schema_rows(folder)


def test_tables_are_typed_and_equal_the_servers_tables(session: SparkSession, folder: Path) -> None:
    """The tables have times, numbers, arrays, unchanged TOASTed values, and changes after savepoints."""
    true_tables = {table.name: table for table in truth("pg18")}
    for name in ("t_num", "t_time", "t_toast", "strm"):
        table = load(session, folder, view="table", table=f"app.{name}").toArrow()
        assert list(map(comparable, in_order(table.to_pylist()))) == list(
            map(comparable, rows.table(folder, name).to_pylist())
        )
        true = true_tables[f"app.{name}"]
        type_ = table.schema.field("after").type
        columns = [field for field in type_ if field.name in (*true.columns, RESCUED)]
        there = pa.Table.from_pylist(list(replay(in_order(table.to_pylist()))), pa.schema(columns))
        assert equals_typed(true, there), name


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"view": "table", "table": "app.t_toast"}, ["after", "operation", "position"]),
        pytest.param(
            {"view": "table", "table": "app.strm"},
            ["before", "unchanged", "commit_time"],
            marks=pytest.mark.nightly,
        ),
        pytest.param({"view": "changes"}, ["position", "relation"], marks=pytest.mark.nightly),
        ({"view": "messages"}, ["type", "position"]),
        pytest.param({"view": "schema"}, ["relation", "position"], marks=pytest.mark.nightly),
    ],
)
def test_only_the_wanted_columns_are_read(
    session: SparkSession, folder: Path, options: dict[str, str], names: list[str]
) -> None:
    whole = load(session, folder, **options)
    wanted = load(session, folder, **options, columns=", ".join(names))
    assert wanted.schema == whole.select(*names).schema
    assert sorted(map(str, found(wanted))) == sorted(map(str, found(whole.select(*names))))


def test_segments_in_packs_are_read(session: SparkSession, folder: Path, tmp_path: Path) -> None:
    paths = list_segments(folder)
    with open(tmp_path / pack_name(1, 5), "wb") as file:
        write_pack(file, [(path.name, io.BytesIO(path.read_bytes())) for path in paths[:5]])
    shutil.copy(paths[5], tmp_path)
    assert in_order(found(load(session, tmp_path))) == in_order(rows.changes(folder))


def test_values_in_binary_format_are_read(session: SparkSession, tmp_path: Path) -> None:
    recordings.write(tmp_path, recordings.source(BINARY), recordings.sent(BINARY), 400)
    assert in_order(found(load(session, tmp_path))) == in_order(rows.changes(tmp_path))


def test_tables_with_any_name_are_read(session: SparkSession, tmp_path: Path) -> None:
    columns = tuple(make_column(name, key=True) for name in WILD)
    described = make_relation(*columns, namespace='sch"e.ma \udcff', name="T `\udce9.é")
    record(
        tmp_path,
        m.Begin(final_lsn=1, commit_time=0, xid=7),
        described,
        m.Insert(relation_oid=1, new=tuple(WILD)),
        m.Commit(commit_lsn=1, end_lsn=2, commit_time=0),
    )
    (row,) = found(load(session, tmp_path, view="table", table='sch"e.ma \\xff.T `\\xe9.é'))
    texts = {name: name for name in WILD if name != "caf\udce9"}
    assert row["after"] == texts | {"caf\\xe9": None, f"{RESCUED}__": [("caf\\xe9", "\\x636166e9")]}
    assert [name for name, _ in found(load(session, tmp_path))[0]["after"]] == [*row["after"]][:-1]


def damaged(folder: Path, copy: Path, number: int) -> Path:
    """Copy a recording, and damage one segment's messages but not its Parquet footer; return the copy."""
    shutil.copytree(folder, copy)
    path = copy / segment_name(number)
    raw = bytearray(path.read_bytes())
    raw[pq.ParquetFile(path).metadata.row_group(0).column(3).data_page_offset + 200] ^= 1
    path.write_bytes(raw)
    return copy


def test_filters_are_pushed_down(session: SparkSession, folder: Path, tmp_path: Path) -> None:
    """Segments that filters exclude are not read. Without pushdown, Spark filters all rows."""
    expected = in_order(rows.changes(folder))
    copy = damaged(folder, tmp_path / "copy", 1)
    low, high = (row["commit_lsn"] for row in (expected[200], expected[-20]))
    wanted = [row for row in expected if low < row["commit_lsn"] <= high]
    by_range = f"commit_lsn > {low} AND sequence.commit_lsn <= {high}"
    assert in_order(found(load(session, copy).where(by_range))) == wanted
    one = f"commit_lsn IN ({high}, {low}, NULL) AND commit_lsn = {high} AND relation.namespace = 'app'"
    there = [row for row in wanted if row["commit_lsn"] == high]
    assert in_order(found(load(session, copy).where(one))) == there
    (tmp_path / "forged").mkdir()
    text = (make_column("id", key=True),)
    of_both = [make_relation(*text, oid=oid, name=name) for oid, name in ((1, "t"), (2, "u"))]
    wide, insert = m.Insert(relation_oid=1, new=("x", "y")), m.Insert(relation_oid=2, new=("x",))
    begin, commit = transaction_of(100, 5)
    path = forged(tmp_path / "forged", *of_both, begin, wide, insert, commit)
    of_one = load(session, tmp_path / "forged").where("relation.name = 'u' AND relation.oid >= 2")
    assert [row["after"] for row in found(of_one)] == [[("id", "x")]]
    with pytest.raises(PySparkException, match=rf"RecordingError: .*{path}: position 3: Insert: new has 2"):
        found(load(session, tmp_path / "forged"))
    session.conf.set(PUSHDOWN, "false")
    try:
        assert in_order(found(load(session, folder).where(by_range))) == wanted
        with pytest.raises(
            PySparkException, match=f"RecordingError: {copy / segment_name(1)}: the file is damaged"
        ):
            found(load(session, copy).where(by_range))
    finally:
        session.conf.set(PUSHDOWN, "true")


def test_invalid_options_and_recordings_are_refused(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "gap").mkdir()
    for path in list_segments(folder)[1:]:
        (tmp_path / "gap" / path.name).symlink_to(path)
    (tmp_path / "empty").mkdir()
    cases: list[tuple[Path | str, dict[str, str], str]] = [
        ("", {}, "the option `path` is missing"),
        (
            folder,
            {"view": "tables"},
            "the option `view` must be one of messages, changes, table, schema, not 'tables'",
        ),
        (folder, {"view": "table"}, "the view `table` needs the option `table`"),
        (
            folder,
            {"view": "table", "table": "strm"},
            r"the recording has no table strm; it has app\..*, app\.strm, app\.",
        ),
        (
            folder,
            {"view": "table", "table": "app.strm", "columns": "after,relation_oid"},
            "the option `columns` names relation_oid, but the columns of the view `table` are operation, "
            "relation,",
        ),
        (
            folder,
            {"maxFilesPerTrigger": "0"},
            "`maxFilesPerTrigger` must be an integer of at least 1, not '0'",
        ),
        (tmp_path / "empty", {}, "empty: no segments found: give the folder that `logicalrep record` writes"),
        (tmp_path / "gap", {}, "gap: segment 1 is missing"),
    ]
    for place, options, words in cases:
        with pytest.raises(PySparkException, match=words):
            load(session, place, **options).collect()


# Streaming


def stream(session: SparkSession, place: Path, work: Path, **options: str) -> DataStreamWriter:
    frame = session.readStream.format("pgoutput").options(**options).load(str(place))
    return frame.writeStream.format("parquet").options(
        path=str(work / "out"), checkpointLocation=str(work / "checkpoint")
    )


def batches(work: Path) -> list[tuple[int, list[Row]]]:
    """Return a pair for each micro-batch that a query has written: last segment number and rows."""
    found = []
    for number in sorted(int(path.name) for path in (work / "checkpoint" / "commits").glob("[0-9]*")):
        offset = json.loads((work / "checkpoint" / "offsets" / str(number)).read_text().splitlines()[-1])
        log = work / "out" / "_spark_metadata" / str(number)
        written = log.read_text().splitlines()[1:] if log.exists() else []
        paths = [json.loads(line)["path"].removeprefix("file://") for line in written]
        found.append((offset["segment"], [row for path in paths for row in pq.read_table(path).to_pylist()]))
    return found


def grow(folder: Path, recording: Path, numbers: Sequence[int]) -> None:
    for number in numbers:
        partial = recording / ".partial"
        shutil.copy(folder / segment_name(number), partial)
        partial.rename(recording / segment_name(number))


def test_a_streaming_query_resumes_after_a_restart(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """The query starts with an empty recording, resumes from its checkpoint, and returns each row once."""
    recording = tmp_path / "recording"
    recording.mkdir()
    query = stream(session, recording, tmp_path).trigger(processingTime="0 seconds").start()
    try:
        grow(folder, recording, [1])
        wait_until(lambda: bool(batches(tmp_path)) or not query.isActive)
        grow(folder, recording, [2])
        query.processAllAvailable()
        grow(folder, recording, [3])
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    grow(folder, recording, [4, 5, 6])
    query = stream(session, recording, tmp_path, maxFilesPerTrigger="2").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    query = stream(session, recording, tmp_path).trigger(availableNow=True).start()  # no new segments
    assert query.awaitTermination(60)
    read, last = batches(tmp_path), 0
    assert [end for end, _ in read] == [1, 2, 3, 5, 6]
    for end, of_batch in read:
        expected = in_order(rows.changes(folder, range(last + 1, end + 1)))
        assert list(map(plain, in_order(of_batch))) == list(map(plain, expected))
        last = end


def plain(row: Row) -> Row:
    """Return the row with its commit time in UTC, without a time zone, as Parquet readers return it."""
    return row | {"commit_time": row["commit_time"].replace(tzinfo=None)}


def test_a_streaming_query_of_a_table_reports_a_missing_segment(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """The query fails if a segment was removed before the query has read it."""
    recording = tmp_path / "recording"
    recording.mkdir()
    grow(folder, recording, range(1, 7))
    options = {"view": "table", "table": "app.strm", "maxFilesPerTrigger": "3"}
    query = stream(session, recording, tmp_path, **options).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    read = batches(tmp_path)
    assert [end for end, _ in read] == [3, 6]
    written = in_order([row for _, of_batch in read for row in of_batch])
    expected = rows.table(folder, "strm").to_pylist()
    assert [row["after"] and row["after"]["v"] for row in written] == [
        row["after"] and row["after"]["v"] for row in expected
    ]
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "out")
    (recording / segment_name(2)).unlink()
    with pytest.raises(PySparkException, match="segment 2 is missing, and this query has not read it"):
        stream(session, recording, tmp_path).trigger(availableNow=True).start().awaitTermination(60)


def test_a_checkpoint_of_another_recording_is_refused(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """Another recording replaces the first in the same folder, with fewer and then with more segments."""
    recording = tmp_path / "recording"
    recording.mkdir()
    grow(folder, recording, [1, 2])
    stream(session, recording, tmp_path).trigger(availableNow=True).start().awaitTermination(60)
    before = batches(tmp_path)
    other = msgspec.structs.replace(recordings.source(CAPTURE), recording="another")
    for cut in (200, 10_000):
        shutil.rmtree(recording)
        recording.mkdir()
        recordings.write(recording, other, recordings.sent(CAPTURE), cut)
        with pytest.raises(
            PySparkException,
            match=f"this is recording another, but the checkpoint belongs to recording {PARALLEL.recording}. "
            "Read that recording, or begin anew with a new checkpoint and a new output",
        ):
            stream(session, recording, tmp_path).trigger(availableNow=True).start().awaitTermination(60)
    assert batches(tmp_path) == before


KINDS = [kind for kind in SESSIONS if kind != KIND]


@pytest.mark.nightly
@pytest.mark.skipif(KIND != "classic", reason="this process is one of them")
@pytest.mark.parametrize("kind", KINDS)
def test_all_tests_pass_in_other_kinds_of_sessions(kind: str, tmp_path: Path) -> None:
    """Run this module's tests with another kind of Spark session; check that no process is left behind."""
    environment = os.environ | {"LOGICALREP_TEST_SESSION": kind}
    if kind == "connect":
        environment["SPARK_TESTING"] = "1"  # the Spark Connect server chooses a free port
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path}/of",
        __file__,
    ]
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output[-5000:]
        assert " passed, " in output, output[-5000:]
        wait_until(lambda: not processes_of_session(process.pid))
    finally:
        for pid in processes_of_session(process.pid):
            os.kill(pid, 9)


def processes_of_session(session_id: int) -> list[int]:
    """Return the IDs of the processes that belong to an operating system session."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,sess="], capture_output=True, text=True).stdout
    pairs: list[Any] = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, session in pairs if session == str(session_id)]
