"""What messages that lie about in any order need to know of those before them.

A message cannot be read alone: inside a stream block it has an xid, and a change means nothing without the
Relation message that holds at its place. Few messages say so; a `Timeline` is made of them, and with it every
other message is read by itself, wherever it is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from pgoutput import messages
from pgoutput.errors import DecodeError, StreamError
from pgoutput.messages import Message, Relation
from pgoutput.stream import StreamDecoder
from pgoutput.views.committed import Shape, fits, make_shape

Key: TypeAlias = tuple[Any, ...]
"""Where a message stands: keys of one stream are compared with each other."""

CONTEXT: Final = tuple(
    message.wire_tag
    for message in (messages.Relation, messages.Type, messages.StreamStart, messages.StreamStop)
)
"""The tags of the messages that the others need."""


class Epochs(msgspec.Struct, frozen=True):
    """The Relation messages of an OID that say something new, in their order."""

    keys: list[Key] = []
    relations: list[Relation] = []
    """Without xids."""
    shapes: list[Shape] = []


class Timeline(msgspec.Struct, frozen=True):
    """Which stream blocks and which Relation messages there are, and where."""

    turns: list[Key]
    """Where a block begins and where it ends, in turn."""
    epochs: Mapping[int, Epochs]
    """By the relations' OIDs."""

    def in_stream(self, key: Key) -> bool:
        """Whether a message there is inside a block. A block's own beginning is not, its end is."""
        return bool(bisect_left(self.turns, key) % 2)

    def shape(self, oid: int, key: Key) -> Shape | None:
        """The relation, by the last Relation message before that place; None if there is none."""
        epochs = self.epochs.get(oid, _NONE)
        place = bisect_left(epochs.keys, key)
        return epochs.shapes[place - 1] if place else None

    def relation(self, oid: int, key: Key) -> Relation | None:
        """The last Relation message up to that place, itself included, without xid."""
        epochs = self.epochs.get(oid, _NONE)
        place = bisect_right(epochs.keys, key)
        return epochs.relations[place - 1] if place else None

    def turns_at(self, key: Key) -> bool:
        """Whether a block begins or ends exactly there."""
        return _has(self.turns, key)

    def changes_at(self, oid: int, key: Key) -> bool:
        """Whether a relation becomes another exactly there."""
        return _has(self.epochs.get(oid, _NONE).keys, key)


_NONE: Final = Epochs()


def _has(keys: list[Key], key: Key) -> bool:
    place = bisect_left(keys, key)
    return place < len(keys) and keys[place] == key


def find_timeline(rows: Iterable[tuple[Key, bytes]], decoder: StreamDecoder) -> Timeline:
    """The timeline of a stream.

    Messages that cannot be read have no effect, as in `StreamDecoder`.

    Args:
        rows: The messages with the tags of `CONTEXT`, in any order. One that comes twice, or whose place is
            not known, is passed over.
        decoder: A new decoder of this stream.

    Raises:
        ValueError: Two different messages stand in one place.
    """
    ordered = sorted({(key, data) for key, data in rows if None not in key})
    timeline = Timeline([], {})
    for number, (key, data) in enumerate(ordered):
        if number and ordered[number - 1][0] == key:
            raise ValueError(
                f"the order is not one: two messages, {ordered[number - 1][1][:1]!r} and {data[:1]!r}, "
                f"have the key {shown_key(key)}; LSNs do not do, since many messages share one"
            )
        before = decoder.in_stream
        try:
            message = decoder.decode(data)
        except DecodeError:
            continue
        if decoder.in_stream is not before:
            timeline.turns.append(key)
        if isinstance(message, Relation):
            _add(timeline.epochs.setdefault(message.oid, Epochs([], [], [])), key, message, decoder)  # type: ignore[attr-defined]
    return timeline


def _add(epochs: Epochs, key: Key, message: Relation, decoder: StreamDecoder) -> None:
    """Add a Relation message, unless it repeats the last one."""
    relation = msgspec.structs.replace(message, xid=None)
    shape = make_shape(relation, decoder.types)
    if epochs.keys and epochs.relations[-1] == relation and epochs.shapes[-1].relation == shape.relation:
        return
    epochs.keys.append(key)
    epochs.relations.append(relation)
    epochs.shapes.append(shape)


class Placed(NamedTuple):
    """A message in its place."""

    message: Message
    shapes: tuple[Shape, ...]
    """The relations that it changes: one for inserts, updates and deletes, several for truncates."""


class PlacedDecoder:
    """Decodes messages in any order, by their places.

    Args:
        timeline: Of the stream.
        decoder: Any decoder of the stream.
    """

    def __init__(self, timeline: Timeline, decoder: StreamDecoder) -> None:
        self._timeline = timeline
        self._decoder = decoder

    def decode(self, key: Key, data: bytes) -> Placed:
        """Decode the message.

        Raises:
            DecodeError: The bytes are no message of this stream at that place.
            ValueError: The timeline is not of this stream: it lacks this message.
        """
        if None in key:
            raise StreamError("NULL says nothing of where the message stands")
        self._decoder.in_stream = self._timeline.in_stream(key)
        message = self._decoder.decode(data)
        if isinstance(message, messages.StreamStart | messages.StreamStop | Relation | messages.Type):
            self._see_known(key, message)
            return Placed(message, ())
        if self._timeline.turns_at(key):
            raise StreamError.at(message, f"a stream block begins or ends at the same key {shown_key(key)}")
        return Placed(message, tuple(self._shape(oid, key, message) for oid in _changed(message)))

    def _shape(self, oid: int, key: Key, message: Message) -> Shape:
        if self._timeline.changes_at(oid, key):
            raise StreamError.at(message, f"a Relation message has the same key {shown_key(key)}")
        shape = self._timeline.shape(oid, key)
        if shape is None:
            raise StreamError.at(message, f"no Relation message has come for the OID {oid}")
        fits(message, shape)
        return shape

    def _see_known(self, key: Key, message: Message) -> None:
        known = True
        if isinstance(message, Relation):
            relation = msgspec.structs.replace(message, xid=None)
            known = self._timeline.relation(message.oid, key) == relation
        elif not isinstance(message, messages.Type):
            known = self._timeline.turns_at(key)
        if not known:
            raise ValueError(
                f"{type(message).__name__} at {shown_key(key)} was not there when the relations were looked "
                "for: what is decoded must stay the same, cache it or bound it"
            )


def _changed(message: Message) -> tuple[int, ...]:
    """The OIDs of the relations that a message changes."""
    if isinstance(message, messages.Insert | messages.Update | messages.Delete):
        return (message.relation_oid,)
    return message.relation_oids if isinstance(message, messages.Truncate) else ()


def shown_key(key: Key) -> str:
    """A key, fit to be read."""
    return ", ".join(map(repr, key))
