"""Protocol versions 1 to 4 differ only where the spec says so. The expected values are written by hand."""

from __future__ import annotations

from itertools import combinations

import pytest

from pgoutput import messages as m
from pgoutput.errors import DecodeError, EncodeError
from pgoutput.messages import Message, Streaming
from pgoutput.versions import CODECS
from tests.codec import corpus
from tests.codec.cases import CASES, CONTEXTS

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


@pytest.mark.parametrize(("earlier", "later"), list(combinations(CONTEXTS, 2)))
def test_two_versions_agree_or_the_earlier_refuses(earlier: int, later: int) -> None:
    """Both versions refuse a sample, only the earlier refuses it, or both decode it to the same message."""
    counts = {"both refuse": 0, "only the later decodes": 0, "both decode": 0}
    for sample in samples():
        first = since(sample)
        data, message, _, _ = sample
        in_earlier, in_later = outcome(sample, earlier), outcome(sample, later)
        if later < first:
            # a change with xid may by chance decode in version 1, but to another message
            assert message != in_earlier
            assert message != in_later
            counts["both refuse"] += 1
        elif earlier < first:
            assert message != in_earlier
            assert message == in_later
            counts["only the later decodes"] += 1
        else:
            assert message == in_earlier == in_later
            assert data == CODECS[earlier].encode(message) == CODECS[later].encode(message)
            counts["both decode"] += 1
        if SINCE[type(message)] > earlier:
            assert in_earlier == "refused"
    assert PAIRS[earlier, later] == tuple(count > 0 for count in counts.values())


PAIRS = {
    (1, 2): (True, True, True),
    (1, 3): (True, True, True),
    (1, 4): (False, True, True),
    (2, 3): (True, True, True),
    (2, 4): (False, True, True),
    (3, 4): (False, True, True),
}
"""Booleans by version pair: whether any sample is refused by both, only by the earlier, by neither."""


@pytest.mark.parametrize("version", CONTEXTS)
def test_encode_refuses_fields_of_other_versions(version: int) -> None:
    encode = CODECS[version].encode
    for _, message, _, _ in samples():
        has_xid = isinstance(message, XID_IN_STREAM) and message.xid is not None
        has_tail = isinstance(message, m.StreamAbort) and message.abort_lsn is not None
        allowed = (
            version >= SINCE[type(message)]
            and (not has_xid or version >= XID_SINCE)
            and (not has_tail or version >= ABORT_TAIL_SINCE)
        )
        if allowed:
            encode(message)
        else:
            with pytest.raises(EncodeError):
                encode(message)


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
