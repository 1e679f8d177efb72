"""Apply ALTER TABLE to a Delta table.

Renamed columns keep their values. Existing rows get the values of added columns, as far as these values are
known. With history, only the current versions of the rows get the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep.apply.chunks import Chunk
from logicalrep.apply.data_files import DataFiles
from logicalrep.apply.schema.conversion import convert_batch
from logicalrep.apply.schema.evolution import (
    can_rename,
    follow_schema,
    keeps_files,
    only_adds_columns,
)
from logicalrep.apply.schema.layout import TableLayout, delta_names, make_layout
from logicalrep.targets import Table
from logicalrep.values import to_arrow
from logicalrep.views import RESCUED_TYPE, Column


class TableAlteration:
    """An ALTER TABLE, applied to the layout of a Delta table.

    Attributes:
        columns: Published columns of the relation after the alteration. Which columns are published is
            inferred from the columns of the Delta table.
        sources: Earlier name of each column that the Delta table already has, by present name. Both names are
            equal if the column was not renamed.
        values: Known values that existing rows have in added columns, by name of the column.

    Args:
        layout: Layout of the Delta table before the alteration.
        chunk: A chunk that consists of an alteration.
    """

    def __init__(self, layout: TableLayout, chunk: Chunk) -> None:
        assert chunk.relation.alteration is not None
        earlier, values, generated = msgspec.structs.astuple(chunk.relation.alteration)
        known = {column.name for column in layout.columns}
        self.sources: dict[str, str] = {}
        for name, was in earlier.items():
            if was in known:
                self.sources[name] = was
            elif name in known:  # two sessions have altered the table at the same time
                self.sources[name] = name
        # If the Delta table lacks columns that the relation had before, the publication has a column list.
        # The columns that ALTER TABLE added are not in the column list, so they are left out below.
        is_listed = earlier.keys() - generated > self.sources.keys() - generated
        self.columns = tuple(
            column
            for column in chunk.columns
            if column.name in self.sources
            or not (column.name in earlier or column.name in generated or is_listed)
        )
        names = {column.name for column in self.columns}
        self.values: dict[str, str | None] = {name: value for name, value in values.items() if name in names}

    def compared(self, layout: TableLayout) -> list[Column]:
        """Return the columns that `altered_columns` is to compare with the attribute `columns`.

        These are the columns before the alteration, with two changes, so that only reasons why the table may
        differ are found: renamed columns have their new names, and added columns whose values in existing
        rows are known are included.

        Args:
            layout: Layout of the Delta table before the alteration.
        """
        before = {column.name: column for column in layout.columns}
        return [
            column
            if column.name in self.values
            else msgspec.structs.replace(before[self.sources[column.name]], name=column.name)
            for column in self.columns
            if column.name in self.values or column.name in self.sources
        ]


def alter_table(table: Table, layout: TableLayout, chunk: Chunk, *, history: bool) -> None:
    """Apply an alteration to a Delta table; the last commit brings the table to the alteration's position.

    Args:
        table: The table.
        layout: Layout of the table before the alteration.
        chunk: A chunk that consists of an alteration.
        history: Whether the table keeps all versions of rows (SCD type 2).
    """
    alteration = TableAlteration(layout, chunk)
    columns = alteration.columns
    target = table.place.parent
    new = make_layout(columns, target, history=history, old=layout, renamed=alteration.sources)
    in_table = dict(zip((column.name for column in columns), delta_names(columns), strict=True))
    values = {in_table[name]: value for name, value in alteration.values.items()}
    old_names = {field.name.lower() for field in layout.values}
    is_filled = any(value is not None or name.lower() in old_names for name, value in values.items())
    relation = msgspec.structs.replace(chunk.relation, columns=columns)
    altered = msgspec.structs.replace(chunk, relation=relation)
    files = DataFiles(table, new.schema)
    if not is_filled and can_rename(table, layout, new) and keeps_files(layout, new, altered, renames=True):
        table.commit([], [], chunk.range, new.schema)
        return
    if not is_filled and only_adds_columns(new, layout):
        follow_schema(table, layout, altered, history=history)
        table.commit([], [], chunk.range)
        return
    source = DataFiles(table, layout.schema)
    filler = _Filler(new, columns, values)
    batches = (
        filler.fill(convert_batch(batch, layout, new, columns))
        for file in source
        for batch in source.read(file)
    )
    added = files.write(batches)
    table.commit(added, None, chunk.range, new.schema)


class _Filler:
    """Fills columns of a Delta table with one value each.

    Args:
        layout: Layout of the rows.
        columns: Columns of the relation.
        values: The values as text, by name of the column in the Delta table.
    """

    def __init__(
        self, layout: TableLayout, columns: Sequence[Column], values: Mapping[str, str | None]
    ) -> None:
        self._layout = layout
        types = dict(zip(delta_names(columns), columns, strict=True))
        self._cells: dict[str, pa.Scalar] = {}
        self._rescued: dict[str, str] = {}
        for name, text in values.items():
            column, type_ = types[name], layout.schema.field(name).type
            texts = pa.array([text], pa.string())
            array, rescued = to_arrow(texts, column.type_oid, column.type_modifier, type_)
            self._cells[name] = array[0]
            if (kept := rescued.get(0)) is not None:
                self._rescued[name] = kept

    def fill(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the values filled in. Row versions that have ended stay as they are."""
        if self._layout.end is None:
            is_current = pa.array([True] * batch.num_rows, pa.bool_())
        else:
            is_current = batch[self._layout.end].is_null()
        for name, cell in self._cells.items():
            number = batch.schema.get_field_index(name)
            filled = pc.if_else(is_current, cell, batch[name])
            batch = batch.set_column(number, batch.schema.field(number), filled)
        number = batch.schema.get_field_index(self._layout.rescued)
        rescued = pa.array(list(self._rescued_values(batch, is_current)), RESCUED_TYPE)
        return batch.set_column(number, batch.schema.field(number), rescued)

    def _rescued_values(
        self, batch: pa.RecordBatch, is_current: pa.BooleanArray
    ) -> Iterator[list[tuple[str, str | None]] | None]:
        rows = zip(batch[self._layout.rescued].to_pylist(), is_current.to_pylist(), strict=True)
        for items, current in rows:
            if not current:
                yield items
                continue
            kept = {name: text for name, text in items or () if name not in self._cells} | self._rescued
            yield list(kept.items()) or None
