"""A simulated server with one table: it returns the changes that a replica applies, and the expected rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from logicalrep import catalog
from logicalrep.views import CHANGES
from tests.truth import TrueTable

Row = dict[str, str | None]


class SimulatedServer:
    """A simulated server with one table. Tests call its methods to change rows and columns.

    Args:
        oid: OID of the table.
        name: Name of the table.
        columns: Type name by column name. The key columns come first.
        keys: Number of columns in the replica identity: 0 for NOTHING, all columns for FULL.
    """

    def __init__(self, oid: int, name: str, columns: dict[str, str], keys: int) -> None:
        self.oid = oid
        self.name = name
        self.columns = dict(columns)
        self.modifiers: dict[str, int] = {}
        """Type modifier by column name; columns without a modifier are left out."""
        self.key = list(columns)[:keys]
        self.full = keys == len(columns)
        self.rows: list[Row] = []
        self.position = 0
        self.lsn = 100
        self.changes: list[dict[str, Any]] = []
        self._is_snapshot = False
        self.states: dict[int, tuple[list[str], list[Row]]] = {}
        """Column names and rows of the table after each change, by the change's position."""

    def insert(self, *values: str | None, operation: str = "Insert") -> None:
        row = dict(zip(self.columns, values, strict=True))
        self.rows.append(row)
        self._send(operation, after=row)

    def update(self, at: int, unchanged: tuple[str, ...] = (), **values: str | None) -> None:
        """Update a row. The new tuple lacks the TOASTed columns in `unchanged` whose values stay the same."""
        old = self.rows[at]
        new = {**old, **values}
        self.rows[at] = new
        kept = [name for name in unchanged if new[name] == old[name] and (self.full or name not in self.key)]
        moved = any(new[name] != old[name] for name in self.key)
        before = {name: old[name] for name in self.key} if moved or self.full else None
        after = {name: value for name, value in new.items() if name not in kept}
        self._send("Update", before, after, kept)

    def delete(self, at: int) -> None:
        old = self.rows.pop(at)
        self._send("Delete", {name: old[name] for name in self.key})

    def truncate(self) -> None:
        self.rows = []
        self._send("Truncate")

    def commit(self) -> None:
        self.lsn += 10

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Send a snapshot of the table: a truncate, the rows, and the changes made in the `with` block."""
        self.commit()
        first = self.position + 1
        self._is_snapshot = True
        self._send("Truncate")
        for row in self.rows:
            self._send("Insert", after=row)
        yield
        self._is_snapshot = False
        for position in range(first, self.position + 1):  # all rows are replaced at once
            self.states[position] = self.states[self.position]
        self.commit()

    def add_column(self, name: str, type_: str) -> None:
        self.columns[name] = type_
        self.rows = [{**row, name: None} for row in self.rows]
        if self.full:
            self.key.append(name)

    def drop_column(self, name: str) -> None:
        del self.columns[name]
        self.rows = [{column: row[column] for column in self.columns} for row in self.rows]
        if name in self.key:
            self.key.remove(name)

    def rename_column(self, name: str, to: str) -> None:
        self.columns = {to if column == name else column: type_ for column, type_ in self.columns.items()}
        self.rows = [dict(zip(self.columns, row.values(), strict=True)) for row in self.rows]
        self.key = [to if column == name else column for column in self.key]
        for position, (columns, rows) in self.states.items():
            names = [to if column == name else column for column in columns]
            self.states[position] = names, [dict(zip(names, row.values(), strict=True)) for row in rows]

    def take(self) -> pa.Table:
        """Return the changes since the last call of this method, as a table with the schema `CHANGES`."""
        changes, self.changes = self.changes, []
        return pa.Table.from_pylist(changes, CHANGES)

    @property
    def truth(self) -> TrueTable:
        rows = [tuple(row.values()) for row in self.rows]
        return TrueTable(self.oid, self.name, tuple(self.columns), rows)

    def _send(
        self,
        operation: str,
        before: Row | None = None,
        after: Row | None = None,
        unchanged: list[str] | None = None,
    ) -> None:
        self.position += 1
        columns = {
            name: [type_oid(type_), self.modifiers.get(name, -1)] for name, type_ in self.columns.items()
        }
        self.changes.append(
            {
                "operation": "Snapshot" if self._is_snapshot and operation == "Insert" else operation,
                "relation": {"oid": self.oid, "namespace": "public", "name": self.name},
                "commit_lsn": self.lsn,
                "commit_time": self.lsn,
                "xid": 0 if self._is_snapshot else self.lsn,
                "position": self.position,
                "sequence": {"commit_lsn": self.lsn, "position": self.position, "row": 0},
                "key_columns": list(self.key),
                "columns": json.dumps(columns),
                "before": None if before is None else list(before.items()),
                "after": None if after is None else list(after.items()),
                "unchanged": unchanged or [],
            }
        )
        self.states[self.position] = list(self.columns), [dict(row) for row in self.rows]


def type_oid(name: str) -> int:
    """Return the OID of a built-in type by its name; a name that ends with `[]` denotes an array type."""
    if name.endswith("[]"):
        array_oid = catalog.BY_NAME[name[:-2]].array_oid
        assert array_oid is not None
        return array_oid
    return catalog.BY_NAME[name].oid
