"""Build the messages of streamed transactions: stream blocks, savepoint rollbacks, and transaction ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np

from pgoutput._build import build, fitted
from pgoutput.messages import Message
from pgoutput.stream import encode_for
from pgoutput.synth.workload.definition import Workload
from pgoutput.synth.workload.plan import Block, PlacedPiece, StreamedTransaction, WalClock
from pgoutput.synth.workload.tables import WorkloadTable
from pgoutput.synth.workload.values import IntArray, Random


class PlacedMessage(msgspec.Struct, frozen=True):
    """An encoded message with its position in the stream."""

    position: int
    data: bytes
    lsn: int
    """`wal_start` of the XLogData envelope."""


class PlannedChanges(msgspec.Struct, frozen=True):
    """Row changes as parallel arrays: position, table, visibility scope and xid of each change."""

    positions: IntArray
    """Position in the stream of each change's message."""
    tables: IntArray
    """Number, from 0, of each change's table."""
    scopes: IntArray
    """Number of each change's visibility scope. A change sees only rows of its scope. Each streamed
    transaction and each savepoint has its own scope; all transactions that are not streamed share scope 0."""
    xids: IntArray
    """Xid in each change's message; 0 outside stream blocks."""

    @classmethod
    def uniform(cls, positions: IntArray, tables: IntArray, scope: int = 0, xid: int = 0) -> PlannedChanges:
        """Return row changes that all have the visibility scope `scope` and the xid `xid`."""
        scopes, xids = (np.full(len(positions), value, np.int64) for value in (scope, xid))
        return cls(positions, tables, scopes, xids)

    @classmethod
    def concatenate(cls, parts: Sequence[PlannedChanges]) -> PlannedChanges:
        """Return one `PlannedChanges` with the row changes of all `parts`, in order."""
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__struct_fields__)
        )


class StreamBlockBuilder:
    """Builds the messages of the streamed transactions in a window of transactions.

    Attributes:
        changes: Row changes, in stream order.
        other_messages: All messages of streamed transactions that are not row changes.
        committed: By visibility scope (`PlannedChanges.scopes`): whether its changes are committed.
    """

    def __init__(self, workload: Workload, tables: Sequence[WorkloadTable], clock: WalClock) -> None:
        self.changes: list[PlannedChanges] = []
        self.other_messages: list[PlacedMessage] = []
        self.committed: list[bool] = [True]
        self._streaming = workload.streaming
        self._version = workload.options.proto_version
        self._build = partial(build, proto_version=self._version)
        self._tables = tables
        self._clock = clock
        self._scopes: dict[int, int] = {}

    def add(self, random: Random, streamed: StreamedTransaction, piece: PlacedPiece) -> None:
        """Add the messages of a stream block, or the messages that end a streamed transaction."""
        if piece.block is None:
            self._add_end(streamed, piece.position)
        else:
            self._add_block(random, streamed, piece.block, piece.position)

    def _add_block(self, random: Random, streamed: StreamedTransaction, block: Block, position: int) -> None:
        relation_count = len(streamed.tables) if block.sends_relations else 0
        numbers = np.arange(block.changes)
        positions = position + 1 + numbers + np.minimum(numbers + 1, relation_count)
        table_indices = np.array(streamed.tables)[
            random.integers(0, len(streamed.tables), size=block.changes)
        ]
        table_indices[:relation_count] = streamed.tables[:relation_count]
        first = block.changes - block.savepoint_changes
        scope = self._scope(streamed.xid, not streamed.aborted)
        self.changes.append(
            PlannedChanges.uniform(positions[:first], table_indices[:first], scope, streamed.xid)
        )
        is_first = streamed.blocks[0] is block
        start = self._build("open_block", xid=streamed.xid, first_block=is_first)
        self._add_message(position, start, self._clock.lsn(int(positions[0])))
        for number, table in enumerate(streamed.tables[:relation_count]):
            relation = msgspec.structs.replace(self._tables[table].relation, xid=streamed.xid)
            self._add_message(position + 1 + 2 * number, relation, 0)
        end = int(positions[-1]) + 1
        self._add_message(end, self._build("close_block"), self._clock.lsn(end - 1))
        if block.savepoint_xid is None:
            return
        scope = self._scope(block.savepoint_xid, not (streamed.aborted or block.rolled_back))
        self.changes.append(
            PlannedChanges.uniform(positions[first:], table_indices[first:], scope, block.savepoint_xid)
        )
        if block.rolled_back:
            self._add_abort(end + 1, streamed.xid, block.savepoint_xid)

    def _add_end(self, streamed: StreamedTransaction, position: int) -> None:
        if streamed.aborted:
            for number, xid in enumerate(streamed.ending_xids):
                self._add_abort(position + number, streamed.xid, xid)
            return
        clock, end_lsn = self._clock, self._clock.end_lsn(position)
        lsn, time = clock.lsn(position), clock.time(position)
        commit = self._build("commit_streamed", xid=streamed.xid, lsn=lsn, end_lsn=end_lsn, time=time)
        self._add_message(position, commit, end_lsn)

    def _add_abort(self, position: int, xid: int, subxid: int) -> None:
        """Add Stream Abort, with LSN and time if streaming is parallel (logicalrep_write_stream_abort)."""
        lsn, time = self._clock.lsn(position), self._clock.time(position)
        tail = {"lsn": lsn, "time": time} if self._streaming == "parallel" else {}
        self._add_message(position, self._build("abort_streamed", xid=xid, subxid=subxid, **tail), lsn)

    def _scope(self, xid: int, committed: bool) -> int:
        if xid not in self._scopes:
            self._scopes[xid] = len(self.committed)
            self.committed.append(committed)
        return self._scopes[xid]

    def _add_message(self, position: int, message: Message, lsn: int) -> None:
        data = encode_for(fitted(message, self._version), self._version)
        self.other_messages.append(PlacedMessage(position, data, lsn))
