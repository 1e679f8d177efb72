"""Rules of transactions: what opens, what closes, and what may stand between."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput.messages import Message, MessageFlag
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Fault, Rule
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.state import Open, State
from pgoutput.wire import format_lsn

ROWS: Final = (m.Insert, m.Update, m.Delete, m.Truncate)

_OUTSIDE: Final = (
    m.Begin,
    m.BeginPrepare,
    m.StreamStart,
    m.StreamCommit,
    m.StreamAbort,
    m.StreamPrepare,
    m.CommitPrepared,
    m.RollbackPrepared,
)
"""Messages that stand between transactions and blocks."""


def _opened_by(open_: Open, *openers: type[Message]) -> bool:
    """Whether one of these opened it, or may have."""
    return open_.opener is None or isinstance(open_.opener, openers)


def _name(open_: Open) -> str:
    if open_.work is not None:
        return f"a stream block of transaction {open_.work.xid}"
    return "a transaction" if open_.opener is None else f"transaction {open_.opener.xid}"


def _still_open(state: State, message: Message) -> Fault | None:
    if state.open is None or state.open.only_described:
        return None
    nested = isinstance(message, m.StreamStart) and state.open.work is not None
    why = ", and blocks do not nest" if nested else ""
    return "tag", f"{_name(state.open)} is still open{why}"


def _message_while_open(state: State, message: m.LogicalMessage) -> Fault | None:
    if state.open is None or message.flags & MessageFlag.TRANSACTIONAL:
        return None
    return "flags", f"a message that is not transactional comes at once, but {_name(state.open)} is open"


def _change_outside(state: State, message: m.Insert) -> Fault | None:
    return None if state.open is not None else ("tag", "no transaction is open")


def _message_outside(state: State, message: m.LogicalMessage) -> Fault | None:
    if state.open is not None or not message.flags & MessageFlag.TRANSACTIONAL:
        return None
    return "flags", "the message is transactional, but no transaction is open"


def _commit_without_begin(state: State, message: m.Commit) -> Fault | None:
    if state.open is None:
        return "tag", "no Begin has opened a transaction"
    if not _opened_by(state.open, m.Begin) or state.open.work is not None:
        return "tag", f"Commit ends what Begin opens, but {_name(state.open)} was opened otherwise"
    return None


def _commit_differs(state: State, message: m.Commit) -> Fault | None:
    begin = None if state.open is None else state.open.opener
    if not isinstance(begin, m.Begin):
        return None
    if message.commit_lsn != begin.final_lsn:
        said, there = format_lsn(begin.final_lsn), format_lsn(message.commit_lsn)
        return "commit_lsn", f"Begin said final_lsn {said}, not {there}"
    if message.commit_time != begin.commit_time:
        return "commit_time", f"Begin said commit_time {begin.commit_time}, not {message.commit_time}"
    return None


def _empty(state: State, message: m.Commit) -> Fault | None:
    if state.options.proto_version < 3 or state.open is None or state.open.changes:
        return None
    if not isinstance(state.open.opener, m.Begin):
        return None
    return "tag", "the transaction has no change; servers that speak version 3 do not send such"


def _origin_place(state: State, message: m.Origin) -> Fault | None:
    if state.open is None:
        return "tag", "no transaction is open"
    opener = state.open.opener
    if opener is not None and state.open.messages:
        return "tag", "Origin comes right behind the message that opens a transaction, and once"
    if isinstance(opener, m.StreamStart) and not opener.first_segment:
        return "tag", "Origin comes in the first block of a transaction only"
    return None


def _messages_off(state: State, message: m.LogicalMessage) -> Fault | None:
    return ("tag", "the option `messages` was not asked for") if state.options.messages is False else None


_M: Final = m.LogicalMessage(1, 900, "p", b"x")

_OFF: Final = CheckOptions(messages=False)


RULES: Final = (
    Rule(
        name="transaction-open",
        doc="Transactions and blocks do not nest: what begins one, or ends one that is not open, comes "
        "between them.",
        source="apply_dispatch, pgoutput_begin_txn, pgoutput_stream_start",
        on=_OUTSIDE,
        broken=_still_open,
        legal=(*s.transaction(s.RELATION, s.INSERT), *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.BLOCK[:-1], s.STREAM_COMMIT),
    ),
    Rule(
        name="message-at-once",
        doc="A logical message that is not transactional comes at once: between transactions and blocks.",
        source="ReorderBufferQueueMessage, pgoutput_message",
        on=(m.LogicalMessage,),
        broken=_message_while_open,
        legal=(m.LogicalMessage(0, 900, "p", b"x"), *s.transaction(s.RELATION, s.INSERT)),
        illegal=s.transaction(s.RELATION, s.INSERT, m.LogicalMessage(0, 900, "p", b"x")),
    ),
    Rule(
        name="change-in-transaction",
        doc="Inserts, updates, deletes and truncates come between the messages that open and close a "
        "transaction or a block.",
        source="pgoutput_change, pgoutput_truncate",
        on=ROWS,
        broken=_change_outside,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), s.INSERT),
    ),
    Rule(
        name="message-in-transaction",
        doc="A transactional logical message comes inside its transaction.",
        source="pgoutput_message",
        on=(m.LogicalMessage,),
        broken=_message_outside,
        legal=s.transaction(_M),
        illegal=(_M,),
    ),
    Rule(
        name="description-in-transaction",
        doc="Relations and types come inside the transaction whose change needs them.",
        source="maybe_send_schema",
        on=(m.Relation, m.Type),
        broken=_change_outside,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(s.RELATION, *s.transaction(s.INSERT)),
    ),
    Rule(
        name="commit-without-begin",
        doc="Commit ends what Begin has opened.",
        source="pgoutput_commit_txn",
        on=(m.Commit,),
        broken=_commit_without_begin,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), m.Commit(2_000, 2_048, 0)),
    ),
    Rule(
        name="commit-as-begun",
        doc="Commit has the LSN and the time that Begin has said.",
        source="logicalrep_write_begin, logicalrep_write_commit; apply_handle_commit refuses others",
        on=(m.Commit,),
        broken=_commit_differs,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(s.BEGIN, s.RELATION, s.INSERT, m.Commit(1_000, 1_048, 1)),
    ),
    Rule(
        name="empty-transaction",
        doc="A transaction has a change. Servers of version 15 and up, which alone speak protocol version "
        "3 and up, send no Begin before the first one; prepared and streamed ones may be empty.",
        source="pgoutput_commit_txn (sent_begin_txn)",
        on=(m.Commit,),
        broken=_empty,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=s.transaction(),
    ),
    Rule(
        name="origin-second",
        doc="Origin comes once, right behind Begin, Begin Prepare or the first Stream Start of a "
        "transaction.",
        source="send_repl_origin, pgoutput_stream_start",
        on=(m.Origin,),
        broken=_origin_place,
        legal=s.transaction(m.Origin(1, "o"), s.RELATION, s.INSERT),
        illegal=s.transaction(s.RELATION, m.Origin(1, "o"), s.INSERT),
    ),
    Rule(
        name="messages-off",
        doc="Logical messages come only where the option `messages` was asked for.",
        source="pgoutput_message",
        on=(m.LogicalMessage,),
        broken=_messages_off,
        options=_OFF,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=s.transaction(_M),
    ),
)
