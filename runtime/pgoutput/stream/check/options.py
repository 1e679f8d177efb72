"""How a stream was asked for, which decides what is legal in it."""

from __future__ import annotations

import msgspec

from pgoutput.messages import Streaming


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the client of a stream asked for."""

    proto_version: int = 4
    streaming: Streaming = "off"
    two_phase: bool = False
    """Whether the slot has its two_phase flag set."""
    binary: bool | None = None
    """None where it is not known."""
    messages: bool | None = None
    """Likewise."""
