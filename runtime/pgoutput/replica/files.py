"""The Parquet files of a Delta table: read, written, and replaced in one commit.

Rows are found by their place in a file and a commit writes anew what is left of the files that lose rows
(delta-rs can merge by conditions only, which do not tell equal rows apart, and cost a plan each).
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
"""A file that has grown to this is closed."""

SMALL_BYTES: Final = 8 << 20
MAX_SMALL: Final = 10
"""Once there are more files that are smaller, the next commit makes one of them: each file costs the commits
after it."""

_BATCH_ROWS: Final = 1 << 16


class File(msgspec.Struct, frozen=True):
    """A file of a Delta table."""

    path: str
    size: int
    """In bytes."""
    low: Mapping[str, Any]
    high: Mapping[str, Any]
    """The least and the greatest value of columns, where the table's log knows them."""
    nulls: Mapping[str, Any]
    """How many NULLs columns have, where it knows."""


class Files:
    """The files that a Delta table has now.

    Args:
        table: The table.
        schema: Its columns.
    """

    def __init__(self, table: DeltaTable, schema: pa.Schema) -> None:
        self._table = table
        self.schema = schema
        self._store = fs.PyFileSystem(DeltaStorageHandler.from_table(table._table))
        self._files: list[File] | None = None

    def __iter__(self) -> Iterator[File]:
        if self._files is None:
            actions = pa.table(self._table.get_add_actions())
            self._files = [
                File(one["path"], one["size_bytes"], *(one.get(name) or {} for name in _STATISTICS))
                for one in actions.to_pylist()
            ]
        return iter(self._files)

    def read(self, file: File, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a file.

        Args:
            file: The file.
            columns: Those that are wanted; all if None.

        Raises:
            ReplicaError: The file is gone.
        """
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        with self._open(file) as source, pq.ParquetFile(source) as parquet:
            there = set(parquet.schema_arrow.names)
            names = [name for name in schema.names if name in there]
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
                arrays = [
                    batch[field.name].cast(field.type)
                    if field.name in there
                    else pa.nulls(batch.num_rows, field.type)  # the column was added later
                    for field in schema
                ]
                # A table without columns that were asked for still has rows.
                yield (
                    pa.record_batch(arrays, schema=schema)
                    if arrays
                    else pa.record_batch([pa.nulls(batch.num_rows)], names=["_"])
                )

    def _open(self, file: File) -> pa.NativeFile:
        try:
            return self._store.open_input_file(file.path)
        except FileNotFoundError:
            raise ReplicaError(
                f"{file.path}: the Delta table has this file, but it is gone. "
                "Put it back, or begin anew, with an empty target"
            ) from None

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[AddAction]:
        """Write rows into new files, which the table does not have before a commit."""
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

    def small(self) -> list[File]:
        """The files that the next commit should make one of."""
        small = [file for file in self if file.size < SMALL_BYTES]
        return small if len(small) > MAX_SMALL else []


_STATISTICS: Final = ("min", "max", "null_count")


def commit(
    table: DeltaTable,
    added: list[AddAction],
    removed: Iterable[File] | None,
    schema: Schema,
    transaction: Transaction | None,
) -> None:
    """Replace files of a table by others.

    Args:
        table: The table.
        added: The new files.
        removed: The files that they replace; None for all.
        schema: The columns from now on, others only where all files are replaced.
        transaction: The transaction that this is, if it is one.

    Raises:
        deltalake.exceptions.DeltaError: The table was changed by another at the same time.
    """
    now = int(time.time() * 1000)
    gone = [RemoveAction(file.path, True, now, file.size, {}) for file in removed or ()]
    table.create_write_transaction(
        [*added, *gone],
        "overwrite" if removed is None else "append",
        schema,
        # No retries: delta-rs does not see that another commit removed the same files (1.6).
        commit_properties=CommitProperties(
            max_commit_retries=0, app_transactions=None if transaction is None else [transaction]
        ),
    )
    table.update_incremental()


class _FileWriter:
    """Writes one file."""

    def __init__(self, store: fs.FileSystem, schema: pa.Schema) -> None:
        self._path = f"part-{uuid.uuid4()}.parquet"
        self._sink = store.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(self._sink, schema)
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._statistics = _Statistics()

    def write(self, batch: pa.RecordBatch) -> int:
        """Write rows; give how many bytes there are so far."""
        self._rows.append(batch)
        self._bytes += batch.nbytes
        if sum(rows.num_rows for rows in self._rows) >= _BATCH_ROWS or self._bytes >= FILE_BYTES:
            self._flush()
        return int(self._sink.tell())

    def close(self) -> AddAction:
        """End the file; give what adds it to the table."""
        self._flush()
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        statistics = json.dumps(self._statistics.shown())
        return AddAction(self._path, size, {}, int(time.time() * 1000), True, statistics)

    def _flush(self) -> None:
        if self._rows:
            rows = pa.Table.from_batches(self._rows)
            self._writer.write_table(rows)
            self._statistics.add(rows)
            self._rows = []
            self._bytes = 0


class _Statistics:
    """What Delta's log says of a file; least and greatest values of integers and dates only."""

    def __init__(self) -> None:
        self._rows = 0
        self._nulls: Counter[str] = Counter()
        self._values: dict[str, list[int | date]] = {}

    def add(self, rows: pa.Table) -> None:
        """Count rows in."""
        self._rows += rows.num_rows
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if pa.types.is_nested(column.type):
                continue
            self._nulls[name] += column.null_count
            if pa.types.is_integer(column.type) or pa.types.is_date(column.type):
                extremes = pc.min_max(column).as_py().values()
                self._values.setdefault(name, []).extend(one for one in extremes if one is not None)

    def shown(self) -> dict[str, Any]:
        """As JSON has it."""
        known = {name: values for name, values in self._values.items() if values}
        return {
            "numRecords": self._rows,
            "minValues": {name: _shown(min(values)) for name, values in known.items()},
            "maxValues": {name: _shown(max(values)) for name, values in known.items()},
            "nullCount": self._nulls,
        }


def _shown(value: int | date) -> int | str:
    return value if isinstance(value, int) else value.isoformat()
