"""The rows of a scenario's tables, as each transaction sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from pgoutput.errors import ScenarioError
from pgoutput.synth.shapes import Cells, Column, Shape, cell


class Row(msgspec.Struct, eq=False):
    """A row: as it was committed, and as the transaction has it that changed it since."""

    number: int
    """Its place in `ScenarioTable.rows`."""
    committed: Cells | None
    current: Cells | None
    writer: object = None
    """The transaction that changed it and has not ended."""

    def seen_by(self, transaction: object) -> Cells | None:
        """The row as a transaction sees it; None if it is not there."""
        return self.current if self.writer is transaction else self.committed


class ScenarioTable:
    """A table of a scenario; made by `Scenario.table`.

    Attributes:
        shape: How it looks now, to the transaction that altered it.
        committed_shape: How it looks to the others.
        first_shape: How it looked when it was made.
        root: The table that it is a partition of, if it is one.
        partitions: Its partitions by name, if it has such; rows lie in them.
    """

    def __init__(self, shape: Shape, root: ScenarioTable | None = None) -> None:
        self.shape = self.committed_shape = self.first_shape = shape
        self.root = root
        self.partitions: dict[str, ScenarioTable] = {}
        self.partition_by: Column | None = None
        self.owner: object = None
        """The ledger of its scenario."""
        self.rows: dict[int, Row] = {}
        """By a running number, so that they stay in the order in which they were inserted."""
        self.users: set[object] = set()
        """Transactions that changed it and have not ended."""
        self.locked_by: object = None
        """The one of them that truncated or altered it: others would wait."""
        self.truncated_in: object = None
        """The part of it that truncated it last (rd_newRelfilelocatorSubid)."""
        self.claims: dict[tuple[tuple[Column, ...], Cells], object] = {}
        """Key values that open transactions have given to rows, though they may have changed them since."""
        self._partition_of: dict[str | None, ScenarioTable] = {}
        self._by_key: dict[tuple[Column, ...], dict[Cells, list[Row]]] = {}
        self._next = 0

    def __repr__(self) -> str:
        return f"<table {self.shape.full_name}>"

    def leaves(self) -> Iterator[ScenarioTable]:
        """Where its rows lie: its partitions, or itself."""
        return iter(self.partitions.values()) if self.partitions else iter((self,))

    def partition_for(self, cells: Cells) -> ScenarioTable:
        """Where a row belongs: the partition for its values, or the table itself.

        Raises:
            ScenarioError: No partition takes it.
        """
        if not self.partitions:
            return self
        assert self.partition_by is not None
        value = cell(cells, self.partition_by)
        leaf = self._partition_of.get(value)
        if leaf is None:
            raise ScenarioError(
                f"{self.shape.full_name} has no partition for {self.partition_by.name} = {value}; it has "
                f"them for {', '.join(map(str, self._partition_of))}"
            )
        return leaf

    def partition(self, by: Column, leaf: ScenarioTable, values: Iterable[str | None]) -> None:
        """Take in a partition, for rows with these values in a column (PARTITION BY LIST)."""
        self.partition_by = by
        self.partitions[leaf.shape.name] = leaf
        self._partition_of |= dict.fromkeys(values, leaf)

    def add(self, cells: Cells, writer: object) -> Row:
        """A new row, inserted by a transaction."""
        row = self.rows[self._next] = Row(self._next, None, cells, writer)
        self._next += 1
        self.index(row)
        return row

    def unclaim(self, keys: Iterable[tuple[tuple[Column, ...], Cells]]) -> None:
        """Let go of key values that were claimed."""
        for key in keys:
            self.claims.pop(key, None)

    def index(self, row: Row) -> None:
        """Note under which keys the row is found now."""
        if row.current is not None:
            for key in self.shape.keys:
                rows = self._index_of(key).setdefault(_values(row.current, key), [])
                if row not in rows:
                    rows.append(row)

    def find(self, key: tuple[Column, ...], values: Cells) -> list[Row]:
        """Rows that have, or had when they were committed, these values in a key."""
        rows = self._index_of(key).get(values, [])
        rows[:] = [row for row in rows if any(_values(state, key) == values for state in _states(row))]
        return list(rows)

    def _index_of(self, key: tuple[Column, ...]) -> dict[Cells, list[Row]]:
        if key not in self._by_key:
            made = self._by_key[key] = {}
            for row in self.rows.values():
                for values in {_values(state, key) for state in _states(row)}:
                    made.setdefault(values, []).append(row)
        return self._by_key[key]


def _states(row: Row) -> Iterator[Cells]:
    return (state for state in (row.current, row.committed) if state is not None)


def _values(cells: Cells, key: tuple[Column, ...]) -> Cells:
    return tuple(cell(cells, column) for column in key)
