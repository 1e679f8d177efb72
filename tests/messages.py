"""Messages that many tests need: relations with their columns, stream blocks, whole transactions."""

from __future__ import annotations

from enum import IntFlag
from typing import Final

from logicalrep.messages import (
    Begin,
    ColumnFlag,
    Commit,
    Message,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    StreamStart,
    StreamStop,
)


def unknown_bit(flags: type[IntFlag]) -> int:
    """Return the highest bit of a byte that has no meaning in any version of the spec."""
    return next(1 << bit for bit in reversed(range(8)) if 1 << bit not in {*map(int, flags)})


UNKNOWN_FLAG: Final = unknown_bit(ColumnFlag)
"""A bit that no version of the spec has in the flags of a column."""


def make_column(
    name: str, type_oid: int = 25, type_modifier: int = -1, *, key: bool = False
) -> RelationColumn:
    """Return a column, by default of the type text and not part of the replica identity."""
    return RelationColumn(flags=ColumnFlag(key), name=name, type_oid=type_oid, type_modifier=type_modifier)


def make_relation(
    *columns: RelationColumn,
    oid: int = 1,
    namespace: str = "public",
    name: str = "t",
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
    xid: int | None = None,
) -> Relation:
    """Return the Relation message of a table."""
    return Relation(
        oid=oid, namespace=namespace, name=name, replica_identity=identity, columns=columns, xid=xid
    )


STOP = StreamStop()


def start_block(xid: int, *, first: bool = True) -> StreamStart:
    """Return the message that starts a stream block of a transaction."""
    return StreamStart(xid=xid, first_stream_segment=first)


def transaction_of(lsn: int, xid: int, *changes: Message, time: int = 1) -> tuple[Message, ...]:
    """Return the messages of a transaction whose commit record has 10 bytes."""
    return (
        Begin(final_lsn=lsn, commit_time=time, xid=xid),
        *changes,
        Commit(commit_lsn=lsn, end_lsn=lsn + 10, commit_time=time),
    )
