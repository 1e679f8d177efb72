"""Examples of the rules whose cases the spec has, and of the rules that the decoder checks."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput.stream.check import samples as s
from pgoutput.stream.check.model import rule
from pgoutput.stream.check.options import CheckOptions

_M: Final = m.LogicalMessage(1, 900, "p", b"x")
_LONG: Final = "g" * 200

_PREPARED_EARLIER: Final = (
    m.BeginPrepare(500, 548, 0, 735, "g"),
    s.RELATION,
    s.INSERT,
    m.Prepare(500, 548, 0, 735, "g"),
)
"""Messages of a transaction that was prepared before the transaction of `samples.transaction`."""

RULES: Final = (
    rule(
        "transaction-open",
        legal=(*s.TRANSACTION, *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.BLOCK[:-1], s.STREAM_COMMIT),
    ),
    rule(
        "message-at-once",
        legal=(m.LogicalMessage(0, 900, "p", b"x"), *s.TRANSACTION),
        illegal=s.transaction(s.RELATION, s.INSERT, m.LogicalMessage(0, 900, "p", b"x")),
    ),
    rule("change-in-transaction", illegal=(*s.TRANSACTION, s.INSERT)),
    rule("message-in-transaction", legal=s.transaction(_M), illegal=(_M,)),
    rule("description-in-transaction", illegal=(s.RELATION, *s.transaction(s.INSERT))),
    rule("commit-without-begin", illegal=(*s.TRANSACTION, m.Commit(2_000, 2_048, 0))),
    rule("commit-as-begun", illegal=(s.BEGIN, s.RELATION, s.INSERT, m.Commit(1_000, 1_048, 1))),
    rule("empty-transaction", illegal=s.transaction()),
    rule(
        "origin-second",
        legal=s.transaction(m.Origin(1, "o"), s.RELATION, s.INSERT),
        illegal=s.transaction(s.RELATION, m.Origin(1, "o"), s.INSERT),
    ),
    rule("messages-off", options=CheckOptions(messages=False), illegal=s.transaction(_M)),
    rule("stop-without-start", legal=s.STREAMED_TRANSACTION, illegal=(*s.BLOCK, s.STOP, s.STREAM_COMMIT)),
    rule(
        "first-segment",
        legal=(*s.BLOCK, s.NEXT, s.STREAMED, s.STOP, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, s.FIRST, s.STREAMED, s.STOP, s.STREAM_COMMIT),
    ),
    rule(
        "end-of-streamed",
        legal=s.STREAMED_TRANSACTION,
        illegal=(*s.STREAMED_TRANSACTION, m.StreamCommit(s.TOP, 2_048, 2_096, 0)),
    ),
    rule(
        "abort-of-streamed",
        legal=(*s.BLOCK, s.STREAM_ABORT),
        illegal=(*s.BLOCK, s.STREAM_ABORT, s.STREAM_ABORT),
    ),
    rule(
        "savepoint-of-streamed",
        legal=(*s.BLOCK, s.SAVEPOINT_ABORT, s.STREAM_COMMIT),
        illegal=(s.SAVEPOINT_ABORT,),
    ),
    rule(
        "origin-lsn-in-block",
        legal=(s.FIRST, m.Origin(0, "o"), s.STOP, s.STREAM_COMMIT),
        illegal=(s.FIRST, m.Origin(1, "o"), s.STOP, s.STREAM_COMMIT),
    ),
    rule("streaming-off", options=CheckOptions(), illegal=(*s.TRANSACTION, s.FIRST)),
    rule("two-phase-off", options=CheckOptions(), illegal=(*s.TRANSACTION, s.COMMIT_PREPARED)),
    rule("prepare-without-begin", legal=(*s.PREPARED, s.COMMIT_PREPARED), illegal=(s.PREPARE,)),
    rule(
        "prepare-as-begun",
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(*s.PREPARED[:-1], m.Prepare(1_000, 1_048, 0, 736, "g")),
    ),
    rule(
        "prepared-twice",
        legal=(*s.PREPARED, s.COMMIT_PREPARED, *s.BLOCK, m.StreamPrepare(4_000, 4_048, 0, s.TOP, "g")),
        illegal=(*s.PREPARED, *s.BLOCK, s.STREAM_PREPARE),
    ),
    rule(
        "resolved-twice",
        legal=(s.COMMIT_PREPARED,),
        illegal=(*s.PREPARED, s.COMMIT_PREPARED, m.CommitPrepared(4_000, 4_048, 0, 735, "g")),
    ),
    rule(
        "resolved-as-prepared",
        legal=(*s.PREPARED, s.ROLLBACK_PREPARED),
        illegal=(*s.PREPARED, m.RollbackPrepared(1_040, 3_048, 0, 0, 735, "g")),
    ),
    rule(
        "resolved-gid",
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(*s.PREPARED, m.CommitPrepared(3_000, 3_048, 0, 735, "h")),
    ),
    rule(
        "gid-length",
        legal=(m.CommitPrepared(3_000, 3_048, 0, 735, _LONG[:-1]),),
        illegal=(m.CommitPrepared(3_000, 3_048, 0, 735, _LONG),),
    ),
    rule(
        "savepoint-xid",
        legal=(*s.BLOCK, s.SAVEPOINT_ABORT, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, s.SAVEPOINT_ABORT, s.SAVEPOINT_ABORT, s.STREAM_COMMIT),
    ),
    rule(
        "block-xid",
        legal=s.STREAMED_TRANSACTION,
        illegal=(*s.BLOCK[:-1], m.Insert(s.OID, ("4", ""), xid=s.TOP - 1), s.STOP, s.STREAM_COMMIT),
    ),
    rule(
        "message-xid",
        legal=(s.FIRST, m.LogicalMessage(1, 900, "p", b"", xid=s.TOP), s.STOP, s.STREAM_COMMIT),
        illegal=(s.FIRST, m.LogicalMessage(1, 900, "p", b"", xid=s.SUB), s.STOP, s.STREAM_COMMIT),
    ),
    rule("xid-normal", illegal=(m.Begin(1_000, 0, 0), s.RELATION, s.INSERT, s.COMMIT)),
    rule(
        "xid-in-use",
        legal=(*s.BLOCK, *s.TRANSACTION, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, m.Begin(1_000, 0, s.TOP), s.RELATION, s.INSERT, s.COMMIT, s.STREAM_COMMIT),
    ),
    rule(
        "commit-order",
        legal=(*s.TRANSACTION, *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.TRANSACTION, *s.BLOCK, m.StreamCommit(s.TOP, 1_040, 1_088, 0)),
    ),
    rule("end-beyond-start", illegal=(s.BEGIN, s.RELATION, s.INSERT, m.Commit(1_000, 1_000, 0))),
    rule(
        "prepare-order",
        legal=(*s.TRANSACTION, *_PREPARED_EARLIER, s.COMMIT_PREPARED),
        illegal=(*s.TRANSACTION, *_PREPARED_EARLIER, *s.BLOCK),
    ),
    rule(
        "message-order",
        legal=s.transaction(m.LogicalMessage(1, 900, "p", b""), m.LogicalMessage(1, 908, "p", b"")),
        illegal=s.transaction(m.LogicalMessage(1, 900, "p", b""), m.LogicalMessage(1, 892, "p", b"")),
    ),
    rule(
        "message-before-end",
        legal=(s.FIRST, m.LogicalMessage(1, 900, "p", b"", xid=s.TOP), s.STOP, s.STREAM_COMMIT),
        illegal=(s.FIRST, m.LogicalMessage(1, 2_040, "p", b"", xid=s.TOP), s.STOP, s.STREAM_COMMIT),
    ),
    rule(
        "relation-before-use",
        legal=s.transaction(s.RELATION, s.INSERT, s.DELETE),
        illegal=s.transaction(s.INSERT, s.DELETE),
    ),
    rule(
        "relation-before-truncate",
        legal=s.transaction(s.RELATION, m.Truncate(0, (s.OID,))),
        illegal=s.transaction(s.RELATION, m.Truncate(0, (s.OID, s.OID + 1))),
    ),
    rule(
        "relation-in-block",
        legal=(*s.TRANSACTION, *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.TRANSACTION, s.FIRST, s.STREAMED, s.STOP, s.STREAM_COMMIT),
    ),
    rule(
        "truncate-in-block",
        legal=(s.FIRST, s.STREAMED_RELATION, m.Truncate(0, (s.OID,), xid=s.TOP), s.STOP, s.STREAM_COMMIT),
        illegal=(
            *s.TRANSACTION,
            s.FIRST,
            m.Truncate(0, (s.OID,), xid=s.TOP),
            s.STOP,
            s.STREAM_COMMIT,
        ),
    ),
    rule(
        "truncate-something",
        legal=s.transaction(s.RELATION, m.Truncate(0, (s.OID,))),
        illegal=s.transaction(s.RELATION, m.Truncate(0, ())),
    ),
    rule(
        "truncate-once",
        legal=s.transaction(s.RELATION, m.Truncate(0, (s.OID,))),
        illegal=s.transaction(s.RELATION, m.Truncate(0, (s.OID, s.OID))),
    ),
    rule(
        "type-for-relation",
        legal=s.transaction(s.MOOD, s.RELATION_WITH_MOOD, s.INSERT),
        illegal=s.transaction(s.RELATION, s.MOOD, s.INSERT),
    ),
    rule(
        "type-built-in",
        legal=s.transaction(s.MOOD, s.RELATION_WITH_MOOD, s.INSERT),
        illegal=(s.BEGIN, m.Type(25, "", "text")),
    ),
    rule("message", illegal=(*s.TRANSACTION, b"B\0")),
    rule(
        "envelope",
        legal=(m.PrimaryKeepalive(1_000, 0, False),),
        illegal=(m.StandbyStatusUpdate(1_000, 1_000, 1_000, 0, False),),
    ),
    rule(
        "xid-in-blocks",
        legal=s.STREAMED_TRANSACTION,
        illegal=(*s.BLOCK[:-1], s.INSERT, s.STOP, s.STREAM_COMMIT),
    ),
)
