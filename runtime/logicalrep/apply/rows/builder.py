"""Build the rows that changes add to a Delta table; values not sent come from the row before an update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from logicalrep._arrays import Numbers, take
from logicalrep.apply.rows.lookup import rescued_values
from logicalrep.apply.rows.merge import MergeResult
from logicalrep.apply.schema import TableLayout, delta_names
from logicalrep.values import Rescued, to_arrow
from logicalrep.views import Column, ColumnCells


class RowBuilder:
    """A builder of the rows that changes add to a Delta table: inserted rows, and rows after an update.

    Args:
        layout: The layout of the Delta table.
        columns: The columns of the relation.
        sent: For each column of the relation, the cells that the changes sent.
        merged: The rows that the changes add, and the row before each update.
        existing: The rows that were looked up in the Delta table, with `_rescued_data` and each column that
            some change did not send.
    """

    def __init__(
        self,
        layout: TableLayout,
        columns: Sequence[Column],
        sent: Sequence[ColumnCells],
        merged: MergeResult,
        existing: pa.Table,
    ) -> None:
        self._layout = layout
        self._columns = dict(zip(delta_names(columns), zip(columns, sent, strict=True), strict=True))
        self._previous = merged.previous
        self._existing = existing
        self._existing_rescued = rescued_values(existing[layout.rescued])

    def build(self, rows: Numbers) -> dict[str, pa.Array]:
        """Return rows as Arrow arrays, by column name; `__START_AT` and `__END_AT` are NULL.

        Args:
            rows: Indices of the changes whose rows are built.
        """
        rescued: dict[int, list[tuple[str, str | None]]] = {}
        arrays = {}
        for name, (column, cells) in self._columns.items():
            arrays[name], rescued_cells = self._build_column(name, column, cells, rows)
            for row, text in rescued_cells.items():
                rescued.setdefault(row, []).append((name, text))
        for field in self._layout.schema:
            if field.name not in arrays:
                arrays[field.name] = pa.nulls(len(rows), field.type)
        if rescued:
            maps = [rescued.get(row) for row in range(len(rows))]
            type_ = self._layout.schema.field(self._layout.rescued).type
            arrays[self._layout.rescued] = pa.array(maps, type_)
        return arrays

    def _build_column(
        self, name: str, column: Column, cells: ColumnCells, rows: Numbers
    ) -> tuple[pa.Array, Rescued]:
        """Return a column's values, and its rescued values by row index (None if a value was never sent)."""
        type_ = self._layout.schema.field(name).type
        count = len(cells.sent)
        sources = rows if cells.sent[rows].all() else self._find_sources(cells)[rows]
        texts = take(cells.texts, np.where(sources < count, sources, -1))
        array, rescued = to_arrow(texts, column.type_oid, column.type_modifier, type_)
        rescued |= dict.fromkeys(np.flatnonzero(sources < 0).tolist())
        copied = np.flatnonzero(sources >= count)
        if len(copied):
            numbers = np.arange(len(rows))
            numbers[copied] = len(rows) + sources[copied] - count
            both = pa.concat_arrays([array, *self._existing[name].cast(type_).chunks])
            array = both.take(pa.array(numbers))
            for index in copied.tolist() if self._existing_rescued else ():
                of_row = self._existing_rescued.get(int(sources[index]) - count, {})
                if name in of_row:
                    rescued[index] = of_row[name]
        return array, rescued

    def _find_sources(self, cells: ColumnCells) -> Numbers:
        """Return for each change the row that a column's value is taken from, by its number in `MergeResult`.

        This is an earlier row if the change did not send the value; -1 if the value was never sent.
        """
        count = len(cells.sent)
        # For each row, the number of the row that its value comes from. A row of the table has its own value.
        # The additional last item is for -1 (no row): as an index, -1 selects it, and its source is again -1.
        sources = np.arange(count + self._existing.num_rows + 1)
        sources[-1] = -1
        sources[:count] = np.where(cells.sent, sources[:count], self._previous)
        while True:  # each round doubles the number of updates between a change and its source
            further = sources[sources]
            if (further == sources).all():
                return sources[:count]
            sources = further
