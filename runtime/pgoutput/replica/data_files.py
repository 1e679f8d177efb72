"""The data files of a Delta table: Parquet files that are read, written, and replaced in one commit.

A row is identified by its data file and its row number in that file. A commit that removes rows from a data
file writes the file's remaining rows to a new file. The MERGE of delta-rs is not used: it matches rows by
conditions, which cannot distinguish equal rows, and it spends time on planning each merge.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from pgoutput.errors import ReplicaError

FILE_BYTES: Final = 32 << 20
"""Size in bytes at which a data file is complete; further rows are written to a new file."""

SMALL_FILE_BYTES: Final = 8 << 20
"""Size in bytes below which a data file is small and may be combined with other small files."""
MAX_SMALL_FILES: Final = 10
"""Maximum number of small data files of a Delta table. If there are more, the next commit combines them.

The number is limited because each data file makes later commits slower.
"""

_BATCH_ROWS: Final = 1 << 16

_STATISTICS: Final = ("min", "max", "null_count")


class DataFile(msgspec.Struct, frozen=True):
    """A data file of a Delta table."""

    path: str
    """Path of the file, relative to the folder of the Delta table."""
    size: int
    """Size of the file, in bytes."""
    min_values: Mapping[str, Any]
    """Least value of each column in the file, by column name; only columns with statistics."""
    max_values: Mapping[str, Any]
    """Greatest value of each column in the file, by column name; only columns with statistics."""
    null_counts: Mapping[str, Any]
    """Number of NULLs of each column in the file, by column name; only columns with statistics."""


class DataFiles:
    """The data files of the current version of a Delta table.

    Args:
        table: The Delta table.
        schema: The columns of the Delta table.
    """

    def __init__(self, table: DeltaTable, schema: pa.Schema) -> None:
        self._table = table
        self.schema = schema
        self._store = fs.PyFileSystem(DeltaStorageHandler.from_table(table._table))
        self._files: list[DataFile] | None = None

    def __iter__(self) -> Iterator[DataFile]:
        if self._files is None:
            actions = pa.table(self._table.get_add_actions())
            self._files = [
                DataFile(one["path"], one["size_bytes"], *(one.get(name) or {} for name in _STATISTICS))
                for one in actions.to_pylist()
            ]
        return iter(self._files)

    def read(self, file: DataFile, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file.

        Args:
            file: The data file.
            columns: Names of the columns to read; all columns if None.

        Raises:
            ReplicaError: The data file does not exist any more.
        """
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        with self._open(file) as source, pq.ParquetFile(source) as parquet:
            present = set(parquet.schema_arrow.names)
            names = [name for name in schema.names if name in present]
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
                arrays = [
                    batch[field.name].cast(field.type)
                    if field.name in present
                    else pa.nulls(batch.num_rows, field.type)  # the column was added later
                    for field in schema
                ]
                # Without columns a record batch loses its number of rows.
                yield (
                    pa.record_batch(arrays, schema=schema)
                    if arrays
                    else pa.record_batch([pa.nulls(batch.num_rows)], names=["_"])
                )

    def _open(self, file: DataFile) -> pa.NativeFile:
        try:
            return self._store.open_input_file(file.path)
        except FileNotFoundError:
            raise ReplicaError(
                f"{file.path}: the Delta table has this file, but it is gone. "
                "Put it back, or begin anew, with an empty target"
            ) from None

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[AddAction]:
        """Write rows to new data files; return the actions by which `commit` adds them to the table."""
        added: list[AddAction] = []
        writer: _FileWriter | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                writer = _FileWriter(self._store, self.schema)
            if writer.write(batch) > FILE_BYTES:
                added.append(writer.close())
                writer = None
        if writer is not None:
            added.append(writer.close())
        return added

    def small_files(self) -> list[DataFile]:
        """Return the small data files if there are too many of them; the next commit combines these files."""
        small = [file for file in self if file.size < SMALL_FILE_BYTES]
        return small if len(small) > MAX_SMALL_FILES else []

    def commit(
        self,
        added: list[AddAction],
        removed: Iterable[DataFile] | None,
        schema: Schema,
        transaction: Transaction | None,
    ) -> None:
        """Replace data files of the Delta table in one commit.

        Args:
            added: The new files, as returned by `write`.
            removed: The files to remove; None for all files.
            schema: The columns of the table, which may change only if all files are removed.
            transaction: The Delta transaction identifier of the commit; None for a commit without one.

        Raises:
            deltalake.exceptions.DeltaError: A concurrent commit has changed the table.
        """
        now = int(time.time() * 1000)
        gone = [RemoveAction(file.path, True, now, file.size, {}) for file in removed or ()]
        self._table.create_write_transaction(
            [*added, *gone],
            "overwrite" if removed is None else "append",
            schema,
            # No retries: delta-rs does not notice that another commit has removed the same files (1.6).
            commit_properties=CommitProperties(
                max_commit_retries=0, app_transactions=None if transaction is None else [transaction]
            ),
        )
        self._table.update_incremental()


class _FileWriter:
    """A writer of one data file."""

    def __init__(self, store: fs.FileSystem, schema: pa.Schema) -> None:
        self._path = f"part-{uuid.uuid4()}.parquet"
        self._sink = store.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(self._sink, schema)
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._statistics = _Statistics()

    def write(self, batch: pa.RecordBatch) -> int:
        """Write rows to the data file; return the file's size so far, in bytes."""
        self._rows.append(batch)
        self._bytes += batch.nbytes
        if sum(rows.num_rows for rows in self._rows) >= _BATCH_ROWS or self._bytes >= FILE_BYTES:
            self._flush()
        return int(self._sink.tell())

    def close(self) -> AddAction:
        """Complete the file; return the action that adds the file to the Delta table."""
        self._flush()
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        statistics = json.dumps(self._statistics.to_dict())
        return AddAction(self._path, size, {}, int(time.time() * 1000), True, statistics)

    def _flush(self) -> None:
        if self._rows:
            rows = pa.Table.from_batches(self._rows)
            self._writer.write_table(rows)
            self._statistics.add(rows)
            self._rows = []
            self._bytes = 0


class _Statistics:
    """Statistics of a data file for the Delta log: NULL counts; minimum and maximum of integers and dates."""

    def __init__(self) -> None:
        self._rows = 0
        self._nulls: Counter[str] = Counter()
        self._extremes: dict[str, list[int | date]] = {}

    def add(self, rows: pa.Table) -> None:
        """Include rows in the statistics."""
        self._rows += rows.num_rows
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if pa.types.is_nested(column.type):
                continue
            self._nulls[name] += column.null_count
            if pa.types.is_integer(column.type) or pa.types.is_date(column.type):
                extremes = pc.min_max(column).as_py().values()
                self._extremes.setdefault(name, []).extend(one for one in extremes if one is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as a dict with the Delta protocol's field names ("Per-file Statistics")."""
        known = {name: values for name, values in self._extremes.items() if values}
        return {
            "numRecords": self._rows,
            "minValues": {name: _json_value(min(values)) for name, values in known.items()},
            "maxValues": {name: _json_value(max(values)) for name, values in known.items()},
            "nullCount": self._nulls,
        }


def _json_value(value: int | date) -> int | str:
    return value if isinstance(value, int) else value.isoformat()
