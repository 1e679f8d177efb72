"""What the open transactions of a scenario hold, what is prepared, and what was committed."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from pgoutput.errors import ScenarioError
from pgoutput.synth.shapes import Cells, Shape
from pgoutput.synth.tables import Row, ScenarioTable
from pgoutput.synth.types import Types
from pgoutput.synth.wal import Ending, Log

T = TypeVar("T")
"""The class of transactions, which know the ledger."""


class Commit(msgspec.Struct, frozen=True):
    """What a commit made true."""

    record: Ending
    rows: list[tuple[ScenarioTable, int, Cells | None]]
    """Each with its number in the table; None if it is gone."""
    shapes: dict[ScenarioTable, Shape]


class Ledger(Generic[T]):
    """What transactions write, and what they have to know of each other.

    Attributes:
        log: The records.
        types: The types that there are.
        commits: What was committed.
        prepared: The transactions that are prepared, by gid.

    Args:
        seed: As for `Log`.
    """

    def __init__(self, seed: int) -> None:
        self.log = Log(seed)
        self.types = Types(self.log.next_oid)
        self.commits: list[Commit] = []
        self.prepared: dict[str, T] = {}
        self._touched: dict[object, dict[Row, ScenarioTable]] = {}
        self._used: dict[object, set[ScenarioTable]] = {}

    def use(self, transaction: object, table: ScenarioTable) -> None:
        """Note that an open transaction uses a table."""
        self._used.setdefault(transaction, set()).add(table)

    def used(self, transaction: object) -> set[ScenarioTable]:
        """The tables that an open transaction uses."""
        return self._used.get(transaction, set())

    def touch(self, transaction: object, table: ScenarioTable, row: Row) -> None:
        """Note that an open transaction has changed a row."""
        self._touched.setdefault(transaction, {})[row] = table

    def committed(self, transaction: object, record: Ending) -> None:
        """Note that a transaction has committed: what it did is the truth now."""
        rows = []
        for row, table in self._touched.get(transaction, {}).items():
            if row.writer is transaction:  # a savepoint that is rolled back lets others have its rows
                row.committed = row.current
                rows.append((table, row.number, row.committed))
        shapes = {}
        for table in self._used.get(transaction, ()):
            table.committed_shape = shapes[table] = table.shape
        self.commits.append(Commit(record, rows, shapes))

    def release(self, transaction: object) -> None:
        """Let go of all that a transaction holds, when it ends."""
        for row, table in self._touched.pop(transaction, {}).items():
            if row.writer is transaction:
                row.writer = None
                if row.committed is None:
                    del table.rows[row.number]
        for table in self._used.pop(transaction, ()):
            table.users.discard(transaction)
            table.claims = {key: who for key, who in table.claims.items() if who is not transaction}
            if table.locked_by is transaction:
                table.locked_by = table.truncated_in = None

    def park(self, gid: str, transaction: T) -> None:
        """Note that a transaction is prepared.

        Raises:
            ScenarioError: One is under this gid already.
        """
        if gid in self.prepared:
            raise ScenarioError(f"transaction identifier {gid!r} is already in use")
        self.prepared[gid] = transaction

    def unpark(self, gid: str) -> T:
        """The transaction that is prepared under a gid, which is free from now on.

        Raises:
            ScenarioError: There is none.
        """
        if gid not in self.prepared:
            raise ScenarioError(f"prepared transaction with identifier {gid!r} does not exist")
        return self.prepared.pop(gid)
