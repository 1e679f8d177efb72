"""Rows with types, of texts that changes sent and of what rows that they began from hold."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pgoutput.messages import Cell
from pgoutput.replica.cells import Cells
from pgoutput.replica.chunks import Column
from pgoutput.replica.fold import Outcome
from pgoutput.replica.rows import Layout, column_names
from pgoutput.values import to_arrow
from pgoutput.wire import UNCHANGED


class Builder:
    """Makes rows of what changes sent.

    Args:
        layout: The columns of the table.
        columns: The columns of the relation.
        sent: What changes sent of each.
        outcome: What rows begin from.
        found: Rows that the table has: row -1 is the first. It has the columns that some change did not
            send, and that of rescued values.
    """

    def __init__(
        self,
        layout: Layout,
        columns: Sequence[Column],
        sent: Sequence[Cells],
        outcome: Outcome,
        found: pa.Table,
    ) -> None:
        self._layout = layout
        self._columns = dict(zip(column_names(columns), zip(columns, sent, strict=True), strict=True))
        self._before = outcome.before
        self._found = found

    def build(self, rows: Sequence[int]) -> dict[str, pa.Array]:
        """The columns of rows that changes began.

        Args:
            rows: Those changes.
        """
        if not rows:
            return {field.name: pa.array([], field.type) for field in self._layout.schema}
        rescued: list[dict[str, str | None]] = [{} for _ in rows]
        arrays = {}
        for name, (column, cells) in self._columns.items():
            arrays[name], lost = self._column(name, column, cells, rows)
            for row, text in lost.items():
                rescued[row][name] = text
        for field in self._layout.schema:
            if field.name not in arrays:
                arrays[field.name] = pa.nulls(len(rows), field.type)
        maps = [list(one.items()) or None for one in rescued]
        arrays[self._layout.rescued] = pa.array(maps, self._layout.schema.field(self._layout.rescued).type)
        return arrays

    def _column(
        self, name: str, column: Column, cells: Cells, rows: Sequence[int]
    ) -> tuple[pa.Array, dict[int, str | None]]:
        type_ = self._layout.schema.field(name).type
        if cells.sent.true_count == len(cells.sent):
            texts: Sequence[Cell] = cells.texts.take(pa.array(rows, pa.int64())).to_pylist()
            return to_arrow(texts, column.type_oid, column.type_modifier, type_)
        sources = self._sources(cells)
        values = cells.texts.to_pylist()
        origins = [sources.get(row, row) for row in rows]
        taken = [
            UNCHANGED if origin is None else values[origin] if origin >= 0 else None for origin in origins
        ]
        array, lost = to_arrow(taken, column.type_oid, column.type_modifier, type_)
        found = {
            index: -1 - origin for index, origin in enumerate(origins) if origin is not None and origin < 0
        }
        if found:
            both = pa.concat_arrays([array, *self._found[name].cast(type_).chunks])
            places = [len(rows) + found[index] if index in found else index for index in range(len(rows))]
            array = both.take(pa.array(places, pa.int64()))
            maps = self._found[self._layout.rescued].to_pylist()
            for index, row in found.items():
                of_row = dict(maps[row] or ())
                if name in of_row:
                    lost[index] = of_row[name]
        return array, lost

    def _sources(self, cells: Cells) -> dict[int, int | None]:
        """For each change that did not send a column, the row that has its value; None if there is none."""
        sources: dict[int, int | None] = {}
        for change, sent in enumerate(cells.sent.to_pylist()):
            if not sent:
                before = self._before.get(change)
                # Rows begin from rows before them, so what those begin from is known.
                sources[change] = None if before is None else sources.get(before, before)
        return sources
