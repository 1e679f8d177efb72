"""Tables of a scenario: row versions, locks and key indexes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from logicalrep.errors import ScenarioError
from logicalrep.synth.table_definition import Cells, Column, TableDefinition, cell

Key: TypeAlias = tuple[Column, ...]
"""Columns of a unique key."""


class Row(msgspec.Struct, eq=False):
    """A row of a table, with the versions that the open transaction `writer` has written."""

    number: int
    """Row number: key of the row in `ScenarioTable.rows`."""
    versions: list[Cells | None]
    """The committed cells, then the cells after each uncommitted change. None: the row does not exist."""
    writer: object = None
    """The open transaction that changed the row, or None."""

    @property
    def committed(self) -> Cells | None:
        """The committed cells; None if no transaction except `writer` can see the row."""
        return self.versions[0]

    def visible_to(self, transaction: object) -> Cells | None:
        """Return the row's cells as a transaction sees them; None if the row is not visible."""
        return self.versions[-1 if self.writer is transaction else 0]

    def has_key(self, key: Key, values: Cells) -> bool:
        """Return whether any version of the row has `values` in the columns `key`, in this order."""
        return any(
            cells is not None and key_values(cells, key) == values for cells in reversed(self.versions)
        )

    def undo_write(self) -> None:
        """Remove the newest version of the row."""
        self.versions.pop()
        if len(self.versions) == 1:
            self.writer = None


class ScenarioTable:
    """A table of a scenario; created by `Scenario.table`.

    Attributes:
        definition: Newest definition, as seen by the open transaction that altered the table.
        committed_definition: Definition at the last commit, as seen by all other transactions.
        initial_definition: Definition at creation.
        root: The partitioned table that this table is a partition of, or None.
        partitions: The partitions, by name without schema. A table with partitions stores no rows itself.
    """

    def __init__(
        self, definition: TableDefinition, owner: object = None, root: ScenarioTable | None = None
    ) -> None:
        self.definition: TableDefinition = definition
        self.committed_definition: TableDefinition = definition
        self.initial_definition: TableDefinition = definition
        self.owner = owner
        """The database of the scenario that the table belongs to."""
        self.root = root
        self.partitions: dict[str, ScenarioTable] = {}
        self.partition_by: Column | None = None
        self.rows: dict[int, Row] = {}
        """Rows by row number, in insertion order."""
        self.locks: dict[object, bool] = {}
        """Open transactions that use the table, and whether each locks out all others (ACCESS EXCLUSIVE)."""
        self.truncated_in: object = None
        """Open transaction or savepoint that has truncated the table (rd_newRelfilelocatorSubid), or None."""
        self._partition_by_value: dict[str | None, ScenarioTable] = {}
        self._by_key: dict[tuple[int, ...], dict[Cells, list[Row]]] = {}
        self._next_row_number = 0

    def __repr__(self) -> str:
        return f"<table {self.definition.full_name}>"

    def leaves(self) -> Iterator[ScenarioTable]:
        """Return the tables that store the rows: the partitions, or the table itself."""
        return iter(self.partitions.values()) if self.partitions else iter((self,))

    def partition_for(self, cells: Cells) -> ScenarioTable:
        """Return the partition for a row, or the table itself if the table has no partitions.

        Raises:
            ScenarioError: No partition accepts the row.
        """
        if self.partition_by is None:
            return self
        value = cell(cells, self.partition_by)
        leaf = self._partition_by_value.get(value)
        if leaf is None:
            raise ScenarioError(
                f"{self.definition.full_name} has no partition for {self.partition_by.name} = {value}; "
                f"partitions exist for {', '.join(map(str, self._partition_by_value))}"
            )
        return leaf

    def attach_partition(self, by: Column, leaf: ScenarioTable, values: Iterable[str | None]) -> None:
        """Attach partition `leaf` for rows with one of `values` in the column `by` (PARTITION BY LIST)."""
        self.partition_by = by
        self.partitions[leaf.definition.name] = leaf
        self._partition_by_value |= dict.fromkeys(values, leaf)

    def add_row(self) -> Row:
        """Add a row that no transaction sees until `write_row` writes its cells, and return the row."""
        row = self.rows[self._next_row_number] = Row(self._next_row_number, [None])
        self._next_row_number += 1
        return row

    def write_row(self, row: Row, cells: Cells | None, writer: object) -> None:
        """Add a row version, written by the open transaction `writer`. None for `cells` deletes the row."""
        row.versions.append(cells)
        row.writer = writer
        if cells is not None:
            for key in self.definition.unique_keys:
                rows = self._key_index(key).setdefault(key_values(cells, key), [])
                if row not in rows:
                    rows.append(row)

    def find_rows(self, key: Key, values: Cells) -> list[Row]:
        """Return the rows of which any version, committed or not, has `values` in the columns `key`.

        The items of `key` and `values` are in the same order.
        """
        rows = self._key_index(key).get(values, [])
        rows[:] = [row for row in rows if row.has_key(key, values)]
        return list(rows)

    def _key_index(self, key: Key) -> dict[Cells, list[Row]]:
        numbers = tuple(column.number for column in key)
        if numbers not in self._by_key:
            made = self._by_key[numbers] = {}
            for row in self.rows.values():
                for values in {key_values(cells, key) for cells in row.versions if cells is not None}:
                    made.setdefault(values, []).append(row)
        return self._by_key[numbers]


def key_values(cells: Cells, key: Key) -> Cells:
    """Return the values of a row in the columns of a key."""
    return tuple(cell(cells, column) for column in key)
