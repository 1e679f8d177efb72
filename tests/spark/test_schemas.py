"""The generated schemas for Arrow and Spark match each other, the message classes, and Spark's conversion."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

from logicalrep import EncodeError, _protocols, catalog, messages, strategies, v4
from logicalrep._index import index_messages, message_columns
from logicalrep._message_rows import from_row, to_row
from logicalrep.messages import Message
from logicalrep.schemas import arrow, spark
from logicalrep.stream import StreamDecoder
from logicalrep.values import arrow_type
from logicalrep.wire import UNCHANGED
from tests.messages import make_column, make_relation


def table(sent: list[Message], *, in_stream: bool = False) -> pa.RecordBatch:
    """Convert messages to rows of the view `messages`; with `in_stream`, all are in stream blocks."""
    data = pa.array([v4.encode(message) for message in sent], pa.binary())
    blocks = [in_stream and not isinstance(message, messages.StreamStart) for message in sent]
    index = index_messages(data, StreamDecoder(4, streaming="parallel"), blocks)
    return pa.record_batch(message_columns(index), schema=arrow.MESSAGES)


def test_arrow_and_spark_schemas_are_equal_field_for_field() -> None:
    assert to_arrow_schema(spark.MESSAGES, timezone="UTC") == arrow.MESSAGES
    assert spark.BY_MESSAGE.keys() == arrow.BY_MESSAGE.keys()
    for name, schema in spark.BY_MESSAGE.items():
        assert to_arrow_schema(schema, timezone="UTC") == arrow.BY_MESSAGE[name]


def test_every_message_class_has_a_schema_with_its_fields() -> None:
    classes = {cls.__name__: cls for cls in Message.__subclasses__()}
    assert spark.BY_MESSAGE.keys() == classes.keys()
    for name, cls in classes.items():
        assert sorted(spark.BY_MESSAGE[name].names) == sorted([*cls.__struct_fields__, "_rescued_data"])


def test_all_columns_are_nullable() -> None:
    """`DataFrame.to` refuses to convert a nullable column to one that is not."""
    for schema in (spark.MESSAGES, *spark.BY_MESSAGE.values()):
        assert all(field.nullable for field in schema)


def test_the_schema_of_all_messages_has_each_field_once() -> None:
    names = [field.name for message in _protocols.ALL_VERSIONS.messages for field in message.members]
    assert spark.MESSAGES.names == ["type", *dict.fromkeys(names), "_rescued_data"]


@pytest.mark.parametrize("builtin", catalog.TYPES, ids=lambda builtin: builtin.name)
def test_arrow_and_spark_types_of_the_catalog_match(builtin: catalog.BuiltinType) -> None:
    in_arrow = arrow_type(builtin.oid)
    spark_name = repr(from_arrow_type(in_arrow)).replace("DecimalType(20,0)", "DecimalType(20, 0)")
    assert spark_name.removesuffix("()") == builtin.spark


@given(st.lists(st.one_of(*strategies.v4(in_stream=True, streaming="parallel").values()), max_size=5))
def test_every_message_can_be_converted_to_a_row(drawn: list[Message]) -> None:
    batch = table(drawn, in_stream=True)
    batch.validate(full=True)
    for message, row in zip(drawn, batch.to_pylist(), strict=True):
        rescued = dict(row["_rescued_data"] or ())
        assert row["type"] == type(message).__name__
        for name in message.__struct_fields__:
            missing = getattr(message, name) is None
            assert (row[name] is None) == (missing or name in rescued)
    rows = list(map(to_row, drawn))
    assert pa.Table.from_pylist(rows, arrow.MESSAGES).to_pylist() == batch.to_pylist()
    assert [from_row(row) for row in batch.to_pylist()] == drawn
    assert [from_row(row) for row in rows] == drawn


@given(st.lists(st.one_of(*strategies.envelope().values()), max_size=5))
def test_every_envelope_can_be_converted_to_a_row(drawn: list[Message]) -> None:
    for message in drawn:
        schema, row = arrow.BY_MESSAGE[type(message).__name__], to_row(message)
        (found,) = pa.Table.from_pylist([row], schema).to_pylist()
        assert from_row({"type": row["type"], **found}) == message


def test_a_value_that_its_column_cannot_represent_is_rescued() -> None:
    year_10000 = 252_455_616_000_000_000
    commit = messages.Commit(commit_lsn=2**63, end_lsn=2**63 - 1, commit_time=year_10000)
    begin = messages.Begin(final_lsn=0, commit_time=year_10000 - 1, xid=0)
    origin = messages.Origin(origin_lsn=1, name="caf\udce9")
    batch = table([commit, origin, begin])
    first, second, third = batch.to_pylist()
    assert first["end_lsn"] == 2**63 - 1
    assert first["_rescued_data"] == [("commit_lsn", "80000000/0"), ("commit_time", str(year_10000))]
    assert third["commit_time"] == datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert (second["name"], second["_rescued_data"]) == (None, [("name", '{"text_hex":"636166e9"}')])


def test_a_list_with_one_such_value_is_rescued_as_a_whole() -> None:
    columns = tuple(make_column(name) for name in ("good", "caf\udce9"))
    relation = make_relation(*columns, namespace="")
    (row,) = table([relation]).to_pylist()
    ((name, text),) = row["_rescued_data"]
    assert (row["columns"], name) == (None, "columns")
    assert '"name":{"text_hex":"636166e9"}' in text


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({}, "type is None: expected the name of a message"),
        ({"type": "Start"}, "type is 'Start': there is no such message"),
        ({"type": "Begin", "final_lsn": 1, "xid": 2}, "Begin.commit_time: expected a value, found NULL"),
        (
            {"type": "Origin", "origin_lsn": 1, "_rescued_data": {"name": "{"}},
            "Origin.name: _rescued_data has '{', which is not JSON: ",
        ),
        ({"type": "Origin", "_rescued_data": {"origin_lsn": "7"}}, "Origin.origin_lsn: '7' is not an LSN"),
    ],
)
def test_rows_that_are_no_messages_are_refused(row: dict[str, object], text: str) -> None:
    with pytest.raises(EncodeError, match=f"^{text}"):
        from_row(row)


def test_the_kinds_of_a_cell_are_distinguished() -> None:
    insert = messages.Insert(relation_oid=1, new=(None, UNCHANGED, "text", b"\x00", "caf\udce9"))
    assert table([insert]).to_pylist()[0]["new"] == [
        {"kind": "n", "text": None, "binary": None},
        {"kind": "u", "text": None, "binary": None},
        {"kind": "t", "text": "text", "binary": None},
        {"kind": "b", "text": None, "binary": b"\x00"},
        {"kind": "t", "text": None, "binary": b"caf\xe9"},
    ]
