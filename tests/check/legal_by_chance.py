"""Find reasons why a corrupted stream may still be legal, without using code of the checker.

The checker must detect every corruption for which this module finds no reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from pgoutput import messages as m
from pgoutput.messages import MessageFlag, ReplicaIdentity
from pgoutput.stream import StreamDecoder
from pgoutput.testing.faults import Stream
from pgoutput.testing.faults.model import Place

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


def why_flip_is_legal(stream: Stream, number: int, byte: int, flipped: bytes) -> str | None:
    """Return a reason why the message may be legal after a bit flip in this byte; None if there is none."""
    options = stream.options
    decoder = StreamDecoder(options.proto_version, streaming=options.streaming, two_phase=options.two_phase)
    decoder.in_stream = stream.places[number].block is not None
    piece = next(one for one in decoder.walk(stream.messages[number]) if one.start <= byte < one.end)
    place = stream.places[number]
    reason = REASONS.get((type(place.message).__name__, re.sub(r"\[\d+\]", "", piece.path)))
    if reason is None:
        return None
    if isinstance(reason, str):
        return reason
    return reason(stream, number, decoder.decode(flipped))


def _subtransaction_xid(stream: Stream, number: int, message: Any) -> str | None:
    """Return a reason why the changed xid may be legal in its stream block; None if there is none."""
    aborts = isinstance(message, m.StreamAbort)
    xid = message.subxid if aborts else message.xid
    top = message.xid if aborts else stream.places[number].block
    if xid == top:
        again = aborts and _occurs_again(stream.places[number + 1 :], top)
        return None if again else "the transaction itself"
    later = (xid - top) % 2**32 < 2**31 and xid >= 3
    return "another subtransaction" if later else None


def _free_xid(stream: Stream, number: int, message: Any) -> str | None:
    if message.xid < 3 or message.xid in stream.places[number].streamed:
        return None
    if isinstance(message, m.Begin):
        return "any transaction"
    known = message.gid in stream.places[number].prepared
    return None if known else "the transaction was prepared before the stream"


def _free_gid(stream: Stream, number: int, message: Any) -> str | None:
    if isinstance(message, m.StreamPrepare):
        later = stream.places[number + 1 :]
        return None if _occurs_again(later, message.xid) else "any gid"
    xids = [one.xid for one in stream.places[number].prepared.values()]
    return None if message.xid in xids else "the transaction was prepared before the stream"


def _ordered_lsns(stream: Stream, number: int, message: Any) -> str | None:
    """Return a reason if the stream's LSNs are in order with `message` as message `number`, else None."""
    messages = [*(place.message for place in stream.places)]
    messages[number] = message
    spans = [span for one in messages if (span := _span(one)) is not None]
    inside = _message_lsns_are_ordered(stream, number, message)
    ordered = all(start < end for start, end in spans) and all(a[1] <= b[0] for a, b in pairwise(spans))
    return "LSNs are still ordered" if ordered and inside else None


def _span(message: Any) -> tuple[int, int] | None:
    """Return twice the start and end LSN of the message's WAL record; None if the message has no LSNs.

    An unknown start becomes 2 * end - 1, half a byte before the end.
    """
    match message:
        case m.Commit() | m.StreamCommit() | m.CommitPrepared():
            return 2 * message.commit_lsn, 2 * message.end_lsn
        case m.Prepare() | m.StreamPrepare():
            return 2 * message.prepare_lsn, 2 * message.end_lsn
        case m.RollbackPrepared():
            return 2 * message.rollback_end_lsn - 1, 2 * message.rollback_end_lsn
        case m.StreamAbort(abort_lsn=lsn) if lsn:
            return 2 * lsn - 1, 2 * lsn
        case m.LogicalMessage(flags=flags, lsn=lsn) if not flags & MessageFlag.TRANSACTIONAL:
            return 2 * lsn - 1, 2 * lsn
    return None


def _prepared_lsns(stream: Stream, number: int, message: m.StreamPrepare) -> str | None:
    """Return a reason why changed LSNs of a Stream Prepare may be legal; None if there is none."""
    following = [place.message for place in stream.places[number + 1 : number + 2]]
    committed = any(isinstance(one, m.CommitPrepared) and one.gid == message.gid for one in following)
    if committed and message.prepare_lsn < message.end_lsn:
        return "the transaction was prepared before two_phase was enabled"
    return _ordered_lsns(stream, number, message)


