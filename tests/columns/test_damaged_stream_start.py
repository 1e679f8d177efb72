"""After a damaged Stream Start, whose tag is intact, the messages of its block are decoded."""

from __future__ import annotations

import pyarrow as pa
import pytest

from logicalrep import messages as m
from logicalrep._index import index_messages
from logicalrep._index.pure import PureIndex
from logicalrep.errors import DecodeError
from logicalrep.messages import Message
from logicalrep.stream import StreamDecoder
from tests.versions import WRITTEN, WRITTEN_CODEC, needs_version

BLOCK: list[Message] = [
    m.StreamStart(xid=7, first_stream_segment=True),
    m.Type(oid=20_000, namespace="public", name="mood", xid=7),
    m.Truncate(options=m.TruncateOption(0), relation_oids=(1,), xid=7),
    m.StreamStop(),
    m.StreamCommit(xid=7, commit_lsn=1, end_lsn=2, commit_time=3),
]
DATA = [WRITTEN_CODEC.encode(message) for message in BLOCK]
DAMAGED = [b"", b"\0", DATA[0][1:-1], DATA[0][1:] + b"x", DATA[0][1:-1] + b"\7"]


@pytest.mark.parametrize("rest", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_stream_start_opens_its_block(rest: bytes) -> None:
    data = [DATA[0][:1] + rest, *DATA[1:]]
    decoder = StreamDecoder(WRITTEN, streaming="on")
    with pytest.raises(DecodeError, match="StreamStart"):
        decoder.decode(data[0])
    assert [decoder.decode(one) for one in data[1:]] == BLOCK[1:]
    assert not decoder.in_stream
    for index in (index_messages, PureIndex):
        decoder = StreamDecoder(WRITTEN, streaming="on")
        found = index(pa.array(data, pa.binary()), decoder)
        assert [*found.errors] == [0]
        assert found.messages([1, 2, 3, 4]) == BLOCK[1:]
        assert not decoder.in_stream


@needs_version(1)
def test_a_version_without_blocks_opens_none() -> None:
    decoder = StreamDecoder(1)
    with pytest.raises(DecodeError):
        decoder.decode(DATA[0])
    found = index_messages(pa.array([DATA[0]], pa.binary()), decoder)
    assert [*found.errors] == [0]
    assert not decoder.in_stream
