"""What may go wrong on purpose, so that clients can be tested against it.

Faults that strike messages count those that are *new* to their slot: what comes again after a reconnect comes
as it should. So a client that connects anew always gets on, and one that does not is at fault itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pgoutput.messages import XLogData


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The faults of a stand-in. None and False leave one out."""

    drop_after: int | None = None
    """The connection breaks, without a word, behind so many new messages. So does the next."""
    delay: int | None = None
    """Milliseconds that pass before each message."""
    duplicate: int | None = None
    """Each so many-th new message comes twice."""
    truncate_message: int | None = None
    """Each so many-th new message lacks its last byte."""
    flip_bit: int | None = None
    """In each so many-th new message a bit is wrong, the same one in every run."""
    stall_keepalive: bool = False
    """No keepalives come, and no answers to who asks for one. Silent clients are not dropped."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool) and value < 1:
                raise ValueError(f"{_shown(name)} wants a number from 1 on, not {value}")

    @property
    def strikes(self) -> bool:
        """Whether messages must be looked at one by one."""
        return any((self.drop_after, self.duplicate, self.truncate_message, self.flip_bit))


HELP: Final = {
    "drop-after": "N: the connection breaks behind N messages that are new to the slot",
    "delay": "MS: so many milliseconds pass before each message",
    "duplicate": "N: each Nth new message comes twice",
    "truncate-message": "N: each Nth new message lacks its last byte",
    "flip-bit": "N: in each Nth new message a bit is wrong",
    "stall-keepalive": "no keepalives, and no answers to who asks for one",
}
"""The faults by the names that a command has for them, with what they want and do."""


def parse_faults(texts: Sequence[str]) -> Faults:
    """Faults as `NAME` or `NAME=NUMBER`.

    Raises:
        ValueError: There is no such fault, or its number is missing, or is none, or not wanted.
    """
    given: dict[str, Any] = {}
    for one in texts:
        name, mark, value = one.partition("=")
        if name not in HELP:
            raise ValueError(f"there is no fault {name!r}; there are {', '.join(HELP)}")
        if name == "stall-keepalive":
            if mark:
                raise ValueError(f"{name} takes no value")
            given["stall_keepalive"] = True
        elif not (value.isascii() and value.isdigit()):
            raise ValueError(f"{name} wants a number, as in {name}=100, not {value!r}")
        else:
            given[name.replace("-", "_")] = int(value)
    return Faults(**given)


class Progress(msgspec.Struct):
    """How far a slot's stream has come, over all of its connections."""

    furthest: tuple[int, int] = (0, 0)
    """The LSN up to which all had ended, and the messages behind it: larger is new."""
    new: int = 0
    """New messages so far."""


class Striker:
    """Strikes the messages of one connection.

    Attributes:
        broken: Whether the connection is to break now.

    Args:
        faults: What may go wrong.
        progress: Of the slot.
    """

    def __init__(self, faults: Faults, progress: Progress) -> None:
        self.broken = False
        self._faults = faults
        self._progress = progress
        self._ended_lsn = self._behind = 0
        self._new = 0

    def strike(self, message: XLogData, ended_lsn: int) -> list[XLogData]:
        """What is sent instead of a message.

        Args:
            message: The message.
            ended_lsn: What ended up to here has been sent before it.
        """
        if ended_lsn != self._ended_lsn:
            self._ended_lsn, self._behind = ended_lsn, 0
        self._behind += 1
        if (place := (ended_lsn, self._behind)) <= self._progress.furthest:
            return [message]
        self._progress.furthest = place
        self._progress.new += 1
        self._new += 1
        faults = self._faults
        self.broken = self._new == faults.drop_after
        if self._is_due(faults.truncate_message):
            message = _with(message, message.data[:-1])
        if self._is_due(faults.flip_bit) and message.data:
            message = _with(message, self._flipped(message.data))
        return [message] * (2 if self._is_due(faults.duplicate) else 1)

    def _is_due(self, each: int | None) -> bool:
        return each is not None and self._progress.new % each == 0

    def _flipped(self, data: bytes) -> bytes:
        generator = random.Random(self._progress.new)  # so that it does not depend on the connections before
        flipped = bytearray(data)
        flipped[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        return bytes(flipped)


def _with(message: XLogData, data: bytes) -> XLogData:
    return msgspec.structs.replace(message, data=data)


def _shown(name: str) -> str:
    return name.replace("_", "-")
