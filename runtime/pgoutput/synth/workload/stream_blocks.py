"""Build the messages of streamed transactions: stream blocks and transaction ends."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from pgoutput._build import build, fitted
from pgoutput.messages import Message
from pgoutput.stream import encode_for
from pgoutput.synth.workload.definition import Workload
from pgoutput.synth.workload.plan import StreamedTransaction, WalClock
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
    transaction has its own scope; all other transactions share scope 0."""
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
    """

    def __init__(self, workload: Workload, tables: Sequence[WorkloadTable], clock: WalClock) -> None:
        self.changes: list[PlannedChanges] = []
        self.other_messages: list[PlacedMessage] = []
        self._streaming = workload.streaming
        self._version = workload.options.proto_version
        self._tables = tables
        self._clock = clock

    def add_block(
        self, random: Random, streamed: StreamedTransaction, block: int, scope: int, position: int
    ) -> None:
        """Add the messages of a stream block, given by its number in the transaction."""
        tables = np.array(() if block else streamed.tables, np.int64)
        numbers = np.arange(streamed.changes[block])
        positions = position + 1 + numbers + np.minimum(numbers + 1, len(tables))
        drawn = np.array(streamed.tables)[random.integers(0, len(streamed.tables), size=len(numbers))]
        drawn[: len(tables)] = tables
        self.changes.append(PlannedChanges.uniform(positions, drawn, scope, streamed.xid))
        end = int(positions[-1]) + 1
        self._add(
            position,
            self._clock.lsn(int(positions[0])),
            build("open_block", self._version, xid=streamed.xid, first_block=not block),
        )
        for number, table in enumerate(tables.tolist()):
            relation = msgspec.structs.replace(self._tables[table].relation, xid=streamed.xid)
            self._add(position + 1 + 2 * number, 0, relation)
        self._add(end, self._clock.lsn(end - 1), build("close_block", self._version))

    def add_end(self, streamed: StreamedTransaction, position: int) -> None:
        """Add Stream Commit or Stream Abort."""
        lsn, time, end_lsn = (at(position) for at in (self._clock.lsn, self._clock.time, self._clock.end_lsn))
        if not streamed.aborted:
            commit = {"xid": streamed.xid, "lsn": lsn, "end_lsn": end_lsn, "time": time}
            self._add(position, end_lsn, build("commit_streamed", self._version, **commit))
            return
        # Stream Abort has LSN and time if streaming is parallel (logicalrep_write_stream_abort).
        tail = {"lsn": lsn, "time": time} if self._streaming == "parallel" else {}
        abort = build("abort_streamed", self._version, xid=streamed.xid, subxid=streamed.xid, **tail)
        self._add(position, lsn, abort)

    def _add(self, position: int, lsn: int, message: Message) -> None:
        data = encode_for(fitted(message, self._version), self._version)
        self.other_messages.append(PlacedMessage(position, data, lsn))
