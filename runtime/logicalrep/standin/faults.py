"""Faults that a stand-in server injects, to test how clients handle errors.

Faults count and change only messages that a slot sends for the first time. Messages sent again after a
reconnect are intact, so that a client that reconnects always makes progress.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from logicalrep.messages import XLogData
from logicalrep.wire import parse_lsn

Incident: TypeAlias = Literal[
    "drop", "duplicate", "error", "freeze", "invalidate-slot", "lsn-back", "switch-timeline"
]
"""A fault at one message.

- `drop`: The connection is dropped before the message, without an error message.
- `duplicate`: The message is sent twice.
- `error`: The connection ends before the message, with the error that a server sends when it is shut down.
- `freeze`: The server sends nothing more on the connection, and ignores what the client sends.
- `invalidate-slot`: The connection ends before the message with an error, and the slot is invalidated, as if
  it had exceeded max_slot_wal_keep_size.
- `lsn-back`: The LSNs of the message's XLogData are one WAL segment lower than they should be.
- `switch-timeline`: The connection is dropped before the message, and the server has the next timeline ID
  from then on, as after a failover.
"""

_ENDINGS: Final = frozenset(get_args(Incident)) - {"duplicate", "lsn-back"}
"""Incidents after which the connection sends no further messages of the stream."""

_SEGMENT_BYTES: Final = 16 << 20


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
    """Interval N: one bit is flipped in every N-th message that was not sent before (deterministic)."""
    stall_keepalive: bool = False
    """Whether the server sends no keepalives, not even requested ones, and keeps silent clients connected."""
    at_message: Mapping[int, Incident] = {}
    """Incidents, by the number of the message, from 1. Messages sent again are not counted."""
    at_lsn: Mapping[int, Incident] = {}
    """Incidents, by LSN. Each incident happens once for a slot: at the first message, not sent before, whose
    LSN is equal or higher."""

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            numbers = value if isinstance(value, Mapping) else () if isinstance(value, bool) else (value,)
            for number in numbers:
                if number is not None and (not isinstance(number, int) or number < 1):
                    text = "must be an integer of at least 1"
                    raise ValueError(f"{name.replace('_', '-')} {text}, not {number!r}")
        for incident in (*self.at_message.values(), *self.at_lsn.values()):
            if incident not in get_args(Incident):
                known = ", ".join(get_args(Incident))
                raise ValueError(f"the fault before @ must be one of {known}, not {incident!r}")

    @property
    def alter_messages(self) -> bool:
        """Whether any fault is set that needs a `FaultInjector`: all except `delay` and `stall_keepalive`."""
        altering = (self.drop_after, self.duplicate, self.truncate_message, self.flip_bit)
        return any((*altering, self.at_message, self.at_lsn))


def parse_faults(texts: Sequence[str]) -> Faults:
    """Parse faults of the form `NAME`, `NAME=NUMBER`, `INCIDENT@MESSAGE` or `INCIDENT@LSN`.

    Examples are `drop-after=100`, `error@17` and `freeze@0/15D2E70`.

    Raises:
        ValueError: A fault is unknown, or its number or LSN is missing, invalid or not allowed.
    """
    faults: dict[str, Any] = {"at_message": {}, "at_lsn": {}}
    for text in texts:
        incident, at, place = text.partition("@")
        name, separator, value = text.partition("=")
        if at and "/" in place:
            faults["at_lsn"][parse_lsn(place)] = incident
        elif at and _is_number(place):
            faults["at_message"][int(place)] = incident
        elif at:
            raise ValueError(
                f"{incident}@ needs the number of a message or an LSN, as in {incident}@17 or "
                f"{incident}@0/15D2E70, not {place!r}"
            )
        elif name not in _REPEATED:
            known = ", ".join((*_REPEATED, *(f"{one}@MESSAGE" for one in get_args(Incident))))
            raise ValueError(f"there is no fault {name!r}; the faults are {known}")
        elif name == "stall-keepalive":
            if separator:
                raise ValueError(f"the fault {name} takes no value: leave out ={value}")
            faults["stall_keepalive"] = True
        elif not _is_number(value):
            raise ValueError(f"{name} needs a number, as in {name}=100, not {value!r}")
        else:
            faults[name.replace("-", "_")] = int(value)
    return Faults(**faults)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


_REPEATED: Final = tuple(name for name in Faults.__struct_encode_fields__ if not name.startswith("at-"))
"""Names of the faults that are not incidents."""


class SlotProgress(msgspec.Struct):
    """How far a slot's stream has been sent on all connections that used the slot."""

    furthest: tuple[int, int] = (0, 0)
    """Place of the furthest message that was sent: the end LSN of the last transaction that ended before the
    message, and the number of messages since then. Later messages of the stream have larger pairs."""
    new_messages: int = 0
    """Number of messages sent so far. Messages sent again after a reconnect are not counted."""
    happened: set[int] = set()
    """LSNs of the incidents in `Faults.at_lsn` that have happened."""


class FaultInjector:
    """Applies faults to the messages that are sent on one connection.

    Attributes:
        ending: Incident (fault at one message) that ends the stream after the messages from `apply` have been
            sent; None if the stream continues.

    Args:
        faults: Faults to inject.
        progress: Progress of the slot, shared by all its connections.
    """

    def __init__(self, faults: Faults, progress: SlotProgress) -> None:
        self.ending: Incident | None = None
        self._faults = faults
        self._progress = progress
        self._ended_lsn = self._messages_since = 0
        self._new_messages = 0

    def apply(self, message: XLogData, ended_lsn: int) -> list[XLogData]:
        """Return the messages to send in place of `message`: none, one or two.

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
        incident = self._incident(message.wal_start)
        if incident in _ENDINGS:
            self.ending = incident
            return []
        if self._new_messages == faults.drop_after:
            self.ending = "drop"
        if incident == "lsn-back":
            lsn = max(message.wal_start - _SEGMENT_BYTES, 1)
            message = msgspec.structs.replace(message, wal_start=lsn, wal_end=lsn)
        if self._is_due(faults.truncate_message):
            message = _replace_data(message, message.data[:-1])
        if self._is_due(faults.flip_bit) and message.data:
            message = _replace_data(message, self._flip_bit(message.data))
        return [message] * (2 if incident == "duplicate" or self._is_due(faults.duplicate) else 1)

    def _incident(self, lsn: int) -> Incident | None:
        """Return the incident that is set for the next message, or None. `lsn` is the LSN of that message.

        An incident from `Faults.at_lsn` is marked as happened, so that it does not happen again.
        """
        progress = self._progress
        if progress.new_messages in self._faults.at_message:
            return self._faults.at_message[progress.new_messages]
        for place, incident in sorted(self._faults.at_lsn.items()):
            if place <= lsn and place not in progress.happened:
                progress.happened.add(place)
                return incident
        return None

    def _is_due(self, interval: int | None) -> bool:
        return interval is not None and self._progress.new_messages % interval == 0

    def _flip_bit(self, data: bytes) -> bytes:
        # The seed is the message's number, so that each run flips the same bit of a message, even if clients
        # reconnect at other times.
        generator = random.Random(self._progress.new_messages)
        flipped = bytearray(data)
        flipped[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        return bytes(flipped)


def _replace_data(message: XLogData, data: bytes) -> XLogData:
    return msgspec.structs.replace(message, data=data)
