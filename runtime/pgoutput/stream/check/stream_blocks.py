"""Rules about stream blocks and about the messages that end streamed transactions."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput._roles import classes, field_name, meaning_of
from pgoutput.messages import Message
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import Breach, Rule
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.state import StreamState


def _stop_without_start(state: StreamState, message: Message) -> Breach | None:
    if state.open is None:
        return "tag", "no stream block is open"
    if state.open.streamed is None:
        return "tag", "a transaction is open, but no stream block"
    return None


def _first_stream_segment(state: StreamState, message: Message) -> Breach | None:
    xid = meaning_of(message, "xid")
    path = field_name(type(message), "first_block") or "tag"
    if meaning_of(message, "first_block"):
        if xid in state.streamed:
            return path, f"transaction {xid} has had its first block already"
    elif xid not in state.streamed and not state.opener_missing:
        return path, f"transaction {xid} has not had its first block"
    return None


def _not_streamed(state: StreamState, message: Message) -> Breach | None:
    xid = meaning_of(message, "xid")
    if xid in state.streamed or state.opener_missing:
        return None
    return "xid", f"no block of transaction {xid} was sent"


def _savepoint_not_streamed(state: StreamState, message: Message) -> Breach | None:
    xid = meaning_of(message, "xid")
    if xid in state.streamed or xid == meaning_of(message, "subxid") or state.opener_missing:
        return None
    return "xid", f"no block of transaction {xid}, whose savepoint is rolled back, was sent"


def _abort_not_streamed(state: StreamState, message: Message) -> Breach | None:
    is_whole = meaning_of(message, "xid") == meaning_of(message, "subxid")
    return _not_streamed(state, message) if is_whole else None


def _nonzero_origin_lsn(state: StreamState, message: Message) -> Breach | None:
    lsn = meaning_of(message, "lsn")
    return (
        (field_name(type(message), "lsn") or "tag", f"must be 0 in a stream block, not {lsn}")
        if lsn
        else None
    )


def _streaming_off(state: StreamState, message: Message) -> Breach | None:
    return "tag", "the option `streaming` was not requested"


RULES: Final = (
    Rule(
        name="stop-without-start",
        doc="Stream Stop closes a block that Stream Start opened.",
        source="pgoutput_stream_stop",
        on=classes("close_block"),
        check=_stop_without_start,
        legal=(*s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="first-segment",
        doc="The first Stream Start of a transaction is marked as the first, and no later one is.",
        source="pgoutput_stream_start (rbtxn_is_streamed)",
        on=classes("open_block"),
        check=_first_stream_segment,
        legal=(*s.BLOCK, s.NEXT, s.STREAMED, s.STOP, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, s.FIRST, s.STREAMED, s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="end-of-streamed",
        doc="Stream Commit and Stream Prepare end a transaction that was sent in stream blocks.",
        source="pgoutput_stream_commit, pgoutput_stream_prepare_txn (rbtxn_is_streamed)",
        on=classes("commit_streamed", "prepare_streamed"),
        check=_not_streamed,
        legal=(*s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, s.STREAM_COMMIT, m.StreamCommit(s.TOP, 2_048, 2_096, 0)),
    ),
    Rule(
        name="abort-of-streamed",
        doc="Stream Abort ends a transaction that was sent in stream blocks.",
        source="ReorderBufferAbort (rbtxn_is_streamed)",
        on=classes("abort_streamed"),
        check=_abort_not_streamed,
        legal=(*s.BLOCK, s.STREAM_ABORT),
        illegal=(*s.BLOCK, s.STREAM_ABORT, s.STREAM_ABORT),
    ),
    Rule(
        name="savepoint-of-streamed",
        doc="Stream Abort rolls back a savepoint of a transaction that was sent in stream blocks. "
        "PostgreSQL 18.0 to 18.4 also send it for transactions that were not (bug 19616); clients "
        "should ignore it.",
        source="ReorderBufferAbort; ReorderBufferCheckAndTruncateAbortedTXN",
        on=classes("abort_streamed"),
        check=_savepoint_not_streamed,
        legal=(*s.BLOCK, s.SAVEPOINT_ABORT, s.STREAM_COMMIT),
        illegal=(s.SAVEPOINT_ABORT,),
    ),
    Rule(
        name="origin-lsn-in-block",
        doc="The LSN of an Origin in a stream block is 0.",
        source="pgoutput_stream_start (InvalidXLogRecPtr)",
        on=classes("origin"),
        check=_nonzero_origin_lsn,
        in_blocks=True,
        legal=(s.FIRST, m.Origin(0, "o"), s.STOP, s.STREAM_COMMIT),
        illegal=(s.FIRST, m.Origin(1, "o"), s.STOP, s.STREAM_COMMIT),
    ),
    Rule(
        name="streaming-off",
        doc="Stream blocks and the messages that end streamed transactions are sent only if `streaming` "
        "was requested.",
        source="pgoutput_startup",
        on=classes("open_block", "close_block", "commit_streamed", "abort_streamed", "prepare_streamed"),
        check=_streaming_off,
        when=lambda options: options.streaming == "off",
        options=CheckOptions(),
        legal=s.transaction(s.RELATION, s.INSERT),
        illegal=(*s.transaction(s.RELATION, s.INSERT), s.FIRST),
    ),
)
