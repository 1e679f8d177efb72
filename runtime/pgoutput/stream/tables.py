"""Committed changes to the rows that follow from them.

Rows live in memory, by replica identity. A row keeps the values of columns by name, so that columns that
come and go with the schema do not disturb the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from pgoutput.messages import (
    Cell,
    ColumnFlag,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    ReplicaIdentity,
    Truncate,
    TupleData,
    Update,
)
from pgoutput.stream.transactions import Change, Transaction
from pgoutput.wire import UNCHANGED

Row: TypeAlias = Mapping[str, Cell]


class Table:
    """The rows of one relation.

    Attributes:
        relation: The Relation message that holds now.
    """

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self._key = _key_names(relation)
        self._rows: dict[TupleData, list[Row]] = {}

    def __iter__(self) -> Iterator[Row]:
        """The rows, each with the columns of the relation as it is now; NULL where a column came later.

        A value is UNCHANGED where no message ever carried it.
        """
        names = [column.name for column in self.relation.columns]
        for rows in self._rows.values():
            for row in rows:
                yield {name: row.get(name) for name in names}

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._rows.values())

    def apply(self, message: Insert | Update | Delete, relation: Relation) -> None:
        """Make one change. An update or delete of a row that was never seen adds it, or does nothing.

        Raises:
            TypeError: `message` is neither an insert, nor an update or delete.
        """
        if relation is not self.relation:
            self._follow(relation)
        match message:
            case Insert():
                self._add(self._named(message.new))
            case Update():
                self._update(message)
            case Delete():
                self._take(self._named(message.key or message.old or ()))
            case _:
                raise TypeError(f"an Insert, Update or Delete is expected, not {type(message).__name__}")

    def clear(self) -> None:
        """Remove all rows."""
        self._rows.clear()

    def _update(self, message: Update) -> None:
        new = self._named(message.new)
        given = message.key or message.old
        old = self._named(given) if given is not None else new
        before = self._take(old) or {}
        if message.old is not None:
            before = old
        self._add({name: before.get(name, cell) if cell is UNCHANGED else cell for name, cell in new.items()})

    def _named(self, cells: TupleData) -> Row:
        return {column.name: cell for column, cell in zip(self.relation.columns, cells, strict=True)}

    def _add(self, row: Row) -> None:
        self._rows.setdefault(tuple(row.get(name) for name in self._key), []).append(row)

    def _take(self, row: Row) -> Row | None:
        """Remove one row with the identity of `row`."""
        if not self._key and self.relation.replica_identity != ReplicaIdentity.FULL:
            return None
        key = tuple(row.get(name) for name in self._key)
        rows = self._rows.get(key)
        if not rows:
            return None
        taken = rows.pop()
        if not rows:
            del self._rows[key]
        return taken

    def _follow(self, relation: Relation) -> None:
        """Take over a new shape: rows keep what they have, and are found by the new key."""
        self.relation = relation
        key = _key_names(relation)
        if key != self._key:
            rows = [row for rows in self._rows.values() for row in rows]
            self._key = key
            self._rows = {}
            for row in rows:
                self._add(row)


class Tables(dict[int, Table]):
    """The tables of a stream, by OID."""

    def apply(self, transaction: Transaction) -> None:
        """Make the changes of a committed transaction.

        Raises:
            TypeError: It is not a `Transaction`.
        """
        if not isinstance(transaction, Transaction):
            raise TypeError(f"a Transaction is expected, not {type(transaction).__name__}")
        for change in transaction.changes:
            self.apply_change(change)

    def apply_change(self, change: Change) -> None:
        """Make one change of a committed transaction."""
        for relation in change.relations:
            table = self.get(relation.oid)
            if table is None:
                table = self[relation.oid] = Table(relation)
            match change.message:
                case Truncate():
                    table.clear()
                case LogicalMessage():
                    pass
                case message:
                    table.apply(message, relation)


def _key_names(relation: Relation) -> tuple[str, ...]:
    return tuple(column.name for column in relation.columns if column.flags & ColumnFlag.KEY)
