"""Reorder buffer: decodes the WAL and sends transactions at commit or in stream blocks.

Follows src/backend/replication/logical/decode.c and reorderbuffer.c.
"""

from __future__ import annotations

from functools import partial
from typing import Final, TypeAlias

import msgspec

from logicalrep._build import has_batches
from logicalrep.messages import Message, PrimaryKeepalive, XLogData
from logicalrep.stream import encode_for
from logicalrep.synth.options import StreamOptions
from logicalrep.synth.output_plugin import OutputPlugin
from logicalrep.synth.wal import (
    AnyWalRecord,
    Idle,
    Invalidation,
    MultiInsert,
    PayloadRecord,
    RowChange,
    TransactionEnd,
    TruncateRecord,
    cells_size,
    payload_size,
)

BufferedRecord: TypeAlias = RowChange | MultiInsert | TruncateRecord | PayloadRecord | Invalidation
"""WAL record that is kept until its transaction is sent."""

_FIRST_WITH_KNOWN_SUBTRANSACTIONS: Final = 14
"""First major version of PostgreSQL that links a subtransaction to its transaction when the subtransaction
writes its first WAL record. Earlier servers link both at the commit: they do not send Begin and Commit for
a transaction whose changes were all rolled back."""

_CHANGE_BYTES: Final = 80
"""Size of a change in memory without its rows, in bytes (sizeof(ReorderBufferChange))."""


class _Txn(msgspec.Struct, eq=False):
    """A transaction in progress (ReorderBufferTXN)."""

    xid: int
    first_lsn: int
    changes: list[BufferedRecord] = []
    """WAL records that have not been sent."""
    size: int = 0
    """Size of `changes`, in bytes."""
    streamed_xids: set[int] = set()
    """Xids of the subtransactions sent in stream blocks; after the first block also the transaction's own
    xid."""
    invalidations: list[Invalidation] = []
    """Relcache invalidations of the transaction, including its rolled-back subtransactions
    (txn->invalidations)."""
    rolled_back_xids: set[int] = set()
    """Xids of the subtransactions that were rolled back."""
    distributed_oids: set[int] = set()
    """OIDs of tables that other transactions altered while this transaction was open
    (txn->invalidations_distributed)."""
    prepared: bool = False
    """Whether the transaction is prepared and was decoded at PREPARE TRANSACTION."""