def _other_streamed_transaction(stream: Stream, number: int, message: m.StreamStart) -> str | None:
    """Return a reason why a stream block may belong to another streamed transaction; None if there is none.

    All xids in the block must be possible new subtransactions of that other transaction.
    """
    if message.xid not in stream.places[number].streamed or message.first_stream_segment:
        return None
    before = {getattr(place.message, "xid", None) for place in stream.places[: number + 1]}
    for place in stream.places[number + 1 :]:
        if isinstance(place.message, m.StreamStop):
            return "a block of another transaction"
        xid = getattr(place.message, "xid", None)
        if xid in before or xid is None or xid < message.xid:
            return None
    return None


def _message_lsns_are_ordered(stream: Stream, number: int, message: Any) -> bool:
    """Return whether the LSNs of a transaction's logical messages increase up to the transaction's end."""
    if not isinstance(message, m.LogicalMessage) or not message.flags & MessageFlag.TRANSACTIONAL:
        return True
    opener, block = stream.places[number].opener, stream.places[number].block
    lsns: list[int] = []
    for i, place in enumerate(stream.places):
        one = message if i == number else place.message
        of_same = place.opener is opener if block is None else place.block == block
        if isinstance(one, m.LogicalMessage) and of_same and one.flags & MessageFlag.TRANSACTIONAL:
            lsns.append(one.lsn)
    for place in stream.places[number:]:
        ends = isinstance(place.message, m.StreamCommit) and place.message.xid == block
        if ends or (isinstance(place.message, m.Commit | m.Prepare) and place.opener is opener):
            end = getattr(place.message, "commit_lsn", 0) or getattr(place.message, "prepare_lsn", 0)
            lsns.append(end + 1)  # the LSN of a logical message is the end of its record
            break
    return all(a < b for a, b in pairwise(lsns)) and lsns[0] > 0


def _other_relation(stream: Stream, number: int, message: Any) -> str | None:
    """Return a reason why the change may belong to another known relation; None if there is none.

    The other relation must have the same number of columns and the same replica identity.
    """
    old = stream.places[number].message
    block = stream.places[number].block
    known = [
        _earlier_relation(stream, number, oid, block)
        for oid in (*_relation_oids(old), *_relation_oids(message))
    ]
    if any(relation is None for relation in known) or len(set(_relation_oids(message))) < len(
        _relation_oids(message)
    ):
        return None
    if isinstance(message, m.Truncate):
        return "another relation"
    shapes = {(len(one.columns), one.replica_identity) for one in known if one is not None}
    return "another relation of the same shape" if len(shapes) == 1 else None


def _unused_relation(stream: Stream, number: int, message: Any) -> str | None:
    return _why_relation_is_unused(stream, number) if message.oid else None


def _other_builtin_type(stream: Stream, number: int, message: m.Relation) -> str | None:
    old = stream.places[number].message
    assert isinstance(old, m.Relation)
    own = [[c.type_oid for c in one.columns if c.type_oid >= 10_000] for one in (old, message)]
    valid = all(column.type_oid for column in message.columns)
    return "another built-in type" if own[0] == own[1] and valid else None


def _other_key(stream: Stream, number: int, message: m.Relation) -> str | None:
    """Return a reason why changed key columns or replica identity may be legal; None if there is none.

    Old and key tuples of later changes must agree with the changed Relation, except for partitions.
    """
    if message.replica_identity in (ReplicaIdentity.FULL, ReplicaIdentity.NOTHING):
        is_full = message.replica_identity == ReplicaIdentity.FULL
        if any(bool(column.flags) != is_full for column in message.columns):
            return None
    behind = (place.message for place in stream.places[number + 1 :])
    partitioned = isinstance(next((one for one in behind if not isinstance(one, m.Type)), None), m.Relation)
    for place in stream.places[number + 1 :]:
        one = place.message
        if place.block != stream.places[number].block:
            continue
        if isinstance(one, m.Relation) and one.oid == message.oid:
            break
        if isinstance(one, m.Update | m.Delete) and one.relation_oid == message.oid:
            identity = message.replica_identity
            if (one.old is not None) != (identity == ReplicaIdentity.FULL):
                return None
            if partitioned:
                continue
            if not any(column.flags for column in message.columns):
                return None
            if one.key is not None and any(
                bool(column.flags) != (cell is not None)
                for column, cell in zip(message.columns, one.key, strict=True)
            ):
                return None
    return "another key that no change contradicts"


