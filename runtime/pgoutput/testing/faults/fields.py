"""Faults in fields of messages: LSNs, xids, times, global transaction identifiers and flags."""

from __future__ import annotations

from typing import Final

from pgoutput import _protocols
from pgoutput._roles import CHANGES, ENDS, OPENERS, has_role, is_transactional, meaning_of
from pgoutput.messages import Message, MessageFlag
from pgoutput.stream import encode_for
from pgoutput.testing.faults.model import Fault, Messages, Place, Stream, replaced

_RESOLVING: Final = ("commit_prepared", "rollback_prepared")
_MAX_LSN: Final = 2**64 - 1
_MAX_XID: Final = 2**32 - 1


def _increase(stream: Stream, position: int, role: str, meaning: str) -> Messages | None:
    place = stream.places[position]
    value = meaning_of(place.message, meaning)
    if not has_role(place.message, role) or place.opener is None or value is None:
        return None
    return stream.with_fields(position, **{meaning: value + "'" if isinstance(value, str) else value + 1})


def _commit_lsn(stream: Stream, position: int) -> Messages | None:
    return _increase(stream, position, "commit", "lsn")


def _commit_time(stream: Stream, position: int) -> Messages | None:
    return _increase(stream, position, "commit", "time")


def _end_lsn(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    if not has_role(message, *ENDS):
        return None
    start = "prepare_end_lsn" if has_role(message, "rollback_prepared") else "lsn"
    return stream.with_fields(position, end_lsn=meaning_of(message, start))


def _early_lsn(stream: Stream, position: int) -> Messages | None:
    """Set the LSN of a message to 1, which is before the commit of an earlier transaction in the stream."""
    if not any(has_role(place.message, "commit") for place in stream.places[:position]):
        return None
    message = stream.places[position].message
    if has_role(message, "abort_streamed"):
        is_ordered = bool(meaning_of(message, "lsn"))
    elif has_role(message, "payload"):
        is_ordered = not is_transactional(message)
    else:
        is_ordered = has_role(message, "begin", "commit_streamed", "commit_prepared")
    return stream.with_fields(position, lsn=1) if is_ordered else None


def _late_message_lsn(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    whole = has_role(place.opener, "begin", "begin_prepare")
    has_lsn = has_role(place.message, "payload") and meaning_of(place.message, "lsn") is not None
    return stream.with_fields(position, lsn=_MAX_LSN) if whole and has_lsn else None


def _prepare_fields(stream: Stream, position: int) -> Messages | None:
    fields = ("lsn", "time", "xid", "gid")
    return _increase(stream, position, "prepare", fields[position % len(fields)])


def _first_stream_segment(stream: Stream, position: int) -> Messages | None:
    is_first = meaning_of(stream.places[position].message, "first_block")
    return None if is_first is None else stream.with_fields(position, first_block=not is_first)


def _unknown_xid(stream: Stream, position: int) -> Messages | None:
    """Set the xid of Stream Start, Commit, Prepare or Abort to an xid of no open streamed transaction."""
    xid = next(xid for xid in range(_MAX_XID, 0, -1) if xid not in stream.places[position].streamed)
    message = stream.places[position].message
    if has_role(message, "abort_streamed"):
        return stream.with_fields(position, xid=xid, subxid=xid)
    follows_block = has_role(message, "commit_streamed", "prepare_streamed")
    if follows_block or meaning_of(message, "first_block") is False:
        return stream.with_fields(position, xid=xid)
    return None


def _xid_zero(stream: Stream, position: int) -> Messages | None:
    has_xid = has_role(stream.places[position].message, *OPENERS, *_RESOLVING)
    return stream.with_fields(position, xid=0) if has_xid else None


def _xid_of_streamed(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not has_role(place.message, "begin", "begin_prepare", *_RESOLVING):
        return None
    return stream.with_fields(position, xid=min(place.streamed)) if place.streamed else None


def _earlier_xid(stream: Stream, position: int) -> Messages | None:
    """Set a message's xid in a stream block, or Stream Abort's subxid, to an xid outside the transaction."""
    place = stream.places[position]
    message = place.message
    if has_role(message, "abort_streamed"):
        xid = meaning_of(message, "xid")
        differs = meaning_of(message, "subxid") != xid
        return stream.with_fields(position, subxid=(xid - 1) % 2**32) if differs else None
    if not place.block:
        return None
    if meaning_of(message, "subxid") is not None:
        return stream.with_fields(position, subxid=(place.block - 1) % 2**32)
    is_payload = has_role(message, "payload") and meaning_of(message, "xid") is not None
    return stream.with_fields(position, xid=place.block + 1) if is_payload else None


def _xid_missing(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    inside = has_role(place.message, *CHANGES) and place.block is not None
    return stream.with_fields(position, subxid=None) if inside else None


def _xid_added(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not has_role(place.message, *CHANGES) or place.block is not None or place.opener is None:
        return None
    changed = replaced(place.message, subxid=meaning_of(place.opener, "xid"))
    return _encoded_anyway(stream, position, changed, "subxid")


def _encoded_anyway(stream: Stream, position: int, message: Message, meaning: str) -> Messages:
    """Return the stream with `message` at `position`, encoded in a version that has the field `meaning`."""
    layout = _protocols.ALL_VERSIONS.by_name[type(message).__name__]
    since = next(field.since for field in layout.members if field.means == meaning)
    return stream.with_bytes(position, encode_for(message, max(since, stream.options.proto_version)))


def _abort_tail(stream: Stream, position: int) -> Messages | None:
    message = stream.places[position].message
    if not has_role(message, "abort_streamed"):
        return None
    value = 0 if meaning_of(message, "lsn") is None else None
    return _encoded_anyway(stream, position, replaced(message, lsn=value, time=value), "lsn")


def _transactional(stream: Stream, position: int) -> Messages | None:
    flags = meaning_of(stream.places[position].message, "transactional")
    if flags is None:
        return None
    return stream.with_fields(position, transactional=flags ^ MessageFlag.TRANSACTIONAL)


def _origin_lsn(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    inside = has_role(place.message, "origin") and place.block is not None
    return stream.with_fields(position, lsn=1) if inside else None


def _gid_in_use(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not has_role(place.message, "prepare", "prepare_streamed") or not place.prepared:
        return None
    return stream.with_fields(position, gid=min(place.prepared))


def _gid_resolved(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not has_role(place.message, *_RESOLVING):
        return None
    earlier = (one.message for one in stream.places[:position])
    gone = (meaning_of(message, "gid") for message in earlier if has_role(message, *_RESOLVING))
    free = [gid for gid in gone if gid not in place.prepared]
    return stream.with_fields(position, gid=free[0]) if free else None


def _is_resolved(place: Place) -> bool:
    """Return whether `place.message` commits or rolls back a transaction that the stream prepared before."""
    return has_role(place.message, *_RESOLVING) and meaning_of(place.message, "gid") in place.prepared


def _resolved_xid(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    xid = meaning_of(place.message, "xid")
    return stream.with_fields(position, xid=xid + 1) if _is_resolved(place) else None


def _resolved_gid(stream: Stream, position: int) -> Messages | None:
    return stream.with_fields(position, gid="") if _is_resolved(stream.places[position]) else None


def _resolved_fields(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    meaning = ("prepare_end_lsn", "prepare_time")[position % 2]
    value = meaning_of(place.message, meaning)
    if not _is_resolved(place) or value is None:
        return None
    return stream.with_fields(position, **{meaning: value - 1})


def _long_gid(stream: Stream, position: int) -> Messages | None:
    has_gid = has_role(stream.places[position].message, "begin_prepare", "prepare_streamed", *_RESOLVING)
    return stream.with_fields(position, gid="g" * 200) if has_gid else None


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
