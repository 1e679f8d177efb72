"""Rules of LSNs: what ends comes in the order of the WAL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pgoutput import messages as m
from pgoutput.messages import Message, MessageFlag
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Fault, Rule
from pgoutput.stream.check.prepared import TWO_PHASE
from pgoutput.stream.check.state import State
from pgoutput.wire import format_lsn

_AT: Final[Mapping[type[Message], str]] = {
    m.Begin: "final_lsn",
    m.StreamCommit: "commit_lsn",
    m.CommitPrepared: "commit_lsn",
    m.RollbackPrepared: "rollback_end_lsn",
    m.StreamAbort: "abort_lsn",
    m.LogicalMessage: "lsn",
}
"""The field that says where in the WAL a message stands that comes in its order."""

_START: Final[Mapping[type[Message], str]] = {
    m.Commit: "commit_lsn",
    m.StreamCommit: "commit_lsn",
    m.CommitPrepared: "commit_lsn",
    m.BeginPrepare: "prepare_lsn",
    m.StreamPrepare: "prepare_lsn",
}
"""The field with the start of the record whose end is `end_lsn`."""


def _back(state: State, message: Message) -> Fault | None:
    if isinstance(message, m.LogicalMessage) and message.flags & MessageFlag.TRANSACTIONAL:
        return None
    path = _AT[type(message)]
    lsn: int | None = getattr(message, path)
    if not lsn and isinstance(message, m.StreamAbort):
        return None  # not sent, or the server crashed and there is no record (ReorderBufferAbortOld)
    if lsn is None or lsn > state.last_lsn:
        return None
    if lsn == state.last_lsn and not isinstance(message, m.LogicalMessage):
        return None  # a record begins where the one before ends; a message's LSN is the end of its record
    return path, f"{format_lsn(lsn)} is not behind {format_lsn(state.last_lsn)}, where the last one ended"


def _not_beyond(state: State, message: Any) -> Fault | None:
    if isinstance(message, m.RollbackPrepared):
        start, path = message.prepare_end_lsn, "rollback_end_lsn"
        end = message.rollback_end_lsn
    else:
        start, end, path = getattr(message, _START[type(message)]), message.end_lsn, "end_lsn"
    return None if end > start else (path, f"{format_lsn(end)} is not beyond {format_lsn(start)}")


def _not_committed(state: State, message: Message) -> Fault | None:
    if state.replayed is None:
        return None
    gid = state.replayed.gid
    if isinstance(message, m.CommitPrepared) and message.gid == gid:
        return None
    return "tag", (
        f"the transaction prepared as {gid!r} right before has an LSN of before what has ended, so that only "
        "its Commit Prepared can follow"
    )


def _message_back(state: State, message: m.LogicalMessage) -> Fault | None:
    if not message.flags & MessageFlag.TRANSACTIONAL or state.open is None:
        return None
    last = (state.open.work or state.open).message_lsn
    if message.lsn <= last:
        return "lsn", f"{format_lsn(message.lsn)} is not beyond {format_lsn(last)}, of the message before"
    opener = state.open.opener
    end = None
    if isinstance(opener, m.Begin):
        end = opener.final_lsn
    elif isinstance(opener, m.BeginPrepare):
        end = opener.prepare_lsn
    if end is not None and message.lsn > end:
        return "lsn", f"{format_lsn(message.lsn)} is beyond {format_lsn(end)}, where its transaction ends"
    return None


def _end_before_message(state: State, message: m.StreamCommit | m.StreamPrepare) -> Fault | None:
    work = state.streamed.get(message.xid)
    path = _START[type(message)]
    lsn: int = getattr(message, path)
    if work is None or lsn >= work.message_lsn:
        return None
    return path, f"{format_lsn(lsn)} is before {format_lsn(work.message_lsn)}, of a message in it"


_EARLIER: Final = (
    m.BeginPrepare(500, 548, 0, 735, "g"),
    s.RELATION,
    s.INSERT,
    m.Prepare(500, 548, 0, 735, "g"),
)
"""A transaction that was prepared before `samples.transaction`."""

RULES: Final = (
    Rule(
        name="commit-order",
        doc="What ends, and messages that are not transactional, come in the order of the WAL: none is "
        "before the end of the one before. (After a crash, Stream Abort has the LSN 0.)",
        source="ReorderBufferCommit, ReorderBufferAbort, ReorderBufferFinishPrepared",
        on=tuple(_AT),
        broken=_back,
        legal=(*s.transaction(s.RELATION, s.INSERT), *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), *s.BLOCK, m.StreamCommit(s.TOP, 1_040, 1_088, 0)),
    ),
    Rule(
        name="end-beyond-start",
        doc="A transaction's end LSN is beyond the LSN of the record that commits or prepares it, and that"
        " of its rollback beyond that of its Prepare.",
        source="DecodeCommit, DecodePrepare (buf->endptr)",
        on=(*_START, m.RollbackPrepared),
        broken=_not_beyond,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(s.BEGIN, s.RELATION, s.INSERT, m.Commit(1_000, 1_000, 0)),
    ),
    Rule(
        name="prepare-order",
        doc="A transaction whose Prepare is of before what has ended was prepared before the slot sent "
        "such: it comes when it is committed, right before its Commit Prepared.",
        source="ReorderBufferFinishPrepared (two_phase_at)",
        on=(
            m.Begin,
            m.StreamStart,
            m.StreamCommit,
            m.StreamAbort,
            m.LogicalMessage,
            *TWO_PHASE,
        ),
        broken=_not_committed,
        legal=(*s.transaction(s.RELATION, s.INSERT), *_EARLIER, s.COMMIT_PREPARED),
        illegal=(*s.transaction(s.RELATION, s.INSERT), *_EARLIER, *s.BLOCK),
    ),
    Rule(
        name="message-order",
        doc="The LSNs of a transaction's logical messages grow, and are not beyond that of its commit.",
        source="ReorderBufferQueueMessage, ReorderBufferIterTXNNext",
        on=(m.LogicalMessage,),
        broken=_message_back,
        legal=s.transaction(m.LogicalMessage(1, 900, "p", b""), m.LogicalMessage(1, 908, "p", b"")),
        illegal=s.transaction(m.LogicalMessage(1, 900, "p", b""), m.LogicalMessage(1, 892, "p", b"")),
    ),
    Rule(
        name="message-before-end",
        doc="Nor is the commit or Prepare of a streamed transaction before its logical messages.",
        source="ReorderBufferStreamCommit",
        on=(m.StreamCommit, m.StreamPrepare),
        broken=_end_before_message,
        legal=(s.FIRST, m.LogicalMessage(1, 900, "p", b"", xid=s.TOP), s.STOP, s.STREAM_COMMIT),
        illegal=(s.FIRST, m.LogicalMessage(1, 2_040, "p", b"", xid=s.TOP), s.STOP, s.STREAM_COMMIT),
    ),
)
