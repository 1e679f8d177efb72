"""Rules about the IDs of transactions and subtransactions."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput._roles import OPENERS, classes, has_role, meaning_of
from pgoutput.messages import Message
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Breach, Rule
from pgoutput.stream.check.state import StreamState

_FIRST_NORMAL_XID: Final = 3


def _aborted_subxid(state: StreamState, message: Message) -> Breach | None:
    top, subxid = meaning_of(message, "xid"), meaning_of(message, "subxid")
    if top == subxid or top not in state.streamed:
        return None
    if subxid in state.streamed[top].aborted:
        return "subxid", f"subtransaction {subxid} is rolled back already"
    return _not_subtransaction(state, top, subxid, "subxid")


def _not_subtransaction(state: StreamState, top: int, subxid: int, path: str) -> Breach | None:
    """Return why `subxid` cannot be a subtransaction of transaction `top`, or None if it can."""
    owner = state.top_xids.get(subxid)
    if owner is not None and owner != top:
        return path, f"{subxid} is a subtransaction of {owner}, not of {top}"
    if subxid in state.streamed:
        return path, f"{subxid} is a transaction of its own, not a subtransaction of {top}"
    if (subxid - top) % 2**32 >= 2**31 or subxid < _FIRST_NORMAL_XID:
        return path, f"{subxid} is before {top}, but subtransactions get later xids than their transaction"
    return None


def _block_xid(state: StreamState, message: Message) -> Breach | None:
    if state.open is None or (streamed := state.open.streamed) is None or state.open.opener is None:
        return None
    xid = meaning_of(message, "subxid")
    if xid is None or xid == streamed.xid:
        return None
    if xid in streamed.aborted:
        return "xid", f"subtransaction {xid} is rolled back already"
    return None if xid in streamed.subxids else _not_subtransaction(state, streamed.xid, xid, "xid")


def _message_xid(state: StreamState, message: Message) -> Breach | None:
    xid = meaning_of(message, "xid")
    if xid is None or state.open is None or state.open.streamed is None or state.open.opener is None:
        return None
    if xid == state.open.streamed.xid:
        return None
    return "xid", f"the block belongs to transaction {state.open.streamed.xid}, not {xid}"


def _special_xid(state: StreamState, message: Message) -> Breach | None:
    xid = meaning_of(message, "xid")
    if xid >= _FIRST_NORMAL_XID:
        return None
    return "xid", f"transaction ids are {_FIRST_NORMAL_XID} or higher, not {xid}"


def _xid_in_use(state: StreamState, message: Message) -> Breach | None:
    xid = meaning_of(message, "xid")
    if xid in state.streamed and not has_role(message, "open_block"):
        return "xid", f"transaction {xid} is being streamed and has not ended"
    if xid in state.top_xids:
        return "xid", f"{xid} is a subtransaction of {state.top_xids[xid]}, which has not ended"
    gid = state.gid_by_xid.get(xid)
    if gid is not None and not state.prepared[gid].resent:
        return "xid", f"transaction {xid} is prepared as {gid!r}, and has not ended"
    return None


RULES: Final = (
    Rule(
        name="savepoint-xid",
        doc="Stream Abort rolls back a subtransaction of its transaction, and only once.",
        source="ReorderBufferAbort, DecodeAbort",
        on=classes("abort_streamed"),
        check=_aborted_subxid,
        legal=(*s.BLOCK, s.SAVEPOINT_ABORT, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, s.SAVEPOINT_ABORT, s.SAVEPOINT_ABORT, s.STREAM_COMMIT),
    ),
    Rule(
        name="block-xid",
        doc="Changes in a stream block have the xid of its transaction or of a subtransaction: a later "
        "xid that belongs to no other transaction and was not rolled back.",
        source="pgoutput_change, maybe_send_schema",
        on=classes("insert", "update", "delete", "truncate", "relation", "type"),
        check=_block_xid,
        in_blocks=True,
        legal=(*s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.BLOCK[:-1], m.Insert(s.OID, ("4", ""), xid=s.TOP - 1), s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="message-xid",
        doc="A logical message in a stream block has the xid of the transaction, not of a subtransaction.",
        source="pgoutput_message",
        on=classes("payload"),
        check=_message_xid,
        in_blocks=True,
        legal=(s.FIRST, m.LogicalMessage(1, 900, "p", b"", xid=s.TOP), s.STOP, s.STREAM_COMMIT),
        illegal=(s.FIRST, m.LogicalMessage(1, 900, "p", b"", xid=s.SUB), s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="xid-normal",
        doc="Transaction ids are 3 or higher.",
        source="GetNewTransactionId (FirstNormalTransactionId)",
        on=classes(*OPENERS, "commit_prepared", "rollback_prepared"),
        check=_special_xid,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(m.Begin(1_000, 0, 0), s.RELATION, s.INSERT, s.COMMIT),
    ),
    Rule(
        name="xid-in-use",
        doc="A transaction does not begin with the xid of another transaction that has not ended.",
        source="GetNewTransactionId",
        on=classes(*OPENERS),
        check=_xid_in_use,
        legal=(*s.BLOCK, *s.transaction(s.RELATION, s.INSERT), s.STREAM_COMMIT),
        illegal=(*s.BLOCK, m.Begin(1_000, 0, s.TOP), s.RELATION, s.INSERT, s.COMMIT, s.STREAM_COMMIT),
    ),
)
