"""The truth of a scenario: the tables as they stand after each commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from pgoutput.synth.ledger import Commit
from pgoutput.synth.shapes import Cells, Shape, cell
from pgoutput.synth.tables import ScenarioTable

TableRow: TypeAlias = dict[str, str | None]
"""A row as text, by column."""


class Committed(msgspec.Struct, frozen=True):
    """The truth behind a commit."""

    xid: int
    gid: str | None
    commit_lsn: int
    end_lsn: int
    commit_time: int
    """Microseconds since 2000-01-01 00:00 UTC."""
    tables: dict[str, list[TableRow]]
    """The rows of every table as they stand now, in the order in which they were inserted."""


def rows_of(table: ScenarioTable) -> list[TableRow]:
    """What is committed in a table, in the order in which it was inserted."""
    return [
        row
        for leaf in table.leaves()
        for row in _named(
            leaf.committed_shape,
            {number: row.committed for number, row in leaf.rows.items() if row.committed is not None},
        )
    ]


def history(tables: Iterable[ScenarioTable], commits: Sequence[Commit]) -> Iterator[Committed]:
    """All tables after each commit."""
    leaves = [table for table in tables if not table.partitions]
    rows: dict[ScenarioTable, dict[int, Cells]] = {table: {} for table in leaves}
    shapes = {table: table.first_shape for table in leaves}
    for commit in commits:
        shapes |= commit.shapes
        for table, number, cells in commit.rows:
            if cells is None:
                rows[table].pop(number, None)
            else:
                rows[table][number] = cells
        record = commit.record
        yield Committed(
            record.top,
            record.gid,
            record.lsn,
            record.end_lsn,
            record.time,
            {shapes[table].full_name: _named(shapes[table], rows[table]) for table in leaves},
        )


def _named(shape: Shape, rows: Mapping[int, Cells]) -> list[TableRow]:
    ordered = sorted(rows.items())
    return [{column.name: cell(cells, column) for column in shape.columns} for _, cells in ordered]
