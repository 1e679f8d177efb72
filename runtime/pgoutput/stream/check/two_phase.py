"""Rules about two-phase commit."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput._roles import classes, field_name, has_role, meaning_of, read_end
from pgoutput.messages import Message
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Breach, Rule
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.state import StreamState
from pgoutput.wire import format_lsn

_MAX_GID_BYTES: Final = 199
"""Maximum length of a gid in bytes (GIDSIZE less the terminating zero byte)."""

TWO_PHASE: Final = classes(
    "begin_prepare", "prepare", "prepare_streamed", "commit_prepared", "rollback_prepared"
)


def _two_phase_off(state: StreamState, message: Message) -> Breach | None:
    return "tag", "the slot does not have two_phase set"


def _prepare_without_begin(state: StreamState, message: Message) -> Breach | None:
    if state.open is None:
        return "tag", "no Begin Prepare has opened a transaction"
    opener = state.open.opener
    if state.open.streamed is not None or not (opener is None or has_role(opener, "begin_prepare")):
        return "tag", "Prepare must follow Begin Prepare, but another message opened the transaction"
    return None


def _prepare_differs(state: StreamState, message: Message) -> Breach | None:
    begin = None if state.open is None else state.open.opener
    if begin is None or not has_role(begin, "begin_prepare"):
        return None
    for meaning in ("lsn", "end_lsn", "time", "xid", "gid"):
        expected, actual = meaning_of(begin, meaning), meaning_of(message, meaning)
        if expected != actual:
            name = field_name(type(message), meaning) or "tag"
            show = format_lsn if meaning in ("lsn", "end_lsn") else repr
            return name, f"Begin Prepare has {name} {show(expected)}, not {show(actual)}"
    return None


def _gid_in_use(state: StreamState, message: Message) -> Breach | None:
    end = read_end(message)
    if (prepared := state.prepared.get(end.gid)) is None:
        return None
    prepare = read_end(prepared.prepare)
    if prepared.resent and prepare.lsn == end.lsn:
        return None
    return "gid", f"transaction {prepare.xid} is prepared as {end.gid!r}, and has not ended"


def _finished_twice(state: StreamState, message: Message) -> Breach | None:
    gid = meaning_of(message, "gid")
    if gid not in state.finished_gids:
        return None
    return "gid", f"the transaction prepared as {gid!r} has ended already"


def _finished_differently(state: StreamState, message: Message) -> Breach | None:
    end = read_end(message)
    if end.xid in state.streamed or end.xid in state.top_xids:
        return "xid", f"transaction {end.xid} is being streamed and is not prepared"
    if (prepared := state.prepared.get(end.gid)) is None:
        return None
    prepare = read_end(prepared.prepare)
    if end.xid != prepare.xid:
        return "xid", f"transaction {prepare.xid} is prepared as {end.gid!r}, not {end.xid}"
    end_lsn, time = meaning_of(message, "prepare_end_lsn"), meaning_of(message, "prepare_time")
    if end_lsn is not None and end_lsn != prepare.end_lsn:
        expected, actual = format_lsn(prepare.end_lsn), format_lsn(end_lsn)
        return "prepare_end_lsn", f"Prepare has end_lsn {expected}, not {actual}"
    if time is not None and time != prepare.time:
        return "prepare_time", f"Prepare has prepare_time {prepare.time}, not {time}"
    return None


def _wrong_gid(state: StreamState, message: Message) -> Breach | None:
    xid, gid = meaning_of(message, "xid"), meaning_of(message, "gid")
    expected = state.gid_by_xid.get(xid)
    if expected is None or gid in state.prepared:
        return None
    return "gid", f"transaction {xid} is prepared as {expected!r}, not {gid!r}"


def _long_gid(state: StreamState, message: Message) -> Breach | None:
    size = len(meaning_of(message, "gid").encode("utf-8", "surrogateescape"))
    return (
        None if size <= _MAX_GID_BYTES else ("gid", f"a gid has at most {_MAX_GID_BYTES} bytes, not {size}")
    )


_FINISH: Final = classes("commit_prepared", "rollback_prepared")
_LONG: Final = "g" * 200

RULES: Final = (
    Rule(
        name="two-phase-off",
        doc="Two-phase commit messages are sent only if the slot has two_phase set, in every protocol "
        "version.",
        source="ReorderBufferPrepare, pgoutput_startup",
        on=TWO_PHASE,
        check=_two_phase_off,
        when=lambda options: not options.two_phase,
        options=CheckOptions(),
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), s.COMMIT_PREPARED),
    ),
    Rule(
        name="prepare-without-begin",
        doc="Prepare ends a transaction that Begin Prepare opened.",
        source="pgoutput_prepare_txn",
        on=classes("prepare"),
        check=_prepare_without_begin,
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(s.PREPARE,),
    ),
    Rule(
        name="prepare-as-begun",
        doc="Prepare repeats the LSNs, time, xid and gid of its Begin Prepare.",
        source="logicalrep_write_prepare; apply_handle_prepare refuses others",
        on=classes("prepare"),
        check=_prepare_differs,
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(*s.PREPARED[:-1], m.Prepare(1_000, 1_048, 0, 736, "g")),
    ),
    Rule(
        name="prepared-twice",
        doc="A gid identifies one transaction until that is committed or rolled back. On a new connection "
        "the server may send a Prepare again.",
        source="MarkAsPreparing",
        on=classes("prepare", "prepare_streamed"),
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
        on=(*classes("begin_prepare", "prepare_streamed"), *_FINISH),
        check=_long_gid,
        legal=(m.CommitPrepared(3_000, 3_048, 0, 735, _LONG[:-1]),),
        illegal=(m.CommitPrepared(3_000, 3_048, 0, 735, _LONG),),
    ),
)
