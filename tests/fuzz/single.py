"""Fuzz targets for single messages and envelopes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.codec import fuzz
from tests.codec.test_kernel import assert_codecs_agree
from tests.columns import test_envelopes
from tests.fuzz.input_reader import InputReader, exact

_CODECS = [*fuzz.VERSIONED, fuzz.OUTER]


def decode(data: bytes) -> None:
    """Fuzz target: decode arbitrary bytes as a message, with an arbitrary protocol version and context."""
    reader = InputReader(data)
    context = reader.choice(_CODECS)
    message = reader.rest()
    assert_codecs_agree(context[0], message, *context[2:])
    fuzz.accepts(message, context)


def messages() -> Iterator[bytes]:
    inner, outer = fuzz.seeds()
    for i, message in enumerate(inner[::5]):
        yield bytes([i % len(fuzz.VERSIONED)]) + message
    for message in outer[::50]:
        yield bytes([len(fuzz.VERSIONED)]) + message


def envelopes(data: bytes) -> None:
    """Fuzz target: decode a batch of arbitrary CopyData payloads as envelopes."""
    reader = InputReader(data)
    payloads: list[Any] = []
    while reader:
        is_exact, payload = reader.boolean(), reader.take(reader.integer())
        payloads.append(exact(payload) if is_exact else payload)
    test_envelopes.same(payloads)


def payloads() -> Iterator[bytes]:
    sent = [one for one in test_envelopes.SENT[::20] if len(one) < 256]
    for at in range(0, len(sent), 3):
        yield b"".join(bytes([i & 1, len(one)]) + one for i, one in enumerate(sent[at : at + 3]))
