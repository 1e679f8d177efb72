"""Examples for the rules whose check is generated from the spec, and for rules that the decoder checks."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from logicalrep import messages as m
from logicalrep.stream.check import samples as s
from logicalrep.stream.check.model import rule
from logicalrep.stream.check.options import CheckOptions

_M: Final = m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=900, prefix="p", content=b"x")
_LONG: Final = "g" * 200

_PREPARED_EARLIER: Final = (
    replace(s.BEGIN_PREPARE, prepare_lsn=500, end_lsn=548),
    s.RELATION,
    s.INSERT,
    replace(s.PREPARE, prepare_lsn=500, end_lsn=548),
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
        legal=(m.LogicalMessage(flags=m.MessageFlag(0), lsn=900, prefix="p", content=b"x"), *s.TRANSACTION),
        illegal=s.transaction(
            s.RELATION, s.INSERT, m.LogicalMessage(flags=m.MessageFlag(0), lsn=900, prefix="p", content=b"x")
        ),
    ),
    rule("change-in-transaction", illegal=(*s.TRANSACTION, s.INSERT)),
    rule("message-in-transaction", legal=s.transaction(_M), illegal=(_M,)),
    rule("description-in-transaction", illegal=(s.RELATION, *s.transaction(s.INSERT))),
    rule(
        "commit-without-begin", illegal=(*s.TRANSACTION, replace(s.COMMIT, commit_lsn=2_000, end_lsn=2_048))
    ),
    rule("commit-as-begun", illegal=(s.BEGIN, s.RELATION, s.INSERT, replace(s.COMMIT, commit_time=1))),
    rule("empty-transaction", illegal=s.transaction()),
    rule(
        "origin-second",
        legal=s.transaction(m.Origin(origin_lsn=1, name="o"), s.RELATION, s.INSERT),
        illegal=s.transaction(s.RELATION, m.Origin(origin_lsn=1, name="o"), s.INSERT),
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
        illegal=(*s.STREAMED_TRANSACTION, replace(s.STREAM_COMMIT, commit_lsn=2_048, end_lsn=2_096)),
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
        legal=s.block(m.Origin(origin_lsn=0, name="o")),
        illegal=s.block(m.Origin(origin_lsn=1, name="o")),
    ),
    rule("streaming-off", options=CheckOptions(), illegal=(*s.TRANSACTION, s.FIRST)),
    rule("two-phase-off", options=CheckOptions(), illegal=(*s.TRANSACTION, s.COMMIT_PREPARED)),
    rule("prepare-without-begin", legal=(*s.PREPARED, s.COMMIT_PREPARED), illegal=(s.PREPARE,)),
    rule(
        "prepare-as-begun",
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(*s.PREPARED[:-1], replace(s.PREPARE, xid=736)),
    ),
    rule(
        "prepared-twice",
        legal=(
            *s.PREPARED,
            s.COMMIT_PREPARED,
            *s.BLOCK,
            replace(s.STREAM_PREPARE, prepare_lsn=4_000, end_lsn=4_048),
        ),
        illegal=(*s.PREPARED, *s.BLOCK, s.STREAM_PREPARE),
    ),
    rule(
        "resolved-twice",
        legal=(s.COMMIT_PREPARED,),
        illegal=(*s.PREPARED, s.COMMIT_PREPARED, replace(s.COMMIT_PREPARED, commit_lsn=4_000, end_lsn=4_048)),
    ),
    rule(
        "resolved-as-prepared",
        legal=(*s.PREPARED, s.ROLLBACK_PREPARED),
        illegal=(*s.PREPARED, replace(s.ROLLBACK_PREPARED, prepare_end_lsn=1_040)),
    ),
    rule(
        "resolved-gid",
        legal=(*s.PREPARED, s.COMMIT_PREPARED),
        illegal=(*s.PREPARED, replace(s.COMMIT_PREPARED, gid="h")),
    ),
    rule(
        "gid-length",
        legal=(replace(s.COMMIT_PREPARED, gid=_LONG[:-1]),),
        illegal=(replace(s.COMMIT_PREPARED, gid=_LONG),),
    ),
    rule(
        "savepoint-xid",
        legal=(*s.BLOCK, s.SAVEPOINT_ABORT, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, s.SAVEPOINT_ABORT, s.SAVEPOINT_ABORT, s.STREAM_COMMIT),
    ),
    rule(
        "block-xid",
        legal=s.STREAMED_TRANSACTION,
        illegal=(
            *s.BLOCK[:-1],
            m.Insert(relation_oid=s.OID, new=("4", ""), xid=s.TOP - 1),
            s.STOP,
            s.STREAM_COMMIT,
        ),
    ),
    rule(
        "message-xid",
        legal=s.block(s.logical_message(900, xid=s.TOP)),
        illegal=s.block(s.logical_message(900, xid=s.SUB)),
    ),
    rule("xid-normal", illegal=(replace(s.BEGIN, xid=0), s.RELATION, s.INSERT, s.COMMIT)),
    rule(
        "xid-in-use",
        legal=(*s.BLOCK, *s.TRANSACTION, s.STREAM_COMMIT),
        illegal=(*s.BLOCK, replace(s.BEGIN, xid=s.TOP), s.RELATION, s.INSERT, s.COMMIT, s.STREAM_COMMIT),
    ),
    rule(
        "commit-order",
        legal=(*s.TRANSACTION, *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.TRANSACTION, *s.BLOCK, replace(s.STREAM_COMMIT, commit_lsn=1_040, end_lsn=1_088)),
    ),
    rule("end-beyond-start", illegal=(s.BEGIN, s.RELATION, s.INSERT, replace(s.COMMIT, end_lsn=1_000))),
    rule(
        "prepare-order",
        legal=(*s.TRANSACTION, *_PREPARED_EARLIER, s.COMMIT_PREPARED),
        illegal=(*s.TRANSACTION, *_PREPARED_EARLIER, *s.BLOCK),
    ),
    rule(
        "message-order",
        legal=s.transaction(s.logical_message(900), s.logical_message(908)),
        illegal=s.transaction(s.logical_message(900), s.logical_message(892)),
    ),
    rule(
        "message-before-end",
        legal=s.block(s.logical_message(900, xid=s.TOP)),
        illegal=s.block(s.logical_message(2_040, xid=s.TOP)),
    ),
    rule(
        "relation-before-use",
        legal=s.transaction(s.RELATION, s.INSERT, s.DELETE),
        illegal=s.transaction(s.INSERT, s.DELETE),
    ),
    rule(
        "relation-before-truncate",
        legal=s.transaction(s.RELATION, s.truncate(s.OID)),
        illegal=s.transaction(s.RELATION, s.truncate(s.OID, s.OID + 1)),
    ),
    rule(
        "relation-in-block",
        legal=(*s.TRANSACTION, *s.BLOCK, s.STREAM_COMMIT),
        illegal=(*s.TRANSACTION, *s.block(s.STREAMED)),
    ),
    rule(
        "truncate-in-block",
        legal=s.block(s.STREAMED_RELATION, s.truncate(s.OID, xid=s.TOP)),
        illegal=(*s.TRANSACTION, *s.block(s.truncate(s.OID, xid=s.TOP))),
    ),
    rule(
        "truncate-something",
        legal=s.transaction(s.RELATION, s.truncate(s.OID)),
        illegal=s.transaction(s.RELATION, s.truncate()),
    ),
    rule(
        "truncate-once",
        legal=s.transaction(s.RELATION, s.truncate(s.OID)),
        illegal=s.transaction(s.RELATION, s.truncate(s.OID, s.OID)),
    ),
    rule(
        "type-for-relation",
        legal=s.transaction(s.MOOD, s.RELATION_WITH_MOOD, s.INSERT),
        illegal=s.transaction(s.RELATION, s.MOOD, s.INSERT),
    ),
    rule(
        "type-built-in",
        legal=s.transaction(s.MOOD, s.RELATION_WITH_MOOD, s.INSERT),
        illegal=(s.BEGIN, m.Type(oid=25, namespace="", name="text")),
    ),
    rule("message", illegal=(*s.TRANSACTION, b"B\0")),
    rule(
        "envelope",
        legal=(m.PrimaryKeepalive(wal_end=1_000, send_time=0, reply_requested=False),),
        illegal=(
            m.StandbyStatusUpdate(
                written_lsn=1_000, flushed_lsn=1_000, applied_lsn=1_000, send_time=0, reply_requested=False
            ),
        ),
    ),
    rule(
        "xid-in-blocks",
        legal=s.STREAMED_TRANSACTION,
        illegal=(*s.BLOCK[:-1], s.INSERT, s.STOP, s.STREAM_COMMIT),
    ),
)