def _distinct_names(stream: Stream, number: int, message: m.Relation) -> str | None:
    names = [column.name for column in message.columns]
    return "any name" if len(set(names)) == len(names) and "" not in names else None


def _nonempty_name(stream: Stream, number: int, message: Any) -> str | None:
    return "any name" if message.name else None


_Reason = str | Callable[[Stream, int, Any], str | None]

REASONS: Mapping[tuple[str, str], _Reason] = {
    ("Begin", "xid"): _free_xid,
    ("Commit", "end_lsn"): _ordered_lsns,
    ("CommitPrepared", "commit_lsn"): _ordered_lsns,
    ("CommitPrepared", "commit_time"): "any time",
    ("CommitPrepared", "end_lsn"): _ordered_lsns,
    ("CommitPrepared", "gid"): _free_gid,
    ("CommitPrepared", "xid"): _free_xid,
    ("Delete", "key"): "any value",
    ("Delete", "old"): "any value",
    ("Delete", "relation_oid"): _other_relation,
    ("Delete", "xid"): _subtransaction_xid,
    ("Insert", "new"): "any value",
    ("Insert", "relation_oid"): _other_relation,
    ("Insert", "xid"): _subtransaction_xid,
    ("LogicalMessage", "content"): "any bytes",
    ("LogicalMessage", "lsn"): _ordered_lsns,
    ("LogicalMessage", "prefix"): "any text",
    ("Origin", "name"): "any name",
    ("Origin", "origin_lsn"): lambda stream, number, _: (
        "any LSN" if not stream.places[number].block else None
    ),
    ("Relation", "columns.flags"): _other_key,
    ("Relation", "columns.name"): _distinct_names,
    ("Relation", "columns.type_modifier"): "any modifier",
    ("Relation", "columns.type_oid"): _other_builtin_type,
    ("Relation", "name"): _nonempty_name,
    ("Relation", "namespace"): "any name",
    ("Relation", "oid"): _unused_relation,
    ("Relation", "replica_identity"): _other_key,
    ("Relation", "xid"): _subtransaction_xid,
    ("RollbackPrepared", "gid"): _free_gid,
    ("RollbackPrepared", "rollback_end_lsn"): _ordered_lsns,
    ("RollbackPrepared", "rollback_time"): "any time",
    ("RollbackPrepared", "xid"): _free_xid,
    ("StreamAbort", "abort_lsn"): _ordered_lsns,
    ("StreamAbort", "abort_time"): "any time",
    ("StreamAbort", "subxid"): _subtransaction_xid,
    ("StreamCommit", "commit_lsn"): _ordered_lsns,
    ("StreamCommit", "commit_time"): "any time",
    ("StreamCommit", "end_lsn"): _ordered_lsns,
    ("StreamPrepare", "end_lsn"): _prepared_lsns,
    ("StreamPrepare", "gid"): _free_gid,
    ("StreamPrepare", "prepare_lsn"): _prepared_lsns,
    ("StreamPrepare", "prepare_time"): "any time",
    ("StreamStart", "xid"): _other_streamed_transaction,
    ("Truncate", "options"): "any options",
    ("Truncate", "relation_oids"): _other_relation,
    ("Truncate", "xid"): _subtransaction_xid,
    ("Type", "name"): "any name",
    ("Type", "namespace"): "any name",
    ("Type", "xid"): _subtransaction_xid,
    ("Update", "key"): "any value",
    ("Update", "new"): "any value",
    ("Update", "old"): "any value",
    ("Update", "relation_oid"): _other_relation,
    ("Update", "xid"): _subtransaction_xid,
}
"""Reason why a changed field may be legal, or function that returns it, by (message name, field name)."""
