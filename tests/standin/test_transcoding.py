"""A recording is served with other options than those of the recording, as a server sends it for them.

The capture files of one server are streams of the same WAL with different options. So the stream that is
transcoded from one of them must have the transactions of another that the server has sent.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from logicalrep.errors import ReplicationError
from logicalrep.messages import Streaming, XLogData
from logicalrep.standin import PluginOptions, RecordedSource
from logicalrep.standin.recorded.recording import open_stream
from logicalrep.stream import StreamDecoder, Transaction, Transactions
from logicalrep.stream.check import Checker
from logicalrep.synth import Scenario, write_capture_file
from logicalrep.synth.workload import PROFILES, Workload, all_messages, write_recording
from tests.truth import CAPTURES
from tests.versions import OLDEST

PAIRS = [
    ("pg18_ws_p4_par_2pc_msg", "pg18_p1"),
    ("pg18_ws_p4_par_2pc_msg", "pg18_p1_messages"),
    ("pg18_ws_p4_par_2pc_msg", "pg18_p1_origin_none"),
    ("pg18_ws_p4_par_2pc_msg", "pg18_p2_stream"),
    ("pg18_ws_p4_par_2pc_msg", "pg18_p2_stream_msg"),
    ("pg18_ws_p4_par_2pc_msg", "pg18_p3_2pc"),
    ("pg18_ws_p4_par_2pc_msg", "pg18_p4_on"),
    ("pg18_p3_2pc_stream_msg", "pg18_p1"),
    ("pg18_p2_stream_msg", "pg18_p1_messages"),
    ("pg18_p1_messages", "pg18_p1"),
    ("pg18_p4_par_2pc", "pg18_p1_on_2pc_slot"),
    ("pg17_ws_p4_par_2pc_msg", "pg17_p1"),
    ("pg16_ws_p4_par_2pc_msg", "pg16_p1"),
    ("pg15_p3_2pc_stream_msg", "pg15_p1"),
    ("pg14_ws_p2_stream_msg", "pg14_p1"),
    ("pg14_ws_p2_stream_msg", "pg14_p1_messages"),
]
"""Names of the recorded capture file, and of the capture file with the requested options."""


def capture(name: str) -> Path:
    return CAPTURES / f"{name}.jsonl.gz"


def read(options: PluginOptions, *connections: list[bytes]) -> list[Transaction]:
    """Decode the streams of consecutive connections; return the transactions."""

    def decoder() -> StreamDecoder:
        return StreamDecoder(options.proto_version, streaming=options.streaming, two_phase=True)

    transactions = Transactions(decoder())
    found: list[Transaction] = []
    for connection in connections:
        decode = decoder()
        transactions.reconnect(decode)
        for data in connection:
            transaction = transactions.feed(decode.decode(data))
            if transaction is not None:
                found.append(transaction)
    return [plain(one) for one in found]


def plain(transaction: Transaction) -> Transaction:
    """Return a transaction as it is known from stream blocks, and without the xids of stream blocks.

    Neither the LSN of the origin nor the subtransaction of a logical message is in a stream block.
    """
    changes = [
        replace(
            change,
            message=replace(change.message, xid=None),
            relations=tuple(replace(relation, xid=None) for relation in change.relations),
        )
        for change in transaction.changes
        if getattr(change.message, "prefix", "") != "in doomed sub"  # of a rolled-back subtransaction
    ]
    origin = transaction.origin and replace(transaction.origin, origin_lsn=0)
    return replace(transaction, changes=changes, origin=origin)


def served(source: RecordedSource, options: PluginOptions, after_lsn: int = 0) -> list[XLogData]:
    return [one for one in source.start(options, after_lsn) if isinstance(one, XLogData)]


@pytest.mark.parametrize(("recorded", "requested"), PAIRS)
def test_a_transcoded_stream_has_the_transactions_that_a_server_sends(recorded: str, requested: str) -> None:
    options = open_stream(capture(requested)).options
    sent = [one.data for one in served(RecordedSource(capture(recorded)), options)]
    expected = [data for _, _, data in open_stream(capture(requested)).messages()]
    assert read(options, sent) == read(options, expected)
    checker = Checker(options.proto_version, streaming=options.streaming, two_phase=options.two_phase)
    violations = filter(None, map(checker.feed, sent))
    assert not [one.text for one in violations]


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize(
    ("proto_version", "streaming"), [(OLDEST, "off"), (2, "on"), (4, "on"), (4, "parallel")]
)
def test_a_made_recording_is_served_as_a_legal_stream(
    proto_version: int, streaming: Streaming, two_phase: bool, made: Path
) -> None:
    """Relations may be described in a prepared transaction that is sent later than changes after it."""
    options = PluginOptions(
        proto_version=proto_version,
        streaming=streaming,
        two_phase=two_phase,
        publication_names=("synth",),
        messages=True,
    )
    sent = [one.data for one in served(RecordedSource(made), options)]
    checker = Checker(proto_version, streaming=streaming, two_phase=two_phase)
    assert not [one.text for one in filter(None, map(checker.feed, sent))]
    full = replace(options, proto_version=4, streaming="parallel", two_phase=True)
    whole = read(full, [one.data for one in served(RecordedSource(made), full)])
    # Empty transactions are sent only if they are prepared or streamed.
    changed = [sorted(one.xid for one in found if one.changes) for found in (whole, read(options, sent))]
    assert changed[0] == changed[1]


@pytest.mark.parametrize("two_phase", [False, True])
def test_a_relation_of_a_stream_block_is_described_to_other_transactions(
    two_phase: bool, tmp_path: Path
) -> None:
    """A client may have its description only from a block that can be rolled back, also after a restart."""
    db = Scenario(streaming="on", two_phase=True, logical_decoding_work_mem=1_000)
    table = db.table("public.t", id="int8 key")
    prepared = db.transaction()
    prepared.insert(table, id=1)
    prepared.prepare("gid")
    streamed = db.transaction()
    for number in range(10, 50):
        streamed.insert(table, id=number)
    with db.transaction() as tx:
        tx.insert(table, id=2)
    streamed.rollback()
    db.commit_prepared("gid")
    write_capture_file(db, tmp_path / "made.jsonl")
    source = RecordedSource(tmp_path / "made.jsonl")
    options = replace(open_stream(tmp_path / "made.jsonl").options, two_phase=two_phase)
    for after in sorted({0, *(one.wal_start for one in served(source, options))}):
        sent = [one.data for one in served(source, options, after)]
        checker = Checker(options.proto_version, streaming="on", two_phase=two_phase)
        assert not [one.text for one in filter(None, map(checker.feed, sent))], after


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a workload with all kinds of messages."""
    folder = tmp_path_factory.mktemp("made") / "made"
    profile = asdict(PROFILES["everything"])
    write_recording(Workload(**profile, **all_messages(18, 4), transactions=150), folder)
    return folder


