"""Faults in the sequence of messages: dropped, repeated and swapped messages."""

from __future__ import annotations

from typing import Final

from logicalrep._roles import CHANGES, CLOSERS, OPENERS, has_role, is_transactional, meaning_of
from logicalrep.testing.faults.model import Messages, Place, Stream, fault

_ENDS: Final = (
    "commit_streamed",
    "abort_streamed",
    "prepare_streamed",
    "commit_prepared",
    "rollback_prepared",
)
_INSIDE: Final = ("relation", "type", *CHANGES)


def _drop_one(stream: Stream, position: int, *roles: str) -> Messages | None:
    """Return the messages without the message at `position`.

    Return None if the message has none of the roles `roles` (what a message does in a stream, such as
    `commit`). Also return None for the last message: a stream without its last message would be valid.
    """
    if position + 1 == len(stream.messages) or not has_role(stream.places[position].message, *roles):
        return None
    return stream.with_bytes(position)


@fault("drop-opener", "A Begin, Begin Prepare or Stream Start before the last message is missing.")
def _drop_opener(stream: Stream, position: int) -> Messages | None:
    return _drop_one(stream, position, *OPENERS)


@fault("drop-closer", "A Commit, Prepare or Stream Stop before the last message is missing.")
def _drop_closer(stream: Stream, position: int) -> Messages | None:
    return _drop_one(stream, position, *CLOSERS)


@fault("drop-type", "A Type before the last message is missing.")
def _drop_type(stream: Stream, position: int) -> Messages | None:
    return _drop_one(stream, position, "type")


@fault("drop-relation", "The first Relation of an OID that a change uses is missing.")
def _drop_relation(stream: Stream, position: int) -> Messages | None:
    return stream.with_bytes(position) if is_needed(stream, position) else None


def is_needed(stream: Stream, position: int, *, rows: bool = False) -> bool:
    """Return whether a message is the first Relation message of a table, and a change of the table follows.

    Return False if the next Relation message of the table precedes the change.

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


@fault(
    "repeat-control",
    "A message that opens or ends a transaction or stream block, or an Origin, Type or logical message, is "
    "repeated.",
)
def _repeat_control(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    once = has_role(message, *OPENERS, *CLOSERS, *_ENDS, "origin", "type")
    if has_role(message, "payload"):
        once = meaning_of(message, "lsn") is not None
    return stream.with_bytes(position, *[stream.messages[position]] * 2) if once else None


@fault("repeat-transaction", "A transaction, from Begin to Commit, is repeated.")
def _repeat_transaction(stream: Stream, position: int) -> Messages | None:
    if not has_role(stream.places[position].message, "begin"):
        return None
    for end in range(position, len(stream.messages)):
        if has_role(stream.places[end].message, "commit"):
            whole = stream.messages[position : end + 1]
            return (*stream.messages[: end + 1], *whole, *stream.messages[end + 1 :])
    return None


@fault("swap-opener", "A Begin, Begin Prepare or Stream Start is sent one message too late.")
def _swap_opener(stream: Stream, position: int) -> Messages | None:
    opener, *behind = (place.message for place in stream.places[position : position + 2])
    if not has_role(opener, *OPENERS):
        return None
    if has_role(opener, "open_block") and any(has_role(one, "payload") for one in behind):
        # Swapped, the logical message would be outside of the stream block. The stream might remain valid,
        # because the xid of the message may decode as valid flags.
        return None
    return stream.swapped(position)


@fault("swap-closer", "A Commit, Prepare or Stream Stop is sent one message too early.")
def _swap_closer(stream: Stream, position: int) -> Messages | None:
    closes = has_role(stream.places[position].message, *CLOSERS)
    if not closes or not position or not has_role(stream.places[position - 1].message, *_INSIDE):
        return None
    return stream.swapped(position - 1)


@fault("swap-relation", "The first Relation of an OID is sent after a change that uses it.")
def _swap_relation(stream: Stream, position: int) -> Messages | None:
    if not is_needed(stream, position):
        return None
    relation, following = (place.message for place in stream.places[position : position + 2])
    uses = meaning_of(following, "relation") == meaning_of(relation, "oid")
    return stream.swapped(position) if uses else None


@fault(
    "end-inside-block",
    "The end of a streamed transaction is sent before the Stream Stop of its last block.",
)
def _close_early(stream: Stream, position: int) -> Messages | None:
    """Return the messages, with the transaction's end at `position` moved before the preceding Stream Stop.

    Return None if the message is not such an end, or does not directly follow a Stream Stop.
    """
    message = stream.places[position].message
    if not has_role(message, *_ENDS) or not position:
        return None
    follows_block = has_role(stream.places[position - 1].message, "close_block")
    return stream.swapped(position - 1) if follows_block else None


@fault("message-inside", "A non-transactional logical message is sent inside a transaction.")
def _move_message_inside(stream: Stream, position: int) -> Messages | None:
    """Return the messages, with the logical message at `position` moved behind the Begin that follows it.

    Return None if the message is not a non-transactional logical message, or if neither Begin nor Begin
    Prepare directly follows.
    """
    message = stream.places[position].message
    if not has_role(message, "payload") or is_transactional(message):
        return None
    if position + 1 == len(stream.messages):
        return None
    opens = has_role(stream.places[position + 1].message, "begin", "begin_prepare")
    return stream.swapped(position) if opens else None


@fault(
    "drop",
    "Any message is missing. Valid by chance for a change among others, the last message, a repeated "
    "description, or the end of a transaction that does not occur again.",
    certain=False,
)
def _drop(stream: Stream, position: int) -> Messages:
    return stream.with_bytes(position)


@fault(
    "repeat",
    "Any message is repeated. Valid by chance for a change or a Relation.",
    certain=False,
)
def _repeat(stream: Stream, position: int) -> Messages:
    return stream.with_bytes(position, *[stream.messages[position]] * 2)


@fault(
    "swap",
    "Any two adjacent messages are swapped. Valid by chance for changes and independent messages.",
    certain=False,
)
def _swap(stream: Stream, position: int) -> Messages | None:
    return stream.swapped(position)
