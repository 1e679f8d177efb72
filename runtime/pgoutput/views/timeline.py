"""What messages that lie about in any order need to know of those before them.

A message cannot be read alone: inside a stream block it has an xid, and a change means nothing without the
Relation message that holds at its place. Few messages say so; a `Timeline` is made of them, and with it all
others are read wherever they are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput import messages
from pgoutput.columns.epochs import Epochs, change_error, misfits
from pgoutput.columns.index import Index, Mask, Numbers, by_tag
from pgoutput.columns.read import index_messages
from pgoutput.errors import DecodeError, StreamError
from pgoutput.messages import Relation
from pgoutput.stream import StreamDecoder
from pgoutput.views.committed import ROW_CHANGES, named_relations
from pgoutput.views.rows import Changes, used_shapes
from pgoutput.views.shapes import Shape, make_shape

Key: TypeAlias = tuple[Any, ...]
"""Where a message stands: keys of one stream are compared with each other."""

Keys: TypeAlias = Sequence[pa.Array]
"""Keys of many messages, by column."""

_BLOCKS: Final = (messages.StreamStart, messages.StreamStop)
_CONTEXT: Final = (Relation, messages.Type, *_BLOCKS)

CONTEXT: Final = tuple(message.wire_tag for message in _CONTEXT)
"""The tags of the messages that the others need."""


class Timeline:
    """Which stream blocks and which Relation messages there are, and where.

    The messages in it stand at odd places, in their order; those between two of them at the even place
    between theirs.

    Attributes:
        relations: The Relation messages that say something new, without xids.
        shapes: What changes are of from there on.
        epochs: Where each begins, by its number in these lists.

    Args:
        keys: Where something changes, in order.
        turns: The places where a stream block begins and where it ends, in turn.
        relations: The places of Relation messages, these messages, and their shapes.
    """

    def __init__(
        self, keys: Sequence[Key], turns: Sequence[int], relations: Sequence[tuple[int, Relation, Shape]]
    ) -> None:
        self.relations = [relation for _, relation, _ in relations]
        self.shapes = [shape for _, _, shape in relations]
        self.epochs = Epochs([one.oid for one in self.relations], [place for place, _, _ in relations])
        self._keys = keys
        self._turns = np.array(turns, np.int64)

    def places(self, keys: Keys) -> Numbers:
        """The places of messages; -1 where a part of the key is NULL, which says nothing of it."""
        if all(pa.types.is_integer(column.type) for column in keys):
            wanted = _packed(np.stack([column.fill_null(0).cast(pa.int64()) for column in keys], axis=1))
            places = np.searchsorted(self._packed, wanted) + np.searchsorted(self._packed, wanted, "right")
            unknown = np.any([np.asarray(column.is_null()) for column in keys], axis=0)
            return np.where(unknown, -1, places)
        rows = zip(*(column.to_pylist() for column in keys), strict=True)
        return np.array([-1 if None in key else self._place(key) for key in rows], np.int64)

    def _place(self, key: Key) -> int:
        return bisect_left(self._keys, key) + bisect_right(self._keys, key)

    @cached_property
    def _packed(self) -> npt.NDArray[np.bytes_]:
        return _packed(np.array(self._keys, np.int64))

    def in_stream(self, places: Numbers) -> Mask:
        """Whether a message there is inside a block. A block's own beginning is not, its end is."""
        inside: Mask = np.searchsorted(self._turns, places) % 2 == 1
        return inside

    def turns_at(self, places: Numbers) -> Mask:
        """Whether a block begins or ends exactly there."""
        return np.isin(places, self._turns)


def _packed(rows: Numbers) -> npt.NDArray[np.bytes_]:
    """Rows of integers as bytes that sort as they do."""
    unsigned = rows.view(np.uint64) ^ np.uint64(1 << 63)
    return unsigned.astype(">u8").view(f"S{8 * rows.shape[-1] or 8}").reshape(-1)


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
    keys: list[Key] = []
    turns: list[int] = []
    relations: list[tuple[int, Relation, Shape]] = []
    last: dict[int, tuple[Relation, Relation]] = {}
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
        place = 2 * len(keys) + 1
        if decoder.in_stream is not before:
            turns.append(place)
            keys.append(key)
        elif isinstance(message, Relation):
            relation = msgspec.structs.replace(message, xid=None)
            shape = make_shape(relation, decoder.types)
            said = relation, shape.relation
            if last.get(relation.oid) != said:  # else it repeats the last one
                last[relation.oid] = said
                relations.append((place, relation, shape))
                keys.append(key)
    return Timeline(keys, turns, relations)


