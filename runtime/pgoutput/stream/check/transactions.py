"""Rules about transactions: which messages open, close and may occur inside a transaction."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput._roles import CHANGES, classes, field_name, has_role, is_transactional, meaning_of
from pgoutput.messages import Message
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Breach, Rule
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.state import OpenTransaction, StreamState
from pgoutput.wire import format_lsn

_BETWEEN_TRANSACTIONS: Final = classes(
    "begin",
    "begin_prepare",
    "open_block",
    "commit_streamed",
    "abort_streamed",
    "prepare_streamed",
    "commit_prepared",
    "rollback_prepared",
)
"""Classes of the messages that occur only outside transactions and stream blocks."""


def _describe(open_: OpenTransaction) -> str:
    if open_.streamed is not None:
        return f"a stream block of transaction {open_.streamed.xid}"
    return "a transaction" if open_.opener is None else f"transaction {meaning_of(open_.opener, 'xid')}"


def _transaction_open(state: StreamState, message: Message) -> Breach | None:
    if state.open is None or state.open.has_only_relations:
        return None
    nested = has_role(message, "open_block") and state.open.streamed is not None
    why = ", and blocks do not nest" if nested else ""
    return "tag", f"{_describe(state.open)} is still open{why}"


def _non_transactional_message_inside(state: StreamState, message: Message) -> Breach | None:
    if state.open is None or is_transactional(message):
        return None
    return "flags", f"a non-transactional message occurs while {_describe(state.open)} is open"


def _change_outside(state: StreamState, message: Message) -> Breach | None:
    return None if state.open is not None else ("tag", "no transaction is open")


def _message_outside(state: StreamState, message: Message) -> Breach | None:
    if state.open is not None or not is_transactional(message):
        return None
    return "flags", "the message is transactional, but no transaction is open"


def _commit_without_begin(state: StreamState, message: Message) -> Breach | None:
    if state.open is None:
        return "tag", "no Begin has opened a transaction"
    opener = state.open.opener
    if not (opener is None or has_role(opener, "begin")) or state.open.streamed is not None:
        return "tag", f"Commit must follow Begin, but another message opened {_describe(state.open)}"
    return None


def _commit_differs(state: StreamState, message: Message) -> Breach | None:
    begin = None if state.open is None else state.open.opener
    if begin is None or not has_role(begin, "begin"):
        return None
    for meaning, show in (("lsn", format_lsn), ("time", str)):
        expected, actual = meaning_of(begin, meaning), meaning_of(message, meaning)
        if expected != actual:
            name = field_name(type(begin), meaning)
            text = f"Begin has {name} {show(expected)}, not {show(actual)}"
            return field_name(type(message), meaning) or "tag", text
    return None


def _empty_transaction(state: StreamState, message: Message) -> Breach | None:
    if state.open is None or state.open.changes:
        return None
    if not has_role(state.open.opener, "begin"):
        return None
    return "tag", "the transaction has no change; servers with protocol version 3 do not send empty ones"


def _misplaced_origin(state: StreamState, message: Message) -> Breach | None:
    if state.open is None:
        return "tag", "no transaction is open"
    opener = state.open.opener
    if opener is not None and state.open.messages:
        return "tag", "Origin must directly follow the message that opens the transaction"
    if opener is not None and has_role(opener, "open_block") and not meaning_of(opener, "first_block"):
        return "tag", "Origin occurs only in the first stream block of a transaction"
    return None


def _messages_off(state: StreamState, message: Message) -> Breach | None:
    return "tag", "the option `messages` was not requested"


_M: Final = m.LogicalMessage(1, 900, "p", b"x")

_OFF: Final = CheckOptions(messages=False)


RULES: Final = (
    Rule(
        name="transaction-open",
        doc="Transactions and stream blocks do not nest: messages that open one, or end a transaction "
        "that is not open, occur between them.",
        source="apply_dispatch, pgoutput_begin_txn, pgoutput_stream_start",
        on=_BETWEEN_TRANSACTIONS,
        check=_transaction_open,
        legal=(*s.transaction(s.RELATION, s.INSERT), *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.BLOCK[:-1], s.STREAM_COMMIT),
    ),
    Rule(
        name="message-at-once",
        doc="A non-transactional logical message occurs between transactions and stream blocks.",
        source="ReorderBufferQueueMessage, pgoutput_message",
        on=classes("payload"),
        check=_non_transactional_message_inside,
        legal=(m.LogicalMessage(0, 900, "p", b"x"), *s.transaction(s.RELATION, s.INSERT)),
        illegal=s.transaction(s.RELATION, s.INSERT, m.LogicalMessage(0, 900, "p", b"x")),
    ),
    Rule(
        name="change-in-transaction",
        doc="Inserts, updates, deletes and truncates occur inside a transaction or stream block.",
        source="pgoutput_change, pgoutput_truncate",
        on=classes(*CHANGES),
        check=_change_outside,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), s.INSERT),
    ),
    Rule(
        name="message-in-transaction",
        doc="A transactional logical message occurs inside its transaction.",
        source="pgoutput_message",
        on=classes("payload"),
        check=_message_outside,
        legal=s.transaction(_M),
        illegal=(_M,),
    ),
    Rule(
        name="description-in-transaction",
        doc="Relation and Type messages occur inside the transaction whose change needs them.",
        source="maybe_send_schema",
        on=classes("relation", "type"),
        check=_change_outside,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(s.RELATION, *s.transaction(s.INSERT)),
    ),
    Rule(
        name="commit-without-begin",
        doc="Commit ends a transaction that Begin opened.",
        source="pgoutput_commit_txn",
        on=classes("commit"),
        check=_commit_without_begin,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), m.Commit(2_000, 2_048, 0)),
    ),
    Rule(
        name="commit-as-begun",
        doc="Commit repeats the LSN and time of its Begin.",
        source="logicalrep_write_begin, logicalrep_write_commit; apply_handle_commit refuses others",
        on=classes("commit"),
        check=_commit_differs,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(s.BEGIN, s.RELATION, s.INSERT, m.Commit(1_000, 1_048, 1)),
    ),
    Rule(
        name="empty-transaction",
        doc="A transaction has a change. Servers with protocol version 3 and later (PostgreSQL 15 and "
        "later) delay Begin until the first change. Prepared and streamed transactions may be empty.",
        source="pgoutput_commit_txn (sent_begin_txn)",
        on=classes("commit"),
        check=_empty_transaction,
        when=lambda options: options.proto_version >= 3,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=s.transaction(),
    ),
    Rule(
        name="origin-second",
        doc="Origin occurs once, directly after Begin, Begin Prepare or the first Stream Start of a "
        "transaction.",
        source="send_repl_origin, pgoutput_stream_start",
        on=classes("origin"),
        check=_misplaced_origin,
        legal=s.transaction(m.Origin(1, "o"), s.RELATION, s.INSERT),
        illegal=s.transaction(s.RELATION, m.Origin(1, "o"), s.INSERT),
    ),
    Rule(
        name="messages-off",
        doc="Logical messages are sent only if the option `messages` was requested.",
        source="pgoutput_message",
        on=classes("payload"),
        check=_messages_off,
        when=lambda options: options.messages is False,
        options=_OFF,
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=s.transaction(_M),
    ),
)
