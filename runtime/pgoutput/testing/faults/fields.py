"""Faults in fields of messages: LSNs, xids, times, global transaction identifiers and flags."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pgoutput import messages as m
from pgoutput.messages import Message, MessageFlag
from pgoutput.testing.faults.model import Fault, Messages, Place, Stream

_CHANGES: Final = (m.Insert, m.Update, m.Delete, m.Truncate)
_RESOLVING: Final = (m.CommitPrepared, m.RollbackPrepared)
_MAX_LSN: Final = 2**64 - 1
_MAX_XID: Final = 2**32 - 1


def _increase(stream: Stream, position: int, kind: type[Message], field: str) -> Messages | None:
    place = stream.places[position]
    if not isinstance(place.message, kind) or place.opener is None:
        return None
    value = getattr(place.message, field)
    return stream.with_fields(position, **{field: value + "'" if isinstance(value, str) else value + 1})


def _commit_lsn(stream: Stream, position: int) -> Messages | None:
    return _increase(stream, position, m.Commit, "commit_lsn")


def _commit_time(stream: Stream, position: int) -> Messages | None:
    return _increase(stream, position, m.Commit, "commit_time")


def _end_lsn(stream: Stream, position: int) -> Messages | None:
    match stream.places[position].message:
        case m.Commit() | m.StreamCommit() | m.CommitPrepared() as message:
            return stream.with_fields(position, end_lsn=message.commit_lsn)
        case m.Prepare() | m.StreamPrepare() as prepare:
            return stream.with_fields(position, end_lsn=prepare.prepare_lsn)
        case m.RollbackPrepared() as rollback:
            return stream.with_fields(position, rollback_end_lsn=rollback.prepare_end_lsn)
    return None


def _early_lsn(stream: Stream, position: int) -> Messages | None:
    """Set the LSN of a message to 1, which is before the commit of an earlier transaction in the stream."""
    if not any(isinstance(place.message, m.Commit) for place in stream.places[:position]):
        return None
    match stream.places[position].message:
        case m.Begin():
            return stream.with_fields(position, final_lsn=1)
        case m.StreamCommit() | m.CommitPrepared():
            return stream.with_fields(position, commit_lsn=1)
        case m.StreamAbort(abort_lsn=lsn) if lsn:
            return stream.with_fields(position, abort_lsn=1)
        case m.LogicalMessage(flags=flags) if not flags & MessageFlag.TRANSACTIONAL:
            return stream.with_fields(position, lsn=1)
    return None


def _late_message_lsn(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    whole = isinstance(place.opener, m.Begin | m.BeginPrepare)
    return (
        stream.with_fields(position, lsn=_MAX_LSN)
        if whole and isinstance(place.message, m.LogicalMessage)
        else None
    )


def _prepare_fields(stream: Stream, position: int) -> Messages | None:
    fields = ("prepare_lsn", "prepare_time", "xid", "gid")
    return _increase(stream, position, m.Prepare, fields[position % len(fields)])


def _first_stream_segment(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    if not isinstance(message, m.StreamStart):
        return None
    return stream.with_fields(position, first_stream_segment=not message.first_stream_segment)


def _unknown_xid(stream: Stream, position: int) -> Messages | None:
    """Set the xid of Stream Start, Commit, Prepare or Abort to an xid of no open streamed transaction."""
    xid = next(xid for xid in range(_MAX_XID, 0, -1) if xid not in stream.places[position].streamed)
    match stream.places[position].message:
        case m.StreamStart(first_stream_segment=False) | m.StreamCommit() | m.StreamPrepare():
            return stream.with_fields(position, xid=xid)
        case m.StreamAbort():
            return stream.with_fields(position, xid=xid, subxid=xid)
    return None


def _xid_zero(stream: Stream, position: int) -> Messages | None:
    match stream.places[position].message:
        case m.Begin() | m.BeginPrepare() | m.StreamStart() | m.CommitPrepared() | m.RollbackPrepared():
            return stream.with_fields(position, xid=0)
    return None


def _xid_of_streamed(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not isinstance(place.message, m.Begin | m.BeginPrepare | _RESOLVING[0] | _RESOLVING[1]):
        return None
    return stream.with_fields(position, xid=min(place.streamed)) if place.streamed else None


def _earlier_xid(stream: Stream, position: int) -> Messages | None:
    """Set a message's xid in a stream block, or Stream Abort's subxid, to an xid outside the transaction."""
    place = stream.places[position]
    match place.message:
        case m.StreamAbort(xid=xid, subxid=subxid) if xid != subxid:
            return stream.with_fields(position, subxid=(xid - 1) % 2**32)
        case m.Insert() | m.Update() | m.Delete() | m.Truncate() | m.Relation() | m.Type() if place.block:
            return stream.with_fields(position, xid=(place.block - 1) % 2**32)
        case m.LogicalMessage() if place.block:
            return stream.with_fields(position, xid=place.block + 1)
    return None


def _xid_missing(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    inside = isinstance(place.message, _CHANGES) and place.block is not None
    return stream.with_fields(position, xid=None) if inside else None


def _xid_added(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not isinstance(place.message, _CHANGES) or place.block is not None or place.opener is None:
        return None
    changed = msgspec.structs.replace(place.message, xid=place.opener.xid)
    return _encoded_with_xid(stream, position, changed)


def _encoded_with_xid(stream: Stream, position: int, message: Any) -> Messages:
    """Return the stream's messages, with `message.xid` after the tag byte of the message at `position`.

    Encoding `message` would omit the xid in protocol version 1.
    """
    data = stream.messages[position]
    return stream.with_bytes(position, data[:1] + message.xid.to_bytes(4, "big") + data[1:])


def _abort_tail(stream: Stream, position: int) -> Messages | None:
    if not isinstance(stream.places[position].message, m.StreamAbort):
        return None
    data = stream.messages[position]
    return stream.with_bytes(position, data[:9] if len(data) > 9 else data + bytes(16))


def _transactional(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    if not isinstance(message, m.LogicalMessage):
        return None
    return stream.with_fields(position, flags=message.flags ^ MessageFlag.TRANSACTIONAL)


def _origin_lsn(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    inside = isinstance(place.message, m.Origin) and place.block is not None
    return stream.with_fields(position, origin_lsn=1) if inside else None


def _gid_in_use(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not isinstance(place.message, m.Prepare | m.StreamPrepare) or not place.prepared:
        return None
    return stream.with_fields(position, gid=min(place.prepared))


def _gid_resolved(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not isinstance(place.message, _RESOLVING):
        return None
    gone = [one.message.gid for one in stream.places[:position] if isinstance(one.message, _RESOLVING)]
    free = [gid for gid in gone if gid not in place.prepared]
    return stream.with_fields(position, gid=free[0]) if free else None


def _resolved(place: Place) -> m.CommitPrepared | m.RollbackPrepared | None:
    """Return `place.message` if it is a Commit Prepared or Rollback Prepared after its Prepare, else None."""
    message = place.message
    if isinstance(message, m.CommitPrepared | m.RollbackPrepared) and message.gid in place.prepared:
        return message
    return None


def _resolved_xid(stream: Stream, position: int) -> Messages | None:
    message = _resolved(stream.places[position])
    return None if message is None else stream.with_fields(position, xid=message.xid + 1)


def _resolved_gid(stream: Stream, position: int) -> Messages | None:
    return None if _resolved(stream.places[position]) is None else stream.with_fields(position, gid="")


def _resolved_fields(stream: Stream, position: int) -> Messages | None:
    message = _resolved(stream.places[position])
    if not isinstance(message, m.RollbackPrepared):
        return None
    field = ("prepare_end_lsn", "prepare_time")[position % 2]
    return stream.with_fields(position, **{field: getattr(message, field) - 1})


def _long_gid(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    if not isinstance(message, (m.BeginPrepare, m.StreamPrepare, *_RESOLVING)):
        return None
    return stream.with_fields(position, gid="g" * 200)


FAULTS: Final = (
    Fault(name="commit-lsn", doc="A Commit has another LSN than its Begin.", apply=_commit_lsn),
    Fault(name="commit-time", doc="A Commit has another time than its Begin.", apply=_commit_time),
    Fault(name="end-lsn", doc="An end LSN is not after the start LSN.", apply=_end_lsn),
    Fault(name="lsn-back", doc="An LSN is before the end of an earlier transaction.", apply=_early_lsn),
    Fault(
        name="message-lsn",
        doc="The LSN of a logical message is after its transaction's end.",
        apply=_late_message_lsn,
    ),
    Fault(
        name="prepare-fields",
        doc="A field of a Prepare differs from its Begin Prepare.",
        apply=_prepare_fields,
    ),
    Fault(
        name="first-segment",
        doc="The flag for the first block of a transaction is wrong.",
        apply=_first_stream_segment,
    ),
    Fault(name="xid-unknown", doc="The xid is not that of a streamed transaction.", apply=_unknown_xid),
    Fault(name="xid-zero", doc="A transaction has the xid 0.", apply=_xid_zero),
    Fault(name="xid-in-use", doc="The xid is that of an open streamed transaction.", apply=_xid_of_streamed),
    Fault(name="xid-in-block", doc="The xid is not in the streamed transaction.", apply=_earlier_xid),
    Fault(name="xid-missing", doc="A change in a stream block has no xid.", apply=_xid_missing),
    Fault(name="xid-added", doc="A change outside of stream blocks has an xid.", apply=_xid_added),
    Fault(
        name="abort-tail",
        doc="A Stream Abort has or lacks LSN and time, against the option streaming.",
        apply=_abort_tail,
    ),
    Fault(
        name="transactional",
        doc="The transactional flag of a logical message is inverted.",
        apply=_transactional,
    ),
    Fault(name="origin-lsn", doc="An Origin in a stream block has an LSN.", apply=_origin_lsn),
    Fault(name="gid-in-use", doc="A transaction is prepared with a gid in use.", apply=_gid_in_use),
    Fault(
        name="gid-resolved",
        doc="A prepared transaction is resolved by an already resolved gid.",
        apply=_gid_resolved,
    ),
    Fault(
        name="gid-other", doc="A resolved transaction has another gid than its Prepare.", apply=_resolved_gid
    ),
    Fault(name="gid-long", doc="A gid has 200 bytes.", apply=_long_gid),
    Fault(
        name="resolved-xid",
        doc="A resolved transaction has another xid than its Prepare.",
        apply=_resolved_xid,
    ),
    Fault(
        name="resolved-fields",
        doc="A Rollback Prepared has another prepare end LSN or time than its Prepare.",
        apply=_resolved_fields,
    ),
)
