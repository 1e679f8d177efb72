"""`decode` turns messages in any DataFrame, in any order, into the rows of the views, and reports errors."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from logicalrep import messages as m
from logicalrep.recording import Recording, SegmentReader
from logicalrep.schemas import spark as schemas
from logicalrep.spark import decode
from logicalrep.stream import encode_for
from logicalrep.views import ChangesView, MessagesView, plan_changes, plan_messages, read
from logicalrep.views.decoded_messages import CHANGE
from tests.codec import corpus
from tests.effort import mostly_nightly
from tests.messages import make_column, make_relation
from tests.recording.conftest import Recorded, recorded
from tests.versions import OLDEST
from tests.views.rows import changes, in_order

__all__ = ["recorded"]

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
RELATION = make_relation(make_column("id", 23, key=True))
DAMAGED = [
    encode_for(RELATION, 4),
    encode_for(m.Insert(relation_oid=1, new=("1",)), 4),
    encode_for(m.Insert(relation_oid=1, new=("2",)), 4)[:-3],
    None,
    encode_for(m.Insert(relation_oid=2, new=("3",)), 4),
    b"",
    encode_for(RELATION, 4)[:-1],
    encode_for(m.Insert(relation_oid=1, new=("4",)), 4),
    encode_for(RELATION, 4),
    encode_for(m.Insert(relation_oid=1, new=("5",)), 4),
]


def kafka(session: SparkSession, data: Sequence[bytes | None]) -> DataFrame:
    """Return messages, shuffled, as a DataFrame with the columns of Spark's Kafka source."""
    rows = [
        {
            "key": b"slot",
            "value": value,
            "topic": "wal",
            "partition": 0,
            "offset": offset,
            "timestamp": BEGUN + timedelta(microseconds=offset),
            "timestampType": 0,
        }
        for offset, value in enumerate(data)
    ]
    random.Random(len(rows)).shuffle(rows)
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
        ]
    )
    return session.createDataFrame(pa.Table.from_pylist(rows, schema)).repartition(3)


def rows(df: DataFrame) -> list[dict[str, Any]]:
    return sorted(df.toArrow().to_pylist(), key=lambda row: row["offset"])


def failure(action: Callable[[], object]) -> str:
    with pytest.raises(PythonException) as error:
        action()
    return str(error.value)


@pytest.mark.parametrize(
    "name",
    mostly_nightly(
        ["pg10_p1", "pg16_p4_par_msg", "pg18_p2_stream_bin", "pg18_p3_2pc_stream_msg", "pg18_p4_par_2pc"],
        kept=["pg18_p4_par_2pc"],
    ),
)
def test_messages_and_changes_are_those_of_the_views(
    session: SparkSession, recorded: Recorded, name: str
) -> None:
    """All streams tested here alter tables, most have stream blocks, and one has values in binary format."""
    header, _, samples = corpus.read(name)
    df = kafka(session, [sample.data for sample in samples])
    decoded = decode(
        df,
        "value",
        proto_version=header.proto_version,
        streaming=header.streaming,
        two_phase=header.slot_two_phase,
        order_by="offset",
        mode="failfast",
    )
    got = rows(decoded)
    recording = Recording(recorded(name, 1000))

    messages: list[dict[str, Any]] = []
    for task in plan_messages(recording, recording.numbers):
        with SegmentReader(task.place) as segment:
            messages += [row for batch in read(segment, MessagesView(segment)) for row in batch.to_pylist()]
    for row in messages:
        del row["wal_start"], row["received_at"]
    assert [{"position": row["offset"], **row["message"]} for row in got] == messages

    changes = {
        (row["offset"], change["relation"]["oid"]): change for row in got for change in row["changes"] or ()
    }
    compared = 0
    for task in plan_changes(recording, recording.numbers):
        with SegmentReader(task.place) as segment:
            view = ChangesView(segment, task, lambda shape: True)
            for batch in read(segment, view):
                for row in batch.to_pylist():
                    change = changes[row["position"], row["relation"]["oid"]]
                    assert change == {field.name: row[field.name] for field in CHANGE}
                    compared += 1
    assert compared > 100


