"""The runtime finds fields at their byte offsets by meaning, and builds messages by role."""

from __future__ import annotations

import itertools

import pytest

from logicalrep import _protocols, messages as m
from logicalrep._build import build
from logicalrep._offsets import layout_of, offset_of
from logicalrep._roles import ROLES
from logicalrep._walk import walk
from logicalrep.messages import Message
from logicalrep.stream import StreamDecoder, encode_for
from tests.codec.corpus import CAPTURES, read
from tests.messages import make_relation
from tests.versions import OLDEST, needs_version

VERSIONS = tuple(_protocols.VERSIONS)


def offsets_in(data: bytes, kind: type[Message], version: int, in_stream: bool) -> dict[str, int]:
    """Return the byte offset of each field that has a meaning, in an encoded message, by meaning."""
    layout = layout_of(kind, version)
    assert layout is not None
    protocol = _protocols.VERSIONS[max(version, layout.since)]
    starts: dict[str, int] = {}
    for piece in walk(protocol, data, in_stream, "off"):
        starts.setdefault(piece.path.removesuffix(".tag"), piece.start)
    return {one.means: starts[one.name] for one in layout.members if one.means and one.name in starts}


@pytest.mark.parametrize(("version", "in_stream"), list(itertools.product(VERSIONS, (False, True))))
def test_offsets_are_those_of_encoded_messages(version: int, in_stream: bool) -> None:
    checked = 0
    for kind, role in ROLES.items():
        if layout_of(kind, version) is None:
            continue
        xids = {"subxid": 9, "xid": 7} if in_stream else {}
        message = build(role, version, old=("a",), **xids)
        if type(message) is not kind:
            continue  # another message of the version has the same role
        data = encode_for(message, version)
        expected = offsets_in(data, kind, version, in_stream)
        for meaning, offset in expected.items():
            found = offset_of(kind, meaning, version)
            assert found in (offset, None), (kind, meaning)
            checked += found is not None
    assert checked > 10


@pytest.mark.parametrize("name", [name for name in CAPTURES if "pg18" in name])
def test_a_server_writes_each_field_at_its_offset(name: str) -> None:
    header, _, samples = read(name)
    for sample in samples:
        message = sample.message
        for field in _protocols.ALL_VERSIONS.by_name[type(message).__name__].members:
            if field.kind != "integer" or field.means is None:
                continue
            version = header.proto_version
            offset = offset_of(type(message), field.means, version)
            if offset is not None:
                raw = sample.data[offset : offset + field.size]
                value = int.from_bytes(raw, signed=field.signed)
                assert value == getattr(message, field.name), (message, field.name)


OFFSETS = [
    (m.Commit, "end_lsn", OLDEST, 10),
    (m.StreamCommit, "end_lsn", 2, 14),
    (m.CommitPrepared, "end_lsn", OLDEST, 10),  # servers send it in all versions
    (m.Insert, "relation", 1, 1),
    (m.Insert, "relation", 2, None),  # only inside stream blocks, an xid stands before it
    (m.Insert, "subxid", 2, None),  # only inside stream blocks
    (m.Insert, "subxid", 1, None),  # version 1 has no such field
    (m.StreamCommit, "end_lsn", 1, None),  # version 1 has no such message
    (m.Update, "key", OLDEST, None),  # only some messages have it
    (m.Update, "new", OLDEST, None),  # a tuple stands before it
    (m.Relation, "name", OLDEST, None),  # a string stands before it
    (m.StreamAbort, "lsn", 4, None),  # only with streaming = parallel
    (m.Truncate, "relations", 1, 6),
    (m.Commit, "xid", 4, None),  # no field has this meaning
]


@pytest.mark.parametrize(
    ("kind", "meaning", "version", "offset"),
    [pytest.param(*row, marks=needs_version(row[2])) for row in OFFSETS],
)
def test_offset_of(kind: type[Message], meaning: str, version: int, offset: int | None) -> None:
    assert offset_of(kind, meaning, version) == offset


def test_a_message_built_by_role_has_neutral_values() -> None:
    assert build("commit", 4, lsn=1, end_lsn=2, time=3) == m.Commit(commit_lsn=1, end_lsn=2, commit_time=3)
    assert build("commit", 4, lsn=1) == m.Commit(commit_lsn=1, end_lsn=0, commit_time=0)
    assert build("relation", 4, oid=5) == make_relation(oid=5, namespace="", name="")
    assert build("truncate", 4, relations=(1, 2), options=1) == m.Truncate(
        options=m.TruncateOption.CASCADE, relation_oids=(1, 2)
    )
    assert build("update", 4, relation=1, new=("a",), key=("b",)) == m.Update(
        relation_oid=1, new=("a",), key=("b",)
    )
    abort = build("abort_streamed", 4, xid=1, subxid=2)
    assert abort == m.StreamAbort(xid=1, subxid=2)
    assert build("abort_streamed", 4, xid=1, subxid=2, lsn=3, time=4) == m.StreamAbort(
        xid=1, subxid=2, abort_lsn=3, abort_time=4
    )
    # A version without a field ignores its value.
    assert build("abort_streamed", 3, xid=1, subxid=2, lsn=3, time=4) == abort


@needs_version(1)
def test_version_1_ignores_the_xid_of_a_change() -> None:
    assert build("insert", 1, relation=1, new=(), subxid=7) == m.Insert(relation_oid=1, new=())


@needs_version(1)
def test_a_role_that_a_version_lacks_is_refused() -> None:
    with pytest.raises(LookupError, match="protocol version 1 has no message with the role open_block"):
        build("open_block", 1)
    prepared = build("prepare", 1, gid="g")  # servers send it in all versions
    assert StreamDecoder(1, two_phase=True).decode(encode_for(prepared, 1)) == prepared
