"""Options of a stream that is checked against the rules."""

from __future__ import annotations

from typing import Final

import msgspec

from logicalrep import envelope
from logicalrep.messages import Streaming, XLogData
from logicalrep.versions import LATEST_RELEASED

MAX_BYTES: Final = 0x3FFF_FFFF
"""Size that a message with the header of its XLogData must not reach (MaxAllocSize, enlargeStringInfo)."""
HEADER_BYTES: Final = len(envelope.encode(XLogData(wal_start=0, wal_end=0, send_time=0, data=b"")))


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Stream options that decide which messages are valid."""

    proto_version: int = LATEST_RELEASED
    """Protocol version that the client requested."""
    streaming: Streaming = "off"
    """Option `streaming` that the client requested."""
    two_phase: bool = False
    """Whether the slot has two_phase set."""
    binary: bool | None = None
    """Option `binary` that the client requested; None if unknown."""
    messages: bool | None = None
    """Option `messages` that the client requested; None if unknown."""
    max_bytes: int = MAX_BYTES
    """Size that a message with the header of its XLogData must not reach, in bytes."""