def test_columns_are_added_to_those_of_the_dataframe(session: SparkSession) -> None:
    df = kafka(session, DAMAGED)
    decoded = decode(df, functions.col("value"), proto_version=OLDEST, order_by=["partition", "offset"])
    assert decoded.columns == [*df.columns, "message", "changes", "_corrupt_record"]
    assert isinstance(decoded.schema["message"].dataType, StructType)
    assert decoded.schema["message"].dataType.fieldNames() == schemas.MESSAGES.fieldNames()
    assert rows(decoded.select(df.columns)) == rows(df)
    assert decoded.select("message.*").to(schemas.MESSAGES).schema == schemas.MESSAGES
    flat = decoded.select("offset", functions.inline("changes"))
    assert [(row["offset"], row["operation"], dict(row["after"])) for row in rows(flat)] == [
        (1, "Insert", {"id": "1"}),
        (9, "Insert", {"id": "5"}),
    ]


def test_permissive_keeps_invalid_messages_with_their_errors(session: SparkSession) -> None:
    got = rows(decode(kafka(session, DAMAGED), "value", proto_version=OLDEST, order_by="offset"))
    assert [row["value"] for row in got] == DAMAGED
    assert [row["message"] and row["message"]["type"] for row in got] == [
        "Relation",
        "Insert",
        *[None] * 6,
        "Relation",
        "Insert",
    ]
    assert [row["changes"] is not None for row in got] == [row in (1, 9) for row in range(10)]
    assert [row["_corrupt_record"] for row in got] == [
        None,
        None,
        "Insert.new[0].length at byte 9: expected 4 bytes of the length of the value, found 2",
        None,
        "Insert: no Relation message has come for the OID 2",
        "no bytes: a message has at least its tag",
        "Relation.columns[0].type_modifier at byte 25: expected 4 bytes of Int32, found 3",
        "Insert: the last Relation message of the OID 1 is invalid",
        None,
        None,
    ]


def test_the_name_of_the_corrupt_record_column_is_a_setting(session: SparkSession) -> None:
    session.conf.set("spark.sql.columnNameOfCorruptRecord", "wrong")
    try:
        decoded = decode(kafka(session, DAMAGED), "value", proto_version=OLDEST, order_by="offset")
    finally:
        session.conf.unset("spark.sql.columnNameOfCorruptRecord")
    assert decoded.where("wrong IS NOT NULL").count() == 5


def test_dropmalformed_drops_only_invalid_messages(session: SparkSession) -> None:
    df = kafka(session, DAMAGED)
    decoded = decode(df, "value", proto_version=OLDEST, order_by="offset", mode="DropMalformed")
    assert decoded.columns == [*df.columns, "message", "changes"]
    assert [row["offset"] for row in rows(decoded)] == [0, 1, 3, 8, 9]


def test_failfast_reports_sort_key_message_field_and_byte(session: SparkSession) -> None:
    df = kafka(session, DAMAGED[:4])
    decoded = decode(df, "value", proto_version=OLDEST, order_by=["topic", "offset"], mode="FAILFAST")
    text = failure(decoded.collect)
    assert "DecodeError: the message at 'wal', 2: Insert.new[0].length at byte 9: expected 4 bytes" in text


def struct_of(*names: str) -> Any:
    return functions.struct(*names)


@pytest.mark.parametrize(
    "order_by",
    [
        pytest.param("timestamp", marks=pytest.mark.nightly),
        pytest.param(functions.col, marks=pytest.mark.nightly),
        lambda name: functions.concat(
            functions.lit("x"), functions.lpad(functions.col(name).cast("string"), 9, "0")
        ),
        pytest.param(lambda name: struct_of("topic", name), marks=pytest.mark.nightly),
        lambda name: functions.col(name).cast("decimal(20,0)"),
        lambda name: [functions.col("timestamp").cast("timestamp_ntz"), struct_of("offset"), "offset"],
    ],
    ids=["timestamp", "column", "text", "struct", "decimal", "several"],
)
def test_any_unique_sort_order_is_accepted(session: SparkSession, order_by: Any) -> None:
    header, _, samples = corpus.read("pg18_p4_par_msg")
    df = kafka(session, [sample.data for sample in samples])
    order = order_by("offset") if callable(order_by) else order_by
    decoded = decode(
        df, "value", proto_version=4, streaming=header.streaming, order_by=order, mode="FAILFAST"
    )
    assert decoded.where("message IS NOT NULL").count() == len(samples)


