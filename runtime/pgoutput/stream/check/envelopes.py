"""Rules of XLogData: which LSN the envelope of a message has.

`on` are the messages inside. Of keepalives there are none: they come anywhere, and may fall back behind the
position from which the client wanted to go on (StartLogicalReplication, XLogSendLogical).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pgoutput import messages as m
from pgoutput.messages import Message, XLogData
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Fault, Rule
from pgoutput.stream.check.state import CHANGES, State
from pgoutput.wire import format_lsn

_SAYS: Final[Mapping[type[Message], str]] = {
    m.Commit: "end_lsn",
    m.StreamCommit: "end_lsn",
    m.Prepare: "end_lsn",
    m.StreamPrepare: "end_lsn",
    m.CommitPrepared: "end_lsn",
    m.RollbackPrepared: "rollback_end_lsn",
    m.LogicalMessage: "lsn",
}
"""The field of the message that the envelope says too."""

_OPENERS: Final = (m.Begin, m.BeginPrepare, m.StreamStart)
_DESCRIBING: Final = (m.Relation, m.Type)
_REST: Final = (
    m.Insert,
    m.Update,
    m.Delete,
    m.Truncate,
    m.Origin,
    m.StreamStop,
    m.StreamAbort,
)


def _unequal(state: State, outer: XLogData, message: Message) -> Fault | None:
    if outer.wal_start == outer.wal_end:
        return None
    return "wal_end", f"it equals wal_start, {format_lsn(outer.wal_start)}, not {format_lsn(outer.wal_end)}"


def _not_zero(state: State, outer: XLogData, message: Message) -> Fault | None:
    if not outer.wal_start:
        return None
    return "wal_start", f"{type(message).__name__} has no LSN: 0, not {format_lsn(outer.wal_start)}"


def _zero(state: State, outer: XLogData, message: Message) -> Fault | None:
    return None if outer.wal_start else ("wal_start", f"{type(message).__name__} has an LSN, not 0")


def _differs(state: State, outer: XLogData, message: Message) -> Fault | None:
    said: int = getattr(message, _SAYS[type(message)])
    if outer.wal_start == said:
        return None
    text = f"it is the {_SAYS[type(message)]} {format_lsn(said)} of the message inside"
    return "wal_start", f"{text}, not {format_lsn(outer.wal_start)}"


def _origin(state: State, outer: XLogData, message: Message) -> Fault | None:
    if isinstance(message, m.Origin) == state.silent or (state.open is not None and state.open.messages):
        return None
    if state.silent:
        return "tag", "what opened the transaction has LSN 0, which it has only before an Origin"
    if state.open is None or state.open.opener is None:
        return None
    return "tag", "what opened the transaction has an LSN, which it does not have before an Origin"


def _falls(state: State, outer: XLogData, message: Message) -> Fault | None:
    if state.open is None or outer.wal_start >= state.open.wal_start:
        return None
    last = format_lsn(state.open.wal_start)
    return "wal_start", f"{format_lsn(outer.wal_start)} is before {last}, of the change before"


_SENT: Final = (s.sent(900, s.BEGIN), s.sent(0, s.RELATION), s.sent(900, s.INSERT), s.sent(1_048, s.COMMIT))

RULES: Final = (
    Rule(
        name="envelope-lsns-equal",
        doc="The two LSNs of XLogData are equal.",
        source="WalSndPrepareWrite",
        on=(*_SAYS, *_OPENERS, *_DESCRIBING, *_REST),
        broken=_unequal,  # type: ignore[arg-type]
        envelope=True,
        legal=_SENT,
        illegal=(*_SENT[:-1], m.XLogData(1_048, 1_050, 0, _SENT[-1].data)),
    ),
    Rule(
        name="envelope-lsn-zero",
        doc="The LSN of Relation and Type is 0: they are written for a change that follows.",
        source="send_relation_and_attrs (OutputPluginWrite with last_write false)",
        on=_DESCRIBING,
        broken=_not_zero,  # type: ignore[arg-type]
        envelope=True,
        legal=_SENT,
        illegal=(_SENT[0], s.sent(900, s.RELATION), *_SENT[2:]),
    ),
    Rule(
        name="envelope-lsn",
        doc="What is not a Relation or Type, and does not open a transaction, has an LSN.",
        source="OutputPluginPrepareWrite (last_write)",
        on=_REST,
        broken=_zero,  # type: ignore[arg-type]
        envelope=True,
        legal=_SENT,
        illegal=(*_SENT[:2], s.sent(0, s.INSERT), _SENT[-1]),
    ),
    Rule(
        name="envelope-as-message",
        doc="The LSN of what ends a transaction is its end, and of a logical message its own.",
        source="commit_cb_wrapper and its neighbours (write_location)",
        on=tuple(_SAYS),
        broken=_differs,  # type: ignore[arg-type]
        envelope=True,
        legal=_SENT,
        illegal=(*_SENT[:-1], s.sent(1_000, s.COMMIT)),
    ),
    Rule(
        name="envelope-before-origin",
        doc="What opens a transaction has the LSN 0 where an Origin follows, and only there.",
        source="pgoutput_begin_txn, pgoutput_stream_start (OutputPluginPrepareWrite)",
        on=(*_SAYS, *_DESCRIBING, *_REST),
        broken=_origin,  # type: ignore[arg-type]
        envelope=True,
        legal=(s.sent(0, s.BEGIN), s.sent(900, m.Origin(1, "o")), *_SENT[1:]),
        illegal=(_SENT[0], s.sent(900, m.Origin(1, "o")), *_SENT[1:]),
    ),
    Rule(
        name="envelope-order",
        doc="The LSNs of a transaction's changes do not fall, in a block or as a whole.",
        source="ReorderBufferIterTXNNext",
        on=CHANGES,
        broken=_falls,  # type: ignore[arg-type]
        envelope=True,
        legal=_SENT,
        illegal=(*_SENT[:3], s.sent(892, s.INSERT), _SENT[-1]),
    ),
)
