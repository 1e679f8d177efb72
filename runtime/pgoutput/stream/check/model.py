"""Rules and violations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from pgoutput.messages import Message
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.state import StreamState


class Violation(msgspec.Struct, frozen=True):
    """A rule that a stream violates, with the position of the violation."""

    rule: str
    """Name of the rule, one of `RULES`."""
    message: int
    """Number of the message, from 0, counting all fed messages and envelopes."""
    byte: int
    """Byte offset of the invalid field in the message, or in the envelope for rules about envelopes."""
    name: str | None
    """Name of the message; None if its tag is unknown."""
    field: str | None
    """Path of the invalid field, such as `relation_oid` or `new[2]`; None for the whole message."""
    because: str
    """Reason, starting with the message and field."""

    @property
    def text(self) -> str:
        """The violation as one line of text."""
        return f"illegal at message {self.message}, byte {self.byte}, because {self.because}"


Breach: TypeAlias = tuple[str, str]
"""Path of the invalid field (`tag` for the whole message), and the reason."""

CheckMessage: TypeAlias = Callable[["StreamState", Any], Breach | None]
"""Function that returns how a message violates a rule, given the stream's state before the message; None if
it does not."""

CheckerInput: TypeAlias = Message | bytes
"""Input of a checker: a message or its bytes."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that every server's stream obeys."""

    name: str
    """Name of the rule."""
    doc: str
    """The rule in words."""
    source: str
    """C function of the server that the rule follows from."""
    on: tuple[type[Message], ...] = ()
    """Messages that are checked; empty if decoding the message checks the rule."""
    check: CheckMessage | None = None
    """Function that checks a message; None if decoding the message checks the rule."""
    envelope: bool = False
    """Whether the rule is about XLogData; then `on` lists the messages inside the envelope."""
    options: CheckOptions = CheckOptions(streaming="on", two_phase=True)
    """Stream options of the examples."""
    legal: tuple[CheckerInput, ...]
    """Example of a stream that obeys the rule."""
    illegal: tuple[CheckerInput, ...]
    """Example of a stream that violates this rule once, and no other rule."""
