"""Faults that a stand-in server injects, to test how clients handle errors.

Faults count and change only messages that a slot sends for the first time. Messages sent again after a
reconnect are intact, so that a client that reconnects always makes progress.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from pgoutput.messages import XLogData


class Faults(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Faults that a stand-in server injects. The value None or False disables a fault."""

    drop_after: int | None = None
    """Number of messages after which each connection is dropped without an error message. Messages sent again
    after a reconnect are not counted."""
    delay: int | None = None
    """Delay before each message, in milliseconds."""
    duplicate: int | None = None
    """Interval N: every N-th message that was not sent before is sent twice."""
    truncate_message: int | None = None
    """Interval N: every N-th message that was not sent before is sent without its last byte."""
    flip_bit: int | None = None
    """Interval N: a deterministic bit is flipped in every N-th message that was not sent before."""
    stall_keepalive: bool = False
    """Whether the server sends no keepalives, not even requested ones, and keeps silent clients connected."""

    def __post_init__(self) -> None:
        for name, value in zip(self.__struct_encode_fields__, msgspec.structs.astuple(self), strict=True):
            if value is not None and not isinstance(value, bool) and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")

    @property
    def alter_messages(self) -> bool:
        """Whether any fault drops, repeats or changes messages."""
        return any((self.drop_after, self.duplicate, self.truncate_message, self.flip_bit))


def parse_faults(texts: Sequence[str]) -> Faults:
    """Parse faults of the form `NAME` or `NAME=NUMBER`, such as `drop-after=100`.

    Raises:
        ValueError: A fault is unknown, or its number is missing, invalid or not allowed.
    """
    faults: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if name not in Faults.__struct_encode_fields__:
            known = ", ".join(Faults.__struct_encode_fields__)
            raise ValueError(f"there is no fault {name!r}; there are {known}")
        if name == "stall-keepalive":
            if separator:
                raise ValueError(f"{name} takes no value")
            faults["stall_keepalive"] = True
        elif not (value.isascii() and value.isdigit()):
            raise ValueError(f"{name} needs a number, as in {name}=100, not {value!r}")
        else:
            faults[name.replace("-", "_")] = int(value)
    return Faults(**faults)


class SlotProgress(msgspec.Struct):
    """How far a slot's stream has been sent on all connections that used the slot."""

    furthest: tuple[int, int] = (0, 0)
    """Pair that locates the last message sent so far: end LSN of the transaction that ended before the
    message, and the message's number after that transaction, from 1. Later messages have larger pairs."""
    new_messages: int = 0
    """Number of messages sent so far. Messages sent again after a reconnect are not counted."""


class FaultInjector:
    """Applies faults to the messages that are sent on one connection.

    Attributes:
        drops_connection: Whether the connection must be dropped once the last applied message is sent.

    Args:
        faults: Faults to inject.
        progress: Progress of the slot, shared by all its connections.
    """

    def __init__(self, faults: Faults, progress: SlotProgress) -> None:
        self.drops_connection: bool = False
        self._faults = faults
        self._progress = progress
        self._ended_lsn = self._messages_since = 0
        self._new_messages = 0

    def apply(self, message: XLogData, ended_lsn: int) -> list[XLogData]:
        """Return the messages to send in place of `message`.

        Args:
            message: Next message of the stream.
            ended_lsn: End LSN of the last transaction that was sent before the message.
        """
        if ended_lsn != self._ended_lsn:
            self._ended_lsn, self._messages_since = ended_lsn, 0
        self._messages_since += 1
        if (place := (ended_lsn, self._messages_since)) <= self._progress.furthest:
            return [message]
        self._progress.furthest = place
        self._progress.new_messages += 1
        self._new_messages += 1
        faults = self._faults
        self.drops_connection = self._new_messages == faults.drop_after
        if self._is_due(faults.truncate_message):
            message = _replace_data(message, message.data[:-1])
        if self._is_due(faults.flip_bit) and message.data:
            message = _replace_data(message, self._flip_bit(message.data))
        return [message] * (2 if self._is_due(faults.duplicate) else 1)

    def _is_due(self, interval: int | None) -> bool:
        return interval is not None and self._progress.new_messages % interval == 0

    def _flip_bit(self, data: bytes) -> bytes:
        # Seeded with the message's number: the bit must not depend on where earlier connections ended.
        generator = random.Random(self._progress.new_messages)
        flipped = bytearray(data)
        flipped[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        return bytes(flipped)


def _replace_data(message: XLogData, data: bytes) -> XLogData:
    return msgspec.structs.replace(message, data=data)
