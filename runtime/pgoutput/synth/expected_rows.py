"""Expected rows of a scenario: the content of all tables after each commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from pgoutput.synth.heap_access import CommitEffects
from pgoutput.synth.table_definition import Cells, TableDefinition, cell
from pgoutput.synth.tables import ScenarioTable

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
    tables: dict[str, list[TableRow]]
    """Rows of each table in insertion order, by table name with schema."""


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
    leaves = [table for table in tables if not table.partitions]
    rows: dict[ScenarioTable, dict[int, Cells | None]] = {table: {} for table in leaves}
    definitions = {table: table.initial_definition for table in leaves}
    for commit in commits:
        definitions |= commit.definitions
        for table, number, cells in commit.rows:
            rows[table][number] = cells
        record = commit.record
        yield CommittedState(
            record.top,
            record.gid,
            record.lsn,
            record.end_lsn,
            record.time,
            {
                definitions[table].full_name: _by_column(
                    definitions[table], (cells for _, cells in sorted(rows[table].items()))
                )
                for table in leaves
            },
        )


def _by_column(definition: TableDefinition, rows: Iterable[Cells | None]) -> list[TableRow]:
    return [
        {column.name: cell(cells, column) for column in definition.columns}
        for cells in rows
        if cells is not None
    ]
