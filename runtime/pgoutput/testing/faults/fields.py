"""Faults of fields: of LSNs, xids, times, gids and flags."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pgoutput import messages as m
from pgoutput.messages import Message, MessageFlag
from pgoutput.testing.faults.model import Fault, Messages, Place, Stream

_CHANGES: Final = (m.Insert, m.Update, m.Delete, m.Truncate)
_RESOLVES: Final = (m.CommitPrepared, m.RollbackPrepared)
_MAX_LSN: Final = 2**64 - 1
_MAX_XID: Final = 2**32 - 1


def _with(stream: Stream, position: int, **fields: Any) -> Messages:
    changed = msgspec.structs.replace(stream.places[position].message, **fields)
    return stream.with_message(position, changed)


def _increase(stream: Stream, position: int, kind: type[Message], field: str) -> Messages | None:
    place = stream.places[position]
    if not isinstance(place.message, kind) or place.opener is None:
        return None
    value = getattr(place.message, field)
    return _with(stream, position, **{field: value + "'" if isinstance(value, str) else value + 1})


def _commit_lsn(stream: Stream, position: int) -> Messages | None:
    return _increase(stream, position, m.Commit, "commit_lsn")


def _commit_time(stream: Stream, position: int) -> Messages | None:
    return _increase(stream, position, m.Commit, "commit_time")


def _end_lsn(stream: Stream, position: int) -> Messages | None:
    match stream.places[position].message:
        case m.Commit() | m.StreamCommit() | m.CommitPrepared() as message:
            return _with(stream, position, end_lsn=message.commit_lsn)
        case m.Prepare() | m.StreamPrepare() as prepare:
            return _with(stream, position, end_lsn=prepare.prepare_lsn)
        case m.RollbackPrepared() as rollback:
            return _with(stream, position, rollback_end_lsn=rollback.prepare_end_lsn)
    return None


def _early(stream: Stream, position: int) -> Messages | None:
    """Back before what has ended; of messages that come at once, or end a transaction that began long ago."""
    if not any(isinstance(place.message, m.Commit) for place in stream.places[:position]):
        return None
    match stream.places[position].message:
        case m.Begin():
            return _with(stream, position, final_lsn=1)
        case m.StreamCommit() | m.CommitPrepared():
            return _with(stream, position, commit_lsn=1)
        case m.StreamAbort(abort_lsn=lsn) if lsn:
            return _with(stream, position, abort_lsn=1)
        case m.LogicalMessage(flags=flags) if not flags & MessageFlag.TRANSACTIONAL:
            return _with(stream, position, lsn=1)
    return None


def _message_late(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    whole = isinstance(place.opener, m.Begin | m.BeginPrepare)
    return (
        _with(stream, position, lsn=_MAX_LSN)
        if whole and isinstance(place.message, m.LogicalMessage)
        else None
    )


def _prepare_fields(stream: Stream, position: int) -> Messages | None:
    fields = ("prepare_lsn", "prepare_time", "xid", "gid")
    return _increase(stream, position, m.Prepare, fields[position % len(fields)])


def _first_segment(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    if not isinstance(message, m.StreamStart):
        return None
    return _with(stream, position, first_segment=not message.first_segment)


def _xid_of_none(stream: Stream, position: int) -> Messages | None:
    """The xid of a transaction that has not come in blocks."""
    xid = next(xid for xid in range(_MAX_XID, 0, -1) if xid not in stream.places[position].streamed)
    match stream.places[position].message:
        case m.StreamStart(first_segment=False) | m.StreamCommit() | m.StreamPrepare():
            return _with(stream, position, xid=xid)
        case m.StreamAbort():
            return _with(stream, position, xid=xid, subxid=xid)
    return None


def _xid_zero(stream: Stream, position: int) -> Messages | None:
    match stream.places[position].message:
        case m.Begin() | m.BeginPrepare() | m.StreamStart() | m.CommitPrepared() | m.RollbackPrepared():
            return _with(stream, position, xid=0)
    return None


def _xid_of_streamed(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not isinstance(place.message, m.Begin | m.BeginPrepare | _RESOLVES[0] | _RESOLVES[1]):
        return None
    return _with(stream, position, xid=min(place.streamed)) if place.streamed else None


def _earlier_xid(stream: Stream, position: int) -> Messages | None:
    """Of a change in a block, or of a savepoint: an xid from before its transaction."""
    place = stream.places[position]
    match place.message:
        case m.StreamAbort(xid=xid, subxid=subxid) if xid != subxid:
            return _with(stream, position, subxid=(xid - 1) % 2**32)
        case m.Insert() | m.Update() | m.Delete() | m.Truncate() | m.Relation() | m.Type() if place.block:
            return _with(stream, position, xid=(place.block - 1) % 2**32)
        case m.LogicalMessage() if place.block:
            return _with(stream, position, xid=place.block + 1)
    return None


def _xid_missing(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    inside = isinstance(place.message, _CHANGES) and place.block is not None
    return _with(stream, position, xid=None) if inside else None


def _xid_added(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not isinstance(place.message, _CHANGES) or place.block is not None or place.opener is None:
        return None
    changed = msgspec.structs.replace(place.message, xid=place.opener.xid)
    return _encoded_with_xid(stream, position, changed)


def _encoded_with_xid(stream: Stream, position: int, message: Any) -> Messages:
    """Also in version 1, which has no xid there."""
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
    return _with(stream, position, flags=message.flags ^ MessageFlag.TRANSACTIONAL)


def _origin_lsn(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    inside = isinstance(place.message, m.Origin) and place.block is not None
    return _with(stream, position, origin_lsn=1) if inside else None


def _gid_in_use(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not isinstance(place.message, m.Prepare | m.StreamPrepare) or not place.prepared:
        return None
    return _with(stream, position, gid=min(place.prepared))


def _gid_resolved(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not isinstance(place.message, _RESOLVES):
        return None
    gone = [one.message.gid for one in stream.places[:position] if isinstance(one.message, _RESOLVES)]
    free = [gid for gid in gone if gid not in place.prepared]
    return _with(stream, position, gid=free[0]) if free else None


def _resolved(place: Place) -> m.CommitPrepared | m.RollbackPrepared | None:
    """The message, if it commits or rolls back what was prepared in this stream."""
    message = place.message
    if isinstance(message, m.CommitPrepared | m.RollbackPrepared) and message.gid in place.prepared:
        return message
    return None


def _resolved_xid(stream: Stream, position: int) -> Messages | None:
    message = _resolved(stream.places[position])
    return None if message is None else _with(stream, position, xid=message.xid + 1)


def _resolved_gid(stream: Stream, position: int) -> Messages | None:
    return None if _resolved(stream.places[position]) is None else _with(stream, position, gid="")


def _resolved_fields(stream: Stream, position: int) -> Messages | None:
    message = _resolved(stream.places[position])
    if not isinstance(message, m.RollbackPrepared):
        return None
    field = ("prepare_end_lsn", "prepare_time")[position % 2]
    return _with(stream, position, **{field: getattr(message, field) - 1})


def _long_gid(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    if not isinstance(message, (m.BeginPrepare, m.StreamPrepare, *_RESOLVES)):
        return None
    return _with(stream, position, gid="g" * 200)


FAULTS: Final = (
    Fault(name="commit-lsn", doc="A Commit has another LSN than its Begin.", make=_commit_lsn),
    Fault(name="commit-time", doc="A Commit has another time than its Begin.", make=_commit_time),
    Fault(name="end-lsn", doc="An end LSN is not beyond the start.", make=_end_lsn),
    Fault(name="lsn-back", doc="An LSN is before what has ended.", make=_early),
    Fault(name="message-lsn", doc="A logical message is beyond its transaction's end.", make=_message_late),
    Fault(name="prepare-fields", doc="A Prepare is not as its Begin Prepare.", make=_prepare_fields),
    Fault(name="first-segment", doc="A block says wrongly whether it is the first.", make=_first_segment),
    Fault(name="xid-unknown", doc="The xid is of no transaction that has come in blocks.", make=_xid_of_none),
    Fault(name="xid-zero", doc="A transaction has the xid 0.", make=_xid_zero),
    Fault(name="xid-in-use", doc="The xid is of a transaction that comes in blocks.", make=_xid_of_streamed),
    Fault(name="xid-in-block", doc="The xid does not belong to the transaction.", make=_earlier_xid),
    Fault(name="xid-missing", doc="A change in a block has no xid.", make=_xid_missing),
    Fault(name="xid-added", doc="A change outside of blocks has an xid.", make=_xid_added),
    Fault(
        name="abort-tail", doc="A Stream Abort has LSN and time, or lacks them, wrongly.", make=_abort_tail
    ),
    Fault(
        name="transactional",
        doc="A logical message says otherwise whether it is transactional.",
        make=_transactional,
    ),
    Fault(name="origin-lsn", doc="An Origin in a block has an LSN.", make=_origin_lsn),
    Fault(name="gid-in-use", doc="What is prepared has the gid of another that is.", make=_gid_in_use),
    Fault(name="gid-resolved", doc="What is resolved has the gid of what was before.", make=_gid_resolved),
    Fault(name="gid-other", doc="What is resolved has another gid than its Prepare.", make=_resolved_gid),
    Fault(name="gid-long", doc="A gid has 200 bytes.", make=_long_gid),
    Fault(name="resolved-xid", doc="What is resolved has another xid than its Prepare.", make=_resolved_xid),
    Fault(
        name="resolved-fields",
        doc="What is rolled back has another end or time than its Prepare.",
        make=_resolved_fields,
    ),
)
