"""Faults in fields of messages: LSNs, xids, times, global transaction identifiers and flags."""

from __future__ import annotations

from typing import Final

from logicalrep import _protocols
from logicalrep._roles import CHANGES, ENDS, OPENERS, has_role, is_transactional, meaning_of
from logicalrep.messages import MessageFlag
from logicalrep.stream import encode_for
from logicalrep.testing.faults.model import Fields, Messages, Place, Stream, fault, field_fault, replaced

_RESOLVING: Final = ("commit_prepared", "rollback_prepared")
_MAX_LSN: Final = 2**64 - 1
_MAX_XID: Final = 2**32 - 1


def _increased(place: Place, role: str, meaning: str) -> Fields | None:
    value = meaning_of(place.message, meaning)
    if not has_role(place.message, role) or place.opener is None or value is None:
        return None
    return {meaning: value + "'" if isinstance(value, str) else value + 1}


@field_fault("commit-lsn", "A Commit has another LSN than its Begin.")
def _commit_lsn(place: Place) -> Fields | None:
    return _increased(place, "commit", "lsn")


@field_fault("commit-time", "A Commit has another time than its Begin.")
def _commit_time(place: Place) -> Fields | None:
    return _increased(place, "commit", "time")


@field_fault("end-lsn", "An end LSN is not after the start LSN.")
def _end_lsn(place: Place) -> Fields | None:
    start = "prepare_end_lsn" if has_role(place.message, "rollback_prepared") else "lsn"
    return {"end_lsn": meaning_of(place.message, start)} if has_role(place.message, *ENDS) else None


@fault("lsn-back", "An LSN is before the end of an earlier transaction.")
def _early_lsn(stream: Stream, position: int) -> Messages | None:
    """Return the encoded messages of a stream, with the LSN 1 in the message at `position`.

    This LSN is lower than that of an earlier Commit. Return None if no Commit precedes the message, or if a
    server may send the message with a lower LSN than that of the Commit.
    """
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


@field_fault("message-lsn", "The LSN of a logical message is after its transaction's end.")
def _late_message_lsn(place: Place) -> Fields | None:
    whole = has_role(place.opener, "begin", "begin_prepare")
    has_lsn = has_role(place.message, "payload") and meaning_of(place.message, "lsn") is not None
    return {"lsn": _MAX_LSN} if whole and has_lsn else None


@field_fault("prepare-fields", "A field of a Prepare differs from its Begin Prepare.")
def _prepare_fields(place: Place) -> Fields | None:
    meanings = ("lsn", "time", "xid", "gid")
    return _increased(place, "prepare", meanings[place.position % len(meanings)])


@field_fault("first-segment", "The flag for the first block of a transaction is wrong.")
def _first_stream_segment(place: Place) -> Fields | None:
    is_first = meaning_of(place.message, "first_block")
    return None if is_first is None else {"first_block": not is_first}


@field_fault("xid-unknown", "The xid is not that of a streamed transaction.")
def _unknown_xid(place: Place) -> Fields | None:
    """Return the xid of no open streamed transaction, for Stream Start, Commit, Prepare or Abort.

    Return None for other messages, and for the first Stream Start of a transaction.
    """
    xid = next(xid for xid in range(_MAX_XID, 0, -1) if xid not in place.streamed)
    if has_role(place.message, "abort_streamed"):
        return {"xid": xid, "subxid": xid}
    follows_block = has_role(place.message, "commit_streamed", "prepare_streamed")
    return {"xid": xid} if follows_block or meaning_of(place.message, "first_block") is False else None


@field_fault("xid-zero", "A transaction has the xid 0.")
def _xid_zero(place: Place) -> Fields | None:
    return {"xid": 0} if has_role(place.message, *OPENERS, *_RESOLVING) else None


@field_fault("xid-in-use", "The xid is that of an open streamed transaction.")
def _xid_of_streamed(place: Place) -> Fields | None:
    has_xid = has_role(place.message, "begin", "begin_prepare", *_RESOLVING)
    return {"xid": min(place.streamed)} if has_xid and place.streamed else None


