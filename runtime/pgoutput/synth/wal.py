"""What a scenario writes down: the records that a server's write-ahead log would have."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from pgoutput.synth.shapes import Cells, Shape
from pgoutput.wire import from_datetime

FIRST_NORMAL_OID: Final = 16384
"""Of what users make (transam.h, FirstNormalObjectId)."""

_BEGINNING: Final = from_datetime(datetime(2024, 1, 1, tzinfo=UTC))
_HEADER: Final = 64
"""Bytes of a record besides its data, more or less (xlogrecord.h)."""

_R = TypeVar("_R", bound="Record")


class Origin(msgspec.Struct, frozen=True):
    """The node that a transaction came from (pg_replication_origin_session_setup)."""

    name: str
    lsn: int
    """Of its commit there."""


class Record(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A record. LSNs are byte offsets; times are microseconds since 2000."""

    lsn: int
    end_lsn: int
    xid: int
    """Of the transaction or subtransaction; 0 for what belongs to none."""
    top: int
    """Of the transaction."""
    time: int
    origin: Origin | None = None


class RowChange(Record, frozen=True, eq=False):
    """A row was inserted, updated or deleted."""

    shape: Shape
    root: Shape | None
    """The partitioned table that `shape` is a partition of."""
    old: Cells | None
    new: Cells | None
    assigned: frozenset[int] = frozenset()
    """Numbers of the columns that an UPDATE sets."""


class Truncation(Record, frozen=True, eq=False):
    """Tables were truncated."""

    shapes: tuple[tuple[Shape, Shape | None, bool], ...]
    """Each with its root, and whether it is a partitioned table itself."""
    options: int


class Emission(Record, frozen=True, eq=False):
    """pg_logical_emit_message."""

    transactional: bool
    prefix: str
    content: bytes


class Invalidation(Record, frozen=True, eq=False):
    """Tables look otherwise from here on, or might: TRUNCATE and ALTER TABLE (relcache invalidation)."""

    oids: tuple[int, ...]


class Ending(Record, frozen=True, eq=False):
    """A transaction, or a subtransaction with those inside it, ended or was prepared."""

    kind: Literal["commit", "abort", "prepare", "commit_prepared", "rollback_prepared"]
    children: tuple[int, ...] = ()
    """Xids of the subtransactions that end with it: those that were not rolled back before."""
    gid: str | None = None
    prepare_time: int = 0
    prepare_end_lsn: int = 0


class Idle(Record, frozen=True, eq=False):
    """Nothing happens for a while: the walsender, which has sent all, sends a keepalive."""


AnyRecord: TypeAlias = RowChange | Truncation | Emission | Invalidation | Ending | Idle


class Log:
    """Writes records, and hands out what a server counts: LSNs, xids, OIDs and the time.

    Attributes:
        records: What was written.
        end_lsn: Where the next record goes.

    Args:
        seed: Decides where all of them begin, and how long things take.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.records: list[AnyRecord] = []
        self.end_lsn = self._random.randrange(0x01000000, 0x20000000, 8)
        self.time = _BEGINNING + self._random.randrange(86_400_000_000)
        self._xid = self._random.randrange(730, 100_000)
        self._oid = self._random.randrange(FIRST_NORMAL_OID, 100_000)

    def next_xid(self) -> int:
        """GetNewTransactionId."""
        self._xid += 1
        return self._xid

    def next_oid(self) -> int:
        """GetNewObjectId."""
        self._oid += 1
        return self._oid

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.time += round(seconds * 1_000_000)

    def write(self, kind: type[_R], size: int, /, **fields: Any) -> _R:
        """Write a record.

        Args:
            kind: Its class.
            size: Bytes of data in it.
            fields: Its fields, but for those that the log knows.
        """
        lsn, end_lsn = self.end_lsn, self.end_lsn + (_HEADER + size + 7) // 8 * 8
        self.time += self._random.randrange(20, 400)
        record = kind(lsn=lsn, end_lsn=end_lsn, time=self.time, **fields)
        self.records.append(record)  # type: ignore[arg-type]
        self.end_lsn = end_lsn  # last: who reads up to here, in another thread, finds the record
        return record
