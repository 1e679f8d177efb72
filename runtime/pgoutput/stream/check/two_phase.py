"""Rules about two-phase commit."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput.messages import Message
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Breach, Rule
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.state import StreamState
from pgoutput.wire import format_lsn

_MAX_GID_BYTES: Final = 199
"""Maximum length of a gid in bytes (GIDSIZE less the terminating zero byte)."""

TWO_PHASE: Final = (m.BeginPrepare, m.Prepare, m.StreamPrepare, m.CommitPrepared, m.RollbackPrepared)


def _two_phase_off(state: StreamState, message: Message) -> Breach | None:
    return None if state.options.two_phase else ("tag", "the slot does not have two_phase set")


def _prepare_without_begin(state: StreamState, message: m.Prepare) -> Breach | None:
    if state.open is None:
        return "tag", "no Begin Prepare has opened a transaction"
    if state.open.streamed is not None or not isinstance(state.open.opener, m.BeginPrepare | None):
        return "tag", "Prepare must follow Begin Prepare, but another message opened the transaction"
    return None


def _prepare_differs(state: StreamState, message: m.Prepare) -> Breach | None:
    begin = None if state.open is None else state.open.opener
    if not isinstance(begin, m.BeginPrepare):
        return None
    for name in ("prepare_lsn", "end_lsn", "prepare_time", "xid", "gid"):
        expected, actual = getattr(begin, name), getattr(message, name)
        if expected != actual:
            show = format_lsn if name.endswith("_lsn") else repr
            return name, f"Begin Prepare has {name} {show(expected)}, not {show(actual)}"
    return None


def _gid_in_use(state: StreamState, message: m.Prepare | m.StreamPrepare) -> Breach | None:
    prepared = state.prepared.get(message.gid)
    if prepared is None:
        return None
    if prepared.resent and prepared.prepare.prepare_lsn == message.prepare_lsn:
        return None
    return "gid", f"transaction {prepared.prepare.xid} is prepared as {message.gid!r}, and has not ended"


def _finished_twice(state: StreamState, message: m.CommitPrepared | m.RollbackPrepared) -> Breach | None:
    if message.gid not in state.finished_gids:
        return None
    return "gid", f"the transaction prepared as {message.gid!r} has ended already"


def _finished_differently(
    state: StreamState, message: m.CommitPrepared | m.RollbackPrepared
) -> Breach | None:
    if message.xid in state.streamed or message.xid in state.top_xids:
        return "xid", f"transaction {message.xid} is being streamed and is not prepared"
    prepared = state.prepared.get(message.gid)
    if prepared is None:
        return None
    prepare = prepared.prepare
    if message.xid != prepare.xid:
        return "xid", f"transaction {prepare.xid} is prepared as {message.gid!r}, not {message.xid}"
    if isinstance(message, m.CommitPrepared):
        return None
    if message.prepare_end_lsn != prepare.end_lsn:
        expected, actual = format_lsn(prepare.end_lsn), format_lsn(message.prepare_end_lsn)
        return "prepare_end_lsn", f"Prepare has end_lsn {expected}, not {actual}"
    if message.prepare_time != prepare.prepare_time:
        return "prepare_time", f"Prepare has prepare_time {prepare.prepare_time}, not {message.prepare_time}"
    return None


def _wrong_gid(state: StreamState, message: m.CommitPrepared | m.RollbackPrepared) -> Breach | None:
    gid = state.gid_by_xid.get(message.xid)
    if gid is None or message.gid in state.prepared:
        return None
    return "gid", f"transaction {message.xid} is prepared as {gid!r}, not {message.gid!r}"


def _long_gid(state: StreamState, message: m.Prepare) -> Breach | None:
    size = len(message.gid.encode("utf-8", "surrogateescape"))
    return (
        None if size <= _MAX_GID_BYTES else ("gid", f"a gid has at most {_MAX_GID_BYTES} bytes, not {size}")
    )


_FINISH: Final = (m.CommitPrepared, m.RollbackPrepared)
_LONG: Final = "g" * 200

RULES: Final = (
    Rule(
        name="two-phase-off",
        doc="Two-phase commit messages are sent only if the slot has two_phase set, in every protocol "
        "version.",
        source="ReorderBufferPrepare, pgoutput_startup",
        on=TWO_PHASE,
        check=_two_phase_off,
        options=CheckOptions(),
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), s.COMMIT_PREPARED),
    ),
    Rule(
        name="prepare-without-begin",
        doc="Prepare ends a transaction that Begin Prepare opened.",
        source="pgoutput_prepare_txn",
        on=(m.Prepare,),
        check=_prepare_without_begin,
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(s.PREPARE,),
    ),
    Rule(
        name="prepare-as-begun",
        doc="Prepare repeats the LSNs, time, xid and gid of its Begin Prepare.",
        source="logicalrep_write_prepare; apply_handle_prepare refuses others",
        on=(m.Prepare,),
        check=_prepare_differs,
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(*s.PREPARED[:-1], m.Prepare(1_000, 1_048, 0, 736, "g")),
    ),
    Rule(
        name="prepared-twice",
        doc="A gid identifies one transaction until that is committed or rolled back. On a new connection "
        "the server may send a Prepare again.",
        source="MarkAsPreparing",
        on=(m.Prepare, m.StreamPrepare),
        check=_gid_in_use,
        legal=(*s.PREPARED, s.COMMIT_PREPARED, *s.BLOCK, m.StreamPrepare(4_000, 4_048, 0, s.TOP, "g")),
        illegal=(*s.PREPARED, *s.BLOCK, s.STREAM_PREPARE),
    ),
    Rule(
        name="resolved-twice",
        doc="A gid that was committed or rolled back is prepared again before it ends again. (The first "
        "Prepare may precede the stream.)",
        source="FinishPreparedTransaction",
        on=_FINISH,
        check=_finished_twice,
        legal=(s.COMMIT_PREPARED,),
        illegal=(*s.PREPARED, s.COMMIT_PREPARED, m.CommitPrepared(4_000, 4_048, 0, 735, "g")),
    ),
    Rule(
        name="resolved-as-prepared",
        doc="Commit Prepared and Rollback Prepared repeat the xid that was prepared under the gid; "
        "Rollback Prepared also repeats the end LSN and time.",
        source="logicalrep_write_commit_prepared, logicalrep_write_rollback_prepared",
        on=_FINISH,
        check=_finished_differently,
        legal=(*s.PREPARED, s.ROLLBACK_PREPARED),
        illegal=(*s.PREPARED, m.RollbackPrepared(1_040, 3_048, 0, 0, 735, "g")),
    ),
    Rule(
        name="resolved-gid",
        doc="A prepared transaction ends under the gid under which it was prepared.",
        source="FinishPreparedTransaction",
        on=_FINISH,
        check=_wrong_gid,
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(*s.PREPARED, m.CommitPrepared(3_000, 3_048, 0, 735, "h")),
    ),
    Rule(
        name="gid-length",
        doc="A gid has at most 199 bytes.",
        source="MarkAsPreparing (GIDSIZE)",
        on=(m.BeginPrepare, m.StreamPrepare, *_FINISH),
        check=_long_gid,
        legal=(m.CommitPrepared(3_000, 3_048, 0, 735, _LONG[:-1]),),
        illegal=(m.CommitPrepared(3_000, 3_048, 0, 735, _LONG),),
    ),
)
