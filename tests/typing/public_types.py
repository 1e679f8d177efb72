"""Types of the public API as type checkers see them.

mypy checks this module; no test imports the module. Each `type: ignore` marks a call that must be an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, assert_type

from hypothesis.strategies import SearchStrategy
from pyspark.sql.types import StructType

from logicalrep import envelope, messages, strategies, v2, v3, v4
from logicalrep._stored_stream import DecodedRecord
from logicalrep.capturefile import CaptureFile
from logicalrep.messages import (
    UNCHANGED,
    AnyMessage,
    Cell,
    Message,
    ReplicaIdentity,
    Streaming,
    TupleData,
    Unchanged,
)
from logicalrep.schemas import spark
from logicalrep.stream import StreamDecoder, Table, Tables, Transaction, Transactions
from logicalrep.versions import CODECS


def codecs(data: bytes, message: Message) -> None:
    assert_type(v2.decode(data), v2.Message)
    assert_type(v4.decode(bytearray(data), True, "parallel"), v4.Message)
    assert_type(v2.encode(message), bytes)
    assert_type(CODECS[2].decode(data), AnyMessage)
    assert_type(CODECS[2].encode(message), bytes)
    assert_type(envelope.encode(message), bytes)
    outer = envelope.decode(data)
    assert_type(outer, envelope.Message)
    if isinstance(outer, messages.XLogData):
        assert_type(outer.data, bytes)


def message_unions_of_versions(data: bytes) -> None:
    message = v3.decode(data)
    assert_type(v4.encode(message), bytes)
    later: v4.Message = message  # version 4 has all messages of version 3
    earlier: v2.Message = message  # type: ignore[assignment]
    del later, earlier


def fields(message: Message) -> None:
    match message:
        case messages.Begin():
            assert_type(message.final_lsn, int)
            assert_type(message.commit_time, int)
        case messages.Relation():
            assert_type(message.replica_identity, ReplicaIdentity)
            assert_type(message.columns, tuple[messages.RelationColumn, ...])
            assert_type(message.columns[0].type_modifier, int)
        case messages.Update():
            assert_type(message.key, TupleData | None)
            assert_type(message.xid, int | None)
        case messages.StreamAbort():
            assert_type(message.abort_lsn, int | None)
        case messages.StreamStart():
            assert_type(message.first_stream_segment, bool)
        case messages.LogicalMessage():
            assert_type(message.content, bytes)


def cells_narrow(insert: messages.Insert) -> None:
    assert_type(insert.new, tuple[str | bytes | Unchanged | None, ...])
    for cell in insert.new:
        if cell is None:
            assert_type(cell, None)
        elif cell is UNCHANGED:
            assert_type(cell, Literal[Unchanged.UNCHANGED])
        elif isinstance(cell, str):
            assert_type(cell, str)
        else:
            assert_type(cell, bytes)


def streams(data: bytes, message: Message, capture: CaptureFile) -> None:
    decoder = StreamDecoder(4, streaming="parallel", two_phase=True)
    assert_type(decoder.decode(memoryview(data)), AnyMessage)
    assert_type(decoder.relations, dict[int, messages.Relation])
    assert_type(Transactions(decoder).feed(message), Transaction | None)
    assert_type(Tables()[1], Table)
    assert_type(next(iter(Tables()[1])), Mapping[str, Cell])
    assert_type(next(capture.messages()), DecodedRecord)
    assert_type(capture.header.streaming, Streaming)


def schemas_and_strategies() -> None:
    assert_type(spark.MESSAGES, StructType)
    assert_type(spark.BY_MESSAGE["Begin"], StructType)
    assert_type(strategies.v4(True, "on")["Begin"], SearchStrategy[Message])
    assert_type(strategies.envelope()["XLogData"], SearchStrategy[Message])


def wrong_calls(data: bytes, begin: messages.Begin) -> None:
    v4.encode("x")  # type: ignore[arg-type]
    v4.encode(data)  # type: ignore[arg-type]
    v4.decode("x")  # type: ignore[arg-type]
    v4.decode(data, streaming="paralel")  # type: ignore[arg-type]
    StreamDecoder(4, streaming="paralel")  # type: ignore[arg-type]
    StreamDecoder("4")  # type: ignore[arg-type]
    begin.xid = 5  # type: ignore[misc]
    print(begin.lsn)  # type: ignore[attr-defined]
    messages.Begin(final_lsn=1, commit_time=2)  # type: ignore[call-arg]
    messages.Insert(relation_oid=1, new=(5,))  # type: ignore[arg-type]
    strategies.v4(True, "yes")  # type: ignore[arg-type]
