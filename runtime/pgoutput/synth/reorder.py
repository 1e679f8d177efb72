"""From the log to the stream: transactions in the order of their ends, or in blocks while in progress.

Follows src/backend/replication/logical/decode.c and reorderbuffer.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from pgoutput.messages import Message, PrimaryKeepalive, XLogData
from pgoutput.synth.options import StreamOptions
from pgoutput.synth.plugin import Plugin
from pgoutput.synth.shapes import Cells
from pgoutput.synth.wal import AnyRecord, Emission, Ending, Idle, Invalidation, RowChange, Truncation
from pgoutput.versions import CODECS

Buffered: TypeAlias = RowChange | Truncation | Emission | Invalidation

_CHANGE_BYTES: Final = 80
"""Of a change in memory, besides its rows (sizeof(ReorderBufferChange))."""


class _Txn(msgspec.Struct, eq=False):
    """A transaction in progress (ReorderBufferTXN)."""

    xid: int
    first_lsn: int
    changes: list[Buffered] = []
    """That have not been sent."""
    size: int = 0
    streamed: set[int] = set()
    """Xids that the client has seen in blocks; its own among them once there was a block."""
    altered: list[Invalidation] = []
    """Its own, those of rolled-back savepoints included (txn->invalidations)."""
    rolled_back: set[int] = set()
    """Xids of subtransactions that were rolled back."""
    distributed: set[int] = set()
    """OIDs of tables that others altered meanwhile (txn->invalidations_distributed)."""
    prepared: bool = False


class ReorderBuffer:
    """Decodes the log for one connection.

    Args:
        options: What the client asked for.
        work_mem: As `Scenario` has it.
        via_root: Likewise.
        after_lsn: Transactions that ended up to here are not sent.
    """

    def __init__(self, options: StreamOptions, work_mem: int, via_root: bool, after_lsn: int) -> None:
        self._options = options
        self._work_mem = work_mem
        self._after_lsn = after_lsn
        self._encode = CODECS[options.proto_version].encode
        self._plugin = Plugin(options, via_root, self._write)
        self._txns: dict[int, _Txn] = {}
        self._out: list[XLogData | PrimaryKeepalive] = []
        self._now = 0
        self._sends: Mapping[type[Any], Callable[..., None]] = {
            RowChange: self._plugin.change,
            Truncation: self._plugin.truncate,
            Emission: self._plugin.message,
        }
        self._endings: Mapping[str, Callable[[_Txn, Ending], None]] = {
            "commit": self._commit,
            "abort": self._abort,
            "prepare": self._prepare,
            "commit_prepared": self._commit_prepared,
            "rollback_prepared": self._rollback_prepared,
        }

    def decode(self, record: AnyRecord) -> list[XLogData | PrimaryKeepalive]:
        """What is sent when this record was read.

        Raises:
            ScenarioError: A value has no binary format here.
        """
        self._now = record.time
        self._out = []
        if isinstance(record, Idle):
            self._out.append(PrimaryKeepalive(record.end_lsn, record.time, False))
        elif isinstance(record, Emission) and not record.transactional:
            if record.lsn >= self._after_lsn:
                self._plugin.message(record, False, _nothing)
        elif isinstance(record, Ending):
            txn = self._txns.get(record.top)
            if txn is not None:
                self._endings[record.kind](txn, record)
        elif not self._is_filtered(record):
            self._queue(record)
        elif isinstance(record, Invalidation):  # which has no origin in the log
            self._txn(record).altered.append(record)
        return self._out

    def _write(self, lsn: int, message: Message) -> None:
        self._out.append(XLogData(lsn, lsn, self._now, self._encode(message)))

    def _is_filtered(self, record: AnyRecord) -> bool:
        """FilterByOrigin."""
        return self._options.origin == "none" and record.origin is not None

    # Changes

    def _txn(self, record: Buffered) -> _Txn:
        """ReorderBufferTXNByXid."""
        return self._txns.setdefault(record.top, _Txn(record.top, record.lsn))

    def _queue(self, record: Buffered) -> None:
        """ReorderBufferQueueChange."""
        txn = self._txn(record)
        txn.changes.append(record)
        txn.size += _size(record)
        if isinstance(record, Invalidation):
            txn.altered.append(record)
        if self._options.streaming != "off":
            self._check_memory(record.lsn)

    def _check_memory(self, lsn: int) -> None:
        """ReorderBufferCheckMemoryLimit: send of the largest while there is too much."""
        while sum(txn.size for txn in self._txns.values()) > self._work_mem:
            largest = max(self._txns.values(), key=lambda txn: txn.size)
            if lsn < self._after_lsn:  # ReorderBufferCanStartStreaming
                return
            self._send_block(largest)

    def _send_block(self, txn: _Txn) -> None:
        """ReorderBufferStreamTXN."""
        changes = txn.changes
        if changes:
            first = txn.xid not in txn.streamed
            # Messages and invalidations do not know where they come from (change->origin_id).
            origin = changes[0].origin if isinstance(changes[0], RowChange | Truncation) else None
            self._plugin.stream_start(changes[0].lsn, txn.xid, first, origin)
            self._replay(txn, True, _nothing)
            self._plugin.stream_stop(changes[-1].lsn)
            txn.streamed.update(change.xid for change in changes)
            txn.streamed.add(txn.xid)
        self._clear(txn)

    def _replay(self, txn: _Txn, streamed: bool, begin: Callable[[], None]) -> None:
        """ReorderBufferProcessTXN."""
        for change in txn.changes:
            if isinstance(change, Invalidation):
                for oid in change.oids:
                    self._plugin.invalidate(oid)
            else:
                self._sends[type(change)](change, streamed, begin)

    def _clear(self, txn: _Txn) -> None:
        """What was replayed is gone, and so is what its catalog looked like."""
        txn.changes, txn.size = [], 0
        for oid in txn.distributed.union(*(record.oids for record in txn.altered)):
            self._plugin.invalidate(oid)

    # Ends

    def _commit(self, txn: _Txn, end: Ending) -> None:
        """ReorderBufferCommit, ReorderBufferStreamCommit."""
        self._share(txn)
        if self._skips(end):
            self._clear(txn)
        elif txn.streamed:
            self._send_block(txn)
            self._plugin.stream_commit(end)
        else:
            begun = _Once(lambda: self._plugin.begin(txn.first_lsn, end))
            self._replay(txn, False, begun)
            if begun.done:
                self._plugin.commit(end)
            self._clear(txn)
        self._forget(txn)

    def _prepare(self, txn: _Txn, end: Ending) -> None:
        """ReorderBufferPrepare."""
        if not self._options.two_phase:
            return
        if self._skips(end):
            self._clear(txn)
        elif txn.streamed:
            self._send_block(txn)
            self._plugin.stream_prepare(end)
        else:
            self._plugin.begin_prepare(txn.first_lsn, end)
            self._replay(txn, False, _nothing)
            self._plugin.prepare(end)
            self._clear(txn)
        txn.prepared = True
        txn.distributed.clear()  # its end executes its own invalidations only (ReorderBufferFinishPrepared)

    def _commit_prepared(self, txn: _Txn, end: Ending) -> None:
        """ReorderBufferFinishPrepared; without two_phase, the commit is all there is."""
        if not self._options.two_phase:
            self._commit(txn, end)
            return
        self._share(txn)
        if not self._skips(end):
            self._plugin.commit_prepared(end)
        self._clear(txn)
        self._forget(txn)

    def _rollback_prepared(self, txn: _Txn, end: Ending) -> None:
        """ReorderBufferFinishPrepared; without two_phase, as an abort."""
        if not self._options.two_phase:
            self._abort(txn, end)
            return
        if not self._skips(end):
            self._plugin.rollback_prepared(end)
        self._clear(txn)
        del self._txns[txn.xid]

    def _abort(self, txn: _Txn, end: Ending) -> None:
        """DecodeAbort: of a transaction, or of a subtransaction and those inside it."""
        gone = (*end.children, end.xid)
        for xid in gone:
            if xid in txn.streamed:
                self._plugin.stream_abort(end, xid)
        if end.xid == end.top:
            if txn.streamed:
                txn.distributed.clear()  # of invalidations, its own are executed only (ReorderBufferAbort)
                self._clear(txn)
            del self._txns[txn.xid]
            return
        txn.rolled_back.update(gone)
        txn.changes = [change for change in txn.changes if change.xid not in gone]
        txn.size = sum(map(_size, txn.changes))

    def _skips(self, end: Ending) -> bool:
        """Whether the client has it (SnapBuildXactNeedsSkip), or does not want it."""
        return end.lsn < self._after_lsn or self._is_filtered(end)

    def _forget(self, txn: _Txn) -> None:
        """The transaction committed: what it altered, others that are open see altered from here on.

        SnapBuildDistributeSnapshotAndInval.
        """
        del self._txns[txn.xid]
        for other in self._txns.values():
            if not other.prepared:
                other.changes += txn.altered
                other.distributed.update(*(record.oids for record in txn.altered))

    def _share(self, txn: _Txn) -> None:
        """What the transaction altered, all processes hear of when it commits (AcceptInvalidationMessages).

        A walsender hears of it before it reads the commit, unless it is as fast as the one that commits.
        """
        for record in txn.altered:
            if record.xid not in txn.rolled_back:
                for oid in record.oids:
                    self._plugin.invalidate(oid)


class _Once:
    """Calls something at the first call only.

    Attributes:
        done: Whether it was called.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.done = False

    def __call__(self) -> None:
        if not self.done:
            self.done = True
            self._call()


def _nothing() -> None:
    pass


def _size(record: Buffered) -> int:
    """ReorderBufferChangeSize, more or less."""
    if isinstance(record, RowChange):
        return _CHANGE_BYTES + _bytes(record.old) + _bytes(record.new)
    return _CHANGE_BYTES + (len(record.content) if isinstance(record, Emission) else 0)


def _bytes(cells: Cells | None) -> int:
    return sum(len(text) for text in cells or () if text is not None)
