"""Rules about the order of LSNs: transactions end in WAL order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pgoutput import messages as m
from pgoutput._roles import meaning_of
from pgoutput.messages import Message, MessageFlag
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Breach, Rule
from pgoutput.stream.check.state import StreamState
from pgoutput.stream.check.two_phase import TWO_PHASE
from pgoutput.wire import format_lsn

_LSN_FIELD: Final[Mapping[type[Message], str]] = {
    m.Begin: "final_lsn",
    m.StreamCommit: "commit_lsn",
    m.CommitPrepared: "commit_lsn",
    m.RollbackPrepared: "rollback_end_lsn",
    m.StreamAbort: "abort_lsn",
    m.LogicalMessage: "lsn",
}
"""Name of the LSN field that must not be before the end of the last transaction, by message class."""

_START_LSN_FIELD: Final[Mapping[type[Message], str]] = {
    m.Commit: "commit_lsn",
    m.StreamCommit: "commit_lsn",
    m.CommitPrepared: "commit_lsn",
    m.BeginPrepare: "prepare_lsn",
    m.StreamPrepare: "prepare_lsn",
}
"""Name of the field with the start LSN of the WAL record that ends at `end_lsn`, by message class."""


def _before_last_end(state: StreamState, message: Message) -> Breach | None:
    if isinstance(message, m.LogicalMessage) and message.flags & MessageFlag.TRANSACTIONAL:
        return None
    path = _LSN_FIELD[type(message)]
    lsn: int | None = getattr(message, path)
    if not lsn and isinstance(message, m.StreamAbort):
        return None  # not sent, or 0 after a crash of the server (ReorderBufferAbortOld)
    if lsn is None or lsn > state.last_lsn:
        return None
    if lsn == state.last_lsn and not isinstance(message, m.LogicalMessage):
        return None  # the record starts at the end of the previous one
    return (
        path,
        f"{format_lsn(lsn)} is not after {format_lsn(state.last_lsn)}, the end of the last transaction",
    )


def _end_not_after_start(state: StreamState, message: Any) -> Breach | None:
    if isinstance(message, m.RollbackPrepared):
        start, path = message.prepare_end_lsn, "rollback_end_lsn"
        end = message.rollback_end_lsn
    else:
        start, end, path = getattr(message, _START_LSN_FIELD[type(message)]), message.end_lsn, "end_lsn"
    return None if end > start else (path, f"{format_lsn(end)} is not after {format_lsn(start)}")


def _late_prepare_not_committed(state: StreamState, message: Message) -> Breach | None:
    if state.late_prepare is None:
        return None
    gid = meaning_of(state.late_prepare, "gid")
    if isinstance(message, m.CommitPrepared) and message.gid == gid:
        return None
    return "tag", (
        f"the Prepare of {gid!r} has an LSN before the end of the last transaction, so its Commit Prepared "
        "must follow directly"
    )


def _message_lsn_not_increasing(state: StreamState, message: m.LogicalMessage) -> Breach | None:
    if not message.flags & MessageFlag.TRANSACTIONAL or state.open is None:
        return None
    last = (state.open.streamed or state.open).message_lsn
    if message.lsn <= last:
        return (
            "lsn",
            f"{format_lsn(message.lsn)} is not after {format_lsn(last)} of the previous logical message",
        )
    opener = state.open.opener
    end = None
    if isinstance(opener, m.Begin):
        end = opener.final_lsn
    elif isinstance(opener, m.BeginPrepare):
        end = opener.prepare_lsn
    if end is not None and message.lsn > end:
        return "lsn", f"{format_lsn(message.lsn)} is after {format_lsn(end)}, the end of its transaction"
    return None


def _end_before_message(state: StreamState, message: m.StreamCommit | m.StreamPrepare) -> Breach | None:
    streamed = state.streamed.get(message.xid)
    path = _START_LSN_FIELD[type(message)]
    lsn: int = getattr(message, path)
    if streamed is None or lsn >= streamed.message_lsn:
        return None
    return (
        path,
        f"{format_lsn(lsn)} is before {format_lsn(streamed.message_lsn)} of its logical message",
    )


_PREPARED_EARLIER: Final = (
    m.BeginPrepare(500, 548, 0, 735, "g"),
    s.RELATION,
    s.INSERT,
    m.Prepare(500, 548, 0, 735, "g"),
)
"""Messages of a transaction that was prepared before the transaction of `samples.transaction`."""

RULES: Final = (
    Rule(
        name="commit-order",
        doc="Messages that end transactions, and non-transactional logical messages, are sent in WAL "
        "order: none has an LSN before the end of the previous one. (After a crash, Stream Abort has "
        "LSN 0.)",
        source="ReorderBufferCommit, ReorderBufferAbort, ReorderBufferFinishPrepared",
        on=tuple(_LSN_FIELD),
        check=_before_last_end,
        legal=(*s.transaction(s.RELATION, s.INSERT), *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), *s.BLOCK, m.StreamCommit(s.TOP, 1_040, 1_088, 0)),
    ),
    Rule(
        name="end-beyond-start",
        doc="The end LSN of a commit or Prepare is after its start LSN, and the end LSN of a rollback is "
        "after that of its Prepare.",
        source="DecodeCommit, DecodePrepare (buf->endptr)",
        on=(*_START_LSN_FIELD, m.RollbackPrepared),
        check=_end_not_after_start,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(s.BEGIN, s.RELATION, s.INSERT, m.Commit(1_000, 1_000, 0)),
    ),
    Rule(
        name="prepare-order",
        doc="A Prepare with an LSN before the end of the last transaction was prepared before the slot "
        "decoded prepared transactions. It is sent at its commit, directly followed by its Commit "
        "Prepared.",
        source="ReorderBufferFinishPrepared (two_phase_at)",
        on=(
            m.Begin,
            m.StreamStart,
            m.StreamCommit,
            m.StreamAbort,
            m.LogicalMessage,
            *TWO_PHASE,
        ),
        check=_late_prepare_not_committed,
        legal=(*s.transaction(s.RELATION, s.INSERT), *_PREPARED_EARLIER, s.COMMIT_PREPARED),
        illegal=(*s.transaction(s.RELATION, s.INSERT), *_PREPARED_EARLIER, *s.BLOCK),
    ),
    Rule(
        name="message-order",
        doc="The LSNs of logical messages increase within a transaction and are not after its commit LSN.",
        source="ReorderBufferQueueMessage, ReorderBufferIterTXNNext",
        on=(m.LogicalMessage,),
        check=_message_lsn_not_increasing,
        legal=s.transaction(m.LogicalMessage(1, 900, "p", b""), m.LogicalMessage(1, 908, "p", b"")),
        illegal=s.transaction(m.LogicalMessage(1, 900, "p", b""), m.LogicalMessage(1, 892, "p", b"")),
    ),
    Rule(
        name="message-before-end",
        doc="The LSN of a streamed transaction's commit or Prepare is not before the LSNs of its logical "
        "messages.",
        source="ReorderBufferStreamCommit",
        on=(m.StreamCommit, m.StreamPrepare),
        check=_end_before_message,
        legal=(s.FIRST, m.LogicalMessage(1, 900, "p", b"", xid=s.TOP), s.STOP, s.STREAM_COMMIT),
        illegal=(s.FIRST, m.LogicalMessage(1, 2_040, "p", b"", xid=s.TOP), s.STOP, s.STREAM_COMMIT),
    ),
)