def test_rows_without_a_sort_key_are_invalid(session: SparkSession) -> None:
    place = functions.expr("nullif(offset, 1)")
    got = rows(decode(kafka(session, DAMAGED[:2]), "value", proto_version=OLDEST, order_by=place))
    assert [row["_corrupt_record"] for row in got] == [
        None,
        "a column of the sort key is NULL, so the order of the message is unknown",
    ]


def test_a_sort_order_that_is_not_unique_is_refused(session: SparkSession) -> None:
    """Two Relation messages have the same value in the column by which messages are sorted."""
    stream = [
        encode_for(one, OLDEST)
        for one in (
            RELATION,
            make_relation(oid=2, namespace="", name="u", identity=m.ReplicaIdentity.FULL),
        )
    ]
    with pytest.raises(
        ValueError, match="the order of two messages is ambiguous: b'R' and b'R' have the same sort key 0"
    ):
        decode(kafka(session, stream), "value", proto_version=OLDEST, order_by="partition")


def test_other_columns_are_unchanged(session: SparkSession) -> None:
    df = kafka(session, DAMAGED[:2]).select(
        "*",
        functions.expr("map('a', array(1, null)) AS headers"),
        functions.expr("named_struct('x', current_date(), 'y', CAST(1.5 AS decimal(9, 3))) AS nested"),
        functions.expr("make_dt_interval(1) AS lasts"),
        functions.expr("CAST(timestamp AS timestamp_ntz) AS local"),
        functions.expr("CAST(NULL AS void) AS nothing"),
    )
    decoded = decode(df, "value", proto_version=OLDEST, order_by="offset")
    assert decoded.schema.fields[: len(df.columns)] == df.schema.fields
    assert rows(decoded.select(df.columns)) == rows(df)


def test_an_empty_dataframe_gives_an_empty_dataframe(session: SparkSession) -> None:
    assert rows(decode(kafka(session, []), "value", proto_version=OLDEST, order_by="offset")) == []


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"mode": "STRICT"},
            ValueError,
            "the argument `mode` must be one of PERMISSIVE, DROPMALFORMED, FAILFAST, not 'STRICT'",
        ),
        ({"proto_version": 9}, ValueError, "there is no protocol version 9"),
        ({"streaming": "parallel"}, ValueError, f"needs protocol version 4, not {OLDEST}"),
        ({"order_by": []}, ValueError, "the argument `order_by` is empty: give the columns that sort"),
        (
            {"order_by": functions.rand},
            TypeError,
            r"order_by\[0\] has the type double, which cannot sort messages",
        ),
        ({"column": "topic"}, TypeError, "expected messages in a column of type binary, found string"),
    ],
    ids=lambda value: "" if not isinstance(value, dict) else next(iter(value)),
)
def test_invalid_arguments_are_refused(
    session: SparkSession, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    options = {"column": "value", "proto_version": OLDEST, "order_by": "offset", **arguments}
    if callable(options["order_by"]):
        options["order_by"] = options["order_by"]()
    with pytest.raises(error, match=text):
        decode(kafka(session, DAMAGED), **options)


def test_a_dataframe_with_columns_of_the_added_names_is_refused(session: SparkSession) -> None:
    df = kafka(session, DAMAGED).withColumnsRenamed({"topic": "Message", "key": "changes"})
    with pytest.raises(
        ValueError, match="names of columns that `decode` adds; rename them: message, changes"
    ):
        decode(df, "value", proto_version=OLDEST, order_by="offset")


STREAMS = ("pg18_p4_par_msg", "pg16_p4_par_2pc")
"""Streams with stream blocks and schema changes, of one set of options."""


EPOCH = date(1970, 1, 1)

SINK = "decoded/_spark_metadata"
"""Folder in which Spark's Parquet sink lists the files of each micro-batch."""


def write_kafka_files(folder: Path, cuts: Sequence[int], again: Sequence[int] = ()) -> None:
    """Write a file for each micro-batch, with the messages of `STREAMS` up to the next cut, shuffled.

    The partition has the number of the stream. The rows at the offsets `again` are repeated in the last file.
    """
    streams = [[sample.data for sample in corpus.read(name)[2]] for name in STREAMS]
    bounds = [0, *cuts, max(map(len, streams))]
    for number, (begin, end) in enumerate(pairwise(bounds)):
        rows = [
            {"topic": "wal", "partition": partition, "offset": offset, "value": data}
            for partition, stream in enumerate(streams)
            for offset, data in enumerate(stream)
            if begin <= offset < end or (end == bounds[-1] and offset in again)
        ]
        random.Random(number).shuffle(rows)
        file = folder / f"{number}.parquet"
        parquet.write_table(pa.Table.from_pylist(rows), file)
        os.utime(file, (number + 1, number + 1))  # Spark reads the oldest first


def decode_files(
    session: SparkSession, folder: Path, mode: str = "PERMISSIVE", order_by: str | Column = "offset"
) -> list[dict[str, Any]]:
    """Decode the new files of a folder as a stream, one in each micro-batch; return all rows so far."""
    schema = "topic string, partition long, offset long, value binary"
    files = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "kafka"))
    decoded = decode(
        files,
        "value",
        proto_version=4,
        streaming="parallel",
        two_phase=True,
        order_by=order_by,
        partition_by=["topic", "partition"],
        mode=mode,
    )
    writer = decoded.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "decoded"))
    query.awaitTermination()
    found = session.read.parquet(str(folder / "decoded")).sort("partition", "offset").toArrow()
    return list(found.to_pylist())


