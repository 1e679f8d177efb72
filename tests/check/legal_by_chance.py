"""Find reasons why a corrupted stream may still be legal, without using code of the checker.

The checker must detect every corruption for which this module finds no reason.
"""

from __future__ import annotations

import re
from typing import Any

from logicalrep import messages as m
from logicalrep.messages import MessageFlag
from logicalrep.stream import StreamDecoder
from logicalrep.testing.faults import Stream
from logicalrep.testing.faults.model import Place

ROWS = (m.Insert, m.Update, m.Delete, m.Truncate)
CHANGES = (*ROWS, m.LogicalMessage)
ENDS = (m.StreamCommit, m.StreamAbort, m.StreamPrepare, m.CommitPrepared, m.RollbackPrepared)


def why_drop_is_legal(stream: Stream, position: int) -> str | None:
    """Return a reason why a stream may be legal without the message at `position`; None if there is none."""
    place, later = stream.places[position], stream.places[position + 1 :]
    if not later:
        return "a stream may stop anywhere"
    match place.message:
        case m.Origin():
            return "few transactions have an origin"
        case m.LogicalMessage(flags=flags) if not flags & MessageFlag.TRANSACTIONAL:
            return "a message that is not transactional stands alone"
        case m.Insert() | m.Update() | m.Delete() | m.Truncate() | m.LogicalMessage():
            if stream.options.proto_version < 3 or not isinstance(place.opener, m.Begin):
                return "a change may be missing"
            return "a change among others" if _has_other_changes(stream, position) else None
        case m.Relation():
            before = stream.places[position - 1].message
            return None if isinstance(before, m.Type) else _why_relation_is_unused(stream, position)
        case m.StreamAbort(xid=xid, subxid=subxid) if xid != subxid:
            return "a savepoint may be kept"
        case m.StreamCommit(xid=xid) | m.StreamAbort(xid=xid):
            return None if _occurs_again(later, xid) else "the transaction may go on"
        case m.StreamPrepare(xid=xid):
            return None if _occurs_again(later, xid) else "the transaction may go on"
        case m.CommitPrepared(gid=gid) | m.RollbackPrepared(gid=gid):
            again = any(getattr(one.message, "gid", None) == gid for one in later)
            return None if again else "the transaction may stay prepared"
    return None


def _has_other_changes(stream: Stream, position: int) -> bool:
    def changes(places: tuple[Place, ...]) -> bool:
        for place in places:
            if isinstance(place.message, m.Begin | m.Commit):
                return False
            if isinstance(place.message, CHANGES):
                return True
        return False

    return changes(stream.places[position + 1 :]) or changes(stream.places[:position][::-1])


def _occurs_again(later: tuple[Place, ...], xid: int) -> bool:
    kinds = (m.Begin, m.BeginPrepare, m.StreamStart, *ENDS)
    return any(isinstance(one.message, kinds) and one.message.xid == xid for one in later)


def _why_relation_is_unused(stream: Stream, position: int) -> str | None:
    """Return a reason why no change needs the Relation message at `position`; None if a change needs it."""
    relation, block = stream.places[position].message, stream.places[position].block
    assert isinstance(relation, m.Relation)
    for place in stream.places[position + 1 :]:
        message = place.message
        if place.block != block:
            continue  # another streamed transaction has its own Relation messages
        if isinstance(message, m.Relation) and message.oid == relation.oid:
            break
        if relation.oid in _relation_oids(message):
            known = _earlier_relation(stream, position, relation.oid, block)
            if known is None or len(known.columns) != len(relation.columns):
                return None
            return "the same description was sent before"
    return "no change needs it"


def _earlier_relation(stream: Stream, position: int, oid: int, block: int | None) -> m.Relation | None:
    for place in stream.places[:position][::-1]:
        if isinstance(place.message, m.StreamAbort) and place.message.xid == block:
            return None
        if isinstance(place.message, m.Relation) and place.message.oid == oid and place.block == block:
            return place.message
    return None


