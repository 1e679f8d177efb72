"""Rules of stream blocks, and of what ends the transactions that come in them."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput.messages import Message
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Fault, Rule
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.state import State


def _stop_without_start(state: State, message: m.StreamStop) -> Fault | None:
    if state.open is None:
        return "tag", "no stream block is open"
    if state.open.work is None:
        return "tag", "no stream block is open, but a transaction"
    return None


def _first_segment(state: State, message: m.StreamStart) -> Fault | None:
    if message.first_segment:
        if message.xid in state.streamed:
            return "first_segment", f"transaction {message.xid} has had its first block already"
    elif message.xid not in state.streamed and not state.lost:
        return "first_segment", f"transaction {message.xid} has not had its first block"
    return None


def _not_streamed(state: State, message: m.StreamCommit) -> Fault | None:
    if message.xid in state.streamed or state.lost:
        return None
    return "xid", f"no block of transaction {message.xid} has come"


def _unstreamed_savepoint(state: State, message: m.StreamAbort) -> Fault | None:
    if message.xid in state.streamed or message.xid == message.subxid or state.lost:
        return None
    return "xid", f"transaction {message.xid}, whose savepoint is rolled back, has had no block"


def _abort_not_streamed(state: State, message: m.StreamAbort) -> Fault | None:
    return _not_streamed(state, message) if message.xid == message.subxid else None  # type: ignore[arg-type]


def _origin_lsn(state: State, message: m.Origin) -> Fault | None:
    if not message.origin_lsn or state.open is None or state.open.work is None:
        return None
    return "origin_lsn", f"in a stream block it is 0, since the commit is not known, not {message.origin_lsn}"


def _streaming_off(state: State, message: Message) -> Fault | None:
    return None if state.options.streaming != "off" else ("tag", "streaming was not asked for")


RULES: Final = (
    Rule(
        name="stop-without-start",
        doc="Stream Stop closes what Stream Start has opened.",
        source="pgoutput_stream_stop",
        on=(m.StreamStop,),
        broken=_stop_without_start,
        legal=(*s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="first-segment",
        doc="The first block of a transaction says that it is the first, and no later one does.",
        source="pgoutput_stream_start (rbtxn_is_streamed)",
        on=(m.StreamStart,),
        broken=_first_segment,
        legal=(*s.BLOCK, s.NEXT, s.STREAMED, s.STOP, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, s.FIRST, s.STREAMED, s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="end-of-streamed",
        doc="Stream Commit and Stream Prepare end a transaction that has come in blocks.",
        source="pgoutput_stream_commit, pgoutput_stream_prepare_txn (rbtxn_is_streamed)",
        on=(m.StreamCommit, m.StreamPrepare),
        broken=_not_streamed,
        legal=(*s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, s.STREAM_COMMIT, m.StreamCommit(s.TOP, 2_048, 2_096, 0)),
    ),
    Rule(
        name="abort-of-streamed",
        doc="Stream Abort ends a transaction that has come in blocks.",
        source="ReorderBufferAbort (rbtxn_is_streamed)",
        on=(m.StreamAbort,),
        broken=_abort_not_streamed,
        legal=(*s.BLOCK, s.STREAM_ABORT),
        illegal=(*s.BLOCK, s.STREAM_ABORT, s.STREAM_ABORT),
    ),
    Rule(
        name="savepoint-of-streamed",
        doc="A savepoint is rolled back by Stream Abort where its transaction has come in blocks. "
        "PostgreSQL 18 up to 18.4 sends it also for transactions that have not (bug 19616); readers do"
        " well to ignore it.",
        source="ReorderBufferAbort; ReorderBufferCheckAndTruncateAbortedTXN",
        on=(m.StreamAbort,),
        broken=_unstreamed_savepoint,
        legal=(*s.BLOCK, s.SAVEPOINT_ABORT, s.STREAM_COMMIT),
        illegal=(s.SAVEPOINT_ABORT,),
    ),
    Rule(
        name="origin-lsn-in-block",
        doc="In a stream block the LSN of Origin is 0.",
        source="pgoutput_stream_start (InvalidXLogRecPtr)",
        on=(m.Origin,),
        broken=_origin_lsn,
        legal=(s.FIRST, m.Origin(0, "o"), s.STOP, s.STREAM_COMMIT),
        illegal=(s.FIRST, m.Origin(1, "o"), s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="streaming-off",
        doc="Blocks, and what ends their transactions, come only where `streaming` was asked for.",
        source="pgoutput_startup",
        on=(m.StreamStart, m.StreamStop, m.StreamCommit, m.StreamAbort, m.StreamPrepare),
        broken=_streaming_off,
        options=CheckOptions(),
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), s.FIRST),
    ),
)
