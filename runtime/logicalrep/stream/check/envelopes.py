"""Rules about the LSNs of XLogData envelopes.

Keepalives are not checked: they may occur anywhere, and their LSN may be before the requested start position
(StartLogicalReplication, XLogSendLogical).
"""

from __future__ import annotations

from typing import Final

from logicalrep import messages as m
from logicalrep._roles import ENDS, ROLES, field_name, has_role, meaning_of
from logicalrep._rules import Breach
from logicalrep.messages import Message, XLogData
from logicalrep.stream.check import samples as s
from logicalrep.stream.check.model import rule
from logicalrep.stream.check.state import CheckedStream
from logicalrep.wire import format_lsn

_LSN_MEANINGS: Final = dict.fromkeys(ENDS, "end_lsn") | {"payload": "lsn"}
"""Maps the role of a message to the meaning of the field that must equal the LSN of its envelope."""


def _lsns_differ(state: CheckedStream, outer: XLogData, message: Message) -> Breach | None:
    if outer.wal_start == outer.wal_end:
        return None
    return "wal_end", f"must equal wal_start {format_lsn(outer.wal_start)}, not {format_lsn(outer.wal_end)}"


def _lsn_not_zero(state: CheckedStream, outer: XLogData, message: Message) -> Breach | None:
    if not outer.wal_start:
        return None
    return "wal_start", f"must be 0 for {type(message).__name__}, not {format_lsn(outer.wal_start)}"


def _lsn_not_that_of_message(state: CheckedStream, outer: XLogData, message: Message) -> Breach | None:
    meaning = _LSN_MEANINGS[ROLES[type(message)]]
    expected = meaning_of(message, meaning)
    if expected is None or outer.wal_start == expected:
        return None
    text = f"must equal the message's {field_name(type(message), meaning)} {format_lsn(expected)}"
    return "wal_start", f"{text}, not {format_lsn(outer.wal_start)}"


def _opener_lsn(state: CheckedStream, outer: XLogData, message: Message) -> Breach | None:
    if has_role(message, "origin") == state.opener_without_lsn or (
        state.open is not None and state.open.messages
    ):
        return None
    if state.opener_without_lsn:
        return "tag", "the envelope LSN of the transaction's opener is 0, but no Origin follows"
    if state.open is None or state.open.opener is None:
        return None
    return "tag", "an Origin follows, but the envelope LSN of the transaction's opener is not 0"


def _lsn_decreases(state: CheckedStream, outer: XLogData, message: Message) -> Breach | None:
    if state.open is None or outer.wal_start >= state.open.wal_start:
        return None
    last = format_lsn(state.open.wal_start)
    return "wal_start", f"{format_lsn(outer.wal_start)} is before {last} of the previous change"


_STREAM: Final = (s.sent(900, s.BEGIN), s.sent(0, s.RELATION), s.sent(900, s.INSERT), s.sent(1_048, s.COMMIT))

RULES: Final = (
    rule(
        "envelope-lsns-equal",
        check=_lsns_differ,
        legal=_STREAM,
        illegal=(
            *_STREAM[:-1],
            m.XLogData(wal_start=1_048, wal_end=1_050, send_time=0, data=_STREAM[-1].data),
        ),
    ),
    rule(
        "envelope-lsn-zero",
        check=_lsn_not_zero,
        legal=_STREAM,
        illegal=(_STREAM[0], s.sent(900, s.RELATION), *_STREAM[2:]),
    ),
    rule(
        "envelope-lsn",
        check=lambda state, outer, message: (
            None if outer.wal_start else ("wal_start", f"must not be 0 for {type(message).__name__}")
        ),
        legal=_STREAM,
        illegal=(*_STREAM[:2], s.sent(0, s.INSERT), _STREAM[-1]),
    ),
    rule(
        "envelope-as-message",
        check=_lsn_not_that_of_message,
        legal=_STREAM,
        illegal=(*_STREAM[:-1], s.sent(1_000, s.COMMIT)),
    ),
    rule(
        "envelope-before-origin",
        check=_opener_lsn,
        legal=(s.sent(0, s.BEGIN), s.sent(900, m.Origin(origin_lsn=1, name="o")), *_STREAM[1:]),
        illegal=(_STREAM[0], s.sent(900, m.Origin(origin_lsn=1, name="o")), *_STREAM[1:]),
    ),
    rule(
        "envelope-order",
        check=_lsn_decreases,
        legal=_STREAM,
        illegal=(*_STREAM[:3], s.sent(892, s.INSERT), _STREAM[-1]),
    ),
)