def test_values_of_most_built_in_types_are_sent_in_binary_format() -> None:
    options = open_stream(capture("pg18_p1_binary")).options
    sent = read(options, [one.data for one in served(RecordedSource(capture("pg18_p2_stream")), options)])
    expected = read(options, [data for _, _, data in open_stream(capture("pg18_p1_binary")).messages()])
    compared = 0
    for one, other in zip(sent, expected, strict=True):
        for change, wanted in zip(one.changes, other.changes, strict=True):
            cells, expected_cells = getattr(change.message, "new", ()), getattr(wanted.message, "new", ())
            columns = zip(change.relations[0].columns if cells else (), cells, expected_cells, strict=True)
            for column, cell, expected_cell in columns:
                if isinstance(cell, bytes):
                    assert cell == expected_cell, column
                    compared += isinstance(cell, bytes)
    assert compared > 500


@pytest.mark.parametrize(("recorded", "requested"), PAIRS[::3])
def test_a_client_of_a_transcoded_stream_resumes_anywhere(recorded: str, requested: str) -> None:
    options = open_stream(capture(requested)).options
    source = RecordedSource(capture(recorded))
    full = served(source, options)
    whole = read(options, [one.data for one in full])
    for cut in range(1, len(full), len(full) // 10):
        before = [one.data for one in full[:cut]]
        received = read(options, before)
        after = max((one.end_lsn for one in received), default=0)
        rest = [one.data for one in served(source, options, after)]
        assert read(options, before, rest) == whole, cut


def test_envelopes_of_a_reassembled_transaction_have_the_lsns_of_its_changes() -> None:
    source = RecordedSource(capture("pg18_ws_p4_par_2pc_msg"))
    lsns = {one.wal_start for one in served(source, open_stream(capture("pg18_ws_p4_par_2pc_msg")).options)}
    sent = served(source, open_stream(capture("pg18_p1")).options)
    assert {one.wal_start for one in sent} <= lsns
    assert len({one.wal_start for one in sent}) > 100


@pytest.mark.parametrize(
    ("recorded", "requested", "refused"),
    [
        ("pg18_p1", {"binary": False, "proto_version": 3, "two_phase": True}, "two_phase on"),
        ("pg18_p4_on", {"streaming": "parallel"}, "streaming parallel"),
        ("pg18_p1_binary", {"binary": False}, "binary off"),
        ("pg18_p1_origin_none", {"origin": "any"}, "origin any"),
    ],
)
def test_what_was_not_recorded_is_refused(recorded: str, requested: dict[str, object], refused: str) -> None:
    source = RecordedSource(capture(recorded))
    options = replace(open_stream(capture(recorded)).options, **requested)
    with pytest.raises(ReplicationError, match=f"request these options instead of {refused}$"):
        source.start(options, 0)
