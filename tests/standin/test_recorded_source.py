"""Recordings are served with their original bytes, from any LSN, without gaps and duplicates."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from logicalrep import messages, v2, v3
from logicalrep.capturefile import CaptureFile, Header, encode_header, encode_record
from logicalrep.errors import RecordingError, ReplicationError
from logicalrep.messages import XLogData
from logicalrep.recording import SegmentWriter, SessionStart, Source, list_segments, record_capture_file
from logicalrep.standin import PluginOptions, RecordedSource
from logicalrep.standin.recorded import index
from logicalrep.standin.recorded.recording import open_stream
from logicalrep.stream import Transaction, Transactions
from tests.codec import corpus
from tests.effort import mostly_nightly
from tests.truth import CAPTURES
from tests.versions import OLDEST

SOME = [name for name in corpus.CAPTURES if "pg18" in name or "_ws_" in name or "2pc" in name]
END_LSN = {b"C": 10, b"c": 14, b"K": 10, b"r": 10, b"P": 10, b"p": 10}


def sent(source: RecordedSource, path: Path, after_lsn: int) -> list[XLogData]:
    return [one for one in source.start(open_stream(path).options, after_lsn) if isinstance(one, XLogData)]


def payloads(path: Path) -> list[bytes]:
    with CaptureFile(path) as capture:
        return [one.data for one in capture.messages() if one.message is not None]


@pytest.mark.parametrize("name", mostly_nightly(corpus.CAPTURES, corpus.VARIED))
def test_a_new_slot_is_sent_the_recorded_bytes(name: str) -> None:
    path = corpus.path(name)
    source = RecordedSource(path)
    assert [one.data for one in sent(source, path, source.start_lsn)] == payloads(path)


@pytest.mark.parametrize("name", mostly_nightly(SOME, corpus.VARIED))
def test_a_client_that_disconnects_anywhere_is_sent_the_rest(name: str) -> None:
    path = corpus.path(name)
    source = RecordedSource(path)
    full = sent(source, path, source.start_lsn)
    whole = _read_transactions(path, full, [])
    assert len(whole) > 20
    for cut in range(1, len(full), max(1, len(full) // 15)):
        before = full[:cut]
        ends = (
            int.from_bytes(one.data[at : at + 8]) for one in before if (at := END_LSN.get(one.data[:1], 0))
        )
        after = max(ends, default=source.start_lsn)
        assert _read_transactions(path, before, sent(source, path, after)) == whole, cut


def _read_transactions(path: Path, *connections: list[XLogData]) -> list[Transaction]:
    """Decode the streams of consecutive connections; return the transactions that the client has received."""
    stream = open_stream(path)
    transactions = Transactions(stream.decoder())
    read: list[Transaction] = []
    for connection in connections:
        decoder = stream.decoder()
        transactions.reconnect(decoder)
        for one in connection:
            transaction = transactions.feed(decoder.decode(one.data))
            if transaction is not None:
                read.append(transaction)
    for transaction in read:  # a repeated Relation may be in another transaction
        for number, change in enumerate(transaction.changes):
            relations = tuple(replace(relation, xid=None) for relation in change.relations)
            transaction.changes[number] = replace(change, relations=relations)
    return read


@pytest.mark.parametrize("name", ["pg18_ws_p4_par_2pc_msg", "pg14_ws_p2_stream_msg"])
def test_envelopes_have_the_recorded_lsns(name: str) -> None:
    path = CAPTURES / f"{name}.jsonl.gz"
    source = RecordedSource(path)
    with CaptureFile(path) as capture:
        envelopes = [one.envelope for one in capture.messages()]
    recorded = [(one.wal_start, one.data) for one in envelopes if isinstance(one, XLogData)]
    assert [(one.wal_start, one.data) for one in sent(source, path, source.start_lsn)] == recorded


def test_a_recording_is_served_like_its_capture_file(tmp_path: Path) -> None:
    path = CAPTURES / "pg18_ws_p4_par_2pc_msg.jsonl.gz"
    record_capture_file(path, tmp_path / "r", segment_bytes=4096)
    assert len(list_segments(tmp_path / "r")) > 3
    source = RecordedSource(tmp_path / "r")
    full = sent(source, tmp_path / "r", source.start_lsn)
    # The recorder drops Stream Aborts of transactions that were not streamed; this capture file has none.
    assert [one.data for one in full] == payloads(path)
    later = full[len(full) // 2 :]
    after = next(int.from_bytes(one.data[10:18]) for one in later if one.data[:1] == b"C")
    capture = RecordedSource(path)
    assert sent(source, tmp_path / "r", after) == sent(capture, path, after)


@pytest.mark.parametrize("name", ["pg18_p1", "pg10_ws_p1", "pg14_p1_binary"])
def test_metadata_suffices_to_index_complete_transactions(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = CAPTURES / f"{name}.jsonl.gz"
    record_capture_file(path, tmp_path, segment_bytes=2048)
    assert any(one.ends for one in open_stream(tmp_path).metadata)  # some transactions span several segments
    from_metadata = RecordedSource(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(index, "_index_from_metadata", lambda stream: None)
        from_messages = RecordedSource(tmp_path)
    assert (from_metadata.end_lsn, from_metadata.tables) == (from_messages.end_lsn, from_messages.tables)
    assert from_metadata.start_lsn <= from_messages.start_lsn
    full = sent(from_messages, tmp_path, from_messages.start_lsn)
    assert sent(from_metadata, tmp_path, from_metadata.start_lsn) == full
    ends = [int.from_bytes(one.data[10:18]) for one in full if one.data[:1] == b"C"]
    for after in ends[:: len(ends) // 5]:
        assert sent(from_metadata, tmp_path, after) == sent(from_messages, tmp_path, after)
    monkeypatch.setattr(index, "_index_from_messages", None)
    RecordedSource(tmp_path)  # without reading the messages


def test_an_incomplete_transaction_at_the_end_of_the_segments_is_not_served(tmp_path: Path) -> None:
    record_capture_file(CAPTURES / "pg18_p1.jsonl.gz", tmp_path, segment_bytes=2048)
    segments = list_segments(tmp_path)
    ending = next(n for n, one in enumerate(open_stream(tmp_path).metadata) if one.ends)
    for later in segments[ending:]:
        later.unlink()  # the transaction is now incomplete
    source = RecordedSource(tmp_path)
    assert sent(source, tmp_path, source.start_lsn)[-1].data[:1] == b"C"


def test_an_incomplete_recording_is_rejected(tmp_path: Path) -> None:
    record_capture_file(CAPTURES / "pg18_p1.jsonl.gz", tmp_path, segment_bytes=4096)
    segments = list_segments(tmp_path)
    with pytest.raises(RecordingError, match="is not the first segment of its recording: give the folder"):
        RecordedSource(segments[-1])
    segments[1].unlink()
    with pytest.raises(RecordingError, match="segment 2 is missing"):
        RecordedSource(tmp_path)


def test_an_incomplete_transaction_at_the_end_of_a_capture_file_is_not_served(tmp_path: Path) -> None:
    path = CAPTURES / "pg18_p1.jsonl.gz"
    whole = payloads(path)
    last = max(number for number, data in enumerate(whole) if data[:1] == b"C")
    lines = _lines(path)
    # The header and all messages before the last Commit.
    (tmp_path / "c.jsonl").write_bytes(b"".join(lines[: last + 1]))
    source = RecordedSource(tmp_path / "c.jsonl")
    begin = max(number for number, data in enumerate(whole[:last]) if data[:1] == b"B")
    served = sent(source, tmp_path / "c.jsonl", source.start_lsn)
    assert [one.data for one in served] == whole[:begin]


def test_options_that_add_what_was_not_recorded_are_refused() -> None:
    source = RecordedSource(CAPTURES / "pg18_p1.jsonl.gz")
    with pytest.raises(ReplicationError) as error:
        source.start(PluginOptions(proto_version=3, publication_names=("p",), two_phase=True), 0)
    assert str(error.value) == (
        f"this stream was recorded with proto_version {OLDEST}, streaming off, two_phase off, binary off, "
        "messages off, origin any: request these options instead of two_phase on"
    )
    with pytest.raises(ReplicationError, match="recorded with the publications p: request all of them"):
        source.start(PluginOptions(proto_version=OLDEST, publication_names=("q",)), 0)


def test_options_that_do_not_change_the_bytes_may_differ() -> None:
    source = RecordedSource(CAPTURES / "pg18_p1.jsonl.gz")
    one = list(source.start(PluginOptions(proto_version=OLDEST, publication_names=("p",)), 0))
    other = list(
        source.start(PluginOptions(proto_version=4, publication_names=("p",), streaming="parallel"), 0)
    )
    assert one == other


def _lines(path: Path) -> list[bytes]:
    return gzip.open(path).readlines()


def test_a_transaction_prepared_before_two_phase_is_sent_with_its_commit(tmp_path: Path) -> None:
    prepared: dict[str, Any] = {"prepare_lsn": 500, "end_lsn": 520, "prepare_time": 1, "xid": 7, "gid": "g"}
    stream = [
        messages.Begin(final_lsn=1900, commit_time=1, xid=6),
        messages.Commit(commit_lsn=1900, end_lsn=2000, commit_time=1),
        messages.BeginPrepare(**prepared),
        messages.Prepare(**prepared),
        messages.CommitPrepared(commit_lsn=2100, end_lsn=2150, commit_time=1, xid=7, gid="g"),
    ]
    path = tmp_path / "c.jsonl"
    header = Header(proto_version=3, options={"publication_names": "p"}, slot_two_phase=True)
    lines = [encode_record("data", v3.encode(message)) for message in stream]
    path.write_bytes(b"".join([encode_header(header), *lines]))
    source = RecordedSource(path)
    assert [one.data[:1] for one in sent(source, path, 2000)] == [b"b", b"P", b"K"]
    assert sent(source, path, 2150) == []


def test_a_transaction_repeated_by_a_later_session_is_sent_once(tmp_path: Path) -> None:
    def write(session: int, number: int, position: int, written: list[messages.Message]) -> None:
        start = SessionStart(session=session, number=number, position=position, lsn=0)
        writer = SegmentWriter(tmp_path, source, start)
        writer.write(
            (XLogData(wal_start=1, wal_end=1, send_time=0, data=v2.encode(message)) for message in written), 0
        )
        writer.rotate()

    source = Source(
        recording="7b0c3e0e-0000-4000-8000-000000000001",
        system_identifier="1",
        server_version="18.4",
        database="shop",
        slot="s",
        publications=("p",),
        proto_version=2,
        options={"streaming": "on"},
    )
    block = [
        messages.StreamStart(xid=7, first_stream_segment=True),
        messages.Truncate(xid=7, options=messages.TruncateOption(0), relation_oids=()),
        messages.StreamStop(),
    ]
    commit = messages.StreamCommit(xid=7, commit_lsn=100, end_lsn=120, commit_time=1)
    write(1, 1, 0, [*block, messages.Begin(final_lsn=90, commit_time=1, xid=6)])
    write(2, 2, 4, [*block, commit])
    served = sent(RecordedSource(tmp_path), tmp_path, 0)
    assert [v2.decode(one.data, in_stream=one.data[:1] == b"T") for one in served] == [*block, commit]
    assert RecordedSource(tmp_path).database == "shop"
