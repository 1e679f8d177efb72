"""Every message captured from real servers decodes to an object that encodes to the same bytes."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from logicalrep import envelope
from logicalrep.errors import DecodeError
from logicalrep.jsonlines import from_json, to_json
from logicalrep.messages import Message
from logicalrep.stream import StreamDecoder
from logicalrep.versions import CODECS
from tests.codec import corpus
from tests.effort import mostly_nightly
from tests.versions import OLDEST


@pytest.mark.parametrize("name", corpus.CAPTURES)
def test_each_message_decodes_and_encodes_to_the_same_bytes(name: str) -> None:
    _, lines, samples = corpus.read(name)
    assert lines
    for sample in samples:
        codec = CODECS[sample.version]
        assert sample.message == codec.decode(sample.data, sample.in_stream, sample.streaming)
        assert sample.data == codec.encode(sample.message)
    for line in lines:
        if line.envelope is not None:
            assert line.record.data == envelope.encode(line.envelope)
        assert (line.record.channel == "data") == (line.envelope is None)


@pytest.mark.parametrize("name", mostly_nightly(corpus.CAPTURES, corpus.VARIED))
def test_each_message_survives_json(name: str) -> None:
    _, lines, _ = corpus.read(name)
    for line in lines:
        for message in (line.envelope, line.message):
            if message is not None:
                assert_survives_json(message)


def assert_survives_json(message: Message) -> None:
    text = json.dumps(to_json(message), ensure_ascii=False)
    text.encode()  # must be valid UTF-8
    read = from_json(json.loads(text))
    assert message == read
    assert repr(message) == repr(read)


def test_all_captured_messages_are_counted() -> None:
    messages: Counter[str] = Counter()
    channels: Counter[str] = Counter()
    envelopes: Counter[str] = Counter()
    for name in corpus.CAPTURES:
        _, lines, samples = corpus.read(name)
        messages.update(type(sample.message).__name__ for sample in samples)
        channels.update(line.record.channel for line in lines)
        envelopes.update(type(line.envelope).__name__ for line in lines if line.envelope is not None)
    assert len(corpus.CAPTURES) == 75
    assert messages == {
        "Begin": 8420,
        "LogicalMessage": 272,
        "Commit": 8420,
        "Origin": 288,
        "Relation": 4991,
        "Type": 1888,
        "Insert": 20693,
        "Update": 2864,
        "Delete": 3173,
        "Truncate": 438,
        "StreamStart": 6171,
        "StreamStop": 6171,
        "StreamCommit": 426,
        "StreamAbort": 231,
        "BeginPrepare": 96,
        "Prepare": 96,
        "CommitPrepared": 88,
        "RollbackPrepared": 44,
        "StreamPrepare": 36,
    }
    assert messages.total() == 64_806
    assert channels == {"data": 51_519, "copydata": 17_714, "sent": 124}
    assert envelopes == {"PrimaryKeepalive": 4427, "XLogData": 13287, "StandbyStatusUpdate": 124}


def test_a_two_phase_slot_needs_a_decoder_with_two_phase() -> None:
    header, _, samples = corpus.read("pg15_p1_on_2pc_slot")
    assert (header.proto_version, header.slot_two_phase) == (OLDEST, True)
    prepared = next(sample for sample in samples if isinstance(sample.message, corpus.TWO_PHASE))
    with pytest.raises(DecodeError, match=rf"StreamDecoder\({OLDEST}, two_phase=True\)"):
        StreamDecoder(OLDEST).decode(prepared.data)
    assert prepared.message == StreamDecoder(OLDEST, two_phase=True).decode(prepared.data)
