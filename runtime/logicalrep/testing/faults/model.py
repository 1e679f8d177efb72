"""Classes for streams and faults: `Stream`, `Place`, `Fault` and `Corruption`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec

from logicalrep import messages as m
from logicalrep._roles import field_name, has_role, meaning_of
from logicalrep.messages import Message
from logicalrep.stream import StreamDecoder, TrackedTransaction, TransactionTracker, encode_for
from logicalrep.stream.check import CheckOptions
from logicalrep.synth import Scenario

Messages: TypeAlias = tuple[bytes, ...]
"""Encoded messages of a stream."""

Fields: TypeAlias = Mapping[str, Any]
"""New values by field name, or by meaning: the spec's name for what a field tells, such as `end_lsn`."""


class Place(msgspec.Struct, frozen=True):
    """A message of a valid stream, and the state of the stream before the message."""

    position: int
    """Position of the message in the stream, from 0."""
    message: Message
    """The decoded message."""
    opener: Message | None
    """First message of the transaction that is open before the message, or None."""
    streamed: frozenset[int]
    """Xids of the streamed transactions that have started and not ended before the message."""
    prepared: Mapping[str, TrackedTransaction]
    """Transactions that are prepared before the message, by global identifier."""

    @property
    def block(self) -> int | None:
        """Xid of the streamed transaction if the message is in a stream block, otherwise None."""
        opener = self.opener
        return meaning_of(opener, "xid") if opener is not None and has_role(opener, "open_block") else None


class Stream(msgspec.Struct, frozen=True, dict=True):
    """The encoded messages of a stream, with the stream options that the client requested."""

    messages: Messages
    """Encoded messages."""
    options: CheckOptions
    """Stream options that the client requested."""

    @classmethod
    def of(cls, scenario: Scenario, *, after_lsn: int = 0, **options: Any) -> Stream:
        """Return the stream that a server sends for a scenario.

        Args:
            scenario: The scenario.
            after_lsn: Acknowledged LSN. Transactions that ended at or before this LSN are not sent.
            options: Stream options (fields of `StreamOptions`) that override `Scenario.options`.

        Raises:
            ValueError: The protocol version does not support an option.
            ScenarioError: A value cannot be converted to binary format.
        """
        requested = msgspec.structs.replace(scenario.options, **options)
        sent = scenario.stream(after_lsn=after_lsn, **options)
        messages = tuple(one.data for one in sent if isinstance(one, m.XLogData))
        names = {*CheckOptions.__struct_fields__} & {*requested.__struct_fields__}
        checked = {name: getattr(requested, name) for name in names}
        return cls(messages, CheckOptions(**checked))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Each message of the stream, decoded, with the state of the stream before the message.

        Raises:
            DecodeError: A message cannot be decoded.
        """
        options = self.options
        decoder = StreamDecoder(
            options.proto_version, streaming=options.streaming, two_phase=options.two_phase
        )
        tracker = TransactionTracker(TrackedTransaction, lenient=True)
        places = []
        for position, message in enumerate(map(decoder.decode, self.messages)):
            opener = None if tracker.current is None else tracker.current.opener
            streamed, prepared = frozenset(tracker.streamed), dict(tracker.prepared)
            places.append(Place(position, message, opener, streamed, prepared))
            tracker.feed(message)
        return tuple(places)

    def with_fields(self, position: int, **fields: Any) -> Messages:
        """Return the encoded messages, with fields of the message at `position` replaced.

        Args:
            position: Position of the message.
            fields: New values by field name, or by meaning: the spec's name for what a field tells, such as
                `end_lsn`.
        """
        message = replaced(self.places[position].message, fields)
        return self.with_bytes(position, encode_for(message, self.options.proto_version))

    def with_bytes(self, position: int, *data: bytes) -> Messages:
        """Return the encoded messages, with the message at `position` replaced by the messages `data`."""
        return (*self.messages[:position], *data, *self.messages[position + 1 :])

    def swapped(self, position: int) -> Messages | None:
        """Return the encoded messages, with those at `position` and `position + 1` swapped.

        Return None if `position` is the last position.
        """
        if position + 1 >= len(self.messages):
            return None
        one, other = self.messages[position : position + 2]
        return (*self.messages[:position], other, one, *self.messages[position + 2 :])


def replaced(message: Message, fields: Fields) -> Message:
    """Return a copy of `message` with the new values `fields`; see `Fields` for the names."""
    kind = type(message)
    return msgspec.structs.replace(
        message, **{field_name(kind, name) or name: fields[name] for name in fields}
    )


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault that can be applied at a position of a stream."""

    name: str
    """Name of the fault, such as `drop-type`."""
    doc: str
    """Description of the fault and, if `certain` is false, of the streams that it leaves valid."""
    apply: Callable[[Stream, int], Messages | None]
    """Function that returns the encoded messages of a stream with the fault at a position; None if the fault
    is not possible at this position."""
    certain: bool = True
    """Whether a stream with the fault is always invalid. If false, the stream may be valid by chance."""
    unit: Literal["message", "bit"] = "message"
    """What a position counts, from 0: messages, or the bits of all messages."""

    def size(self, stream: Stream) -> int:
        """Return the number of positions in a stream: messages, or bits if `unit` is `bit`."""
        if self.unit == "message":
            return len(stream.messages)
        return 8 * sum(map(len, stream.messages))


def fault(
    name: str, doc: str, *, certain: bool = True, unit: Literal["message", "bit"] = "message"
) -> Callable[[Callable[[Stream, int], Messages | None]], Fault]:
    """Return a decorator that makes a `Fault` with these fields, and the decorated function as `apply`."""
    return lambda apply: Fault(name=name, doc=doc, apply=apply, certain=certain, unit=unit)


def field_fault(name: str, doc: str) -> Callable[[Callable[[Place], Fields | None]], Fault]:
    """Return a decorator that makes a `Fault` from a function.

    For a message, the function returns the new field values of the faulty message, or None if the fault is
    not possible in this message.
    """

    def decorate(change: Callable[[Place], Fields | None]) -> Fault:
        def apply(stream: Stream, position: int) -> Messages | None:
            fields = change(stream.places[position])
            return None if fields is None else stream.with_fields(position, **fields)

        return Fault(name=name, doc=doc, apply=apply)

    return decorate


class Corruption(msgspec.Struct, frozen=True):
    """A stream with one fault."""

    fault: str
    """Name of the fault."""
    position: int
    """Position of the fault, from 0: number of the message, or of the bit if `Fault.unit` is `bit`."""
    stream: Stream
    """The stream with the fault."""
    certain: bool
    """Whether the stream is certainly invalid. If false, the stream may be valid by chance."""
