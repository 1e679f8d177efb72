"""What a fault is, and what one must know of a stream to put it where it is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec

from pgoutput import messages as m
from pgoutput.messages import Message
from pgoutput.stream import StreamDecoder, encode_for
from pgoutput.stream.check import CheckOptions
from pgoutput.synth import Scenario

Messages: TypeAlias = tuple[bytes, ...]


class Place(msgspec.Struct, frozen=True):
    """A message of a legal stream, and what holds right before it."""

    message: Message
    opener: m.Begin | m.BeginPrepare | m.StreamStart | None
    """What has opened the transaction or block that it stands in, or that it ends."""
    streamed: frozenset[int]
    """The xids of transactions that have come in blocks and have not ended."""
    prepared: Mapping[str, m.Prepare | m.StreamPrepare]
    """The transactions that are prepared, by gid."""

    @property
    def block(self) -> int | None:
        """The xid of the transaction whose block it stands in."""
        return self.opener.xid if isinstance(self.opener, m.StreamStart) else None


class Stream(msgspec.Struct, frozen=True, dict=True):
    """A stream, and what its client asked for."""

    messages: Messages
    options: CheckOptions

    @classmethod
    def of(cls, scenario: Scenario, *, after_lsn: int = 0, **options: Any) -> Stream:
        """What a server would send of a scenario; the arguments are those of `Scenario.stream`.

        Raises:
            ValueError: As there.
            ScenarioError: As there.
        """
        asked = msgspec.structs.replace(scenario.options, **options)
        sent = scenario.stream(after_lsn=after_lsn, **options)
        messages = tuple(one.data for one in sent if isinstance(one, m.XLogData))
        kept = {name: getattr(asked, name) for name in CheckOptions.__struct_fields__}
        return cls(messages, CheckOptions(**kept))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Its messages, decoded.

        Raises:
            DecodeError: One cannot be decoded.
        """
        asked = self.options
        decoder = StreamDecoder(asked.proto_version, streaming=asked.streaming, two_phase=asked.two_phase)
        opener: m.Begin | m.BeginPrepare | m.StreamStart | None = None
        streamed: frozenset[int] = frozenset()
        prepared: dict[str, m.Prepare | m.StreamPrepare] = {}
        places = []
        for data in self.messages:
            message = decoder.decode(data)
            places.append(Place(message, opener, streamed, prepared))
            match message:
                case m.Begin() | m.BeginPrepare():
                    opener = message
                case m.StreamStart():
                    opener, streamed = message, streamed | {message.xid}
                case m.StreamStop() | m.Commit():
                    opener = None
                case m.Prepare() | m.StreamPrepare():
                    opener, streamed = None, streamed - {message.xid}
                    prepared = prepared | {message.gid: message}
                case m.StreamCommit():
                    streamed -= {message.xid}
                case m.StreamAbort(xid=xid, subxid=subxid) if xid == subxid:
                    streamed -= {xid}
                case m.CommitPrepared() | m.RollbackPrepared():
                    prepared = {gid: one for gid, one in prepared.items() if gid != message.gid}
        return tuple(places)

    def with_message(self, position: int, message: Message) -> Messages:
        """The messages with another one at this place."""
        return self.with_bytes(position, encode_for(message, self.options.proto_version))

    def with_bytes(self, position: int, *data: bytes) -> Messages:
        """The messages with these at this place."""
        return (*self.messages[:position], *data, *self.messages[position + 1 :])

    def swapped(self, position: int) -> Messages | None:
        """The messages with two neighbours swapped; None if there are not two."""
        if position + 1 >= len(self.messages):
            return None
        one, other = self.messages[position : position + 2]
        return (*self.messages[:position], other, one, *self.messages[position + 2 :])


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A way to corrupt a stream in one place."""

    name: str
    doc: str
    make: Callable[[Stream, int], Messages | None]
    """The messages with the fault at a position; None if it is none there."""
    certain: bool = True
    """Whether no server sends what comes of it. Else it may be legal by chance, as a changed text value is:
    `doc` says when."""
    unit: Literal["message", "bit"] = "message"
    """What positions count, from 0: messages, or bits of all messages in a row."""

    def size(self, stream: Stream) -> int:
        """How many positions there are in a stream."""
        if self.unit == "message":
            return len(stream.messages)
        return 8 * sum(map(len, stream.messages))


class Corruption(msgspec.Struct, frozen=True):
    """A stream with one fault."""

    fault: str
    position: int
    stream: Stream
    certain: bool
    """As of the fault."""
