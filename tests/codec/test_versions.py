"""Protocol versions differ only where the spec says so. The expected values are written by hand."""

from __future__ import annotations

import pytest

from logicalrep import messages as m
from logicalrep._build import fitted
from logicalrep.errors import DecodeError, EncodeError
from logicalrep.messages import Message, Streaming
from logicalrep.versions import CODECS
from tests.codec import corpus
from tests.codec.cases import CASES

pytestmark = pytest.mark.usefixtures("both")

SINCE: dict[type[Message], int] = {
    m.Begin: 1,
    m.LogicalMessage: 1,
    m.Commit: 1,
    m.Origin: 1,
    m.Relation: 1,
    m.Type: 1,
    m.Insert: 1,
    m.Update: 1,
    m.Delete: 1,
    m.Truncate: 1,
    m.StreamStart: 2,
    m.StreamStop: 2,
    m.StreamCommit: 2,
    m.StreamAbort: 2,
    m.BeginPrepare: 3,
    m.Prepare: 3,
    m.CommitPrepared: 3,
    m.RollbackPrepared: 3,
    m.StreamPrepare: 3,
}
"""First protocol version that defines a message, by message class."""

XID_IN_STREAM = (m.LogicalMessage, m.Relation, m.Type, m.Insert, m.Update, m.Delete, m.Truncate)
XID_SINCE = 2
ABORT_TAIL_SINCE = 4
STREAMING_SINCE = {"off": 1, "on": 2, "parallel": 4}

Sample = tuple[bytes, Message, bool, Streaming]


def samples() -> list[Sample]:
    """Return all captured messages and cases, each with the context needed to decode it."""
    found: dict[Sample, None] = {}
    for sample in corpus.distinct_samples():
        found[sample.data, sample.message, sample.in_stream, sample.streaming] = None
    for case in CASES:
        if case.versions:
            inside = case.where == "inside"
            streaming: Streaming = "off" if "off" in case.streaming and not inside else case.streaming[-1]
            found[case.bytes, case.message, inside, streaming] = None
    return list(found)


def since(sample: Sample) -> int:
    """Return the first version that can decode the sample in its context."""
    _, message, in_stream, _ = sample
    if isinstance(message, m.StreamAbort) and message.abort_lsn is not None:
        return ABORT_TAIL_SINCE
    if in_stream and isinstance(message, XID_IN_STREAM):
        return XID_SINCE
    return SINCE[type(message)]


def context(sample: Sample, version: int) -> tuple[bool, Streaming]:
    """Return a sample's context, reduced to what the protocol version supports."""
    _, _, in_stream, streaming = sample
    if STREAMING_SINCE[streaming] > version:
        streaming = "on" if version >= STREAMING_SINCE["on"] else "off"
    return in_stream and version >= XID_SINCE, streaming


def outcome(sample: Sample, version: int) -> Message | str:
    try:
        return CODECS[version].decode(sample[0], *context(sample, version))
    except DecodeError:
        return "refused"


def test_samples_need_each_first_version() -> None:
    assert {*map(since, samples())} == {*SINCE.values(), ABORT_TAIL_SINCE}


@pytest.mark.parametrize("version", CODECS)
def test_a_version_decodes_and_encodes_what_it_has_and_nothing_else(version: int) -> None:
    for sample in samples():
        data, message, _, _ = sample
        decoded = outcome(sample, version)
        if version >= since(sample) and fitted(message, version) == message:
            assert message == decoded
            assert data == CODECS[version].encode(message)
        else:
            # a change with xid may by chance decode in version 1, but to another message
            assert message != decoded
            with pytest.raises(EncodeError):
                CODECS[version].encode(message)
        if version < SINCE[type(message)]:
            assert decoded == "refused"


@pytest.mark.parametrize("message_type", SINCE)
def test_xid_is_present_in_stream_blocks_only(message_type: type[Message]) -> None:
    """Inside stream blocks seven kinds of messages have an xid of four bytes; other kinds are unchanged."""
    for case in CASES:
        if type(case.message) is not message_type or not case.versions:
            continue
        assert (case.where == "anywhere") == (message_type not in XID_IN_STREAM)
        if case.where == "inside":
            inside = CODECS[4].decode(case.bytes, in_stream=True, streaming="on")
            outside = CODECS[4].decode(case.bytes[:1] + case.bytes[5:], in_stream=False, streaming="on")
            assert case.message == inside
            assert isinstance(outside, XID_IN_STREAM)
            assert outside.xid is None
            assert case.bytes[5:] == CODECS[4].encode(outside)[1:]


def test_stream_abort_fields_depend_on_streaming_not_on_the_version() -> None:
    short = bytes.fromhex("41 0000000a 0000000b")
    long = short + bytes.fromhex("0000000000000001 0000000000000002")
    assert m.StreamAbort(xid=10, subxid=11) == CODECS[4].decode(short, streaming="on")
    assert m.StreamAbort(xid=10, subxid=11, abort_lsn=1, abort_time=2) == CODECS[4].decode(
        long, streaming="parallel"
    )
    for data, streaming in ((long, "on"), (long, "off"), (short, "parallel")):
        with pytest.raises(DecodeError):
            CODECS[4].decode(data, streaming=streaming)  # type: ignore[arg-type]
    for version in (2, 3):
        with pytest.raises(DecodeError):
            CODECS[version].decode(long, streaming="on")
