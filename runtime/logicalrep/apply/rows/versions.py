"""Find and write the row versions in which a Delta table with history differs from the wanted rows.

The wanted rows are the rows that the table is to have now; they have no history. Rows are compared by their
digests, so that the memory does not depend on the size of the rows: 17 bytes for each wanted row, and a byte
for each row version of the data files in which versions end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep.apply.data_files import DataFiles
from logicalrep.apply.rows.digests import Digests, RowSet, digest_rows
from logicalrep.apply.schema import MOMENT, TableLayout, delta_names
from logicalrep.targets import DataFile


def write_versions(
    current: DataFiles, layout: TableLayout, wanted: DataFiles, moment: pa.StructScalar
) -> tuple[list[DataFile], list[DataFile]]:
    """Write data files that make the current row versions of a table equal to the wanted rows.

    Row versions that equal no wanted row end, and wanted rows that equal no row version begin. Other row
    versions stay as they are.

    Args:
        current: The data files of the table.
        layout: The layout of the table.
        wanted: Data files with the wanted rows.
        moment: `__END_AT` of the row versions that end, and `__START_AT` of row versions that begin.

    Returns:
        The new data files, and the data files that they replace.
    """
    missing = RowSet(
        (_digest(batch, layout) for file in wanted for batch in wanted.read(file)),
        sum(file.rows for file in wanted),
    )
    ended: dict[str, npt.NDArray[np.bool_]] = {}
    for file in current:
        is_ended = np.concatenate([np.zeros(0, np.bool_), *_find_ended(current, layout, file, missing)])
        if is_ended.any():
            ended[file.path] = is_ended
    replaced = [file for file in current if file.path in ended]
    versions = chain(
        *(_end_versions(current.read(file), layout, ended[file.path], moment) for file in replaced),
        _begin_versions(wanted, layout, missing, moment),
    )
    return current.write(versions), replaced


def _digest(rows: pa.RecordBatch, layout: TableLayout) -> Digests:
    return digest_rows(rows, delta_names(layout.columns), layout.rescued)


def _find_ended(
    current: DataFiles, layout: TableLayout, file: DataFile, missing: RowSet
) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield masks of a data file's rows: the current row versions that equal no wanted row.

    `missing` has the wanted rows for which no equal row version was found so far. Rows that are found in this
    file are removed from `missing`.
    """
    assert layout.end is not None
    for batch in current.read(file, [*delta_names(layout.columns), layout.rescued, layout.end]):
        is_current = batch[layout.end].is_null()
        is_ended = np.array(is_current)
        is_ended[is_ended] = ~missing.take(_digest(batch.filter(is_current), layout))
        yield is_ended


def _end_versions(
    batches: Iterator[pa.RecordBatch],
    layout: TableLayout,
    is_ended: npt.NDArray[np.bool_],
    moment: pa.StructScalar,
) -> Iterator[pa.RecordBatch]:
    column = layout.schema.get_field_index(layout.end)
    first = 0
    for batch in batches:
        ends = pc.if_else(pa.array(is_ended[first : first + batch.num_rows]), moment, batch[column])
        first += batch.num_rows
        yield batch.set_column(column, layout.schema.field(column), ends)


def _begin_versions(
    wanted: DataFiles, layout: TableLayout, missing: RowSet, moment: pa.StructScalar
) -> Iterator[pa.RecordBatch]:
    for file in wanted:
        for batch in wanted.read(file):
            rows = batch.filter(pa.array(missing.take(_digest(batch, layout))))
            nulls = pa.nulls(rows.num_rows, MOMENT)
            moments = {layout.start: pc.if_else(nulls.is_null(), moment, nulls), layout.end: nulls}
            arrays = [
                moments[field.name] if field.name in moments else rows[field.name].cast(field.type)
                for field in layout.schema
            ]
            yield pa.record_batch(arrays, schema=layout.schema)
