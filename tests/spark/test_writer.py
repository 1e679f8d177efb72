"""A DataFrame that is written as a recording and read back stays the same.

The tests run with classic Spark in this process. `test_the_tests_pass_with_spark_connect` runs some tests
again in another process with Spark Connect.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from logicalrep import messages as m, v4
from logicalrep.errors import RecordingError
from logicalrep.messages import ColumnFlag, ReplicaIdentity, XLogData
from logicalrep.recording import (
    RecordingReader,
    SegmentReader,
    find_inconsistencies,
    list_segments,
    read_metadata,
    segment_name,
)
from logicalrep.spark import local_session, transactions
from logicalrep.spark.write_plan import STRIDE, describe_table, plan_segments
from logicalrep.spark.writer import RecordingWriter, WrittenPartition
from logicalrep.stream.check import Checker, CheckOptions
from tests.recording import recordings
from tests.spark.conftest import KIND, SESSIONS
from tests.versions import OLDEST
from tests.views.rows import in_order, replay

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

TYPES = """
    id long, b boolean, i1 byte, i2 short, i4 int, f4 float, f8 double, t string, v string, x binary,
    d decimal(12,3), big decimal(38,0), day date, at timestamp, local timestamp_ntz,
    longs array<long>, texts array<string>, times array<timestamp>, bytes array<binary>