@field_fault("xid-in-block", "The xid is not in the streamed transaction.")
def _earlier_xid(place: Place) -> Fields | None:
    """Return a wrong xid for a message in a stream block, or a wrong subxid for Stream Abort.

    The wrong xid is the xid of the transaction minus 1 (no subtransaction has a lower xid than its
    transaction), or plus 1 for a logical message. Return None for a message without such a field, and for the
    Stream Abort of a whole transaction.
    """
    message = place.message
    if has_role(message, "abort_streamed"):
        xid = meaning_of(message, "xid")
        return {"subxid": (xid - 1) % 2**32} if meaning_of(message, "subxid") != xid else None
    if not place.block:
        return None
    if meaning_of(message, "subxid") is not None:
        return {"subxid": (place.block - 1) % 2**32}
    is_payload = has_role(message, "payload") and meaning_of(message, "xid") is not None
    return {"xid": place.block + 1} if is_payload else None


@field_fault("xid-missing", "A change in a stream block has no xid.")
def _xid_missing(place: Place) -> Fields | None:
    return {"subxid": None} if has_role(place.message, *CHANGES) and place.block is not None else None


@fault("xid-added", "A change outside of stream blocks has an xid.")
def _xid_added(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not has_role(place.message, *CHANGES) or place.block is not None or place.opener is None:
        return None
    return _encoded_anyway(stream, place, {"subxid": meaning_of(place.opener, "xid")})


@fault("abort-tail", "A Stream Abort has or lacks LSN and time, against the option streaming.")
def _abort_tail(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not has_role(place.message, "abort_streamed"):
        return None
    value = 0 if meaning_of(place.message, "lsn") is None else None
    return _encoded_anyway(stream, place, {"lsn": value, "time": value})


def _encoded_anyway(stream: Stream, place: Place, fields: Fields) -> Messages:
    """Return the stream's encoded messages, with the new values `fields` in the message at `place`.

    If the stream's protocol version lacks one of these fields, this message is encoded in the first version
    that has all of them.
    """
    layout = _protocols.ALL_VERSIONS.by_name[type(place.message).__name__]
    since = max(field.since for field in layout.members if field.means in fields)
    message = replaced(place.message, fields)
    return stream.with_bytes(place.position, encode_for(message, max(since, stream.options.proto_version)))


@field_fault("transactional", "The transactional flag of a logical message is inverted.")
def _transactional(place: Place) -> Fields | None:
    flags = meaning_of(place.message, "transactional")
    return None if flags is None else {"transactional": flags ^ MessageFlag.TRANSACTIONAL}


@field_fault("origin-lsn", "An Origin in a stream block has an LSN.")
def _origin_lsn(place: Place) -> Fields | None:
    return {"lsn": 1} if has_role(place.message, "origin") and place.block is not None else None


@field_fault("gid-in-use", "A transaction is prepared with a gid in use.")
def _gid_in_use(place: Place) -> Fields | None:
    prepares = has_role(place.message, "prepare", "prepare_streamed")
    return {"gid": min(place.prepared)} if prepares and place.prepared else None


@fault("gid-resolved", "A prepared transaction is resolved by an already resolved gid.")
def _gid_resolved(stream: Stream, position: int) -> Messages | None:
    place = stream.places[position]
    if not has_role(place.message, *_RESOLVING):
        return None
    earlier = (one.message for one in stream.places[:position])
    gone = (meaning_of(message, "gid") for message in earlier if has_role(message, *_RESOLVING))
    free = [gid for gid in gone if gid not in place.prepared]
    return stream.with_fields(position, gid=free[0]) if free else None


def _is_resolved(place: Place) -> bool:
    """Return whether the message commits or rolls back a transaction that an earlier message prepared."""
    return has_role(place.message, *_RESOLVING) and meaning_of(place.message, "gid") in place.prepared


@field_fault("gid-other", "A resolved transaction has another gid than its Prepare.")
def _resolved_gid(place: Place) -> Fields | None:
    return {"gid": ""} if _is_resolved(place) else None


@field_fault("gid-long", "A gid has 200 bytes.")
def _long_gid(place: Place) -> Fields | None:
    has_gid = has_role(place.message, "begin_prepare", "prepare_streamed", *_RESOLVING)
    return {"gid": "g" * 200} if has_gid else None


@field_fault("resolved-xid", "A resolved transaction has another xid than its Prepare.")
def _resolved_xid(place: Place) -> Fields | None:
    return {"xid": meaning_of(place.message, "xid") + 1} if _is_resolved(place) else None


@field_fault("resolved-fields", "A Rollback Prepared has another prepare end LSN or time than its Prepare.")
def _resolved_fields(place: Place) -> Fields | None:
    meaning = ("prepare_end_lsn", "prepare_time")[place.position % 2]
    value = meaning_of(place.message, meaning)
    return None if value is None or not _is_resolved(place) else {meaning: value - 1}
