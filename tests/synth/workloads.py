"""The envelopes of workloads, and the options with which `check` checks them."""

from __future__ import annotations

import io
from typing import Final

from logicalrep import envelope
from logicalrep.messages import XLogData
from logicalrep.stream.check import CheckOptions
from logicalrep.synth.workload import Workload, write_copy_data

WINDOW: Final = 700
"""Number of messages generated at once; small, so that each workload is generated in several steps."""


def no_progress(transactions: int, messages: int) -> None:
    pass


def frames(workload: Workload) -> bytes:
    file = io.BytesIO()
    write_copy_data(workload, file, no_progress, WINDOW)
    return file.getvalue()


def sent(workload: Workload) -> list[XLogData]:
    """Return the envelopes that a workload consists of."""
    raw, found, at = frames(workload), [], 0
    while at < len(raw):
        assert raw[at : at + 1] == b"d"
        length = int.from_bytes(raw[at + 1 : at + 5], "big")
        message = envelope.decode(raw[at + 5 : at + 1 + length])
        assert isinstance(message, XLogData)
        found.append(message)
        at += 1 + length
    assert at == len(raw)
    return found


def check_options(workload: Workload) -> CheckOptions:
    options = workload.options
    return CheckOptions(
        proto_version=options.proto_version,
        streaming=options.streaming,
        two_phase=options.two_phase,
        binary=options.binary,
        messages=options.messages,
    )
