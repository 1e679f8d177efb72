"""Rules of two-phase commit."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput.messages import Message
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Fault, Rule
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.state import State
from pgoutput.wire import format_lsn

_GID_BYTES: Final = 199
"""Of a gid at most (GIDSIZE, with the zero byte behind it)."""

TWO_PHASE: Final = (m.BeginPrepare, m.Prepare, m.StreamPrepare, m.CommitPrepared, m.RollbackPrepared)


def _off(state: State, message: Message) -> Fault | None:
    return None if state.options.two_phase else ("tag", "the slot does not send prepared transactions")


def _prepare_without_begin(state: State, message: m.Prepare) -> Fault | None:
    if state.open is None:
        return "tag", "no Begin Prepare has opened a transaction"
    if state.open.work is not None or not isinstance(state.open.opener, m.BeginPrepare | None):
        return "tag", "Prepare ends what Begin Prepare opens, but another message has opened this"
    return None


def _prepare_differs(state: State, message: m.Prepare) -> Fault | None:
    begin = None if state.open is None else state.open.opener
    if not isinstance(begin, m.BeginPrepare):
        return None
    for name in ("prepare_lsn", "end_lsn", "prepare_time", "xid", "gid"):
        said, there = getattr(begin, name), getattr(message, name)
        if said != there:
            show = format_lsn if name.endswith("_lsn") else repr
            return name, f"Begin Prepare said {name} {show(said)}, not {show(there)}"
    return None


def _prepared_twice(state: State, message: m.Prepare | m.StreamPrepare) -> Fault | None:
    parked = state.parked.get(message.gid)
    if parked is None:
        return None
    if parked.resent and parked.prepare.prepare_lsn == message.prepare_lsn:
        return None
    return "gid", f"transaction {parked.prepare.xid} is prepared as {message.gid!r}, and has not ended"


def _resolved_twice(state: State, message: m.CommitPrepared | m.RollbackPrepared) -> Fault | None:
    if message.gid not in state.resolved:
        return None
    return "gid", f"what was prepared as {message.gid!r} has ended already"


def _resolved_otherwise(state: State, message: m.CommitPrepared | m.RollbackPrepared) -> Fault | None:
    if message.xid in state.streamed or message.xid in state.owners:
        return "xid", f"transaction {message.xid} is coming in blocks, and is not prepared"
    parked = state.parked.get(message.gid)
    if parked is None:
        return None
    prepare = parked.prepare
    if message.xid != prepare.xid:
        return "xid", f"transaction {prepare.xid} is prepared as {message.gid!r}, not {message.xid}"
    if isinstance(message, m.CommitPrepared):
        return None
    if message.prepare_end_lsn != prepare.end_lsn:
        said, there = format_lsn(prepare.end_lsn), format_lsn(message.prepare_end_lsn)
        return "prepare_end_lsn", f"Prepare said end_lsn {said}, not {there}"
    if message.prepare_time != prepare.prepare_time:
        return "prepare_time", f"Prepare said {prepare.prepare_time}, not {message.prepare_time}"
    return None


def _gid_of_another(state: State, message: m.CommitPrepared | m.RollbackPrepared) -> Fault | None:
    gid = state.gids.get(message.xid)
    if gid is None or message.gid in state.parked:
        return None
    return "gid", f"transaction {message.xid} is prepared as {gid!r}, not {message.gid!r}"


def _long_gid(state: State, message: m.Prepare) -> Fault | None:
    size = len(message.gid.encode("utf-8", "surrogateescape"))
    return None if size <= _GID_BYTES else ("gid", f"a gid has at most {_GID_BYTES} bytes, not {size}")


_RESOLVE: Final = (m.CommitPrepared, m.RollbackPrepared)
_LONG: Final = "g" * 200

RULES: Final = (
    Rule(
        name="two-phase-off",
        doc="Messages of two-phase commit come only where the slot sends prepared transactions, whatever "
        "the protocol version.",
        source="ReorderBufferPrepare, pgoutput_startup",
        on=TWO_PHASE,
        broken=_off,
        options=CheckOptions(),
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), s.COMMIT_PREPARED),
    ),
    Rule(
        name="prepare-without-begin",
        doc="Prepare ends what Begin Prepare has opened.",
        source="pgoutput_prepare_txn",
        on=(m.Prepare,),
        broken=_prepare_without_begin,
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(s.PREPARE,),
    ),
    Rule(
        name="prepare-as-begun",
        doc="Prepare has the LSNs, time, xid and gid of its Begin Prepare.",
        source="logicalrep_write_prepare; apply_handle_prepare refuses others",
        on=(m.Prepare,),
        broken=_prepare_differs,
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(*s.PREPARED[:-1], m.Prepare(1_000, 1_048, 0, 736, "g")),
    ),
    Rule(
        name="prepared-twice",
        doc="A gid stands for one transaction until that is committed or rolled back. On a new connection "
        "the server may send a Prepare again.",
        source="MarkAsPreparing",
        on=(m.Prepare, m.StreamPrepare),
        broken=_prepared_twice,
        legal=(*s.PREPARED, s.COMMIT_PREPARED, *s.BLOCK, m.StreamPrepare(4_000, 4_048, 0, s.TOP, "g")),
        illegal=(*s.PREPARED, *s.BLOCK, s.STREAM_PREPARE),
    ),
    Rule(
        name="resolved-twice",
        doc="What was committed or rolled back is prepared again before it is again. (Its first Prepare "
        "may have come before the stream began.)",
        source="FinishPreparedTransaction",
        on=_RESOLVE,
        broken=_resolved_twice,
        legal=(s.COMMIT_PREPARED,),
        illegal=(*s.PREPARED, s.COMMIT_PREPARED, m.CommitPrepared(4_000, 4_048, 0, 735, "g")),
    ),
    Rule(
        name="resolved-as-prepared",
        doc="Commit Prepared and Rollback Prepared name the xid that was prepared under the gid, Rollback "
        "Prepared also its end LSN and time.",
        source="logicalrep_write_commit_prepared, logicalrep_write_rollback_prepared",
        on=_RESOLVE,
        broken=_resolved_otherwise,
        legal=(*s.PREPARED, s.ROLLBACK_PREPARED),
        illegal=(*s.PREPARED, m.RollbackPrepared(1_040, 3_048, 0, 0, 735, "g")),
    ),
    Rule(
        name="resolved-gid",
        doc="A prepared transaction ends under the gid under which it was prepared.",
        source="FinishPreparedTransaction",
        on=_RESOLVE,
        broken=_gid_of_another,
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(*s.PREPARED, m.CommitPrepared(3_000, 3_048, 0, 735, "h")),
    ),
    Rule(
        name="gid-length",
        doc="A gid has at most 199 bytes.",
        source="MarkAsPreparing (GIDSIZE)",
        on=(m.BeginPrepare, m.StreamPrepare, *_RESOLVE),
        broken=_long_gid,
        legal=(m.CommitPrepared(3_000, 3_048, 0, 735, _LONG[:-1]),),
        illegal=(m.CommitPrepared(3_000, 3_048, 0, 735, _LONG),),
    ),
)
