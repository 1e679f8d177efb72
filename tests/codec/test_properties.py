"""Properties of the codecs, tested on generated messages and on damaged bytes."""

from __future__ import annotations

import tracemalloc
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from logicalrep import envelope, strategies
from logicalrep.errors import DecodeError
from logicalrep.jsonlines import from_json, to_json
from logicalrep.messages import Message, Streaming
from logicalrep.versions import CODECS
from tests.codec import fuzz
from tests.codec.cases import CONTEXTS
from tests.effort import examples
from tests.versions import PLAIN

EVERY_MESSAGE = [
    pytest.param(version, in_stream, streaming, name, id=f"v{version}-{streaming}-{in_stream}-{name}")
    for version, contexts in CONTEXTS.items()
    for in_stream, streaming in contexts
    for name in strategies.VERSIONS[version](in_stream, streaming)
]


@pytest.mark.parametrize(("version", "in_stream", "streaming", "name"), EVERY_MESSAGE)
@settings(max_examples=examples(6), deadline=None)
@given(data=st.data())
def test_encoded_messages_decode_to_the_same(
    version: int, in_stream: bool, streaming: Streaming, name: str, data: st.DataObject
) -> None:
    message = data.draw(strategies.VERSIONS[version](in_stream, streaming)[name])
    raw = CODECS[version].encode(message, in_stream)
    assert raw == CODECS[version].encode(message)
    assert message == CODECS[version].decode(raw, in_stream, streaming)
    assert message == from_json(to_json(message))


@pytest.mark.parametrize("name", list(strategies.envelope()))
@settings(max_examples=examples(50), deadline=None)
@given(data=st.data())
def test_encoded_envelopes_decode_to_the_same(name: str, data: st.DataObject) -> None:
    message = data.draw(strategies.envelope()[name])
    assert message == envelope.decode(envelope.encode(message))
    assert message == from_json(to_json(message))


@cache
def seeds() -> tuple[list[bytes], list[bytes]]:
    return fuzz.seeds()


def any_message(context: fuzz.Context) -> st.SearchStrategy[Message]:
    _, layout, in_stream, streaming = context
    version = layout.version
    messages = strategies.VERSIONS[version](in_stream, streaming) if version else strategies.envelope()
    return st.one_of(*messages.values())


ANYWHERE = [*fuzz.VERSIONED, fuzz.OUTER]
GENERATED = [any_message(context) for context in ANYWHERE]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, fuzz.Context]:
    """Draw the bytes of a damaged message, and a codec and context that may not fit the message."""
    at = draw(st.integers(0, len(ANYWHERE) - 1))
    context = ANYWHERE[at]
    if draw(st.booleans()):
        data = bytearray(context[0].encode(draw(GENERATED[at])))
    else:
        data = bytearray(draw(st.sampled_from(seeds()[context is fuzz.OUTER])))
    random = draw(st.randoms(use_true_random=False))
    for mutate in draw(st.lists(st.sampled_from(fuzz.MUTATIONS), max_size=4)):
        mutate(random, data, bytes(data))
    return bytes(data), draw(st.just(context) | st.sampled_from(ANYWHERE))


@settings(max_examples=examples(200), deadline=None)
@given(damaged())
def test_damaged_bytes_give_a_message_or_decode_error(given: tuple[bytes, fuzz.Context]) -> None:
    fuzz.accepts(*given)


@settings(max_examples=examples(120), deadline=None)
@given(st.binary(max_size=100), st.sampled_from(ANYWHERE))
def test_random_bytes_give_a_message_or_decode_error(data: bytes, context: fuzz.Context) -> None:
    fuzz.accepts(data, context)


def test_the_fuzzer_reaches_both_outcomes_of_every_protocol() -> None:
    counts = fuzz.fuzz(20_000, seed=1)
    assert counts.total() == 20_000
    assert len(counts) == 2 * (len(CODECS) + 1)
    assert min(counts.values()) > 50


def test_the_fuzzer_is_deterministic() -> None:
    first, second = (fuzz.inputs(Random(3), *seeds()) for _ in range(2))
    assert [next(first)[0] for _ in range(100)] == [next(second)[0] for _ in range(100)]


CLAIMS = {
    "4294967295 relations": "54 ffffffff 00 00000001",
    "65535 columns of a row": "49 00000001 4e ffff 6e 6e",
    "65535 columns of a key": "44 00000001 4b ffff 6e 6e",
    "65535 columns of a relation": "52 00000001 00 7400 64 ffff 00 6100 00000017 ffffffff",
    "text of 4294967295 bytes": "49 00000001 4e 0001 74 ffffffff 61",
    "binary value of 4294967295 bytes": "49 00000001 4e 0001 62 ffffffff 61",
    "value of 2147483647 bytes": "49 00000001 4e 0001 74 7fffffff 61",
    "many long values": "49 00000001 4e ffff" + " 74 ffffffff" * 20,
    "content of 4294967295 bytes": "4d 00 0000000000000000 00 ffffffff 61",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_large_length_field_allocates_no_memory(claim: str) -> None:
    data = bytes.fromhex(CLAIMS[claim])
    with pytest.raises(DecodeError):
        PLAIN.decode(data)  # first call, so that imports and caches are not measured
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            PLAIN.decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
