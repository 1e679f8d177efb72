"""Transaction manager of a scenario: prepared and committed transactions."""

from __future__ import annotations

from typing import Protocol

import msgspec

from pgoutput.errors import ScenarioError
from pgoutput.synth.column_types import TypeRegistry
from pgoutput.synth.table_definition import Cells, TableDefinition
from pgoutput.synth.tables import ScenarioTable
from pgoutput.synth.wal import TransactionEnd, WriteAheadLog


class CommitEffects(msgspec.Struct, frozen=True):
    """The rows and table definitions that one commit changed."""

    record: TransactionEnd
    """WAL record of the commit."""
    rows: list[tuple[ScenarioTable, int, Cells | None]]
    """Changed rows as (table, row number, committed cells); the cells are None for a deleted row."""
    definitions: dict[ScenarioTable, TableDefinition]
    """For each table that the transaction used: the definition of the table at the commit."""


class PreparedTransaction(Protocol):
    """A transaction after PREPARE TRANSACTION."""

    def finish_prepared(self, kind: str) -> None:
        """Commit or roll back the transaction; `kind` is `commit_prepared` or `rollback_prepared`."""


class TransactionManager:
    """Tracks which transactions of a scenario are prepared, and what was committed.

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
        self.prepared: dict[str, PreparedTransaction] = {}

    def add_prepared(self, gid: str, transaction: PreparedTransaction) -> None:
        """Register a prepared transaction under its gid.

        Raises:
            ScenarioError: The gid is in use.
        """
        if gid in self.prepared:
            raise ScenarioError(f"transaction identifier {gid!r} is already in use")
        self.prepared[gid] = transaction

    def take_prepared(self, gid: str) -> PreparedTransaction:
        """Return the transaction prepared under a gid, and free the gid.

        Raises:
            ScenarioError: No transaction is prepared under the gid.
        """
        if gid not in self.prepared:
            raise ScenarioError(f"prepared transaction with identifier {gid!r} does not exist")
        return self.prepared.pop(gid)
