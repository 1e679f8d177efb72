"""Write the expected rows of a workload: the final rows of each table, as one Parquet file per table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logicalrep.recording import sync_path
from logicalrep.synth.workload.definition import Workload
from logicalrep.synth.workload.messages import RemainingRows
from logicalrep.synth.workload.tables import RowPool, WorkloadTable, make_pools, make_tables
from logicalrep.synth.workload.values import IntArray

_ROW_GROUP_ROWS: Final = 16_384
"""Number of buffered rows of one table at which the rows are written as a row group."""
_WRITER_OPTIONS: Final[dict[str, Any]] = {
    "write_statistics": False,
    "compression": "none",
    "store_schema": False,
}
"""Options of the Parquet writer. Compression would take longer than generating the rows. Files stay small
because columns are dictionary-encoded: all rows are drawn from a `RowPool`."""

_MAX_BUFFERED_ROWS: Final = 250_000
"""Maximum number of buffered rows of all tables together. If exceeded, all buffered rows are written."""


class ExpectedRowsWriter:
    """Writes the expected rows of a workload, one Parquet file per table.

    Use as a context manager: its end writes the remaining rows, and flushes the files to the disk (fsync).
    After an exception, it only closes the files.

    A file such as `public.table_1.parquet` has the columns of its table as text. Rows are sorted by key.
    """

    def __init__(self, workload: Workload, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        tables = zip(make_tables(workload), make_pools(workload), strict=True)
        self._files = [_TableFile(folder, table, pool) for table, pool in tables]
        self._buffered_rows = 0

    def __enter__(self) -> ExpectedRowsWriter:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        for file in self._files:
            file.close(complete=kind is None)
        if kind is None:
            for path in self._folder.iterdir():
                sync_path(path)
            sync_path(self._folder)

    def add(self, remaining_rows: Sequence[RemainingRows]) -> None:
        """Add the rows that the next window of transactions inserts and does not delete, by table number."""
        for file, rows in zip(self._files, remaining_rows, strict=True):
            file.add(rows)
        self._buffered_rows += sum(len(rows.keys) for rows in remaining_rows)
        if self._buffered_rows > _MAX_BUFFERED_ROWS:
            self._buffered_rows = 0
            for file in self._files:
                file.write()

    def add_tables(self, tables: Mapping[str, pa.Table]) -> None:
        """Write the rows of more tables, by table name with schema."""
        for name, rows in tables.items():
            pq.write_table(rows, self._folder / f"{name}.parquet", **_WRITER_OPTIONS)


class _TableFile:
    """Parquet file with the expected rows of one table."""

    def __init__(self, folder: Path, table: WorkloadTable, pool: RowPool) -> None:
        columns = [column.name for column in table.relation.columns]
        drawn = [name for i, name in enumerate(columns) if i != pool.unique]
        types = [pa.string() if i == pool.unique else values.type for i, values in enumerate(pool.values)]
        self._schema = pa.schema(list(zip(columns, types, strict=True)))
        self._pool = pool
        self._keys: list[IntArray] = []
        self._pool_indices: list[IntArray] = []
        path = folder / f"{table.relation.namespace}.{table.relation.name}.parquet"
        self._writer = pq.ParquetWriter(path, self._schema, use_dictionary=drawn, **_WRITER_OPTIONS)

    def add(self, remaining_rows: RemainingRows) -> None:
        """Buffer rows of the table, and write a row group if at least `_ROW_GROUP_ROWS` rows are buffered."""
        if not len(remaining_rows.keys):
            return
        self._keys.append(remaining_rows.keys)
        self._pool_indices.append(remaining_rows.pool_indices)
        if sum(map(len, self._keys)) >= _ROW_GROUP_ROWS:
            self.write()

    def write(self) -> None:
        """Write the buffered rows of the table as a row group."""
        if not self._keys:
            return
        keys, pool_indices = np.concatenate(self._keys), np.concatenate(self._pool_indices)
        self._keys, self._pool_indices = [], []
        columns = list(self._pool.texts(keys, pool_indices))
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def close(self, *, complete: bool) -> None:
        """Close the file; write the buffered rows first if `complete` is true."""
        try:
            if complete:
                self.write()
        finally:
            self._writer.close()
