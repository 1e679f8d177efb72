"""The captures of real servers, read once: every message with the context in which it came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pgoutput import messages
from pgoutput._stored_stream import DecodedRecord
from pgoutput.capturefile import CaptureFile, Header

DIRECTORY = Path(__file__).parents[1] / "captures"
CAPTURES = sorted(path.name.removesuffix(".jsonl.gz") for path in DIRECTORY.glob("*.jsonl.gz"))
TWO_PHASE = (
    messages.BeginPrepare,
    messages.Prepare,
    messages.CommitPrepared,
    messages.RollbackPrepared,
    messages.StreamPrepare,
)


@dataclass(frozen=True)
class Sample:
    """A message of pgoutput as a server sent it, and the context in which it can be decoded alone."""

    data: bytes
    message: messages.Message
    version: int
    in_stream: bool
    streaming: messages.Streaming


def path(name: str) -> Path:
    return DIRECTORY / f"{name}.jsonl.gz"


@cache
def read(name: str) -> tuple[Header, list[DecodedRecord], list[Sample]]:
    """A capture: its header, all its lines, and the messages of pgoutput among them."""
    lines: list[DecodedRecord] = []
    samples: list[Sample] = []
    with CaptureFile(path(name)) as capture:
        header = capture.header
        in_stream = capture.decoder.in_stream
        for line in capture.messages():
            lines.append(line)
            if line.message is not None:
                least = 3 if isinstance(line.message, TWO_PHASE) else 1  # the slot decides, not the client
                version = max(header.proto_version, least)
                samples.append(Sample(line.data, line.message, version, in_stream, header.streaming))
            in_stream = capture.decoder.in_stream
    return header, lines, samples


@cache
def distinct_samples() -> tuple[Sample, ...]:
    """The different ones among all messages of all captures."""
    return tuple(dict.fromkeys(sample for name in CAPTURES for sample in read(name)[2]))


def envelopes() -> Iterator[tuple[bytes, messages.Message]]:
    """What walsenders and their clients said to each other."""
    for name in CAPTURES:
        for line in read(name)[1]:
            if line.envelope is not None:
                yield line.record.data, line.envelope
