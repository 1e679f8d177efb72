"""Row reads, row writes and table locks of one transaction of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from logicalrep.errors import ScenarioError
from logicalrep.synth.table_definition import Cells, Column, TableDefinition, cell
from logicalrep.synth.tables import Row, ScenarioTable, key_values
from logicalrep.synth.text_format import to_text
from logicalrep.synth.wal import TransactionEnd

Undo: TypeAlias = Callable[[], object]
"""Function that reverts one change of a row or table."""


class CommitEffects(msgspec.Struct, frozen=True):
    """The rows and table definitions that one commit changed."""

    record: TransactionEnd
    """WAL record of the commit."""
    rows: list[tuple[ScenarioTable, int, Cells | None]]
    """Changed rows as (table, row number, committed cells); the cells are None for a deleted row."""
    definitions: dict[ScenarioTable, TableDefinition]
    """For each table that the transaction used: the definition of the table at the commit."""


class HeapAccess:
    """Row reads, row writes and table locks of one transaction. `tables` contains the locked tables."""

    def __init__(self, transaction: object) -> None:
        self.tables: set[ScenarioTable] = set()
        self._rows: dict[Row, ScenarioTable] = {}
        self._transaction = transaction

    def lock(self, *tables: ScenarioTable, exclusive: bool = False) -> None:
        """Lock tables until the transaction ends, in ROW EXCLUSIVE or ACCESS EXCLUSIVE mode.

        Unlike on a server, rolling back a savepoint does not release the lock.

        Raises:
            ScenarioError: Another open transaction has locked one of the tables in a conflicting mode.
        """
        for table in tables:
            for holder, locks_out in table.locks.items():
                if holder is not self._transaction and (exclusive or locks_out):
                    did = "truncated or altered" if locks_out else "changed"
                    raise ScenarioError(
                        f"{table.definition.full_name}: locked by another open transaction that {did} it; a "
                        "server would wait: end that transaction first"
                    )
        for table in tables:
            table.locks[self._transaction] = exclusive or table.locks.get(self._transaction, False)
            self.tables.add(table)

    def find_row(self, table: ScenarioTable, where: Mapping[str, Any]) -> tuple[ScenarioTable, Row, Cells]:
        """Return the row with the column values `where`, as (table or partition, row, cells of the row).

        If all matching rows have equal cells, the first of these rows is returned.

        Raises:
            ScenarioError: `where` is empty, no row matches, rows with different cells match, or another open
                transaction has changed the row.
        """
        name = table.definition.full_name
        if not where:
            raise ScenarioError(
                f"{name}: no values to find the row; identify the row by its key columns or with `where`"
            )
        matches = [(leaf, row, cells) for leaf in table.leaves() for row, cells in self._find(leaf, where)]
        if not matches:
            raise ScenarioError(f"{name} has no row with {dict(where)}")
        leaf, row, cells = matches[0]
        if any(others != cells for _, _, others in matches):
            raise ScenarioError(f"{name} has {len(matches)} different rows with {dict(where)}; expected one")
        if row.writer not in (None, self._transaction):
            raise ScenarioError(
                f"{leaf.definition.full_name}: the row with {dict(where)} is locked by another open "
                "transaction; a server would wait: end that transaction first"
            )
        return leaf, row, cells

    def _find(self, leaf: ScenarioTable, where: Mapping[str, Any]) -> Iterator[tuple[Row, Cells]]:
        self.lock(leaf)
        definition = leaf.definition
        values = {definition.column(name): text for name, text in definition.to_texts(where).items()}
        key = next((key for key in definition.unique_keys if values.keys() >= set(key)), None)
        found = leaf.find_rows(key, tuple(map(values.get, key))) if key else list(leaf.rows.values())
        for row in found:
            visible = row.visible_to(self._transaction)
            if visible is not None and all(cell(visible, column) == text for column, text in values.items()):
                yield row, visible

    def check_keys(self, leaf: ScenarioTable, cells: Cells, itself: Row | None = None) -> None:
        """Check that no other row has the keys in `cells`; `itself` is the row to update, None to insert.

        Raises:
            ScenarioError: A key column is NULL, another row has the key, or an open transaction has changed a
                row that has or had the key.
        """
        for key in leaf.definition.unique_keys:
            values = key_values(cells, key)
            shown = ", ".join(f"{column.name}={value}" for column, value in zip(key, values, strict=True))
            if None in values:
                raise ScenarioError(f"{leaf.definition.full_name}: a key column must not be NULL ({shown})")
            for row in leaf.find_rows(key, values):
                if row.writer not in (None, self._transaction):
                    raise ScenarioError(
                        f"{leaf.definition.full_name}: a row with {shown} was changed by another open "
                        "transaction; a server would wait: end that transaction first"
                    )
                visible = row.visible_to(self._transaction)
                if row is not itself and visible is not None and key_values(visible, key) == values:
                    raise ScenarioError(f"{leaf.definition.full_name} has a row with {shown} already")

    def write_row(self, leaf: ScenarioTable, row: Row | None, cells: Cells | None) -> Undo:
        """Set the cells of a row of a table; return a function that undoes the change.

        If `row` is None, a new row is inserted. If `cells` is None, the row is deleted.
        """
        row = leaf.add_row() if row is None else row
        leaf.write_row(row, cells, self._transaction)
        self._rows[row] = leaf
        return row.undo_write

    def truncate(self, leaf: ScenarioTable, part: object) -> list[Undo]:
        """Delete all rows of a table for a transaction or savepoint `part`; return functions that undo it."""
        before, leaf.truncated_in = leaf.truncated_in, part
        undo_rows = [self.write_row(leaf, row, None) for row, _ in self._visible_rows(leaf)]
        return [*undo_rows, lambda: setattr(leaf, "truncated_in", before)]

    def rewrite_columns(self, table: ScenarioTable, columns: Sequence[Column]) -> list[Undo]:
        """Convert the values of `columns` to their new types; return functions that undo the conversion.

        Raises:
            ScenarioError: The new type cannot represent a value. No row is changed.
        """
        converted = [(row, _convert_cells(cells, columns)) for row, cells in self._visible_rows(table)]
        return [self.write_row(table, row, cells) for row, cells in converted]

    def commit(self, record: TransactionEnd) -> CommitEffects:
        """Commit the row changes and table definitions of the transaction; `record` is its commit record."""
        rows = []
        for row, table in self._rows.items():
            if row.writer is self._transaction:  # rows of a rolled-back savepoint may have another writer
                row.versions, row.writer = row.versions[-1:], None
                rows.append((table, row.number, row.committed))
        for table in self.tables:
            table.committed_definition = table.definition
        return CommitEffects(record, rows, {table: table.definition for table in self.tables})

    def release(self) -> None:
        """Release the table locks after the end of the transaction, and remove rows from memory.

        The removed rows are those that the transaction deleted, or inserted and then rolled back.
        """
        for row, table in self._rows.items():
            if row.versions == [None]:
                table.rows.pop(row.number, None)
        for table in self.tables:
            if table.locks.pop(self._transaction):
                table.truncated_in = None

    def _visible_rows(self, leaf: ScenarioTable) -> list[tuple[Row, Cells]]:
        seen = ((row, row.visible_to(self._transaction)) for row in leaf.rows.values())
        return [(row, cells) for row, cells in seen if cells is not None]


def _convert_cells(cells: Cells, columns: Sequence[Column]) -> Cells:
    values = list(cells)
    for column in columns:
        if column.number < len(values):
            values[column.number] = to_text(values[column.number], column.type)
    return tuple(values)
