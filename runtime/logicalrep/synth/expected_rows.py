"""Expected rows of a scenario: the content of all tables after each commit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import msgspec

from logicalrep.synth.heap_access import CommitEffects
from logicalrep.synth.table_definition import Cells, TableDefinition, cell
from logicalrep.synth.tables import ScenarioTable

TableRow: TypeAlias = dict[str, str | None]
"""A row: values in text format by column name; None is NULL."""


class CommittedState(msgspec.Struct, frozen=True):
    """Expected rows of all tables after one commit."""

    xid: int
    gid: str | None
    """Global identifier if the commit is a COMMIT PREPARED, otherwise None."""
    commit_lsn: int
    """Start LSN of the commit record."""
    end_lsn: int
    commit_time: int
    """Commit time in microseconds since 2000-01-01 00:00 UTC."""
    tables: Mapping[str, list[TableRow]]
    """Rows of each table in insertion order, by table name with schema; computed when read."""


def committed_rows(table: ScenarioTable) -> list[TableRow]:
    """Return the committed rows of a table in insertion order; if partitioned, partition by partition."""
    return [
        row
        for leaf in table.leaves()
        for row in _by_column(leaf.committed_definition, (row.committed for row in leaf.rows.values()))
    ]


def published_rows(table: ScenarioTable, columns: Collection[str]) -> list[TableRow]:
    """Return the committed rows of a table that pass the row filter, in insertion order.

    Args:
        table: A table that is not partitioned.
        columns: Names of the columns to return. They may be dropped columns: rows still store the values.
    """
    definition = table.committed_definition
    by_name = {column.name: column for column in (*definition.dropped, *definition.columns)}
    committed = (row.committed for row in table.rows.values() if row.committed is not None)
    return [
        {name: cell(cells, by_name[name]) for name in columns}
        for cells in committed
        if definition.publishes_row(cells)
    ]


def history(tables: Iterable[ScenarioTable], commits: Sequence[CommitEffects]) -> Iterator[CommittedState]:
    """Yield the expected rows of all tables after each commit, in commit order."""
    replay = _Replay([table for table in tables if not table.partitions], commits)
    for number, commit in enumerate([*commits]):
        record = commit.record
        rows = _TablesAt(replay, number)
        yield CommittedState(record.top, record.gid, record.lsn, record.end_lsn, record.time, rows)


class _Log(msgspec.Struct, eq=False):
    """The changes of one table, and its rows after the first `applied` changes."""

    definitions: list[tuple[int, TableDefinition]]
    """Each definition, with the number of the commit from which on it is valid."""
    changes: list[tuple[int, int, Cells | None]] = []
    """Number of the commit, row number and cells of each changed row."""
    applied: int = 0
    rows: dict[int, Cells | None] = {}


class _Replay:
    """The changes of all tables by commit, from which the rows after any commit are computed."""

    def __init__(self, tables: Iterable[ScenarioTable], commits: Iterable[CommitEffects]) -> None:
        self.logs = {table: _Log([(-1, table.initial_definition)]) for table in tables}
        for number, commit in enumerate(commits):
            for table, definition in commit.definitions.items():
                if table in self.logs and definition is not self.logs[table].definitions[-1][1]:
                    self.logs[table].definitions.append((number, definition))
            for table, row, cells in commit.rows:
                self.logs[table].changes.append((number, row, cells))

    def definition(self, table: ScenarioTable, number: int) -> TableDefinition:
        definitions = self.logs[table].definitions
        return definitions[bisect_right(definitions, number, key=lambda one: one[0]) - 1][1]

    def rows(self, table: ScenarioTable, number: int) -> list[TableRow]:
        """Return the rows of a table after the commit with a number; fastest in the order of commits."""
        log = self.logs[table]
        if log.applied and log.changes[log.applied - 1][0] > number:
            log.applied, log.rows = 0, {}
        while log.applied < len(log.changes) and log.changes[log.applied][0] <= number:
            _, row, cells = log.changes[log.applied]
            log.rows[row] = cells
            if cells is None:
                del log.rows[row]
            log.applied += 1
        return _by_column(self.definition(table, number), (cells for _, cells in sorted(log.rows.items())))


class _TablesAt(Mapping[str, "list[TableRow]"]):
    """Rows of each table after one commit, by table name with schema, computed when they are read."""

    def __init__(self, replay: _Replay, number: int) -> None:
        self._replay, self._number = replay, number

    @cached_property
    def _names(self) -> dict[str, ScenarioTable]:
        return {self._replay.definition(one, self._number).full_name: one for one in self._replay.logs}

    def __getitem__(self, name: str) -> list[TableRow]:
        return self._replay.rows(self._names[name], self._number)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._replay.logs)

    def __repr__(self) -> str:
        return repr(dict(self))


def _by_column(definition: TableDefinition, rows: Iterable[Cells | None]) -> list[TableRow]:
    return [
        {column.name: cell(cells, column) for column in definition.columns}
        for cells in rows
        if cells is not None
    ]
