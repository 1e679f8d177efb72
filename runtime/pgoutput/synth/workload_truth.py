"""The truth of a workload: the rows that are left in the end, a Parquet file for each table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgoutput.recording import sync_path
from pgoutput.synth.workload import Workload
from pgoutput.synth.workload_batches import Left
from pgoutput.synth.workload_plan import Numbers
from pgoutput.synth.workload_tables import Pool, WorkloadTable, make_pools, make_tables

_ROW_GROUP: Final = 65_536
_WRITING: Final[dict[str, Any]] = {"write_statistics": False, "compression": "none", "store_schema": False}
"""To compress it takes longer than to make it. Values are drawn from a pool, and are written as places in it,
so that few bytes are left; a reader sees text."""

_WAITING: Final = 1_000_000
"""Rows that wait for others of their table, at most."""


class Truth:
    """Writes the files, `public.table_1.parquet` and so on; a context manager.

    Columns are those of the table, as text; rows are sorted by key.
    """

    def __init__(self, workload: Workload, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        made = zip(make_tables(workload.tables), make_pools(workload), strict=True)
        self._files = [_File(folder, table, pool) for table, pool in made]
        self._waiting = 0

    def __enter__(self) -> Truth:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close(whole=error is None)
        if error is None:
            for path in self._folder.iterdir():
                sync_path(path)
            sync_path(self._folder)

    def add(self, left: Sequence[Left]) -> None:
        """Take the rows that are left of the next window, by table."""
        for file, some in zip(self._files, left, strict=True):
            file.add(some)
        self._waiting += sum(len(some.keys) for some in left)
        if self._waiting > _WAITING:
            self._waiting = 0
            for file in self._files:
                file.write()


class _File:
    """The rows of a table."""

    def __init__(self, folder: Path, table: WorkloadTable, pool: Pool) -> None:
        key, *others = table.schema
        drawn = [pa.field(one.name, pa.dictionary(pa.int32(), one.type)) for one in others]
        self._schema = pa.schema([key, *drawn])
        self._values = [values.dictionary_encode() for values in pool.columns]
        self._keys: list[Numbers] = []
        self._places: list[Numbers] = []
        path = folder / f"{table.relation.namespace}.{table.relation.name}.parquet"
        names = [one.name for one in drawn]
        self._writer = pq.ParquetWriter(path, self._schema, use_dictionary=names, **_WRITING)

    def add(self, left: Left) -> None:
        """Take rows; write them when there are many."""
        if not len(left.keys):
            return
        self._keys.append(left.keys)
        self._places.append(left.places)
        if sum(map(len, self._keys)) >= _ROW_GROUP:
            self.write()

    def write(self) -> None:
        """Write the rows that wait, as a row group."""
        if not self._keys:
            return
        keys, places = np.concatenate(self._keys), np.concatenate(self._places)
        self._keys, self._places = [], []
        drawn = pa.array(places)
        others = (values.take(drawn) for values in self._values)
        columns = [pc.cast(pa.array(keys), pa.string()), *others]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def close(self, *, whole: bool) -> None:
        """Close the file; with the rows that wait, if it is to be whole."""
        try:
            if whole:
                self.write()
        finally:
            self._writer.close()