class Placed(msgspec.Struct, frozen=True):
    """Messages in their places."""

    index: Index
    errors: Mapping[int, DecodeError]
    """What is wrong with messages, by row."""
    changes: Changes
    """What those without errors change."""


class PlacedDecoder:
    """Decodes messages in any order, by their places.

    Args:
        timeline: Of the stream.
        decoder: Any decoder of the stream.
    """

    def __init__(self, timeline: Timeline, decoder: StreamDecoder) -> None:
        self._timeline = timeline
        self._decoder = decoder

    def decode(self, keys: Keys, data: pa.Array) -> Placed:
        """Decode messages.

        Args:
            keys: Where they stand.
            data: The messages; NULL is none.

        Raises:
            ValueError: The timeline is not of this stream: it lacks one of the messages.
        """
        places = self._timeline.places(keys)
        index = index_messages(data, self._decoder, self._timeline.in_stream(places))
        errors = dict(index.errors)
        for row in np.flatnonzero((places < 0) & np.asarray(data.is_valid())).tolist():
            errors[row] = StreamError("NULL says nothing of where the message stands")
        tags = np.where(places < 0, _NONE, index.tags)
        self._see_known(index, tags, places, keys)
        at_turn = (tags != _NONE) & ~_IS_CONTEXT[tags] & self._timeline.turns_at(places)
        for row in np.flatnonzero(at_turn).tolist():
            (message,) = index.messages([row])
            text = f"a stream block begins or ends at the same key {shown_key(key_at(keys, row))}"
            errors[row] = StreamError.at(message, text)
        changes, wrong = self._changes(index, np.flatnonzero(_IS_CHANGE[tags] & ~at_turn), places, keys)
        return Placed(index, errors | wrong, changes)

    def _changes(
        self, index: Index, rows: Numbers, places: Numbers, keys: Keys
    ) -> tuple[Changes, dict[int, DecodeError]]:
        """The changes of messages, but for those that are wrong, and what is wrong with those."""
        shapes, epochs = self._timeline.shapes, self._timeline.epochs
        rows, oids = named_relations(index, rows)
        numbers = epochs.find(oids, places[rows])
        same_key = epochs.begins_at(oids, places[rows])
        widths = np.array([*(len(shape.names) for shape in shapes), 0], np.int64)
        wrong = same_key | (numbers < 0) | misfits(index, rows, widths[numbers])
        errors: dict[int, DecodeError] = {}
        for change in np.flatnonzero(wrong).tolist():
            row, number = int(rows[change]), int(numbers[change])
            (message,) = index.messages([row])
            if same_key[change]:
                text = f"a Relation message has the same key {shown_key(key_at(keys, row))}"
                error = StreamError.at(message, text)
            else:
                relation = None if number < 0 else shapes[number].relation
                error = change_error(message, int(oids[change]), relation)
            errors.setdefault(row, error)
        right = ~np.isin(rows, list(errors))  # a truncate is wrong as a whole
        return Changes(index, rows[right], *used_shapes(shapes, numbers[right])), errors

    def _see_known(self, index: Index, tags: npt.NDArray[np.uint8], places: Numbers, keys: Keys) -> None:
        """See that the timeline has the messages that it should have."""
        timeline = self._timeline
        late = np.flatnonzero(_IS_BLOCK[tags] & ~timeline.turns_at(places)).tolist()
        rows = np.flatnonzero(_IS_RELATION[tags])
        numbers = timeline.epochs.find(index.field("oid").values[rows], places[rows] + 1).tolist()
        for row, number, message in zip(rows.tolist(), numbers, index.messages(rows.tolist()), strict=True):
            if number < 0 or timeline.relations[number] != msgspec.structs.replace(message, xid=None):
                late.append(row)
        if late:
            (message,), key = index.messages([min(late)]), key_at(keys, min(late))
            raise ValueError(
                f"{type(message).__name__} at {shown_key(key)} was not there when the relations were looked "
                "for: what is decoded must stay the same, cache it or bound it"
            )


_NONE: Final = 0
"""The tag of what is no message."""

_IS_CONTEXT: Final = by_tag(_CONTEXT)
_IS_BLOCK: Final = by_tag(_BLOCKS)
_IS_RELATION: Final = by_tag((Relation,))
_IS_CHANGE: Final = by_tag(ROW_CHANGES)


def key_at(keys: Keys, row: int) -> Key:
    """The key of one of the messages."""
    return tuple(column[row].as_py() for column in keys)


def shown_key(key: Key) -> str:
    """A key, fit to be read."""
    return ", ".join(map(repr, key))