class ReorderBuffer:
    """Decodes the WAL for one connection: collects each transaction's changes until they can be sent.

    Args:
        options: Stream options of the client.
        work_mem: logical_decoding_work_mem, in bytes.
        via_root: Option publish_via_partition_root of the publication.
        after_lsn: Acknowledged LSN. Transactions that ended at or before this LSN are not sent.
        server: Major version of the PostgreSQL server.
    """

    def __init__(
        self, options: StreamOptions, work_mem: int, via_root: bool, after_lsn: int, server: int
    ) -> None:
        self._options = options
        self._work_mem = work_mem
        self._after_lsn = after_lsn
        self._server = server
        self._has_batches = has_batches(options.proto_version)
        self._encode = partial(encode_for, proto_version=options.proto_version)
        self._plugin = OutputPlugin(options, via_root, server, self._write)
        self._txns: dict[int, _Txn] = {}
        self._output: list[XLogData | PrimaryKeepalive] = []
        self._time = 0

    def decode(self, record: AnyWalRecord) -> list[XLogData | PrimaryKeepalive]:
        """Decode a WAL record and return the envelopes to send.

        Raises:
            ScenarioError: A value cannot be converted to binary format.
        """
        self._time = record.time
        self._output = []
        if isinstance(record, Idle):
            self._output.append(
                PrimaryKeepalive(wal_end=record.end_lsn, send_time=record.time, reply_requested=False)
            )
        elif isinstance(record, PayloadRecord) and not record.top:
            if record.lsn >= self._after_lsn:
                self._plugin.payload(record, False)
        elif isinstance(record, TransactionEnd):
            txn = self._txns.get(record.top)
            if txn is not None:
                getattr(self, f"_{record.kind}")(txn, record)
        elif not self._is_filtered(record):
            if isinstance(record, MultiInsert) and not self._has_batches:
                self._queue_rows(record)
            else:
                self._queue(record)
        elif isinstance(record, Invalidation):
            # The option `origin` excludes the transaction, but a server still executes its invalidations,
            # because their WAL records have no origin.
            self._get_txn(record).invalidations.append(record)
        return self._output

    def _write(self, lsn: int, message: Message) -> None:
        self._output.append(
            XLogData(wal_start=lsn, wal_end=lsn, send_time=self._time, data=self._encode(message))
        )

    def _is_filtered(self, record: AnyWalRecord) -> bool:
        """Return whether the option `origin` excludes the record (FilterByOrigin)."""
        return self._options.origin == "none" and record.origin is not None

    # Records of open transactions

    def _get_txn(self, record: BufferedRecord) -> _Txn:
        """Return the `_Txn` of a record; create it if the record is the first (ReorderBufferTXNByXid)."""
        return self._txns.setdefault(record.top, _Txn(record.top, record.lsn))

    def _queue_rows(self, record: MultiInsert) -> None:
        """Add a change for each row of the record to its transaction (DecodeMultiInsert).

        If a row has a TOASTed value, no stream block ends between the rows
        (ReorderBufferProcessPartialChange).
        """
        *first, last = record.split()
        is_partial = any(map(record.definition.has_toasted, record.rows))
        for change in first:
            self._queue(change, is_partial=is_partial)
        self._queue(last)

    def _queue(self, record: BufferedRecord, *, is_partial: bool = False) -> None:
        """Add a record to its transaction (ReorderBufferQueueChange).

        If `is_partial` is true, the transaction cannot be streamed before its next record.
        """
        txn = self._get_txn(record)
        txn.changes.append(record)
        txn.size += _record_bytes(record)
        if isinstance(record, Invalidation):
            txn.invalidations.append(record)
        if self._options.streaming != "off" and not is_partial:
            self._check_memory(record.lsn)

    def _check_memory(self, lsn: int) -> None:
        """Stream the largest transactions until the rest fits in memory (ReorderBufferCheckMemoryLimit)."""
        while sum(txn.size for txn in self._txns.values()) > self._work_mem:
            largest = max(self._txns.values(), key=lambda txn: txn.size)
            if lsn < self._after_lsn:  # ReorderBufferCanStartStreaming
                return
            self._send_block(largest)

    def _send_block(self, txn: _Txn) -> None:
        """Send a transaction's unsent changes as a stream block (ReorderBufferStreamTXN)."""
        changes = txn.changes
        if changes:
            first = txn.xid not in txn.streamed_xids
            # Only row changes and truncates carry an origin (change->origin_id).
            carries_origin = isinstance(changes[0], RowChange | MultiInsert | TruncateRecord)
            origin = changes[0].origin if carries_origin else None
            self._plugin.stream_start(changes[0].lsn, txn.xid, first, origin)
            self._process(txn, True)
            self._plugin.stream_stop(changes[-1].lsn)
            txn.streamed_xids.update(change.xid for change in changes)
            txn.streamed_xids.add(txn.xid)
        self._discard_changes(txn)

    def _process(self, txn: _Txn, streamed: bool) -> None:
        """Pass a transaction's changes to the output plugin (ReorderBufferProcessTXN).

        `streamed` is true if the changes are sent in a stream block.
        """
        for change in txn.changes:
            if isinstance(change, Invalidation):
                self._plugin.invalidate(change.oids)
            elif isinstance(change, TruncateRecord):
                self._plugin.truncate(change, streamed)
            elif isinstance(change, PayloadRecord):
                self._plugin.payload(change, streamed)
            else:
                self._plugin.change(change, streamed)

    def _discard_changes(self, txn: _Txn) -> None:
        """Discard a transaction's unsent changes and execute its invalidations (ReorderBufferTruncateTXN)."""
        txn.changes, txn.size = [], 0
        self._plugin.invalidate(txn.distributed_oids.union(*(record.oids for record in txn.invalidations)))

    # Transaction ends

    def _commit(self, txn: _Txn, end: TransactionEnd) -> None:
        """Send a committed transaction (ReorderBufferCommit, ReorderBufferStreamCommit)."""
        self._accept_invalidations(txn)
        if self._is_skipped(end):
            self._discard_changes(txn)
        elif txn.streamed_xids:
            self._send_block(txn)
            self._plugin.stream_commit(end)
        elif txn.changes or self._server >= _FIRST_WITH_KNOWN_SUBTRANSACTIONS:
            self._plugin.begin(txn.first_lsn, end)
            self._process(txn, False)
            self._plugin.commit(end)
            self._discard_changes(txn)
        self._remove_committed(txn)

    def _prepare(self, txn: _Txn, end: TransactionEnd) -> None:
        """Send a prepared transaction, or nothing if two_phase is off (ReorderBufferPrepare)."""
        if not self._options.two_phase:
            return
        if self._is_skipped(end):
            self._discard_changes(txn)
        elif txn.streamed_xids:
            self._send_block(txn)
            self._plugin.end("prepare_streamed", end)
        else:
            self._plugin.begin_prepare(txn.first_lsn, end)
            self._process(txn, False)
            self._plugin.end("prepare", end)
            self._discard_changes(txn)
        txn.prepared = True
        # ReorderBufferFinishPrepared executes the transaction's own invalidations only.
        txn.distributed_oids.clear()

    def _commit_prepared(self, txn: _Txn, end: TransactionEnd) -> None:
        """Send Commit Prepared, or all changes if two_phase is off (ReorderBufferFinishPrepared)."""
        if not self._options.two_phase:
            self._commit(txn, end)
            return
        self._accept_invalidations(txn)
        if not self._is_skipped(end):
            self._plugin.end("commit_prepared", end)
        self._discard_changes(txn)
        self._remove_committed(txn)

    def _rollback_prepared(self, txn: _Txn, end: TransactionEnd) -> None:
        """Send Rollback Prepared, or nothing if two_phase is off (ReorderBufferFinishPrepared)."""
        if not self._options.two_phase:
            self._abort(txn, end)
            return
        if not self._is_skipped(end):
            self._plugin.end("rollback_prepared", end)
        self._discard_changes(txn)
        del self._txns[txn.xid]

    def _abort(self, txn: _Txn, end: TransactionEnd) -> None:
        """Discard a rolled-back transaction, or a rolled-back subtransaction with its children (DecodeAbort).

        A Stream Abort message is sent for each of these that has changes in a stream block.
        """
        ended_xids = (*end.children, end.xid)
        for xid in ended_xids:
            if xid in txn.streamed_xids:
                self._plugin.stream_abort(end, xid)
        if end.xid == end.top:
            if txn.streamed_xids:
                # ReorderBufferAbort does not execute the invalidations that came from other transactions.
                txn.distributed_oids.clear()
                self._discard_changes(txn)
            del self._txns[txn.xid]
            return
        txn.rolled_back_xids.update(ended_xids)
        txn.changes = [change for change in txn.changes if change.xid not in ended_xids]
        txn.size = sum(map(_record_bytes, txn.changes))

    def _is_skipped(self, end: TransactionEnd) -> bool:
        """Return whether `after_lsn` or `origin` excludes a transaction (SnapBuildXactNeedsSkip)."""
        return end.lsn < self._after_lsn or self._is_filtered(end)

    def _remove_committed(self, txn: _Txn) -> None:
        """Remove a committed transaction, and add its invalidations to the open transactions.

        Follows SnapBuildDistributeSnapshotAndInval.
        """
        del self._txns[txn.xid]
        for other in self._txns.values():
            if not other.prepared:
                other.changes += txn.invalidations
                other.distributed_oids.update(*(record.oids for record in txn.invalidations))

    def _accept_invalidations(self, txn: _Txn) -> None:
        """Execute the invalidations that a commit sends to all server processes (AcceptInvalidationMessages).

        The walsender is assumed to receive these invalidations before it decodes the commit record. On a
        server this order is usual but not guaranteed.
        """
        for record in txn.invalidations:
            if record.xid not in txn.rolled_back_xids:
                self._plugin.invalidate(record.oids)


def _record_bytes(record: BufferedRecord) -> int:
    """Return the approximate memory use of a record, in bytes (ReorderBufferChangeSize)."""
    if isinstance(record, MultiInsert):
        return _CHANGE_BYTES + sum(map(cells_size, record.rows))
    if isinstance(record, RowChange):
        return _CHANGE_BYTES + cells_size(record.old) + cells_size(record.new)
    return _CHANGE_BYTES + (payload_size(record.message) if isinstance(record, PayloadRecord) else 0)
