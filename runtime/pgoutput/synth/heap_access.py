"""Row reads, row writes and table locks of one transaction of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pgoutput.errors import ScenarioError
from pgoutput.synth.table_definition import Cells, Column, cell
from pgoutput.synth.tables import Row, ScenarioTable, key_values
from pgoutput.synth.text_format import to_text
from pgoutput.synth.transaction_manager import CommitEffects
from pgoutput.synth.wal import TransactionEnd

Undo: TypeAlias = Callable[[], None]
"""Function that reverts one change of a row, table or key reservation."""


class HeapAccess:
    """Reads rows, writes rows and locks tables for one transaction of a scenario.

    Attributes:
        tables: The tables that the transaction uses.

    Args:
        transaction: The transaction that holds the locks and changes the rows.
    """

    def __init__(self, transaction: object) -> None:
        self.tables: set[ScenarioTable] = set()
        self._rows: dict[Row, ScenarioTable] = {}
        self._transaction = transaction

    def lock_row_exclusive(self, table: ScenarioTable) -> None:
        """Lock a table in ROW EXCLUSIVE mode for the transaction.

        Raises:
            ScenarioError: Another open transaction has truncated or altered the table.
        """
        if table.access_exclusive_holder not in (None, self._transaction):
            raise ScenarioError(
                f"{table.definition.full_name}: locked by another open transaction that truncated or altered "
                "it; a server would wait"
            )
        table.row_exclusive_holders.add(self._transaction)
        self.tables.add(table)

    def lock_access_exclusive(self, *tables: ScenarioTable) -> None:
        """Lock tables in ACCESS EXCLUSIVE mode until the transaction ends.

        Unlike on a server, rolling back a savepoint does not release the lock.

        Raises:
            ScenarioError: Another open transaction has changed, truncated or altered one of the tables.
        """
        for table in tables:
            self.lock_row_exclusive(table)
            if table.row_exclusive_holders != {self._transaction}:
                raise ScenarioError(
                    f"{table.definition.full_name}: locked by another open transaction that changed it; a "
                    "server would wait"
                )
        for table in tables:
            table.access_exclusive_holder = self._transaction

    def find_row(self, table: ScenarioTable, where: Mapping[str, Any]) -> tuple[ScenarioTable, Row, Cells]:
        """Return the row with the column values `where`, as (table or partition, row, cells of the row).

        If all matching rows have equal cells, the first of these rows is returned.

        Raises:
            ScenarioError: `where` is empty, no row matches, rows with different cells match, or another open
                transaction has changed the row.
        """
        if not where:
            raise ScenarioError(
                f"{table.definition.full_name}: identify the row by its key columns or with `where`"
            )
        matches: list[tuple[ScenarioTable, Row, Cells]] = []
        for leaf in table.leaves():
            self.lock_row_exclusive(leaf)
            conditions = {
                leaf.definition.column(name): text for name, text in leaf.definition.to_texts(where).items()
            }
            matches.extend((leaf, row, visible) for row, visible in self._matching_rows(leaf, conditions))
        if not matches:
            raise ScenarioError(f"{table.definition.full_name} has no row with {dict(where)}")
        if any(visible != matches[0][2] for _, _, visible in matches):
            raise ScenarioError(
                f"{table.definition.full_name} has {len(matches)} different rows with {dict(where)}; "
                "expected one"
            )
        leaf, row, visible = matches[0]
        if row.writer not in (None, self._transaction):
            raise ScenarioError(
                f"{leaf.definition.full_name}: the row with {dict(where)} is locked by another open "
                "transaction; a server would wait"
            )
        return leaf, row, visible

    def _matching_rows(
        self, leaf: ScenarioTable, conditions: Mapping[Column, str | None]
    ) -> Iterator[tuple[Row, Cells]]:
        key = next(
            (key for key in leaf.definition.unique_keys if all(column in conditions for column in key)), None
        )
        if key is None:
            rows = list(leaf.rows.values())
        else:
            rows = leaf.find_rows(key, tuple(conditions[column] for column in key))
        for row in rows:
            visible = row.visible_to(self._transaction)
            if visible is not None and all(
                cell(visible, column) == text for column, text in conditions.items()
            ):
                yield row, visible

    def reserve_keys(self, leaf: ScenarioTable, cells: Cells, itself: Row | None = None) -> Undo:
        """Reserve the key values of a new row, so that no other open transaction can write the same key.

        Args:
            leaf: The table or partition that will store the row.
            cells: The cells of the new row.
            itself: The row that is updated, which may keep its key values; None for an insert.

        Returns:
            A function that releases the keys that this call has reserved.

        Raises:
            ScenarioError: A key column is NULL, another row has the key, or an open transaction has changed a
                row with the key.
        """
        keys = []
        for key in leaf.definition.unique_keys:
            values = key_values(cells, key)
            shown = ", ".join(f"{column.name}={value}" for column, value in zip(key, values, strict=True))
            if None in values:
                raise ScenarioError(f"{leaf.definition.full_name}: NULL in the key ({shown})")
            others = {row.writer for row in leaf.find_rows(key, values)} | {
                leaf.key_reservations.get((key, values))
            }
            if others - {None, self._transaction}:
                raise ScenarioError(
                    f"{leaf.definition.full_name}: a row with {shown} was changed by another open "
                    "transaction; a server would wait"
                )
            visible = (
                row.visible_to(self._transaction) for row in leaf.find_rows(key, values) if row is not itself
            )
            if any(cells is not None and key_values(cells, key) == values for cells in visible):
                raise ScenarioError(f"{leaf.definition.full_name} has a row with {shown} already")
            keys.append((key, values))
        # A set difference with `key_reservations` would visit every reservation.
        new = {key for key in keys if key not in leaf.key_reservations}
        leaf.key_reservations |= dict.fromkeys(keys, self._transaction)
        return lambda: leaf.release_keys(new)

    def insert_row(self, leaf: ScenarioTable, cells: Cells) -> Undo:
        """Insert a row and return the function that undoes the insert."""
        row = leaf.add_row(cells, self._transaction)
        self._rows[row] = leaf
        return lambda: _restore_row(leaf, row, None, self._transaction)

    def replace_row(self, leaf: ScenarioTable, row: Row, cells: Cells | None) -> Undo:
        """Replace or (if `cells` is None) delete a row; return the function that undoes the change."""
        before, writer = row.current, row.writer
        row.current, row.writer = cells, self._transaction
        leaf.index_row(row)
        self._rows[row] = leaf
        return lambda: _restore_row(leaf, row, before, writer)

    def truncate(self, leaf: ScenarioTable, part: object) -> list[Undo]:
        """Delete all visible rows of a table, and return functions that undo the truncation.

        Args:
            leaf: The table or partition.
            part: The transaction or savepoint that truncates the table.
        """
        before, leaf.truncated_in = leaf.truncated_in, part
        undo_rows = [self.replace_row(leaf, row, None) for row in self._visible_rows(leaf)]
        return [*undo_rows, lambda: setattr(leaf, "truncated_in", before)]

    def rewrite_columns(self, table: ScenarioTable, columns: Sequence[Column]) -> list[Undo]:
        """Convert the values of columns whose type changed; return functions that undo the conversion.

        Raises:
            ScenarioError: The new type cannot represent a value. All rows are unchanged.
        """
        rows = [(row, _convert_cells(row.current, columns)) for row in self._visible_rows(table)]
        return [self.replace_row(table, row, cells) for row, cells in rows]

    def commit(self, record: TransactionEnd) -> CommitEffects:
        """Commit the row changes and table definitions of the transaction, and return the effects."""
        rows = []
        for row, table in self._rows.items():
            if row.writer is self._transaction:  # rows of a rolled-back savepoint may have another writer
                row.committed = row.current
                rows.append((table, row.number, row.committed))
        definitions = {}
        for table in self.tables:
            table.committed_definition = definitions[table] = table.definition
        return CommitEffects(record, rows, definitions)

    def release(self) -> None:
        """Release the rows, key reservations and table locks of the transaction, which ends."""
        for row, table in self._rows.items():
            if row.writer is self._transaction:
                row.writer = None
                if row.committed is None:
                    del table.rows[row.number]
        for table in self.tables:
            table.row_exclusive_holders.discard(self._transaction)
            table.key_reservations = {
                key: holder
                for key, holder in table.key_reservations.items()
                if holder is not self._transaction
            }
            if table.access_exclusive_holder is self._transaction:
                table.access_exclusive_holder = table.truncated_in = None

    def _visible_rows(self, leaf: ScenarioTable) -> list[Row]:
        return [row for row in leaf.rows.values() if row.visible_to(self._transaction) is not None]


def _restore_row(leaf: ScenarioTable, row: Row, cells: Cells | None, writer: object) -> None:
    row.current, row.writer = cells, writer
    leaf.index_row(row)


def _convert_cells(cells: Cells | None, columns: Sequence[Column]) -> Cells:
    values = list(cells or ())
    for column in columns:
        if column.number < len(values):
            values[column.number] = to_text(values[column.number], column.type)
    return tuple(values)
