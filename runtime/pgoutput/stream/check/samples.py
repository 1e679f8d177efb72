"""Sample messages, of which the legal and illegal examples of the rules consist."""

from __future__ import annotations

from typing import Final

from pgoutput import messages as m
from pgoutput._build import fitted
from pgoutput.messages import Message, RelationColumn, ReplicaIdentity
from pgoutput.stream.encoder import encode_for
from pgoutput.versions import LATEST_RELEASED

OID: Final = 16_400
TOP: Final = 740
"""Xid of a streamed transaction."""
SUB: Final = TOP + 1
"""Xid of a subtransaction (savepoint) of the streamed transaction `TOP`."""

BEGIN: Final = m.Begin(1_000, 0, 730)
COMMIT: Final = m.Commit(1_000, 1_048, 0)
COLUMNS: Final = (RelationColumn(1, "id", 23, -1), RelationColumn(0, "note", 25, -1))
RELATION: Final = m.Relation(OID, "public", "t", ReplicaIdentity.DEFAULT, COLUMNS)
FULL: Final = m.Relation(
    OID,
    "public",
    "t",
    ReplicaIdentity.FULL,
    tuple(RelationColumn(1, c.name, c.type_oid, -1) for c in COLUMNS),
)
MOOD: Final = m.Type(20_000, "public", "mood")
RELATION_WITH_MOOD: Final = m.Relation(
    OID, "public", "t", ReplicaIdentity.DEFAULT, (COLUMNS[0], RelationColumn(0, "note", 20_000, -1))
)
INSERT: Final = m.Insert(OID, ("1", "x"))
DELETE: Final = m.Delete(OID, key=("1", None))
TRANSACTION: Final = (BEGIN, RELATION, INSERT, COMMIT)

FIRST: Final = m.StreamStart(TOP, True)
NEXT: Final = m.StreamStart(TOP, False)
STOP: Final = m.StreamStop()
STREAMED_RELATION: Final = m.Relation(OID, "public", "t", ReplicaIdentity.DEFAULT, COLUMNS, xid=TOP)
STREAMED: Final = m.Insert(OID, ("2", "y"), xid=TOP)
OF_SAVEPOINT: Final = m.Insert(OID, ("3", "z"), xid=SUB)
BLOCK: Final = (FIRST, STREAMED_RELATION, STREAMED, OF_SAVEPOINT, STOP)
STREAM_COMMIT: Final = m.StreamCommit(TOP, 2_000, 2_048, 0)
STREAMED_TRANSACTION: Final = (*BLOCK, STREAM_COMMIT)
STREAM_ABORT: Final = m.StreamAbort(TOP, TOP)
SAVEPOINT_ABORT: Final = m.StreamAbort(TOP, SUB)
STREAM_PREPARE: Final = m.StreamPrepare(2_000, 2_048, 0, TOP, "g")

BEGIN_PREPARE: Final = m.BeginPrepare(1_000, 1_048, 0, 735, "g")
PREPARE: Final = m.Prepare(1_000, 1_048, 0, 735, "g")
PREPARED: Final = (BEGIN_PREPARE, RELATION, INSERT, PREPARE)
COMMIT_PREPARED: Final = m.CommitPrepared(3_000, 3_048, 0, 735, "g")
ROLLBACK_PREPARED: Final = m.RollbackPrepared(1_048, 3_048, 0, 0, 735, "g")


def transaction(*changes: Message) -> tuple[Message, ...]:
    """Return the messages of a transaction: Begin, these changes and Commit."""
    return (BEGIN, *changes, COMMIT)


def sent(lsn: int, message: Message) -> m.XLogData:
    """Return a message in an XLogData envelope with this LSN."""
    return m.XLogData(lsn, lsn, 0, encode_for(fitted(message, LATEST_RELEASED), LATEST_RELEASED))
