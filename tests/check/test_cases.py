"""Each case in which a message violates a rule is reported with its reason, here or in the rule's example."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from logicalrep import messages as m
from logicalrep.messages import Message
from logicalrep.stream.check import CheckOptions, check, samples as s
from tests.messages import start_block
from tests.versions import WRITTEN

OTHER = start_block(760)
"""First Stream Start of another transaction than `samples.TOP`."""
BEGUN = (s.BEGIN, s.RELATION, s.INSERT)
PREPARING = s.PREPARED[:-1]


def streamed(xid: int) -> m.Insert:
    """Return an Insert in a stream block."""
    return m.Insert(relation_oid=s.OID, new=("4", ""), xid=xid)


CASES: list[tuple[str, tuple[Message, ...], str]] = [
    (
        "transaction-open",
        (*s.BLOCK[:-1], OTHER),
        "StreamStart: a stream block of transaction 740 is still open, and blocks do not nest",
    ),
    (
        "transaction-open",
        (*BEGUN, replace(s.BEGIN, final_lsn=2_000, xid=731)),
        "Begin: transaction 730 is still open",
    ),
    (
        "commit-without-begin",
        (*PREPARING, s.COMMIT),
        "Commit: Commit must follow Begin, but another message opened transaction 735",
    ),
    (
        "commit-without-begin",
        (*s.BLOCK[:-1], s.COMMIT),
        "Commit: Commit must follow Begin, but another message opened a stream block of transaction 740",
    ),
    (
        "commit-as-begun",
        (*BEGUN, replace(s.COMMIT, commit_lsn=1_008)),
        "Commit.commit_lsn: Begin has final_lsn 0/3E8, not 0/3F0",
    ),
    (
        "commit-as-begun",
        (*BEGUN, replace(s.COMMIT, commit_time=1)),
        "Commit.commit_time: Begin has commit_time 0, not 1",
    ),
    ("origin-second", (m.Origin(origin_lsn=1, name="o"),), "Origin: no transaction is open"),
    (
        "origin-second",
        (*s.BLOCK, s.NEXT, m.Origin(origin_lsn=0, name="o")),
        "Origin: Origin occurs only in the first stream block of a transaction",
    ),
    ("stop-without-start", (s.STOP,), "StreamStop: no stream block is open"),
    ("stop-without-start", (*BEGUN, s.STOP), "StreamStop: a transaction is open, but no stream block"),
    (
        "first-segment",
        (s.NEXT,),
        "StreamStart.first_stream_segment: transaction 740 has not had its first block",
    ),
    (
        "savepoint-xid",
        (*s.BLOCK, OTHER, s.STOP, m.StreamAbort(xid=760, subxid=s.SUB)),
        "StreamAbort.subxid: 741 is a subtransaction of 740, not of 760",
    ),
    (
        "savepoint-xid",
        (*s.BLOCK, OTHER, s.STOP, m.StreamAbort(xid=s.TOP, subxid=760)),
        "StreamAbort.subxid: 760 is a transaction of its own, not a subtransaction of 740",
    ),
    (
        "savepoint-xid",
        (*s.BLOCK, m.StreamAbort(xid=s.TOP, subxid=700)),
        "StreamAbort.subxid: 700 is before 740, but subtransactions get later xids than their transaction",
    ),
    (
        "savepoint-xid",
        (*s.BLOCK, m.StreamAbort(xid=s.TOP, subxid=2)),
        "StreamAbort.subxid: 2 is before 740, but subtransactions get later xids than their transaction",
    ),
    (
        "block-xid",
        (*s.BLOCK, s.SAVEPOINT_ABORT, s.NEXT, s.STREAMED_RELATION, s.OF_SAVEPOINT),
        "Insert.xid: subtransaction 741 is rolled back already",
    ),
    (
        "block-xid",
        (*s.BLOCK, OTHER, streamed(s.SUB)),
        "Insert.xid: 741 is a subtransaction of 740, not of 760",
    ),
    (
        "block-xid",
        (*s.BLOCK, OTHER, streamed(s.TOP)),
        "Insert.xid: 740 is a transaction of its own, not a subtransaction of 760",
    ),
    (
        "xid-in-use",
        (*s.BLOCK, replace(s.BEGIN, xid=s.SUB)),
        "Begin.xid: 741 is a subtransaction of 740, which has not ended",
    ),
    (
        "xid-in-use",
        (*s.PREPARED, replace(s.BEGIN, final_lsn=2_000, xid=735)),
        "Begin.xid: transaction 735 is prepared as 'g', and has not ended",
    ),
    (
        "prepare-without-begin",
        (*BEGUN, s.PREPARE),
        "Prepare: Prepare must follow Begin Prepare, but another message opened the transaction",
    ),
    (
        "prepare-without-begin",
        (*s.BLOCK[:-1], s.PREPARE),
        "Prepare: Prepare must follow Begin Prepare, but another message opened the transaction",
    ),
    (
        "prepare-as-begun",
        (*PREPARING, replace(s.PREPARE, prepare_lsn=1_008)),
        "Prepare.prepare_lsn: Begin Prepare has prepare_lsn 0/3E8, not 0/3F0",
    ),
    (
        "prepare-as-begun",
        (*PREPARING, replace(s.PREPARE, end_lsn=1_056)),
        "Prepare.end_lsn: Begin Prepare has end_lsn 0/418, not 0/420",
    ),
    (
        "prepare-as-begun",
        (*PREPARING, replace(s.PREPARE, prepare_time=1)),
        "Prepare.prepare_time: Begin Prepare has prepare_time 0, not 1",
    ),
    (
        "prepare-as-begun",
        (*PREPARING, replace(s.PREPARE, gid="h's")),
        "Prepare.gid: Begin Prepare has gid 'g', not \"h's\"",
    ),
    (
        "resolved-as-prepared",
        (*s.BLOCK, replace(s.COMMIT_PREPARED, xid=s.SUB)),
        "CommitPrepared.xid: transaction 741 is being streamed and is not prepared",
    ),
    (
        "resolved-as-prepared",
        (*s.BLOCK, replace(s.COMMIT_PREPARED, xid=s.TOP)),
        "CommitPrepared.xid: transaction 740 is being streamed and is not prepared",
    ),
    (
        "resolved-as-prepared",
        (*s.PREPARED, replace(s.COMMIT_PREPARED, xid=736)),
        "CommitPrepared.xid: transaction 735 is prepared as 'g', not 736",
    ),
    (
        "resolved-as-prepared",
        (*s.PREPARED, replace(s.ROLLBACK_PREPARED, prepare_time=1)),
        "RollbackPrepared.prepare_time: Prepare has prepare_time 0, not 1",
    ),
    (
        "commit-order",
        (*s.TRANSACTION, replace(s.ROLLBACK_PREPARED, prepare_end_lsn=500, rollback_end_lsn=600)),
        "RollbackPrepared.rollback_end_lsn: 0/258 is not after 0/418, the end of the last transaction",
    ),
    (
        "commit-order",
        (*s.TRANSACTION, m.LogicalMessage(flags=m.MessageFlag(0), lsn=1_048, prefix="p", content=b"")),
        "LogicalMessage.lsn: 0/418 is not after 0/418, the end of the last transaction",
    ),
    (
        "end-beyond-start",
        (replace(s.ROLLBACK_PREPARED, prepare_end_lsn=3_048, rollback_end_lsn=3_000),),
        "RollbackPrepared.rollback_end_lsn: 0/BB8 is not after 0/BE8",
    ),
    (
        "message-order",
        s.transaction(s.logical_message(1_008)),
        "LogicalMessage.lsn: 0/3F0 is after 0/3E8, the end of its transaction",
    ),
]
"""A rule, a stream whose last messages violate it, and the text of the violation."""


@pytest.mark.parametrize(
    ("rule", "stream", "because"), CASES, ids=lambda value: value if "-" in value else ""
)
def test_the_case_of_a_violation(rule: str, stream: tuple[Message, ...], because: str) -> None:
    found = next(check(stream, CheckOptions(proto_version=WRITTEN, streaming="on", two_phase=True)))
    assert (found.rule, found.because) == (rule, because)
