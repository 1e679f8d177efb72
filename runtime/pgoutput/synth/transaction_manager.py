"""Transaction manager of a scenario: open, prepared and committed transactions."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from pgoutput.errors import ScenarioError
from pgoutput.synth.column_types import TypeRegistry
from pgoutput.synth.table_definition import Cells, TableDefinition
from pgoutput.synth.tables import Row, ScenarioTable
from pgoutput.synth.wal import TransactionEnd, WriteAheadLog

T = TypeVar("T")
"""Class of the transactions that a `TransactionManager` tracks."""


class CommitEffects(msgspec.Struct, frozen=True):
    """The rows and table definitions that one commit changed."""

    record: TransactionEnd
    """WAL record of the commit."""
    rows: list[tuple[ScenarioTable, int, Cells | None]]
    """Changed rows as (table, row number, committed cells); the cells are None for a deleted row."""
    definitions: dict[ScenarioTable, TableDefinition]
    """For each table that the transaction used: the definition of the table at the commit."""


class TransactionManager(Generic[T]):
    """Tracks what open transactions have changed, which transactions are prepared, and what was committed.

    Attributes:
        wal: The write-ahead log.
        types: The column types of the scenario.
        commits: The effects of each commit, in commit order.
        prepared: The prepared transactions by gid.

    Args:
        seed: Seed of the LSNs, xids, OIDs and times, as in `WriteAheadLog`.
    """

    def __init__(self, seed: int) -> None:
        self.wal: WriteAheadLog = WriteAheadLog(seed)
        self.types: TypeRegistry = TypeRegistry(self.wal.next_oid)
        self.commits: list[CommitEffects] = []
        self.prepared: dict[str, T] = {}
        self._rows: dict[object, dict[Row, ScenarioTable]] = {}
        self._tables: dict[object, set[ScenarioTable]] = {}

    def track_table(self, transaction: object, table: ScenarioTable) -> None:
        """Record that an open transaction uses a table."""
        self._tables.setdefault(transaction, set()).add(table)

    def tables_of(self, transaction: object) -> set[ScenarioTable]:
        """Return the tables that an open transaction uses."""
        return self._tables.get(transaction, set())

    def track_row(self, transaction: object, table: ScenarioTable, row: Row) -> None:
        """Record that an open transaction has changed a row."""
        self._rows.setdefault(transaction, {})[row] = table

    def commit(self, transaction: object, record: TransactionEnd) -> None:
        """Commit the row changes and table definitions of a transaction; append the effects to `commits`."""
        rows = []
        for row, table in self._rows.get(transaction, {}).items():
            if row.writer is transaction:  # rows of a rolled-back savepoint may have another writer
                row.committed = row.current
                rows.append((table, row.number, row.committed))
        definitions = {}
        for table in self._tables.get(transaction, ()):
            table.committed_definition = definitions[table] = table.definition
        self.commits.append(CommitEffects(record, rows, definitions))

    def release(self, transaction: object) -> None:
        """Release the rows, key reservations and table locks of a transaction that ends."""
        for row, table in self._rows.pop(transaction, {}).items():
            if row.writer is transaction:
                row.writer = None
                if row.committed is None:
                    del table.rows[row.number]
        for table in self._tables.pop(transaction, ()):
            table.row_exclusive_holders.discard(transaction)
            table.key_reservations = {
                key: holder for key, holder in table.key_reservations.items() if holder is not transaction
            }
            if table.access_exclusive_holder is transaction:
                table.access_exclusive_holder = table.truncated_in = None

    def add_prepared(self, gid: str, transaction: T) -> None:
        """Register a prepared transaction under its gid.

        Raises:
            ScenarioError: The gid is in use.
        """
        if gid in self.prepared:
            raise ScenarioError(f"transaction identifier {gid!r} is already in use")
        self.prepared[gid] = transaction

    def take_prepared(self, gid: str) -> T:
        """Return the transaction prepared under a gid, and free the gid.

        Raises:
            ScenarioError: No transaction is prepared under the gid.
        """
        if gid not in self.prepared:
            raise ScenarioError(f"prepared transaction with identifier {gid!r} does not exist")
        return self.prepared.pop(gid)
