"""The truth of a workload: the rows that are left in the end, a Parquet file for each table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pgoutput.segments.files import sync
from pgoutput.synth.workload_tables import Table

_WRITING: Final[dict[str, Any]] = {
    "compression": "snappy",
    "use_dictionary": False,
    "write_statistics": False,
}


class Truth:
    """Writes the files, `public.table_1.parquet` and so on; a context manager.

    Columns are those of the table, as text; rows are sorted by key.
    """

    def __init__(self, folder: Path, tables: Sequence[Table]) -> None:
        folder.mkdir()
        self._folder = folder
        self._writers: list[pq.ParquetWriter] = []
        for table in tables:
            path = folder / f"{table.relation.namespace}.{table.relation.name}.parquet"
            self._writers.append(pq.ParquetWriter(path, table.schema, **_WRITING))

    def __enter__(self) -> Truth:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for writer in self._writers:
            writer.close()
        if error is None:
            for path in self._folder.iterdir():
                sync(path)
            sync(self._folder)

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Write the rows that are left of the next window, by table."""
        for writer, some in zip(self._writers, rows, strict=True):
            if len(some):
                writer.write_batch(some)