"""
NOON = datetime(2026, 1, 2, 12, 0, 0, 500)
FULL: tuple[Any, ...] = (
    *(True, -128, 2**15 - 1, -(2**31), 0.1, 1e23, "é\n\"'\\", "a  ", b"\0\xff", Decimal("-12.500")),
    *(Decimal(10**37), date(1, 1, 1), NOON.replace(tzinfo=UTC), NOON),
    *([1, None], ["", "NULL", 'a,"b"', None], [NOON.replace(tzinfo=UTC)], [b"\\"]),
)
ROWS = [
    (1, *FULL),
    (2, *[None] * len(FULL)),
    (3, False, *[0] * 3, math.inf, math.nan, *["", ""], b"", *[Decimal(0)] * 2, *[None] * 3, *[[]] * 4),
    *((number, *FULL) for number in range(4, 40)),
]


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """Start a Spark that attempts a task up to three times."""
    if running := SparkSession.getActiveSession():
        running.stop()
    session = local_session("logicalrep tests", config=SESSIONS[KIND] | {"spark.master": "local[2,3]"})
    assert ("connect" in type(session).__module__) == (KIND == "connect")
    yield session
    session.stop()


@pytest.fixture
def all_types(session: SparkSession) -> DataFrame:
    return session.createDataFrame(ROWS, TYPES)


Map: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def save(rows: DataFrame, folder: Path | str, mode: str = "append", **options: str) -> None:
    given = {"table": "public.orders"} | options
    rows.write.format("pgoutput").options(**given).mode(mode).save(str(folder))


def table(session: SparkSession, folder: Path, name: str = "public.orders") -> DataFrame:
    return session.read.format("pgoutput").option("view", "table").option("table", name).load(str(folder))


def after(session: SparkSession, folder: Path, name: str = "public.orders") -> DataFrame:
    return table(session, folder, name).orderBy("sequence").select("after.*").drop("_rescued_data")


def shown(rows: DataFrame) -> list[str]:
    """Return the rows of a DataFrame as sorted texts. NaN equals NaN in this form."""
    return sorted(map(str, rows.toArrow().to_pylist()))


def nullable(schema: StructType) -> StructType:
    return StructType([StructField(field.name, field.dataType) for field in schema])


def check_recording(folder: Path) -> None:
    """Check that no segment is missing, and that each segment and the whole recording are valid streams."""
    paths = list_segments(folder)
    assert [path.name for path in sorted(folder.iterdir())] == [path.name for path in paths]
    assert list(find_inconsistencies([read_metadata(path) for path in paths])) == []
    together: Checker | None = None
    for path in paths:
        with SegmentReader(path) as segment:
            version = segment.metadata.source.proto_version
            all_rows = [row for batch in segment.batches() for row in batch.to_pylist()]
        rows = [row for row in all_rows if row["position"] is not None]  # no keyframe
        alone = Checker(version)
        if together is None:
            together = Checker(version)
        else:
            together.reconnect(CheckOptions(proto_version=version))
        for checker in (alone, together):
            sent = (
                XLogData(wal_start=row["lsn"], wal_end=row["lsn"], send_time=0, data=row["data"])
                for row in rows
            )
            assert [checker.feed(one) for one in sent] == [None] * len(rows)
        with RecordingReader(path) as one:
            assert len(list(one.transactions())) == read_metadata(path).transactions


def test_rows_of_all_types_are_read_back(session: SparkSession, all_types: DataFrame, tmp_path: Path) -> None:
    """Values and types are unchanged, except that byte becomes short: PostgreSQL has no 1-byte integer."""
    folder = tmp_path / "recording"
    save(all_types.repartition(3), folder, key="id")
    assert [path.name for path in list_segments(folder)] == [segment_name(number) for number in (1, 2, 3)]
    check_recording(folder)
    back = after(session, folder)
    expected = all_types.withColumn("i1", all_types["i1"].cast("short"))
    assert nullable(back.schema) == nullable(expected.schema)
    assert shown(back) == shown(expected)
    (row,) = table(session, folder).select("operation", "key_columns").distinct().collect()
    assert tuple(row) == ("Insert", ["id"])


def test_operations_keep_their_order(session: SparkSession, tmp_path: Path) -> None:
    """The order is kept across Spark partitions, because segments are numbered like the Spark partitions."""
    done = [
        *((number, "Insert", number, f"new {number}") for number in range(60)),
        *((60 + number, "Update", number, None) for number in range(0, 60, 2)),
        *((200 + number, "Delete", number, "not sent") for number in range(0, 60, 3)),
        (400, "Insert", 0, "again"),
        (401, "Update", 0, "and again"),
    ]
    rows = session.createDataFrame(done, "place int, operation string, id int, text string")
    ordered = rows.repartitionByRange(4, "place").sortWithinPartitions("place").drop("place")
    save(ordered, tmp_path, key="id", operation="operation", proto_version=str(OLDEST))
    assert len(list_segments(tmp_path)) == 4
    check_recording(tmp_path)
    found = in_order(table(session, tmp_path).toArrow().to_pylist())
    assert [row["operation"] for row in found] == [kind for _, kind, _, _ in done]
    texts = {number: text for _, kind, number, text in done if kind != "Delete"}
    gone = {number for _, kind, number, _ in done if kind == "Delete"} - {0}
    left = {row["id"]: row["text"] for row in replay(found)}
    assert left == {number: text for number, text in texts.items() if number not in gone}
    deleted = next(row for row in found if row["operation"] == "Delete" and row["before"]["id"] == 3)
    assert (deleted["before"]["text"], deleted["after"]) == (None, None)
    with RecordingReader(tmp_path) as segments:
        assert segments.decoder.proto_version == OLDEST


def test_save_modes_append_and_overwrite(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / ".begun").touch()  # hidden files are ignored
    first = session.createDataFrame([(1,), (2,)], "id int").repartition(2)
    save(first, tmp_path)
    save(first.selectExpr("id", "'x' AS text").coalesce(1), tmp_path)
    save(first, tmp_path, table="other.Ünits")
    (tmp_path / ".begun").unlink()
    check_recording(tmp_path)
    assert len(list_segments(tmp_path)) == 5
    sorted_rows = sorted(map(tuple, after(session, tmp_path).collect()), key=str)
    assert sorted_rows == [(1, "x"), (1, None), (2, "x"), (2, None)]
    assert after(session, tmp_path, "other.Ünits").count() == 2
    history = session.read.format("pgoutput").option("view", "schema").load(str(tmp_path)).orderBy("position")
    found = [
        (row.relation.oid, row.relation.name, row.version, len(row.columns)) for row in history.collect()
    ]
    assert found == [(16384, "orders", 1, 1), (16384, "orders", 2, 2), (16385, "Ünits", 1, 1)]
    save(first.coalesce(1), tmp_path, mode="overwrite")
    check_recording(tmp_path)
    assert [path.name for path in list_segments(tmp_path)] == [segment_name(1)]
    assert sorted(map(tuple, after(session, tmp_path).collect())) == [(1,), (2,)]


@pytest.mark.parametrize("partitions", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_empty_partitions_are_written_as_segments(
    session: SparkSession, tmp_path: Path, partitions: int
) -> None:
    """Segment numbers have no gaps, and a DataFrame without rows can be read back."""
    nothing = session.createDataFrame([], "id int, text string").repartition(partitions)
    save(nothing, tmp_path, key="id")
    check_recording(tmp_path)
    back = after(session, tmp_path)
    assert (back.columns, back.count()) == (["id", "text"], 0)
    save(session.createDataFrame([(1,)], "id int").repartition(partitions), tmp_path)
    check_recording(tmp_path)
    assert after(session, tmp_path).count() == 1


def failing(partition: int | None = None) -> Map:
    """Return a function for `mapInArrow` that raises an error after the last row of a Spark partition.

    If a partition is given, the function raises in each attempt for this partition; otherwise, it raises in
    the first attempt of each task.
    """

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        if task is None:
            return
        if task.attemptNumber() == 0 if partition is None else task.partitionId() == partition:
            raise RuntimeError("this attempt fails")

    return fail


def test_a_task_that_runs_again_leaves_one_segment(session: SparkSession, tmp_path: Path) -> None:
    rows = session.range(100).repartition(3)
    save(rows.mapInArrow(failing(), "id long"), tmp_path)
    check_recording(tmp_path)
    assert len(list_segments(tmp_path)) == 3
    assert sorted(after(session, tmp_path).toArrow()["id"].to_pylist()) == list(range(100))


def test_a_failed_job_leaves_the_recording_unchanged(session: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    rows = session.range(10).repartition(2).mapInArrow(failing(partition=1), "id long")
    with pytest.raises(PySparkException, match="this attempt fails"):
        save(rows, folder)
    assert not folder.exists()
    save(session.range(3), folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for mode in ("append", "overwrite"):
        with pytest.raises(PySparkException, match="this attempt fails"):
            save(rows, folder, mode=mode)
        assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("sql", "options", "text"),
    [
        (
            "id",
            {"table": "orders"},
            "needs the option `table`: the name of a table with its schema, such as public.orders",
        ),
        ("INTERVAL 1 DAY AS s", {}, "the column s: there is no PostgreSQL type for duration"),
        ("'a' || chr(0) AS t", {}, "the column t: a column of .*zero character"),
    ],
)
def test_an_error_names_what_cannot_be_written(
    session: SparkSession, tmp_path: Path, sql: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=f"(?s){text}"):
        save(session.sql(f"SELECT {sql} FROM range(5)").coalesce(1), tmp_path / "recording", **options)
    assert not any(tmp_path.iterdir())


def test_folders_with_other_contents_are_refused(session: SparkSession, tmp_path: Path) -> None:
    rows = session.range(3)
    recorded, noted, file = tmp_path / "recorded", tmp_path / "noted", tmp_path / "file"
    recorded.mkdir()
    recordings.write(recorded, recordings.source("pg18_p1"), recordings.sent("pg18_p1"), 400)
    noted.mkdir()
    (noted / "notes").write_text("mine")
    file.touch()
    names = sorted(path.name for path in recorded.iterdir())
    for mode in ("append", "overwrite"):
        for folder, text in (
            (recorded, "segment 1 was recorded from a server: use another folder"),
            (noted, "the folder also contains other files, such as notes: use another folder"),
            (file, "expected a folder for the recording, found a file: give another path"),
        ):
            with pytest.raises(PySparkException, match=text):
                save(rows, folder, mode=mode)
    assert sorted(path.name for path in recorded.iterdir()) == names
    assert (noted / "notes").read_text() == "mine"


def test_streaming_writes_are_refused(session: SparkSession, tmp_path: Path) -> None:
    rows = session.readStream.format("rate").load().writeStream.format("pgoutput")
    rows = rows.option("path", f"{tmp_path}/out").option("checkpointLocation", f"{tmp_path}/checkpoint")
    with pytest.raises(
        PySparkException, match="cannot write a stream: in foreachBatch, append each batch with"
    ):
        rows.start().awaitTermination(60)
    assert not (tmp_path / "out").exists()


# Without Spark


OPERATION = {"key": "id", "operation": "op"}
ID_AND_TEXT = pa.schema([("id", pa.int64()), ("text", pa.string())])


def writer(
    folder: Path,
    schema: pa.Schema = ID_AND_TEXT,
    options: Mapping[str, str] = {},
    *,
    overwrite: bool = False,
) -> RecordingWriter:
    table = describe_table({"table": "public.orders", **options}, schema)
    return RecordingWriter(*plan_segments(str(folder), table, overwrite=overwrite), overwrite=overwrite)


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    for size in sizes:
        yield pa.record_batch({"id": list(range(size)), "text": ["x" * 100] * size})


def write(one: RecordingWriter, partition: int, attempt: int, *sizes: int) -> WrittenPartition:
    return one._write(partition, attempt, batches(*sizes))


def test_a_batch_is_one_transaction_unless_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_MAX_BYTES", 4_000)
    one = writer(tmp_path)
    one.commit([write(one, 0, 7, 3, 0, 100, 5), write(one, 1, 8, 1)])
    check_recording(tmp_path)
    with RecordingReader(tmp_path) as segments:
        found = list(segments.transactions())
    sizes = [len(transaction.changes) for transaction in found]
    assert (sizes[0], sizes[-2:], sum(sizes)) == (3, [5, 1], 109)
    assert len(sizes) == 3 + len(sizes[1:-2]) > 5
    assert len({transaction.xid for transaction in found}) == len(found)
    assert found[-2].end_lsn == STRIDE < found[-1].commit_lsn
    relation = found[0].changes[0].relations[0]
    assert relation.replica_identity == ReplicaIdentity.NOTHING
    assert not any(column.flags & ColumnFlag.KEY for column in relation.columns)


STRUCT = pa.struct([("a", pa.int32())])


@pytest.mark.parametrize(
    ("fields", "options", "text"),
    [
        ({"id": pa.int64()}, {"table": ""}, "needs the option `table`"),
        (
            {"id": pa.int64()},
            {"keys": "id"},
            "there is no option `keys`; the options are key, operation, path",
        ),
        (
            {"id": pa.int64()},
            {"key": "id, no"},
            "the option `key` names 'no', expected one of the columns: id",
        ),
        ({"id": pa.int64()}, {"operation": "id"}, "the option `operation` needs the option `key`"),
        (
            {"id": pa.int64()},
            OPERATION,
            "the option `operation` names 'op', expected one of the columns: id",
        ),
        (
            {"op": pa.int64()},
            {"key": "op", "operation": "op"},
            "names 'op', expected one of the columns: none is left",
        ),
        ({"id": pa.int64()}, {"proto_version": "99"}, "`proto_version` must be one of .*, not '99'"),
        ({"s": STRUCT}, {}, "the column s: there is no PostgreSQL type for struct<.*to_json"),
        ({"s": pa.list_(pa.list_(pa.int32()))}, {}, "the column s: there is no PostgreSQL type for list<"),
        ({"a\0b": pa.int64()}, {}, "zero character"),
    ],
)
def test_invalid_options_and_columns_are_refused(
    tmp_path: Path, fields: dict[str, pa.DataType], options: dict[str, str], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        writer(tmp_path / "new", pa.schema(list(fields.items())), options)


def test_duplicate_columns_and_remote_folders_are_refused(tmp_path: Path) -> None:
    twice = pa.schema([("id", pa.int64()), ("id", pa.int64())])
    with pytest.raises(ValueError, match="several columns have the name id"):  # Spark allows duplicate names
        writer(tmp_path, twice)
    with pytest.raises(ValueError, match=r"^s3://bucket/x.*: expected a local or mounted folder"):
        plan_segments(
            "s3://bucket/x?region=eu", describe_table({"table": "a.b"}, ID_AND_TEXT), overwrite=False
        )
    _, plan = plan_segments(tmp_path.as_uri(), describe_table({"table": "a.b"}, ID_AND_TEXT), overwrite=False)
    assert plan.folder == tmp_path


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ({"id": [1, None]}, {"key": "id"}, "the column id is part of the key, but is NULL in some rows"),
        (
            {"id": [1], "op": ["insert"]},
            OPERATION,
            "each value of the column op must be one of Insert, .*, not 'insert'",
        ),
        (
            {"id": [1, 2], "op": ["Insert", None]},
            OPERATION,
            "each value of the column op must be one of Insert, .*, not None",
        ),
        ({"id": [1], "op": [1]}, OPERATION, "each value of the column op must be one of Insert, .*, not 1"),
    ],
)
def test_invalid_rows_are_refused(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, str], text: str
) -> None:
    batch = pa.record_batch(columns)
    one = writer(tmp_path / "new", batch.schema, options)
    with pytest.raises(ValueError, match=text):
        one._write(0, 1, iter([batch]))
    one.abort([])
    assert not any(tmp_path.iterdir())


def test_mixed_operations_are_encoded_in_order(tmp_path: Path) -> None:
    kinds = Random(8).choices(["Insert", "Update", "Delete"], k=200)
    rows = {"id": list(range(200)), "op": kinds, "text": [None, "x"] * 100}
    batch = pa.record_batch(rows)
    table = describe_table({"table": "public.orders", **OPERATION}, batch.schema)
    oid = table.relation.oid
    expected = []
    for number, kind, text in zip(*rows.values(), strict=True):
        new = (str(number), text)
        deleted = m.Delete(relation_oid=oid, key=(str(number), None))
        expected.append(
            {
                "Insert": m.Insert(relation_oid=oid, new=new),
                "Update": m.Update(relation_oid=oid, new=new),
            }.get(kind, deleted)
        )
    assert [v4.decode(one) for one in transactions.encode_rows(table, batch).to_pylist()] == expected


def test_only_the_committed_attempt_of_a_task_counts(tmp_path: Path) -> None:
    """With speculative execution, two attempts write the same Spark partition; the driver commits one."""
    one = writer(tmp_path)
    write(one, 0, 1, 10)
    second = write(one, 0, 2, 10)
    one.commit([second])
    check_recording(tmp_path)
    assert [read_metadata(path).messages for path in list_segments(tmp_path)] == [13]


def test_partitions_without_a_task_are_written_by_the_driver(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.commit([None, write(one, 2, 1, 10)])
    check_recording(tmp_path)
    assert [read_metadata(path).messages for path in list_segments(tmp_path)] == [0, 0, 13]
    assert {len(read_metadata(path).relations) for path in list_segments(tmp_path)} == {1}
    none = writer(tmp_path / "none")
    none.commit([])
    check_recording(tmp_path / "none")


def test_a_late_task_leaves_no_files(tmp_path: Path) -> None:
    """A late task still runs when the job has failed, or when another attempt of the task has finished."""
    one = writer(tmp_path / "new")

    def late() -> Iterator[pa.RecordBatch]:
        yield from batches(1)
        one.abort([])
        yield from batches(1)

    with pytest.raises(OSError, match="No such file"):
        one._write(0, 1, late())
    with pytest.raises(OSError, match="No such file"):
        one._write(0, 2, batches(1))
    assert not any(tmp_path.iterdir())


def test_the_second_of_two_concurrent_writers_is_refused(tmp_path: Path) -> None:
    one, other = writer(tmp_path), writer(tmp_path)
    written, late = write(one, 0, 1, 1), write(other, 0, 2, 2)
    one.commit([written])
    with pytest.raises(RecordingError, match="another writer has changed the recording at the same time"):
        other.commit([late])
    other.abort([late])
    check_recording(tmp_path)
    assert [read_metadata(path).messages for path in list_segments(tmp_path)] == [4]


def test_a_full_disk_leaves_the_recording_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = writer(tmp_path)
    first.commit([write(first, 0, 1, 5)])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    again = writer(tmp_path, overwrite=True)
    written = [write(again, partition, partition, 1) for partition in range(3)]
    rename = Path.rename

    def refuse(path: Path, other: Path) -> Path:
        if other == tmp_path / segment_name(2):
            raise OSError(28, "No space left on device")
        return rename(path, other)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="No space left"):
        again.commit(list(written))
    again.abort(list(written))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.nightly
def test_the_tests_pass_with_spark_connect(tmp_path: Path) -> None:
    """The environment variable SPARK_TESTING makes the Spark Connect server choose a free port."""
    environment = os.environ | {"LOGICALREP_TEST_SESSION": "connect", "SPARK_TESTING": "1"}
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command = [*pytest_, f"--basetemp={tmp_path}/of", "-k", "read_back or runs_again", __file__]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stdout[-5000:]
    assert "2 passed" in process.stdout, process.stdout[-5000:]
