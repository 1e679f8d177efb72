"""Sample messages, of which the legal and illegal examples of the rules consist."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from logicalrep import messages as m
from logicalrep._build import fitted
from logicalrep.messages import ColumnFlag, Message, RelationColumn, ReplicaIdentity
from logicalrep.stream.encoder import encode_for
from logicalrep.versions import LATEST_RELEASED

OID: Final = 16_400
TOP: Final = 740
"""Xid of a streamed transaction."""
SUB: Final = TOP + 1
"""Xid of a subtransaction (savepoint) of the streamed transaction `TOP`."""

BEGIN: Final = m.Begin(final_lsn=1_000, commit_time=0, xid=730)
COMMIT: Final = m.Commit(commit_lsn=1_000, end_lsn=1_048, commit_time=0)
COLUMNS: Final = (
    RelationColumn(flags=ColumnFlag.KEY, name="id", type_oid=23, type_modifier=-1),
    RelationColumn(flags=ColumnFlag(0), name="note", type_oid=25, type_modifier=-1),
)
RELATION: Final = m.Relation(
    oid=OID, namespace="public", name="t", replica_identity=ReplicaIdentity.DEFAULT, columns=COLUMNS
)
FULL: Final = replace(
    RELATION,
    replica_identity=ReplicaIdentity.FULL,
    columns=tuple(replace(column, flags=ColumnFlag.KEY) for column in COLUMNS),
)
MOOD: Final = m.Type(oid=20_000, namespace="public", name="mood")
RELATION_WITH_MOOD: Final = replace(RELATION, columns=(COLUMNS[0], replace(COLUMNS[1], type_oid=MOOD.oid)))
INSERT: Final = m.Insert(relation_oid=OID, new=("1", "x"))
DELETE: Final = m.Delete(relation_oid=OID, key=("1", None))
TRANSACTION: Final = (BEGIN, RELATION, INSERT, COMMIT)

FIRST: Final = m.StreamStart(xid=TOP, first_stream_segment=True)
NEXT: Final = m.StreamStart(xid=TOP, first_stream_segment=False)
STOP: Final = m.StreamStop()
STREAMED_RELATION: Final = replace(RELATION, xid=TOP)
STREAMED: Final = m.Insert(relation_oid=OID, new=("2", "y"), xid=TOP)
OF_SAVEPOINT: Final = m.Insert(relation_oid=OID, new=("3", "z"), xid=SUB)
BLOCK: Final = (FIRST, STREAMED_RELATION, STREAMED, OF_SAVEPOINT, STOP)
STREAM_COMMIT: Final = m.StreamCommit(xid=TOP, commit_lsn=2_000, end_lsn=2_048, commit_time=0)
STREAMED_TRANSACTION: Final = (*BLOCK, STREAM_COMMIT)
STREAM_ABORT: Final = m.StreamAbort(xid=TOP, subxid=TOP)
SAVEPOINT_ABORT: Final = m.StreamAbort(xid=TOP, subxid=SUB)
STREAM_PREPARE: Final = m.StreamPrepare(prepare_lsn=2_000, end_lsn=2_048, prepare_time=0, xid=TOP, gid="g")

BEGIN_PREPARE: Final = m.BeginPrepare(prepare_lsn=1_000, end_lsn=1_048, prepare_time=0, xid=735, gid="g")
PREPARE: Final = m.Prepare(prepare_lsn=1_000, end_lsn=1_048, prepare_time=0, xid=735, gid="g")
PREPARED: Final = (BEGIN_PREPARE, RELATION, INSERT, PREPARE)
COMMIT_PREPARED: Final = m.CommitPrepared(commit_lsn=3_000, end_lsn=3_048, commit_time=0, xid=735, gid="g")
ROLLBACK_PREPARED: Final = m.RollbackPrepared(
    prepare_end_lsn=1_048, rollback_end_lsn=3_048, prepare_time=0, rollback_time=0, xid=735, gid="g"
)


def transaction(*changes: Message) -> tuple[Message, ...]:
    """Return the messages of a transaction: Begin, these changes and Commit."""
    return (BEGIN, *changes, COMMIT)


def block(*changes: Message) -> tuple[Message, ...]:
    """Return the messages of a streamed transaction with one block, which has these changes."""
    return (FIRST, *changes, STOP, STREAM_COMMIT)


def truncate(*oids: int, xid: int | None = None) -> m.Truncate:
    """Return a Truncate of the relations with these OIDs."""
    return m.Truncate(options=m.TruncateOption(0), relation_oids=oids, xid=xid)


def logical_message(lsn: int, xid: int | None = None) -> m.LogicalMessage:
    """Return a transactional message of pg_logical_emit_message."""
    return m.LogicalMessage(flags=m.MessageFlag.TRANSACTIONAL, lsn=lsn, prefix="p", content=b"", xid=xid)


def sent(lsn: int, message: Message) -> m.XLogData:
    """Return a message in an XLogData envelope with this LSN."""
    return m.XLogData(
        wal_start=lsn,
        wal_end=lsn,
        send_time=0,
        data=encode_for(fitted(message, LATEST_RELEASED), LATEST_RELEASED),
    )
