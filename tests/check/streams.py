"""Check capture files of real servers, for the tests of the checker."""

from __future__ import annotations

from collections.abc import Iterator

from logicalrep.capturefile import Header
from logicalrep.stream.check import Checker, CheckOptions, Violation
from tests.codec.corpus import read


def check_options(header: Header) -> CheckOptions:
    """Return the check options for a capture file: the stream options that its client requested."""
    return CheckOptions(
        proto_version=header.proto_version,
        streaming=header.streaming,
        two_phase=header.slot_two_phase,
        binary=header.options.get("binary", "false") == "true",
        messages=header.options.get("messages", "false") == "true",
    )


def make_checker(options: CheckOptions) -> Checker:
    return Checker(
        options.proto_version,
        streaming=options.streaming,
        two_phase=options.two_phase,
        binary=options.binary,
        messages=options.messages,
    )


def check_capture(name: str) -> Iterator[Violation]:
    """Yield the violations in a capture file, including violations of the rules about envelopes."""
    header, lines, _ = read(name)
    checker = make_checker(check_options(header))
    for line in lines:
        channel, data = line.record.channel, line.record.data
        if channel == "sent":
            continue
        violation = checker.feed(data) if channel == "data" else checker.feed_envelope(data)
        if violation is not None:
            yield violation
