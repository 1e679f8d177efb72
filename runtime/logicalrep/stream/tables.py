"""In-memory tables, built by applying committed transactions.

Rows are stored by replica identity. A row keeps its values by column name, so that adding or dropping a
column does not affect other columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from logicalrep import _roles
from logicalrep.messages import (
    Cell,
    ColumnFlag,
    Message,
    Relation,
    ReplicaIdentity,
    TupleData,
)
from logicalrep.stream.transactions import Change, Transaction
from logicalrep.wire import UNCHANGED

Row: TypeAlias = Mapping[str, Cell]
"""Cells of a row by column name."""


class Table:
    """The rows of one relation.

    Attributes:
        relation: Relation message in effect for the last applied change.
    """

    def __init__(self, relation: Relation) -> None:
        self.relation: Relation = relation
        self._key = _key_names(relation)
        self._rows: dict[TupleData, list[Row]] = {}

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows with the current columns. A column added after the row was stored is None (NULL).

        A cell is UNCHANGED if no message has contained its value.
        """
        names = [column.name for column in self.relation.columns]
        for rows in self._rows.values():
            for row in rows:
                yield {name: row.get(name) for name in names}

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._rows.values())

    def apply(self, message: Message, relation: Relation) -> None:
        """Apply one change to the rows.

        An update of an unknown row inserts the row; a delete of an unknown row is ignored.

        Args:
            message: A message that inserts rows, updates a row or deletes a row, such as Insert.
            relation: The Relation message in effect for the change.

        Raises:
            TypeError: `message` is not such a message.
        """
        if relation is not self.relation:
            self._change_relation(relation)
        match _roles.ROLES.get(type(message)):
            case "insert":
                for _, cells in _roles.tuples(message):
                    self._add_row(self._by_column_name(cells))
            case "update":
                self._update(message)
            case "delete":
                key, old = (_roles.meaning_of(message, meaning) for meaning in ("key", "old"))
                self._remove_row(self._by_column_name(key or old or ()))
            case _:
                raise TypeError(f"expected an Insert, Update or Delete, found {type(message).__name__}")

    def clear(self) -> None:
        """Remove all rows of the table."""
        self._rows.clear()

    def _update(self, message: Message) -> None:
        key_cells, old_cells, new_cells = (_roles.meaning_of(message, meaning) for meaning in _roles.ROWS)
        new = self._by_column_name(new_cells)
        identity = key_cells or old_cells
        old = self._by_column_name(identity) if identity is not None else new
        before = self._remove_row(old) or {}
        if old_cells is not None:
            before = old
        self._add_row(
            {name: before.get(name, cell) if cell is UNCHANGED else cell for name, cell in new.items()}
        )

    def _by_column_name(self, cells: TupleData) -> Row:
        return {column.name: cell for column, cell in zip(self.relation.columns, cells, strict=True)}

    def _add_row(self, row: Row) -> None:
        self._rows.setdefault(tuple(row.get(name) for name in self._key), []).append(row)

    def _remove_row(self, row: Row) -> Row | None:
        """Remove and return one row with the same replica identity as `row`; None if there is no such row."""
        if not self._key and self.relation.replica_identity != ReplicaIdentity.FULL:
            return None
        key = tuple(row.get(name) for name in self._key)
        rows = self._rows.get(key)
        if not rows:
            return None
        removed = rows.pop()
        if not rows:
            del self._rows[key]
        return removed

    def _change_relation(self, relation: Relation) -> None:
        """Adopt a new schema version: rows keep their values and are indexed by the new replica identity."""
        self.relation = relation
        key = _key_names(relation)
        if key != self._key:
            rows = [row for rows in self._rows.values() for row in rows]
            self._key = key
            self._rows = {}
            for row in rows:
                self._add_row(row)


class Tables(dict[int, Table]):
    """In-memory tables as a dictionary by relation OID."""

    def apply(self, transaction: Transaction) -> None:
        """Apply the changes of a committed transaction.

        Raises:
            TypeError: The argument is not a `Transaction`.
        """
        if not isinstance(transaction, Transaction):
            raise TypeError(f"expected a Transaction, found {type(transaction).__name__}")
        for change in transaction.changes:
            self.apply_change(change)

    def apply_change(self, change: Change) -> None:
        """Apply one change of a committed transaction."""
        for relation in change.relations:
            table = self.get(relation.oid)
            if table is None:
                table = self[relation.oid] = Table(relation)
            if _roles.ROLES[type(change.message)] == "truncate":
                table.clear()
            else:
                table.apply(change.message, relation)


def _key_names(relation: Relation) -> tuple[str, ...]:
    return tuple(column.name for column in relation.columns if column.flags & ColumnFlag.KEY)
