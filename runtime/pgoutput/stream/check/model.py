"""What a rule is, and what it says when it is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from pgoutput.messages import Message
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.state import State


class Violation(msgspec.Struct, frozen=True):
    """A rule that a stream breaks, and where."""

    rule: str
    """Name of the rule, one of `RULES`."""
    message: int
    """Number of the message, from 0 in the order in which they were fed; those of the envelope count too."""
    byte: int
    """Offset of the field that is wrong from the start of the message, in bytes; of the envelope, where a
    field of that is wrong."""
    name: str | None
    """Name of the message; None where its tag is not known."""
    field: str | None
    """Path of the field: `relation_oid`, `new[2]`; None where the whole message is meant."""
    because: str

    @property
    def text(self) -> str:
        """The violation in one sentence."""
        return f"illegal at message {self.message}, byte {self.byte}, because {self.because}"


Fault: TypeAlias = tuple[str, str]
"""The path of the field that is wrong, `tag` for the whole message; and what is wrong."""

Broken: TypeAlias = Callable[["State", Any], Fault | None]
"""Says how a message breaks a rule, in the state before it."""

Fed: TypeAlias = Message | bytes
"""What a checker takes: a message or its bytes."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Something that every server keeps to."""

    name: str
    doc: str
    source: str
    """The server's C function that keeps to it."""
    on: tuple[type[Message], ...] = ()
    """The messages that can break it; none where decoding them is what finds it."""
    broken: Broken | None = None
    envelope: bool = False
    """Whether it is about XLogData; `on` then is what that holds."""
    options: CheckOptions = CheckOptions(streaming="on", two_phase=True)
    """Those of the examples."""
    legal: tuple[Fed, ...]
    """A stream that keeps the rule."""
    illegal: tuple[Fed, ...]
    """A stream that breaks it, and no other, once."""
