"""Tables of a scenario: row versions, locks and key indexes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from pgoutput.errors import ScenarioError
from pgoutput.synth.table_definition import Cells, Column, TableDefinition, cell


class Row(msgspec.Struct, eq=False):
    """A row of a table: committed cells, and the cells that the open transaction `writer` has written."""

    number: int
    """Row number: key of the row in `ScenarioTable.rows`."""
    committed: Cells | None
    """Committed cells; None if no insert of the row is committed, or a committed change deleted the row."""
    current: Cells | None
    """Newest cells, uncommitted if `writer` is not None; None if the row is deleted."""
    writer: object = None
    """The open transaction that changed the row, or None."""

    def visible_to(self, transaction: object) -> Cells | None:
        """Return the row's cells as a transaction sees them; None if the row is not visible."""
        return self.current if self.writer is transaction else self.committed


class ScenarioTable:
    """A table of a scenario; created by `Scenario.table`.

    Attributes:
        definition: Newest definition, as seen by the open transaction that altered the table.
        committed_definition: Definition at the last commit, as seen by all other transactions.
        initial_definition: Definition at creation.
        root: The partitioned table that this table is a partition of, or None.
        partitions: The partitions, by name without schema. A table with partitions stores no rows itself.
    """

    def __init__(self, definition: TableDefinition, root: ScenarioTable | None = None) -> None:
        self.definition: TableDefinition = definition
        self.committed_definition: TableDefinition = definition
        self.initial_definition: TableDefinition = definition
        self.root = root
        self.partitions: dict[str, ScenarioTable] = {}
        self.partition_by: Column | None = None
        self.owner: object = None
        """Transaction manager of the scenario that the table belongs to."""
        self.rows: dict[int, Row] = {}
        """Rows by row number, in insertion order."""
        self.row_exclusive_holders: set[object] = set()
        """Open transactions that hold a ROW EXCLUSIVE lock on the table."""
        self.access_exclusive_holder: object = None
        """Open transaction that locks out all others because it truncated or altered the table, or None."""
        self.truncated_in: object = None
        """Open transaction or savepoint that has truncated the table (rd_newRelfilelocatorSubid), or None."""
        self.key_reservations: dict[tuple[tuple[Column, ...], Cells], object] = {}
        """Open transaction that has written a key, by (key columns, key values).

        A reservation is kept even if the transaction changes the key of the row again.
        """
        self._partition_by_value: dict[str | None, ScenarioTable] = {}
        self._by_key: dict[tuple[Column, ...], dict[Cells, list[Row]]] = {}
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
        if not self.partitions:
            return self
        assert self.partition_by is not None
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

    def add_row(self, cells: Cells, writer: object) -> Row:
        """Add a row that the open transaction `writer` inserts, and return the row."""
        row = self.rows[self._next_row_number] = Row(self._next_row_number, None, cells, writer)
        self._next_row_number += 1
        self.index_row(row)
        return row

    def release_keys(self, keys: Iterable[tuple[tuple[Column, ...], Cells]]) -> None:
        """Remove keys from `key_reservations`, so that other transactions can write the keys."""
        for key in keys:
            self.key_reservations.pop(key, None)

    def index_row(self, row: Row) -> None:
        """Add a row to the key indexes, under its current key values."""
        if row.current is not None:
            for key in self.definition.unique_keys:
                rows = self._key_index(key).setdefault(key_values(row.current, key), [])
                if row not in rows:
                    rows.append(row)

    def find_rows(self, key: tuple[Column, ...], values: Cells) -> list[Row]:
        """Return the rows whose current or committed cells have the values `values` in the columns `key`."""
        rows = self._key_index(key).get(values, [])
        rows[:] = [row for row in rows if any(key_values(state, key) == values for state in _versions(row))]
        return list(rows)

    def _key_index(self, key: tuple[Column, ...]) -> dict[Cells, list[Row]]:
        if key not in self._by_key:
            made = self._by_key[key] = {}
            for row in self.rows.values():
                for values in {key_values(state, key) for state in _versions(row)}:
                    made.setdefault(values, []).append(row)
        return self._by_key[key]


def _versions(row: Row) -> Iterator[Cells]:
    return (state for state in (row.current, row.committed) if state is not None)


def key_values(cells: Cells, key: tuple[Column, ...]) -> Cells:
    """Return the values of a row in the columns of a key."""
    return tuple(cell(cells, column) for column in key)
