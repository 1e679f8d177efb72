"""The streamed transactions of a window: their blocks, and what ends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from pgoutput.messages import Message, StreamAbort, StreamCommit, StreamStart, StreamStop
from pgoutput.stream import encode_for
from pgoutput.synth.workload import Workload
from pgoutput.synth.workload_plan import Block, Clock, Numbers, Piece, Streamed
from pgoutput.synth.workload_tables import WorkloadTable

Random: TypeAlias = np.random.Generator


class Said(msgspec.Struct, frozen=True):
    """A message that is no change."""

    position: int
    data: bytes
    lsn: int
    """Of its envelope."""


class Changes(msgspec.Struct, frozen=True):
    """Some changes."""

    positions: Numbers
    tables: Numbers
    lanes: Numbers
    """Who sees whose rows: 0 for all ordinary transactions, a number for each streamed one and savepoint."""
    xids: Numbers
    """What stands in the messages; 0 outside stream blocks."""

    @classmethod
    def of(cls, positions: Numbers, tables: Numbers, lane: int = 0, xid: int = 0) -> Changes:
        """Changes with the same lane and xid."""
        lanes, xids = (np.full(len(positions), value, np.int64) for value in (lane, xid))
        return cls(positions, tables, lanes, xids)

    @classmethod
    def joined(cls, parts: Sequence[Changes]) -> Changes:
        """All of them."""
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__struct_fields__)
        )


class Streams:
    """Writes the streamed transactions.

    Attributes:
        changes: Theirs, in the order in which they stand.
        said: Their other messages.
        committed: By lane, whether its changes are.
    """

    def __init__(self, workload: Workload, tables: Sequence[WorkloadTable], at: Clock) -> None:
        self.changes: list[Changes] = []
        self.said: list[Said] = []
        self.committed = [True]
        self._workload = workload
        self._tables = tables
        self._at = at
        self._lanes: dict[int, int] = {}

    def add(self, random: Random, streamed: Streamed, piece: Piece) -> None:
        """Write a piece of a transaction."""
        if piece.block is None:
            self._end(streamed, piece.position)
        else:
            self._block(random, streamed, piece.block, piece.position)

    def _block(self, random: Random, streamed: Streamed, block: Block, position: int) -> None:
        described = len(streamed.tables) if block.describes else 0
        numbers = np.arange(block.changes)
        positions = position + 1 + numbers + np.minimum(numbers + 1, described)
        of_tables = np.array(streamed.tables)[random.integers(0, len(streamed.tables), size=block.changes)]
        of_tables[:described] = streamed.tables[:described]
        first = block.changes - block.in_savepoint
        lane = self._lane(streamed.xid, not streamed.aborted)
        self.changes.append(Changes.of(positions[:first], of_tables[:first], lane, streamed.xid))
        is_first = streamed.blocks[0] is block
        self._say(position, StreamStart(streamed.xid, is_first), self._at.lsn(int(positions[0])))
        for number, table in enumerate(streamed.tables[:described]):
            relation = msgspec.structs.replace(self._tables[table].relation, xid=streamed.xid)
            self._say(position + 1 + 2 * number, relation, 0)
        end = int(positions[-1]) + 1
        self._say(end, StreamStop(), self._at.lsn(end - 1))
        if block.savepoint is None:
            return
        lane = self._lane(block.savepoint, not (streamed.aborted or block.rolled_back))
        self.changes.append(Changes.of(positions[first:], of_tables[first:], lane, block.savepoint))
        if block.rolled_back:
            self._abort(end + 1, streamed.xid, block.savepoint)

    def _end(self, streamed: Streamed, position: int) -> None:
        if streamed.aborted:
            for number, xid in enumerate(streamed.ending):
                self._abort(position + number, streamed.xid, xid)
            return
        at, xid = self._at, streamed.xid
        end_lsn = at.end_lsn(position)
        self._say(position, StreamCommit(xid, at.lsn(position), end_lsn, at.time(position)), end_lsn)

    def _abort(self, position: int, xid: int, subxid: int) -> None:
        """Only clients that apply in parallel are told when it was (logicalrep_write_stream_abort)."""
        lsn, time = self._at.lsn(position), self._at.time(position)
        tail = (lsn, time) if self._workload.streaming == "parallel" else (None, None)
        self._say(position, StreamAbort(xid, subxid, *tail), lsn)

    def _lane(self, xid: int, committed: bool) -> int:
        if xid not in self._lanes:
            self._lanes[xid] = len(self.committed)
            self.committed.append(committed)
        return self._lanes[xid]

    def _say(self, position: int, message: Message, lsn: int) -> None:
        self.said.append(Said(position, encode_for(message, self._workload.proto_version), lsn))
