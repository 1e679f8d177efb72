"""Rules of xids: of transactions and subtransactions."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Fault, Rule
from pgoutput.stream.check.state import State

_BEGINS: Final = (m.Begin, m.BeginPrepare, m.StreamStart)

_FIRST_NORMAL_XID: Final = 3


def _aborted_subxid(state: State, message: m.StreamAbort) -> Fault | None:
    top, subxid = message.xid, message.subxid
    if top == subxid or top not in state.streamed:
        return None
    if subxid in state.streamed[top].aborted:
        return "subxid", f"subtransaction {subxid} is rolled back already"
    return _foreign(state, top, subxid, "subxid")


def _foreign(state: State, top: int, subxid: int, path: str) -> Fault | None:
    """Why it cannot be a subtransaction of `top`."""
    owner = state.owners.get(subxid)
    if owner is not None and owner != top:
        return path, f"{subxid} is a subtransaction of {owner}, not of {top}"
    if subxid in state.streamed:
        return path, f"{subxid} is a transaction of its own, not a subtransaction of {top}"
    if (subxid - top) % 2**32 >= 2**31 or subxid < _FIRST_NORMAL_XID:
        return path, f"subtransactions get their xids later than {top}, which {subxid} is not"
    return None


def _block_xid(state: State, message: m.Insert) -> Fault | None:
    xid = message.xid
    if xid is None or state.open is None or (work := state.open.work) is None or xid == work.xid:
        return None
    if state.open.opener is None:
        return None
    if xid in work.aborted:
        return "xid", f"subtransaction {xid} is rolled back already"
    return None if xid in work.subxids else _foreign(state, work.xid, xid, "xid")


def _message_xid(state: State, message: m.LogicalMessage) -> Fault | None:
    if message.xid is None or state.open is None or state.open.work is None or state.open.opener is None:
        return None
    if message.xid == state.open.work.xid:
        return None
    return "xid", f"the block is one of transaction {state.open.work.xid}, not {message.xid}"


def _not_normal(state: State, message: m.Begin) -> Fault | None:
    if message.xid >= _FIRST_NORMAL_XID:
        return None
    return "xid", f"transactions have xids of {_FIRST_NORMAL_XID} and up, not {message.xid}"


def _busy_xid(state: State, message: m.Begin | m.BeginPrepare | m.StreamStart) -> Fault | None:
    xid = message.xid
    if xid in state.streamed and not isinstance(message, m.StreamStart):
        return "xid", f"transaction {xid} is coming in blocks, and has not ended"
    if xid in state.owners:
        return "xid", f"{xid} is a subtransaction of {state.owners[xid]}, which has not ended"
    gid = state.gids.get(xid)
    if gid is not None and not state.parked[gid].resent:
        return "xid", f"transaction {xid} is prepared as {gid!r}, and has not ended"
    return None


RULES: Final = (
    Rule(
        name="savepoint-xid",
        doc="What Stream Abort rolls back is a subtransaction of its transaction, and was not rolled back "
        "before.",
        source="ReorderBufferAbort, DecodeAbort",
        on=(m.StreamAbort,),
        broken=_aborted_subxid,
        legal=(*s.BLOCK, s.SAVEPOINT_ABORT, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, s.SAVEPOINT_ABORT, s.SAVEPOINT_ABORT, s.STREAM_COMMIT),
    ),
    Rule(
        name="block-xid",
        doc="What comes in a block has the xid of its transaction, or of a subtransaction of that: one "
        "whose xid is later, that belongs to no other, and that was not rolled back.",
        source="pgoutput_change, maybe_send_schema",
        on=(m.Insert, m.Update, m.Delete, m.Truncate, m.Relation, m.Type),
        broken=_block_xid,
        legal=(*s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.BLOCK[:-1], m.Insert(s.OID, ("4", ""), xid=s.TOP - 1), s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="message-xid",
        doc="A logical message in a block has the xid of the transaction, not of a subtransaction.",
        source="pgoutput_message",
        on=(m.LogicalMessage,),
        broken=_message_xid,
        legal=(s.FIRST, m.LogicalMessage(1, 900, "p", b"", xid=s.TOP), s.STOP, s.STREAM_COMMIT),
        illegal=(s.FIRST, m.LogicalMessage(1, 900, "p", b"", xid=s.SUB), s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="xid-normal",
        doc="Xids below 3 are none of transactions.",
        source="GetNewTransactionId (FirstNormalTransactionId)",
        on=(*_BEGINS, m.CommitPrepared, m.RollbackPrepared),
        broken=_not_normal,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(m.Begin(1_000, 0, 0), s.RELATION, s.INSERT, s.COMMIT),
    ),
    Rule(
        name="xid-in-use",
        doc="A transaction begins with an xid that no other has which has not ended.",
        source="GetNewTransactionId",
        on=_BEGINS,
        broken=_busy_xid,
        legal=(*s.BLOCK, *s.transaction(s.RELATION, s.INSERT), s.STREAM_COMMIT),
        illegal=(*s.BLOCK, m.Begin(1_000, 0, s.TOP), s.RELATION, s.INSERT, s.COMMIT, s.STREAM_COMMIT),
    ),
)
