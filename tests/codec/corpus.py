"""Messages captured from real servers, with the context in which they were sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from logicalrep import messages
from logicalrep._stored_stream import DecodedRecord
from logicalrep.capturefile import CaptureFile, Header
from tests import truth

DIRECTORY = truth.CAPTURES
CAPTURES = sorted(path.name.removesuffix(".jsonl.gz") for path in DIRECTORY.glob("*.jsonl.gz"))
VARIED = (
    *("pg10_ws_p1", "pg14_p1_binary", "pg14_ws_p2_stream_msg", "pg15_p3_2pc_stream_msg"),
    *("pg16_ws_p4_par_2pc_msg", "pg18_p4_gen_par_bin"),
)
"""Names of captures that together cover each protocol version, streaming mode, format and workload."""
TWO_PHASE = (
    messages.BeginPrepare,
    messages.Prepare,
    messages.CommitPrepared,
    messages.RollbackPrepared,
    messages.StreamPrepare,
)


@dataclass(frozen=True)
class Sample:
    """A captured message, with the protocol version and the arguments of `decode` to decode it alone."""

    data: bytes
    message: messages.Message
    version: int
    in_stream: bool
    streaming: messages.Streaming


def path(name: str) -> Path:
    return DIRECTORY / f"{name}.jsonl.gz"


@cache
def read(name: str) -> tuple[Header, list[DecodedRecord], list[Sample]]:
    """Return the header of a capture, all its records, and its pgoutput messages with their context."""
    lines: list[DecodedRecord] = []
    samples: list[Sample] = []
    with CaptureFile(path(name)) as capture:
        header = capture.header
        in_stream = capture.decoder.in_stream
        for line in capture.messages():
            lines.append(line)
            if line.message is not None:
                minimum = (
                    3 if isinstance(line.message, TWO_PHASE) else 1
                )  # also in earlier versions if the slot has two_phase
                version = max(header.proto_version, minimum)
                samples.append(Sample(line.data, line.message, version, in_stream, header.streaming))
            in_stream = capture.decoder.in_stream
    return header, lines, samples


@cache
def distinct_samples() -> tuple[Sample, ...]:
    """Return the distinct messages of all captures, each with the arguments that decode it."""
    return tuple(dict.fromkeys(sample for name in CAPTURES for sample in read(name)[2]))


def envelopes() -> Iterator[tuple[bytes, messages.Message]]:
    """Yield the envelopes in all captures, sent by walsenders and clients, as bytes and as objects."""
    for name in CAPTURES:
        for line in read(name)[1]:
            if line.envelope is not None:
                yield line.record.data, line.envelope