def _relation_oids(message: Any) -> tuple[int, ...]:
    if isinstance(message, m.Insert | m.Update | m.Delete):
        return (message.relation_oid,)
    return message.relation_oids if isinstance(message, m.Truncate) else ()


def why_repeat_is_legal(stream: Stream, position: int) -> str | None:
    """Return a reason why repeating the message at `position` may be legal; None if there is none."""
    message = stream.places[position].message
    if isinstance(message, ROWS):
        return "a change may be repeated"
    if isinstance(message, m.Relation) and not isinstance(stream.places[position - 1].message, m.Type):
        return "a server may repeat relations"
    return None


def why_swap_is_legal(stream: Stream, position: int) -> str | None:
    """Return a reason why swapping the messages at `position` and `position` + 1 may be legal, or None."""
    one, other = stream.places[position].message, stream.places[position + 1].message
    if isinstance(one, CHANGES) and isinstance(other, CHANGES):
        both = isinstance(one, m.LogicalMessage) and isinstance(other, m.LogicalMessage)
        return None if both else "changes may come in any order"
    if isinstance(one, m.Relation) and isinstance(other, m.Relation):
        typed = isinstance(stream.places[position - 1].message, m.Type)
        return None if typed else "relations may come in any order"
    if isinstance(one, m.Relation) and isinstance(other, CHANGES):
        if isinstance(stream.places[position - 1].message, m.Type):
            return None
        return _why_relation_may_follow(stream, position, one, other)
    if isinstance(one, CHANGES) and isinstance(other, m.Relation):
        return "a relation may be sent earlier"
    if isinstance(one, ENDS) and isinstance(other, ENDS):
        lsns = [getattr(message, "abort_lsn", 0) for message in (one, other)]
        return "an abort without LSN has no place in the order" if None in lsns else None
    return None


def _why_relation_may_follow(stream: Stream, position: int, relation: m.Relation, change: Any) -> str | None:
    if relation.oid not in _relation_oids(change):
        return "the change is of another relation"
    known = _earlier_relation(stream, position, relation.oid, stream.places[position].block)
    same = known is not None and len(known.columns) == len(relation.columns)
    return "the same description was sent before" if same else None


# Bits


FREE_FIELDS = {
    "Begin": {"xid"},
    "Commit": {"end_lsn"},
    "CommitPrepared": {"commit_lsn", "commit_time", "end_lsn", "gid", "xid"},
    "Delete": {"key", "old", "relation_oid", "xid"},
    "Insert": {"new", "relation_oid", "xid"},
    "LogicalMessage": {"content", "lsn", "prefix"},
    "Origin": {"name", "origin_lsn"},
    "Relation": {
        "columns.flags",
        "columns.name",
        "columns.type_modifier",
        "columns.type_oid",
        "name",
        "namespace",
        "oid",
        "replica_identity",
        "xid",
    },
    "RollbackPrepared": {"gid", "rollback_end_lsn", "rollback_time", "xid"},
    "StreamAbort": {"abort_lsn", "abort_time", "subxid"},
    "StreamCommit": {"commit_lsn", "commit_time", "end_lsn"},
    "StreamPrepare": {"end_lsn", "gid", "prepare_lsn", "prepare_time"},
    "StreamStart": {"xid"},
    "Truncate": {"options", "relation_oids", "xid"},
    "Type": {"name", "namespace", "xid"},
    "Update": {"key", "new", "old", "relation_oid", "xid"},
}
"""By message, the fields in which a bit flip may give another legal value."""


def why_flip_is_legal(stream: Stream, number: int, byte: int) -> str | None:
    """Return a reason why message `number` may be legal after a bit flip in its byte `byte`, or None."""
    options = stream.options
    decoder = StreamDecoder(options.proto_version, streaming=options.streaming, two_phase=options.two_phase)
    decoder.in_stream = stream.places[number].block is not None
    piece = next(one for one in decoder.walk(stream.messages[number]) if one.start <= byte < one.end)
    field = re.sub(r"\[\d+\]", "", piece.path)
    free = FREE_FIELDS.get(type(stream.places[number].message).__name__, set())
    return f"another value of {field}" if field in free else None
