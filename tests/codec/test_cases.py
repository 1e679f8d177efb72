"""What the table of cases drives: each codec in each context, from both sides."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pgoutput import _protocols, envelope, messages
from pgoutput._walk import walk
from pgoutput.errors import DecodeError, EncodeError
from pgoutput.messages import Streaming
from pgoutput.versions import CODECS, Codec
from tests.codec.cases import CAME_WITH, CASES, CONTEXTS, Case
from tests.codec.paths import value_at

pytestmark = pytest.mark.usefixtures("both")

XLOGDATA_HEAD = 25  # whatever follows these bytes is data


def everywhere() -> Iterator[object]:
    """Every case in every version and context in which its bytes are its message."""
    for case in CASES:
        if not case.versions:
            yield pytest.param(case, None, envelope, False, "off", id=f"{case.name}-envelope")
        for version in case.versions:
            for in_stream, streaming in CONTEXTS[version]:
                if case.looks_so(in_stream, streaming):
                    where = f"v{version}-{streaming}{'-in' if in_stream else ''}"
                    yield pytest.param(
                        case, version, CODECS[version], in_stream, streaming, id=f"{case.name}-{where}"
                    )


in_each_context = pytest.mark.parametrize(
    ("case", "version", "codec", "in_stream", "streaming"), list(everywhere())
)
missing = pytest.mark.parametrize(
    ("case", "version"),
    [
        pytest.param(case, version, id=f"{case.name}-v{version}")
        for case in CASES
        for version in CODECS
        if version < CAME_WITH.get(type(case.message), (1, ""))[0]
    ],
)


def test_the_table_has_every_message_of_every_version_in_every_context() -> None:
    expected = {
        (message.name, version, context)
        for version, layout in _protocols.VERSIONS.items()
        for message in layout.messages
        for context in CONTEXTS[version]
    }
    actual = {
        (type(case.message).__name__, version, context)
        for case in CASES
        for version in case.versions
        for context in CONTEXTS[version]
        if case.looks_so(*context)
    }
    assert expected == actual
    assert {message.name for message in _protocols.ENVELOPE.messages} == {
        type(case.message).__name__ for case in CASES if not case.versions
    }


@in_each_context
def test_decodes_and_encodes(
    case: Case, version: int | None, codec: Codec, in_stream: bool, streaming: Streaming
) -> None:
    decoded = codec.decode(case.bytes, in_stream, streaming)
    assert case.message == decoded
    assert type(case.message) is type(decoded)
    assert repr(case.message) == repr(decoded)  # 1 == True, "d" == ReplicaIdentity.DEFAULT
    assert case.bytes == codec.encode(case.message)


@in_each_context
def test_takes_any_buffer(
    case: Case, version: int | None, codec: Codec, in_stream: bool, streaming: Streaming
) -> None:
    doubled = bytes(byte for pair in zip(case.bytes, case.bytes, strict=True) for byte in pair)
    for data in (bytearray(case.bytes), memoryview(case.bytes), memoryview(doubled)[::2]):
        decoded = codec.decode(data, in_stream, streaming)
        assert case.message == decoded
        assert repr(case.message) == repr(decoded)


@in_each_context
def test_refuses_every_prefix(
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
def test_refuses_a_trailing_byte(
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


@missing
def test_earlier_versions_refuse_to_decode(case: Case, version: int) -> None:
    came_with, title = CAME_WITH[type(case.message)]
    tag = case.message.wire_tag.decode()
    text = f"protocol version {version} has no {title} (tag '{tag}'): it came with version {came_with}"
    with pytest.raises(DecodeError, match=f"^{re.escape(text)}($|\\. )") as caught:
        CODECS[version].decode(case.bytes)
    assert caught.value.message == type(case.message).__name__
    assert (caught.value.field, caught.value.offset) == (None, 0)


@missing
def test_earlier_versions_refuse_to_encode(case: Case, version: int) -> None:
    came_with, _ = CAME_WITH[type(case.message)]
    name = type(case.message).__name__
    text = f"protocol version {version} has no message {name}: it came with version {came_with}"
    with pytest.raises(EncodeError, match=f"^{re.escape(text)}$") as caught:
        CODECS[version].encode(case.message)
    assert (caught.value.message, caught.value.field) == (name, None)


@in_each_context
def test_refuses_flags_that_the_server_refuses(
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
