"""The streams of real servers, as a checker and the corruptions take them."""

from __future__ import annotations

from collections.abc import Iterator

from pgoutput.capturefile import Header
from pgoutput.stream.check import Checker, CheckOptions, Violation
from tests.codec.corpus import read


def options(header: Header) -> CheckOptions:
    """What the client of a capture asked for."""
    return CheckOptions(
        proto_version=header.proto_version,
        streaming=header.streaming,
        two_phase=header.slot_two_phase,
        binary=header.options.get("binary", "false") == "true",
        messages=header.options.get("messages", "false") == "true",
    )


def checker(asked: CheckOptions) -> Checker:
    return Checker(
        asked.proto_version,
        streaming=asked.streaming,
        two_phase=asked.two_phase,
        binary=asked.binary,
        messages=asked.messages,
    )


def checked(name: str) -> Iterator[Violation]:
    """What the checker finds in a capture, envelopes included."""
    header, lines, _ = read(name)
    held = checker(options(header))
    for line in lines:
        channel, data = line.record.channel, line.record.data
        if channel == "sent":
            continue
        found = held.feed(data) if channel == "data" else held.feed_envelope(data)
        if found is not None:
            yield found