@pytest.mark.parametrize(
    "forgotten",
    [
        pytest.param((), marks=pytest.mark.nightly),
        pytest.param(("checkpoint/commits",), marks=pytest.mark.nightly),
        ("checkpoint/commits", SINK),
    ],
)
def test_streams_are_decoded_exactly_once_across_restarts(
    session: SparkSession, tmp_path: Path, forgotten: Sequence[str]
) -> None:
    """Stream blocks are open, and relations known, where a micro-batch and where a query ends.

    A query that was killed has kept the state of its last micro-batch, and not its commit, or not its rows.
    """
    (tmp_path / "kafka").mkdir()
    write_kafka_files(tmp_path / "kafka", [60, 200])
    (tmp_path / "later").mkdir()
    (tmp_path / "kafka" / "2.parquet").rename(tmp_path / "later" / "2.parquet")
    decode_files(session, tmp_path)
    for folder in forgotten:
        for name in ("1", ".1.crc"):
            (tmp_path / folder / name).unlink()
    (tmp_path / "later" / "2.parquet").rename(tmp_path / "kafka" / "2.parquet")
    found = decode_files(session, tmp_path)
    for partition, name in enumerate(STREAMS):
        samples = corpus.read(name)[2]
        df = kafka(session, [sample.data for sample in samples])
        expected = rows(
            decode(df, "value", proto_version=4, streaming="parallel", two_phase=True, order_by="offset")
        )
        compared = ["offset", "message", "changes", "_corrupt_record"]
        assert [[row[key] for key in compared] for row in found if row["partition"] == partition] == [
            [row[key] for key in compared] for row in expected
        ]


def test_late_and_repeated_rows_are_invalid(session: SparkSession, tmp_path: Path) -> None:
    """The rows are sorted by dates, which an error states as days since 1970."""
    (tmp_path / "kafka").mkdir()
    write_kafka_files(tmp_path / "kafka", [60, 200], again=[0, 150])
    days = functions.col("offset").cast("int")
    found = decode_files(session, tmp_path, order_by=functions.date_add(functions.lit(EPOCH), days))
    again = [row for row in found if row["_corrupt_record"]]
    assert [(row["partition"], row["offset"], row["message"]) for row in again] == [
        (partition, offset, None) for partition in range(2) for offset in (0, 150)
    ]
    assert (
        again[0]["_corrupt_record"] == "the row at 0 is late or repeated: rows up to 199 were decoded already"
    )
    assert len(found) == sum(len(corpus.read(name)[2]) for name in STREAMS) + 4


