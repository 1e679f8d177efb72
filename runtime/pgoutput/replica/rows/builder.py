"""Build the rows that changes add to a Delta table; values not sent come from the row before an update."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pgoutput.messages import Cell
from pgoutput.replica.chunks import Column
from pgoutput.replica.rows.cells import ColumnCells
from pgoutput.replica.rows.merge import MergeResult
from pgoutput.replica.schema import TableLayout, delta_names
from pgoutput.values import to_arrow
from pgoutput.wire import UNCHANGED


class RowBuilder:
    """A builder of the rows that changes add to a Delta table: inserted rows, and rows after an update.

    Args:
        layout: The layout of the Delta table.
        columns: The columns of the relation.
        sent: For each column of the relation, the cells that the changes sent.
        merged: The rows that the changes add, and the row before each update.
        existing: The rows that were looked up in the Delta table; row -1 is the first row, -2 the second. The
            columns are `_rescued_data` and each column that some change did not send.
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

    def build(self, rows: Sequence[int]) -> dict[str, pa.Array]:
        """Return rows as Arrow arrays, by column name; `__START_AT` and `__END_AT` are NULL.

        Args:
            rows: Indices of the changes whose rows are built.
        """
        if not rows:
            return {field.name: pa.array([], field.type) for field in self._layout.schema}
        rescued: list[dict[str, str | None]] = [{} for _ in rows]
        arrays = {}
        for name, (column, cells) in self._columns.items():
            arrays[name], rescued_cells = self._build_column(name, column, cells, rows)
            for row, text in rescued_cells.items():
                rescued[row][name] = text
        for field in self._layout.schema:
            if field.name not in arrays:
                arrays[field.name] = pa.nulls(len(rows), field.type)
        maps = [list(one.items()) or None for one in rescued]
        arrays[self._layout.rescued] = pa.array(maps, self._layout.schema.field(self._layout.rescued).type)
        return arrays

    def _build_column(
        self, name: str, column: Column, cells: ColumnCells, rows: Sequence[int]
    ) -> tuple[pa.Array, dict[int, str | None]]:
        """Return a column's values, and its rescued values by row index (None if a value was never sent)."""
        type_ = self._layout.schema.field(name).type
        if cells.sent.true_count == len(cells.sent):
            texts: Sequence[Cell] = cells.texts.take(pa.array(rows, pa.int64())).to_pylist()
            return to_arrow(texts, column.type_oid, column.type_modifier, type_)
        sources = self._find_sources(cells)
        values = cells.texts.to_pylist()
        origins = [sources.get(row, row) for row in rows]
        taken = [
            UNCHANGED if origin is None else values[origin] if origin >= 0 else None for origin in origins
        ]
        array, rescued = to_arrow(taken, column.type_oid, column.type_modifier, type_)
        copied = {
            index: -1 - origin for index, origin in enumerate(origins) if origin is not None and origin < 0
        }
        if copied:
            both = pa.concat_arrays([array, *self._existing[name].cast(type_).chunks])
            indices = [len(rows) + copied[index] if index in copied else index for index in range(len(rows))]
            array = both.take(pa.array(indices, pa.int64()))
            maps = self._existing[self._layout.rescued].to_pylist()
            for index, row in copied.items():
                of_row = dict(maps[row] or ())
                if name in of_row:
                    rescued[index] = of_row[name]
        return array, rescued

    def _find_sources(self, cells: ColumnCells) -> dict[int, int | None]:
        """Return the row with the column's value (or None), by index of the change that did not send it."""
        sources: dict[int, int | None] = {}
        for change, sent in enumerate(cells.sent.to_pylist()):
            if not sent:
                previous = self._previous.get(change)
                # The previous row comes earlier, so its own source is known already.
                sources[change] = None if previous is None else sources.get(previous, previous)
        return sources
