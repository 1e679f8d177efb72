"""Options of a stream that is checked against the rules."""

from __future__ import annotations

import msgspec

from pgoutput.messages import Streaming
from pgoutput.versions import LATEST_RELEASED


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