def test_decimals_do_not_sort_a_stream(session: SparkSession) -> None:
    rate = session.readStream.format("rate").load()
    order = functions.col("value").cast("decimal(20,0)")
    with pytest.raises(
        TypeError, match=r"order_by\[0\] has the type decimal\(20,0\).* of a streaming DataFrame: cast"
    ):
        decode(rate, functions.lit(b"").cast("binary"), proto_version=4, order_by=order)


def test_a_stream_that_begins_without_its_relations_is_invalid(session: SparkSession, tmp_path: Path) -> None:
    """The error says what is missing; with FAILFAST the query ends, and goes on after a restart."""
    (tmp_path / "kafka").mkdir()
    change = {"topic": "wal", "partition": 0, "offset": 1, "value": DAMAGED[1]}
    parquet.write_table(pa.Table.from_pylist([change]), tmp_path / "kafka" / "1.parquet")
    with pytest.raises(
        Exception, match="the message at 1: Insert: no Relation message has come for the OID 1"
    ):
        decode_files(session, tmp_path, "FAILFAST")
    (row,) = decode_files(session, tmp_path)
    assert row["_corrupt_record"] == "Insert: no Relation message has come for the OID 1"


CONNECT = """
import sys

import pyarrow as pa
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession
from logicalrep.spark import decode, from_pgoutput, register_functions, to_pgoutput
from tests.codec import corpus

samples = corpus.read("pg18_p4_par_msg")[2]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
columns = {"offset": list(range(len(samples))), "value": [sample.data for sample in samples]}
df = spark.createDataFrame(pa.table(columns)).repartition(3)
options = {"proto_version": 4, "order_by": df["offset"]}
decoded = decode(df, "value", streaming="parallel", mode="FAILFAST", **options)
print(type(decoded).__module__, decoded.where("message.type = 'Insert'").count())
print(len(decoded.select("changes").collect()))
register_functions(spark, proto_version=4)
begins = spark.createDataFrame([(one.data,) for one in samples if one.data[:1] == b"B"], "value binary")
same = to_pgoutput(from_pgoutput("value", proto_version=4), proto_version=4).alias("same")
again = begins.select("value", same).where("same = value AND from_pgoutput(value).type = 'Begin'")
print(again.count())
try:
    decode(df, "value", streaming="on", mode="FAILFAST", **options).collect()
except PythonException as error:
    print("DecodeError: the message at" in str(error))

recording, work = sys.argv[1:]
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
print(spark.read.format("pgoutput").load(recording).count())
stream = spark.readStream.format("pgoutput").load(recording).coalesce(1)
to_files = stream.writeStream.format("parquet").trigger(availableNow=True)
query = to_files.start(work + "/out", checkpointLocation=work + "/checkpoint")
print(query.awaitTermination(200), query.exception())
try:
    spark.read.format("pgoutput").option("view", "tables").load(recording).collect()
except PySparkException as error:
    print("the option `view` must be one of" in str(error))
spark.stop()
"""


@pytest.mark.nightly
def test_decode_and_the_data_source_work_with_spark_connect(
    session: SparkSession, recorded: Recorded, tmp_path: Path
) -> None:
    """`decode` runs in another process, which inherits this session's environment variables to find Java."""
    samples = corpus.read("pg18_p4_par_msg")[2]
    inserts = sum(isinstance(sample.message, m.Insert) for sample in samples)
    begins = sum(isinstance(sample.message, m.Begin) for sample in samples)
    folder = recorded("pg18_p4_par_msg", 151)
    command = [sys.executable, "-c", CONNECT, str(folder), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    expected = in_order(changes(folder))
    assert done.stdout.splitlines() == [
        *(f"pyspark.sql.connect.dataframe {inserts}", f"{len(samples)}", f"{begins}", "True"),
        *(f"{len(expected)}", "True None", "True"),
    ], done.stderr[-3000:]
    (written,) = (tmp_path / "out").glob("*.parquet")
    found = in_order(parquet.ParquetFile(written).read().to_pylist())
    # Parquet readers return the time in UTC, without a time zone.
    times = [row["commit_time"].replace(tzinfo=None) for row in expected]
    assert found == [row | {"commit_time": time} for row, time in zip(expected, times, strict=True)]
