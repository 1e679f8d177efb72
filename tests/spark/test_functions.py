"""Rows of messages for `createDataFrame`, and the column functions."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pgoutput import messages as m
from pgoutput._message_rows import from_row
from pgoutput.messages import Message
from pgoutput.schemas import spark as schemas
from pgoutput.spark import lsn_text, rows
from pgoutput.wire import format_lsn
from tests.codec import corpus

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
