"""Write-ahead log of a scenario: its records, LSNs, xids, OIDs and clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from logicalrep.messages import Message
from logicalrep.synth.table_definition import Cells, TableDefinition
from logicalrep.wire import from_datetime

FIRST_NORMAL_OID: Final = 16384
"""First OID of user-created objects (transam.h, FirstNormalObjectId)."""

_START_TIME: Final = from_datetime(datetime(2024, 1, 1, tzinfo=UTC))
_RECORD_HEADER_BYTES: Final = 64
"""Approximate size of a WAL record without its data, in bytes (xlogrecord.h)."""

_R = TypeVar("_R", bound="WalRecord")


def cells_size(cells: Cells | None) -> int:
    """Return the total length of a row's texts, in bytes; 0 for None."""
    return sum(len(text.encode()) for text in cells or () if text is not None)


def payload_size(message: Message) -> int:
    """Return the total length of the str and bytes fields of a message with application data, in bytes."""
    values = msgspec.structs.astuple(message)
    parts = (value.encode(errors="surrogateescape") if isinstance(value, str) else value for value in values)
    return sum(len(part) for part in parts if isinstance(part, bytes))


class ReplicationOrigin(msgspec.Struct, frozen=True):
    """Replication origin of a transaction (pg_replication_origin_session_setup)."""

    name: str
    """Name of the origin node."""
    lsn: int
    """LSN of the transaction's commit on the origin node."""


class WalRecord(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A WAL record. LSNs are byte offsets; times are microseconds since 2000-01-01 00:00 UTC."""

    lsn: int
    end_lsn: int
    xid: int
    """Xid of the transaction or subtransaction; 0 if the record belongs to no transaction."""
    top: int
    """Xid of the top-level transaction; 0 if the record belongs to no transaction."""
    time: int
    origin: ReplicationOrigin | None = None
    """Replication origin of the transaction, or None for a local transaction."""


class RowChange(WalRecord, frozen=True, eq=False):
    """WAL record of an insert, update or delete of one row."""

    definition: TableDefinition
    root: TableDefinition | None
    """Definition of the root table if `definition` is a partition, otherwise None."""
    old: Cells | None
    """The old row; None for an insert."""
    new: Cells | None
    """The new row; None for a delete."""
    assigned: frozenset[int] = frozenset()
    """Attribute indices of the columns that an UPDATE sets; empty for an insert or delete."""


class MultiInsert(WalRecord, frozen=True, eq=False):
    """WAL record of several rows that were inserted together (heap_multi_insert)."""

    definition: TableDefinition
    root: TableDefinition | None
    """Definition of the root table if `definition` is a partition, otherwise None."""
    rows: tuple[Cells, ...]

    def split(self) -> Iterator[RowChange]:
        """Yield a record with the same LSN for each of the rows (DecodeMultiInsert)."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "rows"}
        for cells in self.rows:
            yield RowChange(**fields, old=None, new=cells)


class TruncateRecord(WalRecord, frozen=True, eq=False):
    """WAL record of a TRUNCATE of one or more tables."""

    definitions: tuple[tuple[TableDefinition, TableDefinition | None, bool], ...]
    """One tuple per table: definition of the table, definition of the root table if the table is a partition
    (otherwise None), and whether the table is partitioned."""
    options: int
    """Bits of `TruncateOption`."""


class PayloadRecord(WalRecord, frozen=True, eq=False):
    """WAL record of a logical message (pg_logical_emit_message) or another message with application data."""

    message: Message
    """The message. When it is sent, its LSN and xids are replaced by those of this record."""


class Invalidation(WalRecord, frozen=True, eq=False):
    """WAL record of a relcache invalidation by ALTER TABLE or TRUNCATE: tables `oids` may have changed."""

    oids: tuple[int, ...]


class TransactionEnd(WalRecord, frozen=True, eq=False):
    """WAL record that ends a transaction or subtransaction, prepares it, or ends a prepared transaction."""

    kind: Literal["commit", "abort", "prepare", "commit_prepared", "rollback_prepared"]
    children: tuple[int, ...] = ()
    """Xids of the subtransactions that end with this record, except subtransactions rolled back earlier."""
    gid: str | None = None
    """Global identifier of the prepared transaction; None for an ordinary commit or rollback."""
    prepare_time: int = 0
    prepare_end_lsn: int = 0


class Idle(WalRecord, frozen=True, eq=False):
    """Period without changes, in which the walsender sends a keepalive. Real WAL has no such record."""


AnyWalRecord: TypeAlias = (
    RowChange | MultiInsert | TruncateRecord | PayloadRecord | Invalidation | TransactionEnd | Idle
)


class WriteAheadLog:
    """Keeps the WAL records of a scenario in LSN order, and assigns LSNs, xids, OIDs and times.

    `end_lsn` is the LSN of the next record; `time` is in microseconds since 2000-01-01 00:00 UTC.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.records: list[AnyWalRecord] = []
        self.end_lsn: int = self._random.randrange(0x01000000, 0x20000000, 8)
        self.time: int = _START_TIME + self._random.randrange(86_400_000_000)
        self._xid = self._random.randrange(730, 100_000)
        self._oid = self._random.randrange(FIRST_NORMAL_OID, 100_000)

    def advance(self, lsn: int, time: int, xid: int | None) -> None:
        """Continue at a later LSN and time, as if other transactions had written the WAL in between.

        The next transaction gets the xid `xid`; None continues after the last assigned xid.
        """
        self.end_lsn, self.time = lsn, time
        if xid is not None:
            self._xid = xid - 1

    def next_xid(self) -> int:
        """Return a new transaction id (GetNewTransactionId)."""
        self._xid += 1
        return self._xid

    def next_oid(self) -> int:
        """Return a new object id (GetNewObjectId)."""
        self._oid += 1
        return self._oid

    def write(self, kind: type[_R], size: int, /, **fields: Any) -> _R:
        """Append a record of the class `kind` with `fields` and `size` bytes of data; return the record."""
        lsn, end_lsn = self.end_lsn, self.end_lsn + (_RECORD_HEADER_BYTES + size + 7) // 8 * 8
        self.time += self._random.randrange(20, 400)
        record = kind(lsn=lsn, end_lsn=end_lsn, time=self.time, **fields)
        self.records.append(record)  # type: ignore[arg-type]
        self.end_lsn = end_lsn  # set last, so that another thread finds all records up to end_lsn
        return record
