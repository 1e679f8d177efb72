"""Faults in the sequence of messages: dropped, repeated and swapped messages."""

from __future__ import annotations

from typing import Final

from pgoutput._roles import CHANGES, CLOSERS, OPENERS, has_role, is_transactional, meaning_of
from pgoutput.testing.faults.model import Fault, Messages, Place, Stream

_ENDS: Final = (
    "commit_streamed",
    "abort_streamed",
    "prepare_streamed",
    "commit_prepared",
    "rollback_prepared",
)
_INSIDE: Final = ("relation", "type", *CHANGES)


def _drop(stream: Stream, position: int) -> Messages:
    return stream.with_bytes(position)


def _drop_one(stream: Stream, position: int, *roles: str) -> Messages | None:
    """Return the messages without the one at `position`; None if it has no such role or is the last message.

    Without its last message, the stream would still be valid.
    """
    last = position + 1 == len(stream.messages)
    return None if last or not has_role(stream.places[position].message, *roles) else _drop(stream, position)


def _drop_relation(stream: Stream, position: int) -> Messages | None:
    return _drop(stream, position) if is_needed(stream, position) else None


def is_needed(stream: Stream, position: int, *, rows: bool = False) -> bool:
    """Return whether a message is the first Relation message of a table, and changes of the table follow it.

    Args:
        stream: The stream.
        position: Position of the message.
        rows: Whether only Insert, Update and Delete count as changes, not Truncate.
    """
    if not has_role(stream.places[position].message, "relation"):
        return False
    oid = meaning_of(stream.places[position].message, "oid")

    def describes(place: Place) -> bool:
        return has_role(place.message, "relation") and bool(meaning_of(place.message, "oid") == oid)

    if any(map(describes, stream.places[:position])):
        return False
    for place in stream.places[position + 1 :]:
        if describes(place):
            return False
        truncated = () if rows else meaning_of(place.message, "relations") or ()
        if meaning_of(place.message, "relation") == oid or oid in truncated:
            return True
    return False


def _repeat(stream: Stream, position: int) -> Messages:
    return stream.with_bytes(position, *[stream.messages[position]] * 2)


def _repeat_one(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    once = has_role(message, *OPENERS, *CLOSERS, *_ENDS, "origin", "type", "payload")
    return _repeat(stream, position) if once else None


def _repeat_transaction(stream: Stream, position: int) -> Messages | None:
    if not has_role(stream.places[position].message, "begin"):
        return None
    for end in range(position, len(stream.messages)):
        if has_role(stream.places[end].message, "commit"):
            whole = stream.messages[position : end + 1]
            return (*stream.messages[: end + 1], *whole, *stream.messages[end + 1 :])
    return None


def _swap_opener(stream: Stream, position: int) -> Messages | None:
    opener, *behind = (place.message for place in stream.places[position : position + 2])
    if not has_role(opener, *OPENERS):
        return None
    if has_role(opener, "open_block") and any(has_role(one, "payload") for one in behind):
        # Outside of its stream block, the message's xid may be decoded as flags that are valid.
        return None
    return stream.swapped(position)


def _swap_closer(stream: Stream, position: int) -> Messages | None:
    closes = has_role(stream.places[position].message, *CLOSERS)
    if not closes or not position or not has_role(stream.places[position - 1].message, *_INSIDE):
        return None
    return stream.swapped(position - 1)


def _swap_relation(stream: Stream, position: int) -> Messages | None:
    if not is_needed(stream, position):
        return None
    relation, following = (place.message for place in stream.places[position : position + 2])
    uses = meaning_of(following, "relation") == meaning_of(relation, "oid")
    return stream.swapped(position) if uses else None


def _close_early(stream: Stream, position: int) -> Messages | None:
    """Move the message that ends a streamed transaction into the stream block right before the message."""
    message = stream.places[position].message
    if not has_role(message, *_ENDS) or not position:
        return None
    follows_block = has_role(stream.places[position - 1].message, "close_block")
    return stream.swapped(position - 1) if follows_block else None


def _move_message_inside(stream: Stream, position: int) -> Messages | None:
    """Move a non-transactional logical message into the transaction that follows the message."""
    message = stream.places[position].message
    if not has_role(message, "payload") or is_transactional(message):
        return None
    if position + 1 == len(stream.messages):
        return None
    opens = has_role(stream.places[position + 1].message, "begin", "begin_prepare")
    return stream.swapped(position) if opens else None


FAULTS: Final = (
    Fault(
        name="drop-opener",
        doc="A Begin, Begin Prepare or Stream Start before the last message is missing.",
        apply=lambda stream, position: _drop_one(stream, position, *OPENERS),
    ),
    Fault(
        name="drop-closer",
        doc="A Commit, Prepare or Stream Stop before the last message is missing.",
        apply=lambda stream, position: _drop_one(stream, position, *CLOSERS),
    ),
    Fault(
        name="drop-type",
        doc="A Type before the last message is missing.",
        apply=lambda stream, position: _drop_one(stream, position, "type"),
    ),
    Fault(
        name="drop-relation",
        doc="The first Relation of an OID that a change uses is missing.",
        apply=_drop_relation,
    ),
    Fault(
        name="repeat-control",
        doc="A message that opens or ends a transaction or stream block, or an Origin, Type or logical "
        "message, is repeated.",
        apply=_repeat_one,
    ),
    Fault(
        name="repeat-transaction",
        doc="A transaction, from Begin to Commit, is repeated.",
        apply=_repeat_transaction,
    ),
    Fault(
        name="swap-opener",
        doc="A Begin, Begin Prepare or Stream Start is sent one message too late.",
        apply=_swap_opener,
    ),
    Fault(
        name="swap-closer",
        doc="A Commit, Prepare or Stream Stop is sent one message too early.",
        apply=_swap_closer,
    ),
    Fault(
        name="swap-relation",
        doc="The first Relation of an OID is sent after a change that uses it.",
        apply=_swap_relation,
    ),
    Fault(
        name="end-inside-block",
        doc="The end of a streamed transaction is sent before the Stream Stop of its last block.",
        apply=_close_early,
    ),
    Fault(
        name="message-inside",
        doc="A non-transactional logical message is sent inside a transaction.",
        apply=_move_message_inside,
    ),
    Fault(
        name="drop",
        doc="Any message is missing. Valid by chance for a change among others, the last message, a repeated "
        "description, or the end of a transaction that does not occur again.",
        apply=_drop,
        certain=False,
    ),
    Fault(
        name="repeat",
        doc="Any message is repeated. Valid by chance for a change or a Relation.",
        apply=_repeat,
        certain=False,
    ),
    Fault(
        name="swap",
        doc="Any two adjacent messages are swapped. Valid by chance for changes and independent messages.",
        apply=Stream.swapped,
        certain=False,
    ),
)
