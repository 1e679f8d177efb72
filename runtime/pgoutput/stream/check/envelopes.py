"""Rules about the LSNs of XLogData envelopes.

`Rule.on` lists the messages inside the envelope. Keepalives are not checked: they may occur anywhere, and
their LSN may be before the requested start position (StartLogicalReplication, XLogSendLogical).
"""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput._roles import ENDS, OPENERS, ROLES, classes, field_name, has_role, meaning_of
from pgoutput.messages import Message, XLogData
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Breach, Rule
from pgoutput.stream.check.state import CHANGES, StreamState
from pgoutput.wire import format_lsn

_LSN_MEANINGS: Final = dict.fromkeys(ENDS, "end_lsn") | {"payload": "lsn"}
"""By role of a message: meaning of the field that must equal the LSN of the message's envelope."""

_WITH_LSN: Final = classes(*_LSN_MEANINGS)
_OPENERS: Final = classes(*OPENERS)
_DESCRIBING: Final = classes("relation", "type")
_OTHERS: Final = classes("insert", "update", "delete", "truncate", "origin", "close_block", "abort_streamed")


def _lsns_differ(state: StreamState, outer: XLogData, message: Message) -> Breach | None:
    if outer.wal_start == outer.wal_end:
        return None
    return "wal_end", f"must equal wal_start {format_lsn(outer.wal_start)}, not {format_lsn(outer.wal_end)}"


def _lsn_not_zero(state: StreamState, outer: XLogData, message: Message) -> Breach | None:
    if not outer.wal_start:
        return None
    return "wal_start", f"must be 0 for {type(message).__name__}, not {format_lsn(outer.wal_start)}"


def _lsn_zero(state: StreamState, outer: XLogData, message: Message) -> Breach | None:
    return None if outer.wal_start else ("wal_start", f"must not be 0 for {type(message).__name__}")


def _lsn_not_that_of_message(state: StreamState, outer: XLogData, message: Message) -> Breach | None:
    meaning = _LSN_MEANINGS[ROLES[type(message)]]
    expected = meaning_of(message, meaning)
    if expected is None or outer.wal_start == expected:
        return None
    text = f"must equal the message's {field_name(type(message), meaning)} {format_lsn(expected)}"
    return "wal_start", f"{text}, not {format_lsn(outer.wal_start)}"


def _opener_lsn(state: StreamState, outer: XLogData, message: Message) -> Breach | None:
    if has_role(message, "origin") == state.opener_without_lsn or (
        state.open is not None and state.open.messages
    ):
        return None
    if state.opener_without_lsn:
        return "tag", "the envelope LSN of the transaction's opener is 0, but no Origin follows"
    if state.open is None or state.open.opener is None:
        return None
    return "tag", "an Origin follows, but the envelope LSN of the transaction's opener is not 0"


def _lsn_decreases(state: StreamState, outer: XLogData, message: Message) -> Breach | None:
    if state.open is None or outer.wal_start >= state.open.wal_start:
        return None
    last = format_lsn(state.open.wal_start)
    return "wal_start", f"{format_lsn(outer.wal_start)} is before {last} of the previous change"


_STREAM: Final = (s.sent(900, s.BEGIN), s.sent(0, s.RELATION), s.sent(900, s.INSERT), s.sent(1_048, s.COMMIT))

RULES: Final = (
    Rule(
        name="envelope-lsns-equal",
        doc="The two LSNs of XLogData are equal.",
        source="WalSndPrepareWrite",
        on=(*_WITH_LSN, *_OPENERS, *_DESCRIBING, *_OTHERS),
        check=_lsns_differ,  # type: ignore[arg-type]
        envelope=True,
        legal=_STREAM,
        illegal=(*_STREAM[:-1], m.XLogData(1_048, 1_050, 0, _STREAM[-1].data)),
    ),
    Rule(
        name="envelope-lsn-zero",
        doc="The envelope LSN of Relation and Type is 0: they are written for the change that follows.",
        source="send_relation_and_attrs (OutputPluginWrite with last_write false)",
        on=_DESCRIBING,
        check=_lsn_not_zero,  # type: ignore[arg-type]
        envelope=True,
        legal=_STREAM,
        illegal=(_STREAM[0], s.sent(900, s.RELATION), *_STREAM[2:]),
    ),
    Rule(
        name="envelope-lsn",
        doc="Messages other than Relation, Type and transaction openers have an envelope LSN.",
        source="OutputPluginPrepareWrite (last_write)",
        on=_OTHERS,
        check=_lsn_zero,  # type: ignore[arg-type]
        envelope=True,
        legal=_STREAM,
        illegal=(*_STREAM[:2], s.sent(0, s.INSERT), _STREAM[-1]),
    ),
    Rule(
        name="envelope-as-message",
        doc="The envelope LSN of a message that ends a transaction is its end LSN; that of a logical "
        "message is the message's LSN.",
        source="commit_cb_wrapper and its neighbours (write_location)",
        on=_WITH_LSN,
        check=_lsn_not_that_of_message,  # type: ignore[arg-type]
        envelope=True,
        legal=_STREAM,
        illegal=(*_STREAM[:-1], s.sent(1_000, s.COMMIT)),
    ),
    Rule(
        name="envelope-before-origin",
        doc="The envelope LSN of a message that opens a transaction is 0 if and only if an Origin follows.",
        source="pgoutput_begin_txn, pgoutput_stream_start (OutputPluginPrepareWrite)",
        on=(*_WITH_LSN, *_DESCRIBING, *_OTHERS),
        check=_opener_lsn,  # type: ignore[arg-type]
        envelope=True,
        legal=(s.sent(0, s.BEGIN), s.sent(900, m.Origin(1, "o")), *_STREAM[1:]),
        illegal=(_STREAM[0], s.sent(900, m.Origin(1, "o")), *_STREAM[1:]),
    ),
    Rule(
        name="envelope-order",
        doc="The envelope LSNs of changes do not decrease within a transaction or stream block.",
        source="ReorderBufferIterTXNNext",
        on=CHANGES,
        check=_lsn_decreases,  # type: ignore[arg-type]
        envelope=True,
        legal=_STREAM,
        illegal=(*_STREAM[:3], s.sent(892, s.INSERT), _STREAM[-1]),
    ),
)
