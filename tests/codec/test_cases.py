"""Decode and encode each message of `cases.py` in each version, inside and outside stream blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from logicalrep import _protocols, envelope, messages
from logicalrep._walk import walk
from logicalrep.errors import DecodeError, EncodeError
from logicalrep.messages import Streaming
from logicalrep.versions import CODECS, Codec
from tests.codec.cases import CASES, CONTEXTS, FIRST_VERSION, Case
from tests.codec.paths import value_at
from tests.versions import CAPTURED

pytestmark = pytest.mark.usefixtures("both")

XLOGDATA_HEAD = 25  # all bytes after the header are data


def cases_in_each_context() -> Iterator[object]:
    """Yield each case with each protocol version and context in which the bytes decode to the message."""
    for case in CASES:
        if not case.versions:
            yield pytest.param(case, None, envelope, False, "off", id=f"{case.name}-envelope")
        for version in case.versions:
            for in_stream, streaming in CONTEXTS[version]:
                if case.applies_in(in_stream, streaming):
                    where = f"v{version}-{streaming}{'-in' if in_stream else ''}"
                    yield pytest.param(
                        case, version, CODECS[version], in_stream, streaming, id=f"{case.name}-{where}"
                    )


in_each_context = pytest.mark.parametrize(
    ("case", "version", "codec", "in_stream", "streaming"), list(cases_in_each_context())
)
in_each_earlier_version = pytest.mark.parametrize(
    ("case", "version"),
    [
        pytest.param(case, version, id=f"{case.name}-v{version}")
        for case in CASES
        for version in CODECS
        if version < FIRST_VERSION.get(type(case.message), (1, ""))[0]
    ],
)


def test_the_table_has_every_message_of_every_version_in_every_context() -> None:
    expected = {
        (message.name, version, context)
        for version in CAPTURED
        for message in _protocols.VERSIONS[version].messages
        for context in CONTEXTS[version]
    }
    actual = {
        (type(case.message).__name__, version, context)
        for case in CASES
        for version in case.versions
        for context in CONTEXTS[version]
        if case.applies_in(*context)
    }
    assert expected == actual
    assert {message.name for message in _protocols.ENVELOPE.messages} == {
        type(case.message).__name__ for case in CASES if not case.versions
    }


@in_each_context
def test_each_case_decodes_and_encodes(
    case: Case, version: int | None, codec: Codec, in_stream: bool, streaming: Streaming
) -> None:
    decoded = codec.decode(case.bytes, in_stream, streaming)
    assert case.message == decoded
    assert type(case.message) is type(decoded)
    assert repr(case.message) == repr(decoded)  # 1 == True, "d" == ReplicaIdentity.DEFAULT
    assert case.bytes == codec.encode(case.message)


@in_each_context
def test_each_case_decodes_from_any_buffer(
    case: Case, version: int | None, codec: Codec, in_stream: bool, streaming: Streaming
) -> None:
    doubled = bytes(byte for pair in zip(case.bytes, case.bytes, strict=True) for byte in pair)
    for data in (bytearray(case.bytes), memoryview(case.bytes), memoryview(doubled)[::2]):
        decoded = codec.decode(data, in_stream, streaming)
        assert case.message == decoded
        assert repr(case.message) == repr(decoded)


@in_each_context
def test_truncated_messages_are_refused(
    case: Case, version: int | None, codec: Codec, in_stream: bool, streaming: Streaming
) -> None:
    whole = XLOGDATA_HEAD if isinstance(case.message, messages.XLogData) else len(case.bytes)
    for end in range(whole):
        with pytest.raises(DecodeError) as caught:
            codec.decode(case.bytes[:end], in_stream, streaming)
        assert caught.value.message == (type(case.message).__name__ if end else None)
        assert caught.value.offset <= end
        assert "please report" not in str(caught.value)


@in_each_context
def test_trailing_bytes_are_refused(
    case: Case, version: int | None, codec: Codec, in_stream: bool, streaming: Streaming
) -> None:
    for byte in b"\x00NK\xff":
        longer = case.bytes + bytes([byte])
        if isinstance(case.message, messages.XLogData):
            assert longer == codec.encode(codec.decode(longer))
            continue
        with pytest.raises(DecodeError, match="the message ends here, 1 more bytes follow") as caught:
            codec.decode(longer, in_stream, streaming)
        assert caught.value.offset == len(case.bytes)
        assert caught.value.field is None


@in_each_context
def test_walk_covers_all_bytes_and_agrees_with_the_object(
    case: Case, version: int | None, codec: Codec, in_stream: bool, streaming: Streaming
) -> None:
    layout = _protocols.ENVELOPE if version is None else _protocols.VERSIONS[version]
    end = 0
    named = set()
    for piece in walk(layout, case.bytes, in_stream, streaming):
        assert end == piece.start
        assert piece.start <= piece.end
        end = piece.end
        expected = value_at(case.message, piece.path)
        assert (piece.path, expected) == (piece.path, piece.value)
        named.add(re.split(r"[.\[]", piece.path)[0])
    assert len(case.bytes) == end
    given = {name for name in case.message.__struct_fields__ if getattr(case.message, name) not in (None, ())}
    assert given <= named


@in_each_earlier_version
def test_earlier_versions_refuse_to_decode_new_messages(case: Case, version: int) -> None:
    first_version, title = FIRST_VERSION[type(case.message)]
    tag = case.message.wire_tag.decode()
    text = f"protocol version {version} has no {title} (tag '{tag}'): it came with version {first_version}"
    with pytest.raises(DecodeError, match=f"^{re.escape(text)}($|\\. )") as caught:
        CODECS[version].decode(case.bytes)
    assert caught.value.message == type(case.message).__name__
    assert (caught.value.field, caught.value.offset) == (None, 0)


@in_each_earlier_version
def test_earlier_versions_refuse_to_encode_new_messages(case: Case, version: int) -> None:
    first_version, _ = FIRST_VERSION[type(case.message)]
    name = type(case.message).__name__
    text = f"protocol version {version} has no message {name}: it came with version {first_version}"
    with pytest.raises(EncodeError, match=f"^{re.escape(text)}$") as caught:
        CODECS[version].encode(case.message)
    assert (caught.value.message, caught.value.field) == (name, None)


@in_each_context
def test_unknown_flags_are_refused(
    case: Case, version: int | None, codec: Codec, in_stream: bool, streaming: Streaming
) -> None:
    layout = _protocols.ENVELOPE if version is None else _protocols.VERSIONS[version]
    for piece in walk(layout, case.bytes, in_stream, streaming):
        if piece.path.endswith("flags"):
            for value in (2, 4, 0x80, 0xFF):
                damaged = case.bytes[: piece.start] + bytes([value]) + case.bytes[piece.end :]
                with pytest.raises(DecodeError) as caught:
                    codec.decode(damaged, in_stream, streaming)
                assert (caught.value.field, caught.value.offset) == (piece.path, piece.start)
