"""Rules about the order of LSNs: transactions end in WAL order."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput._roles import ROLES, classes, field_name, has_role, is_transactional, meaning_of, read_end
from pgoutput.messages import Message
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Breach, Rule
from pgoutput.stream.check.state import StreamState
from pgoutput.stream.check.two_phase import TWO_PHASE
from pgoutput.wire import format_lsn

_LSN_MEANINGS: Final = {
    "begin": "lsn",
    "commit_streamed": "lsn",
    "commit_prepared": "lsn",
    "rollback_prepared": "end_lsn",
    "abort_streamed": "lsn",
    "payload": "lsn",
}
"""By role of a message: meaning of the field whose LSN must not be before the end of the last transaction."""

_START_MEANINGS: Final = {"rollback_prepared": "prepare_end_lsn"} | dict.fromkeys(
    ("commit", "commit_streamed", "commit_prepared", "begin_prepare", "prepare_streamed"), "lsn"
)
"""By role of a message: meaning of the field whose LSN must be before the message's end LSN."""


def _before_last_end(state: StreamState, message: Message) -> Breach | None:
    role = ROLES[type(message)]
    if role == "payload" and is_transactional(message):
        return None
    path = field_name(type(message), _LSN_MEANINGS[role])
    lsn: int | None = getattr(message, path) if path else None
    if not lsn and role == "abort_streamed":
        return None  # not sent, or 0 after a crash of the server (ReorderBufferAbortOld)
    if path is None or lsn is None or lsn > state.last_lsn:
        return None
    if lsn == state.last_lsn and role != "payload":
        return None  # the record starts at the end of the previous one
    return (
        path,
        f"{format_lsn(lsn)} is not after {format_lsn(state.last_lsn)}, the end of the last transaction",
    )


def _end_not_after_start(state: StreamState, message: Message) -> Breach | None:
    start, end = meaning_of(message, _START_MEANINGS[ROLES[type(message)]]), meaning_of(message, "end_lsn")
    if end > start:
        return None
    return field_name(
        type(message), "end_lsn"
    ) or "tag", f"{format_lsn(end)} is not after {format_lsn(start)}"


def _late_prepare_not_committed(state: StreamState, message: Message) -> Breach | None:
    if state.late_prepare is None:
        return None
    gid = meaning_of(state.late_prepare, "gid")
    if has_role(message, "commit_prepared") and meaning_of(message, "gid") == gid:
        return None
    return "tag", (
        f"the Prepare of {gid!r} has an LSN before the end of the last transaction, so its Commit Prepared "
        "must follow directly"
    )


def _message_lsn_not_increasing(state: StreamState, message: Message) -> Breach | None:
    lsn = meaning_of(message, "lsn")
    if lsn is None or not is_transactional(message) or state.open is None:
        return None
    last = (state.open.streamed or state.open).message_lsn
    if lsn <= last:
        return "lsn", f"{format_lsn(lsn)} is not after {format_lsn(last)} of the previous logical message"
    opener = state.open.opener
    end = None if opener is None else meaning_of(opener, "lsn")
    if end is not None and lsn > end:
        return "lsn", f"{format_lsn(lsn)} is after {format_lsn(end)}, the end of its transaction"
    return None


def _end_before_message(state: StreamState, message: Message) -> Breach | None:
    end = read_end(message)
    streamed = state.streamed.get(end.xid)
    if streamed is None or end.lsn >= streamed.message_lsn:
        return None
    path = field_name(type(message), "lsn") or "tag"
    return path, f"{format_lsn(end.lsn)} is before {format_lsn(streamed.message_lsn)} of its logical message"


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
        on=classes(*_LSN_MEANINGS),
        check=_before_last_end,
        legal=(*s.transaction(s.RELATION, s.INSERT), *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), *s.BLOCK, m.StreamCommit(s.TOP, 1_040, 1_088, 0)),
    ),
    Rule(
        name="end-beyond-start",
        doc="The end LSN of a commit or Prepare is after its start LSN, and the end LSN of a rollback is "
        "after that of its Prepare.",
        source="DecodeCommit, DecodePrepare (buf->endptr)",
        on=classes(*_START_MEANINGS),
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
            *classes("begin", "open_block", "commit_streamed", "abort_streamed", "payload"),
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
        on=classes("payload"),
        check=_message_lsn_not_increasing,
        legal=s.transaction(m.LogicalMessage(1, 900, "p", b""), m.LogicalMessage(1, 908, "p", b"")),
        illegal=s.transaction(m.LogicalMessage(1, 900, "p", b""), m.LogicalMessage(1, 892, "p", b"")),
    ),
    Rule(
        name="message-before-end",
        doc="The LSN of a streamed transaction's commit or Prepare is not before the LSNs of its logical "
        "messages.",
        source="ReorderBufferStreamCommit",
        on=classes("commit_streamed", "prepare_streamed"),
        check=_end_before_message,
        legal=(s.FIRST, m.LogicalMessage(1, 900, "p", b"", xid=s.TOP), s.STOP, s.STREAM_COMMIT),
        illegal=(s.FIRST, m.LogicalMessage(1, 2_040, "p", b"", xid=s.TOP), s.STOP, s.STREAM_COMMIT),
    ),
)
