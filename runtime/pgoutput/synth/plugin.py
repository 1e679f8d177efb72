"""What pgoutput makes of changes: Types and Relations where they are wanted, row filters, column lists.

Follows src/backend/replication/pgoutput/pgoutput.c, callback by callback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from pgoutput import catalog, messages
from pgoutput.errors import ScenarioError
from pgoutput.messages import Cell, Message, TupleData
from pgoutput.synth.options import StreamOptions
from pgoutput.synth.shapes import Cells, Column, Shape, cell
from pgoutput.synth.wal import Emission, Ending, Origin, RowChange, Truncation
from pgoutput.values import encode_binary
from pgoutput.wire import UNCHANGED

Write = Callable[[int, Message], None]
"""Takes a message, and the LSN that its XLogData says."""

NO_LSN: Final = 0
"""Of messages that others of the same change follow (WalSndPrepareWrite, last_write)."""


class Plugin:
    """The output plugin of one connection.

    Args:
        options: What the client asked for.
        via_root: The publication's publish_via_partition_root.
        write: Takes the messages.
    """

    def __init__(self, options: StreamOptions, via_root: bool, write: Write) -> None:
        self._options = options
        self._via_root = via_root
        self._write = write
        self._sent: set[int] = set()
        """OIDs of the relations that the client knows (RelationSyncEntry.schema_sent)."""
        self._sent_in: dict[int, set[int]] = {}
        """Xids of streamed transactions in which it was told of a relation (streamed_txns)."""

    def invalidate(self, oid: int) -> None:
        """rel_sync_cache_relation_cb: the client is to be told anew."""
        self._sent.discard(oid)
        self._sent_in.pop(oid, None)

    # Transactions

    def begin(self, lsn: int, end: Ending) -> None:
        """BEGIN, which waits for the first change that is sent."""
        self._open(lsn, messages.Begin(end.lsn, end.time, end.top), end.origin)

    def commit(self, end: Ending) -> None:
        """COMMIT."""
        self._write(end.end_lsn, messages.Commit(end.lsn, end.end_lsn, end.time))

    def begin_prepare(self, lsn: int, end: Ending) -> None:
        """BEGIN PREPARE, which waits for nothing."""
        assert end.gid is not None
        self._open(lsn, messages.BeginPrepare(end.lsn, end.end_lsn, end.time, end.top, end.gid), end.origin)

    def prepare(self, end: Ending) -> None:
        """PREPARE."""
        assert end.gid is not None
        self._write(end.end_lsn, messages.Prepare(end.lsn, end.end_lsn, end.time, end.top, end.gid))

    def commit_prepared(self, end: Ending) -> None:
        """COMMIT PREPARED."""
        assert end.gid is not None
        self._write(end.end_lsn, messages.CommitPrepared(end.lsn, end.end_lsn, end.time, end.top, end.gid))

    def rollback_prepared(self, end: Ending) -> None:
        """ROLLBACK PREPARED."""
        assert end.gid is not None
        lsns, times = (end.prepare_end_lsn, end.end_lsn), (end.prepare_time, end.time)
        self._write(end.end_lsn, messages.RollbackPrepared(*lsns, *times, end.top, end.gid))

    # Transactions that are sent while they are in progress

    def stream_start(self, lsn: int, xid: int, first: bool, origin: Origin | None) -> None:
        """A block begins. The first one of a transaction tells its origin."""
        told = msgspec.structs.replace(origin, lsn=0) if origin is not None and first else None
        self._open(lsn, messages.StreamStart(xid, first), told)

    def stream_stop(self, lsn: int) -> None:
        """A block ends."""
        self._write(lsn, messages.StreamStop())

    def stream_abort(self, end: Ending, subxid: int) -> None:
        """A streamed transaction, or a part of it, is rolled back."""
        tail = (end.end_lsn, end.time) if self._options.streaming == "parallel" else (None, None)
        self._write(end.end_lsn, messages.StreamAbort(end.top, subxid, *tail))
        self._forget_stream(end.top)

    def stream_commit(self, end: Ending) -> None:
        """A streamed transaction commits: what it told of relations holds for others now."""
        self._write(end.end_lsn, messages.StreamCommit(end.top, end.lsn, end.end_lsn, end.time))
        self._sent |= self._forget_stream(end.top)

    def stream_prepare(self, end: Ending) -> None:
        """A streamed transaction is prepared."""
        assert end.gid is not None
        self._write(end.end_lsn, messages.StreamPrepare(end.lsn, end.end_lsn, end.time, end.top, end.gid))

    # What is in them

    def change(self, change: RowChange, streamed: bool, begin: Callable[[], None]) -> None:
        """pgoutput_change.

        Args:
            change: The change.
            streamed: Whether it goes into a block.
            begin: Is called before anything is sent of it.
        """
        shape = change.shape
        if not shape.published:
            return
        oid = change.root.oid if change.root is not None and self._via_root else shape.oid
        message = self._message(change, oid, change.xid if streamed else None)
        if message is None:
            return
        begin()
        self._describe(shape, change.root, change.xid if streamed else None, change.top)
        self._write(change.lsn, message)

    def truncate(self, change: Truncation, streamed: bool, begin: Callable[[], None]) -> None:
        """pgoutput_truncate: with publish_via_partition_root the root alone, else its partitions alone."""
        xid = change.xid if streamed else None
        oids = []
        for shape, root, is_root in change.shapes:
            if shape.published and (not is_root if not self._via_root else root is None):
                begin()
                self._describe(shape, root, xid, change.top)
                oids.append(shape.oid)
        if oids:
            self._write(change.lsn, messages.Truncate(change.options, tuple(oids), xid))

    def message(self, emission: Emission, streamed: bool, begin: Callable[[], None]) -> None:
        """pgoutput_message. In a block it has the xid of the transaction, whatever part emitted it."""
        if not self._options.messages:
            return
        flags = 0
        if emission.transactional:
            begin()
            flags = messages.MessageFlag.TRANSACTIONAL
        lsn, xid = emission.end_lsn, emission.top if streamed else None
        self._write(lsn, messages.LogicalMessage(flags, lsn, emission.prefix, emission.content, xid))

    def _open(self, lsn: int, message: Message, origin: Origin | None) -> None:
        self._write(lsn if origin is None else NO_LSN, message)
        if origin is not None:
            self._write(lsn, messages.Origin(origin.lsn, origin.name))

    def _forget_stream(self, xid: int) -> set[int]:
        """cleanup_rel_sync_cache; the relations that the client was told of in it."""
        told = {oid for oid, xids in self._sent_in.items() if xid in xids}
        for oid in told:
            self._sent_in[oid].discard(xid)
        return told

    def _describe(self, shape: Shape, root: Shape | None, xid: int | None, top: int) -> None:
        """maybe_send_schema."""
        told = shape.oid in self._sent if xid is None else top in self._sent_in.get(shape.oid, ())
        if told:
            return
        for one in (root, shape) if root is not None and self._via_root else (shape,):
            for type_ in one.types():
                self._write(NO_LSN, msgspec.structs.replace(type_, xid=xid))
            self._write(NO_LSN, msgspec.structs.replace(one.relation(), xid=xid))
        if xid is None:
            self._sent.add(shape.oid)
        else:
            self._sent_in.setdefault(shape.oid, set()).add(top)

    # Rows

    def _message(self, change: RowChange, oid: int, xid: int | None) -> Message | None:
        """The message of a change, or of what a row filter makes of it (pgoutput_row_filter)."""
        shape, where = change.shape, change.shape.where
        if change.new is None:
            assert change.old is not None
            old = _identity(shape, change.old)
            if where is not None and not where.matches(old):
                return None
            return messages.Delete(oid, xid, **self._old(shape, old))
        if change.old is None:
            if where is not None and not where.matches(change.new):
                return None
            return messages.Insert(oid, self._tuple(shape, change.new), xid)
        left = _left_out_of_line(change)
        logged = _logged_old(change)
        new = self._tuple(shape, change.new, left)
        if where is None or logged is None:
            if where is not None and not where.matches(change.new):
                return None
            given = {} if logged is None else self._old(shape, logged)
            return messages.Update(oid, new, xid, **given)
        before, after = where.matches(logged), where.matches(change.new)
        if before and after:
            return messages.Update(oid, new, xid, **self._old(shape, logged))
        if before:
            return messages.Delete(oid, xid, **self._old(shape, logged))
        if after:
            # What the old row has of values that the new one does not repeat is taken from it.
            missing = {column for column in left if cell(logged, column) is None}
            return messages.Insert(oid, self._tuple(shape, change.new, missing), xid)
        return None

    def _old(self, shape: Shape, cells: Cells) -> dict[str, TupleData]:
        full = shape.replica_identity == messages.ReplicaIdentity.FULL
        return {"old" if full else "key": self._tuple(shape, cells)}

    def _tuple(
        self, shape: Shape, cells: Cells, left: set[Column] | frozenset[Column] = frozenset()
    ) -> TupleData:
        """logicalrep_write_tuple."""
        return tuple(
            UNCHANGED if column in left else self._cell(cell(cells, column), column) for column in shape.sent
        )

    def _cell(self, text: str | None, column: Column) -> Cell:
        if text is None or not self._options.binary:
            return text
        builtin = catalog.BY_OID.get(column.type.base_oid)
        if builtin is not None and builtin.send == "none":
            return text
        try:
            data = encode_binary(text, column.type.base_oid)
        except ValueError as error:
            raise ScenarioError(f"column {column.name}, in binary format: {error}") from None
        if column.type.element_oid:  # which stands behind the dimensions and the flag for NULLs (array_send)
            data = data[:8] + column.type.element_oid.to_bytes(4, "big") + data[12:]
        return data


def _identity(shape: Shape, cells: Cells) -> Cells:
    """The row with NULL in all columns that are not part of the replica identity."""
    identity = shape.identity
    return tuple(text if number in identity else None for number, text in enumerate(cells))


def _left_out_of_line(change: RowChange) -> set[Column]:
    """Columns that an update does not set, and whose values lie out of line: they are not sent."""
    assert change.new is not None
    return {
        column
        for column in change.shape.columns
        if column.number not in change.assigned and column.is_out_of_line(cell(change.new, column))
    }


def _logged_old(change: RowChange) -> Cells | None:
    """What the log has of the old row of an update (ExtractReplicaIdentity).

    The whole row under REPLICA IDENTITY FULL; the key if it changed, or if a part of it that did not change
    lies out of line.
    """
    shape = change.shape
    assert change.old is not None
    assert change.new is not None
    if shape.replica_identity == messages.ReplicaIdentity.FULL:
        return _identity(shape, change.old)
    for column in shape.columns:
        if column.number in shape.identity:
            before, after = cell(change.old, column), cell(change.new, column)
            if before != after or column.is_out_of_line(before):
                return _identity(shape, change.old)
    return None
