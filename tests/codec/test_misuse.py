"""Arguments of the wrong type raise TypeError or ValueError with what to pass instead."""

from __future__ import annotations

from typing import Any

import pytest

from logicalrep import messages as m
from logicalrep.messages import XLogData
from logicalrep.stream import StreamDecoder, Tables, Transactions
from logicalrep.stream.check import Checker
from logicalrep.stream.tables import Table
from logicalrep.values import to_arrow, to_text
from logicalrep.versions import CODECS
from logicalrep.wire import format_lsn, parse_lsn
from tests.codec.cases import STREAMED
from tests.messages import STOP, make_relation
from tests.versions import needs_version

BEGIN = b"B" + bytes(20)
ENVELOPE = XLogData(wal_start=0, wal_end=0, send_time=0, data=BEGIN)
RELATION = make_relation()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (ENVELOPE, "XLogData; decode its `data` with StreamDecoder first"),
        (m.PrimaryKeepalive(wal_end=0, send_time=0, reply_requested=False), "PrimaryKeepalive"),
        (BEGIN, "bytes"),
        (None, "NoneType"),
    ],
)
def test_transactions_refuse_other_types_than_messages(message: Any, words: str) -> None:
    transactions = Transactions(StreamDecoder(4))
    with pytest.raises(TypeError, match=f"^expected a pgoutput message, found {words}$"):
        transactions.feed(message)
    assert transactions.feed(RELATION) is None
    assert transactions.feed(m.Type(oid=1, namespace="public", name="mood")) is None


def test_tables_refuse_other_types_than_transactions_and_changes() -> None:
    with pytest.raises(TypeError, match="expected a Transaction, found XLogData"):
        Tables().apply(ENVELOPE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected an Insert, Update or Delete, found Relation"):
        Table(RELATION).apply(RELATION, RELATION)


def test_decoders_and_checkers_refuse_other_types() -> None:
    with pytest.raises(TypeError):
        StreamDecoder(4).decode(ENVELOPE)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Checker(4).feed("B")  # type: ignore[arg-type]


@pytest.mark.parametrize("lsn", [-1, 1 << 64])
def test_lsns_have_64_bits(lsn: int) -> None:
    with pytest.raises(ValueError, match=f"^an LSN is a number from 0 to 2\\*\\*64 - 1, not {lsn}$"):
        format_lsn(lsn)
    assert parse_lsn(format_lsn((1 << 64) - 1)) == (1 << 64) - 1


@pytest.mark.parametrize("codec", [CODECS[version] for version in STREAMED])
@pytest.mark.parametrize("streaming", ["Parallel", "", None, True, [1]])
def test_codecs_refuse_unknown_values_of_streaming(codec: Any, streaming: Any) -> None:
    data = codec.encode(STOP)
    with pytest.raises(ValueError, match=r"^streaming is one of off, on, parallel, not "):
        codec.decode(data, True, streaming)
    with pytest.raises(ValueError, match=r"^streaming is one of off, on, parallel, not "):
        codec.decode(b"", True, streaming)
    assert codec.decode(data, True, "on") == STOP
    assert codec.decode(data, True, "".join(["o", "ff"])) == STOP


@needs_version(1)
@pytest.mark.parametrize("streaming", ["Parallel", "on"])
def test_version_1_refuses_streaming(streaming: Any) -> None:
    with pytest.raises(ValueError, match="streaming 'off'"):
        CODECS[1].decode(BEGIN, False, streaming)
    with pytest.raises(ValueError, match="streaming is one of off, on, parallel, not 'Parallel'"):
        StreamDecoder(4, streaming="Parallel")  # type: ignore[arg-type]


@pytest.mark.parametrize("cell", [["a"], ("a",), {"a": 1}, 1, 1.5, bytearray(b"a"), object()])
@pytest.mark.parametrize("oid", [23, 25, 1007, 99_999])
def test_values_refuse_other_types_than_cells(cell: Any, oid: int) -> None:
    kind = type(cell).__name__
    for convert in (to_text, to_arrow):
        with pytest.raises(TypeError, match=rf"^cells\[1\]: expected str, bytes, .*, found {kind}$"):
            convert(["1", cell], oid)


@pytest.mark.parametrize("cells", ["12", b"12", {"1": None}, {b"1": None}, {"1"}, {}, ""])
def test_values_refuse_other_types_than_sequences_of_cells(cells: Any) -> None:
    kind = type(cells).__name__
    for convert in (to_text, to_arrow):
        with pytest.raises(TypeError, match=f"^expected a sequence of cells, found {kind}$"):
            convert(cells, 25)
