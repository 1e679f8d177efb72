"""Rows of messages for `createDataFrame`, and the column functions in batch, in streams and in SQL."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession

from logicalrep import messages as m
from logicalrep._message_rows import from_row
from logicalrep.messages import Message
from logicalrep.schemas import spark as schemas
from logicalrep.spark import from_pgoutput, lsn_text, register_functions, rows, to_pgoutput
from logicalrep.stream import encode_for
from logicalrep.wire import format_lsn
from tests.codec import corpus
from tests.effort import mostly_nightly
from tests.messages import start_block
from tests.versions import OLDEST

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

CAPTURES = "pg18_p4_par_2pc", "pg18_p1_messages"
RESCUED = m.Origin(origin_lsn=2**63, name="caf\udce9")
STANDBY = m.StandbyStatusUpdate(
    written_lsn=3, flushed_lsn=2, applied_lsn=1, send_time=0, reply_requested=True
)


def sent() -> list[Message]:
    """Return a message of each class in two captures, and one whose values do not fit their columns."""
    samples = [sample for name in CAPTURES for sample in corpus.read(name)[2]]
    return [*{type(sample.message): sample.message for sample in samples}.values(), RESCUED]


def test_rows_of_all_messages_have_the_schema_of_messages(session: SparkSession) -> None:
    df = session.createDataFrame(rows(sent()), schemas.MESSAGES)
    assert df.schema == schemas.MESSAGES
    assert list(map(from_row, df.toArrow().to_pylist())) == sent()
    for message in sent():
        name = type(message).__name__
        one = df.where(df["type"] == name).to(schemas.BY_MESSAGE[name])
        assert one.schema == schemas.BY_MESSAGE[name]
    (row,) = df.where("name IS NULL AND type = 'Origin'").collect()
    assert row["origin_lsn"] is None
    assert row["_rescued_data"] == {"origin_lsn": "80000000/0", "name": '{"text_hex":"636166e9"}'}


def test_rows_of_one_message_class_have_the_schema_of_the_class(session: SparkSession) -> None:
    for message in (*sent(), STANDBY):
        name = type(message).__name__
        df = session.createDataFrame(rows([message]), schemas.BY_MESSAGE[name])
        if name in ("Update", "Relation", "StreamStop", "StandbyStatusUpdate"):
            (row,) = df.toArrow().to_pylist()
            assert from_row({"type": name, **row}) == message


def test_lsns_as_text(session: SparkSession) -> None:
    lsns = [0, 0x16_B374D848, 2**63 - 1, None]
    df = session.createDataFrame([(lsn,) for lsn in lsns], "lsn long")
    found = df.select(lsn_text("lsn"), lsn_text(df["lsn"])).collect()
    texts = [None if lsn is None else format_lsn(lsn) for lsn in lsns]
    assert [tuple(row) for row in found] == [(text, text) for text in texts]


INVALID = [
    b"",
    b"I\0",
    encode_for(start_block(7), 2),
    encode_for(m.Begin(final_lsn=1, commit_time=2, xid=3), OLDEST) + b"more",
]
"""Messages that cannot be decoded by themselves."""

ERRORS = [
    "no bytes: a message has at least its tag",
    "Insert.relation_oid at byte 1: expected 4 bytes of Int32 (Oid), found 1",
    "StreamStart: from_pgoutput cannot decode stream blocks: use logicalrep.spark.decode",
    "Begin",
]


def column_of(session: SparkSession, name: str, invalid: list[bytes]) -> DataFrame:
    """Return the messages of a capture, a NULL, and invalid messages, in the column `value`."""
    data = [*(sample.data for sample in corpus.read(name)[2]), None, *invalid]
    return session.createDataFrame([*enumerate(data)], "n int, value binary").repartition(3)


@pytest.mark.parametrize(
    "name",
    mostly_nightly(["pg18_p1_messages", "pg15_p1_on_2pc_slot", "pg18_p1_binary"], kept=["pg18_p1_messages"]),
)
def test_each_message_becomes_a_struct_and_the_same_bytes_again(session: SparkSession, name: str) -> None:
    samples = corpus.read(name)[2]
    df = column_of(session, name, INVALID)
    message = from_pgoutput("value", proto_version=2, two_phase=True)
    decoded = df.select("n", message.alias("m")).cache()
    assert decoded.select("m.*").columns == [*schemas.MESSAGES.names, "_corrupt_record"]
    assert decoded.select("m.*").to(schemas.MESSAGES).count() == len(samples) + 5
    found = decoded.select("n", "m.*").where("_corrupt_record IS NULL").sort("n").toArrow().to_pylist()
    assert found.pop()["type"] is None  # the message is NULL
    assert list(map(from_row, found)) == [sample.message for sample in samples]
    errors = decoded.where("m._corrupt_record IS NOT NULL").sort("n").select("m.type", "m._corrupt_record")
    assert all(
        row[0] is None and row[1].startswith(text) for row, text in zip(errors.collect(), ERRORS, strict=True)
    )
    back = decoded.select("n", to_pgoutput("m", proto_version=2).alias("value")).sort("n").collect()
    assert [row["value"] for row in back] == [*(sample.data for sample in samples), *[None] * 5]
    decoded.unpersist()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ("7L AS xid", "the structs have no field `type`: pass the argument `message` to to_pgoutput"),
        ("'Insert' AS type, 7L AS relation_oid", "Insert.new: expected a value, found NULL"),
        (
            "'Insert' AS type, 7L AS relation_oid, array(struct('x' AS kind, '1' AS text)) AS new",
            "Insert.new: expected a value as in logicalrep.schemas, found [{'kind': 'x', 'text': '1'}]",
        ),
        (
            "'Relation' AS type, 7L AS oid, '' AS namespace, 't' AS name, 'q' AS replica_identity",
            "Relation.replica_identity: expected a value as in logicalrep.schemas, found 'q'",
        ),
    ],
)
def test_structs_that_are_no_messages_are_refused(session: SparkSession, fields: str, error: str) -> None:
    df = session.range(1).selectExpr(f"struct({fields}) AS m")
    with pytest.raises(PythonException, match=re.escape(f"EncodeError: {error}")):
        df.select(to_pgoutput("m", proto_version=OLDEST)).collect()


def test_messages_of_one_class_have_its_fields(session: SparkSession) -> None:
    samples = corpus.read("pg18_p1_messages")[2]
    df = column_of(session, "pg18_p1_messages", [])
    origin = from_pgoutput("value", proto_version=OLDEST, message="Origin", mode="failfast")
    found = df.select("n", origin.alias("o")).where("o IS NOT NULL").sort("n")
    assert found.select("o.*").to(schemas.BY_MESSAGE["Origin"]).schema == schemas.BY_MESSAGE["Origin"]
    expected = [(n, sample) for n, sample in enumerate(samples) if isinstance(sample.message, m.Origin)]
    assert [row["n"] for row in found.collect()] == [n for n, _ in expected]
    back = found.select(to_pgoutput(found["o"], proto_version=OLDEST, message="Origin"))
    assert [row[0] for row in back.collect()] == [sample.data for _, sample in expected]


def test_values_that_no_column_can_hold_are_rescued(session: SparkSession) -> None:
    df = session.createDataFrame([(encode_for(RESCUED, OLDEST),)], "value binary")
    (row,) = df.select(from_pgoutput("value", proto_version=OLDEST).alias("m")).select("m.*").collect()
    assert (row["origin_lsn"], row["name"]) == (None, None)
    assert row["_rescued_data"] == {"origin_lsn": "80000000/0", "name": '{"text_hex":"636166e9"}'}
    again = to_pgoutput(from_pgoutput("value", proto_version=OLDEST), proto_version=OLDEST)
    assert df.where(again == df["value"]).count() == 1


def test_functions_are_registered_in_sql(session: SparkSession) -> None:
    samples = corpus.read("pg18_p1_messages")[2]
    register_functions(session, proto_version=OLDEST, mode="FAILFAST")
    column_of(session, "pg18_p1_messages", []).createOrReplaceTempView("messages")
    commits = [format_lsn(one.message.commit_lsn) for one in samples if isinstance(one.message, m.Commit)]
    query = """SELECT lsn_text(m.commit_lsn) FROM (SELECT n, from_pgoutput(value) AS m FROM messages)
        WHERE m.type = 'Commit' ORDER BY n"""
    assert [row[0] for row in session.sql(query).collect()] == commits
    same = session.sql("SELECT count(*) FROM messages WHERE to_pgoutput(from_pgoutput(value)) = value")
    assert same.collect()[0][0] == len(samples)
    session.catalog.dropTempView("messages")


def test_streams_are_decoded_row_by_row(session: SparkSession, tmp_path: Path) -> None:
    column_of(session, "pg18_p1_messages", []).write.parquet(str(tmp_path / "in"))
    stream = session.readStream.schema("n int, value binary").parquet(str(tmp_path / "in"))
    decoded = stream.select(from_pgoutput("value", proto_version=OLDEST).alias("m")).select("m.type", "m.xid")
    writer = decoded.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    found = session.read.parquet(str(tmp_path / "out")).where("type = 'Begin'").count()
    assert found == sum(isinstance(one.message, m.Begin) for one in corpus.read("pg18_p1_messages")[2])


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (lambda: from_pgoutput("value", proto_version=2, mode="FAILFAST"), "Insert.relation_oid at byte 1"),
        (
            lambda: from_pgoutput("n", proto_version=2),
            "from_pgoutput: expected a column of type binary, found int32",
        ),
    ],
)
def test_an_error_ends_the_action(session: SparkSession, column: Callable[[], Column], text: str) -> None:
    df = session.createDataFrame([(0, INVALID[1])], "n int, value binary")
    with pytest.raises(PythonException, match=text):
        df.select(column()).collect()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"proto_version": 9}, "there is no protocol version 9"),
        (
            {"mode": "DROPMALFORMED"},
            "the argument `mode` must be one of PERMISSIVE, FAILFAST, not 'DROPMALFORMED'",
        ),
        ({"message": "Inserts"}, "there is no message 'Inserts'; the messages are Begin, LogicalMessage, "),
    ],
)
def test_invalid_arguments_are_refused(session: SparkSession, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        from_pgoutput("value", **{"proto_version": OLDEST, **arguments})
