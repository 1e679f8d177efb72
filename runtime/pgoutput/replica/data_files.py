"""The data files of a Delta table: Parquet files that are read, written, and replaced in one commit.

A row is identified by its data file and its row number in that file. A commit that removes rows from a data
file writes the file's remaining rows to a new file. The MERGE of delta-rs is not used: it matches rows by
conditions, which cannot distinguish equal rows, and it spends time on planning each merge.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from pgoutput._arrays import Numbers
from pgoutput._text import one_line
from pgoutput.errors import ReplicaError
from pgoutput.replica.cleaning import NO_CLEANING, remove_old_files
from pgoutput.replica.delta_log import ChangeRange, commit_properties, end_commit, flush_files

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
    rows: int
    """Number of rows of the file; 0 if the Delta log does not contain it."""
    min_values: Mapping[str, Any]
    """Least value of each column in the file, by column name; only columns with statistics."""
    max_values: Mapping[str, Any]
    """Greatest value of each column in the file, by column name; only columns with statistics."""
    null_counts: Mapping[str, Any]
    """Number of NULLs of each column in the file, by column name; only columns with statistics."""

    @property
    def statistics(self) -> str:
        """Row count and statistics as JSON of the Delta log ("Per-file Statistics" in its protocol)."""
        found = {
            "numRecords": self.rows,
            "minValues": self.min_values,
            "maxValues": self.max_values,
            "nullCount": self.null_counts,
        }
        return msgspec.json.encode(found).decode()


def small_files(files: Iterable[DataFile]) -> set[str]:
    """Return the paths of small data files if there are too many; the next commit combines them."""
    small = {file.path for file in files if file.size < SMALL_FILE_BYTES}
    return small if len(small) > MAX_SMALL_FILES else set()


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
                DataFile(
                    one["path"],
                    one["size_bytes"],
                    one.get("num_records") or 0,
                    *(one.get(name) or {} for name in _STATISTICS),
                )
                for one in actions.to_pylist()
            ]
        return iter(self._files)

    def read(self, file: DataFile, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file.

        Args:
            file: The data file.
            columns: Names of the columns to read; all columns if None.

        Raises:
            ReplicaError: The data file does not exist any more, or is damaged.
        """
        try:
            yield from self._read(file, columns)
        except (OSError, pa.ArrowException) as error:
            raise ReplicaError(f"{file.path}: the data file cannot be read: {one_line(error)}") from error

    def _read(self, file: DataFile, columns: Iterable[str] | None) -> Iterator[pa.RecordBatch]:
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        with self._open(file) as source, pq.ParquetFile(source) as parquet:
            present = set(parquet.schema_arrow.names)
            names = [name for name in schema.names if name in present]
            # A batch of several row groups could be larger than what was held in memory to write them.
            groups = ([number] for number in range(parquet.num_row_groups))
            for batch in chain.from_iterable(
                parquet.iter_batches(_BATCH_ROWS, group, names, use_threads=False) for group in groups
            ):
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

    def read_except(self, file: DataFile, rows: Numbers | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file without the rows whose numbers are given; the first row is row 0.

        Args:
            file: The data file.
            rows: Numbers of rows, which ascend; None for no row.

        Raises:
            ReplicaError: The data file does not exist any more.
        """
        first = 0
        for batch in self.read(file):
            if rows is not None:
                low, high = np.searchsorted(rows, (first, first + batch.num_rows))
                kept = np.ones(batch.num_rows, np.bool_)
                kept[rows[low:high] - first] = False
                first += batch.num_rows
                batch = batch.filter(pa.array(kept))
            yield batch

    def ended(self, file: DataFile) -> Numbers:
        """Return the numbers of the rows in a data file that no look-up may find: none."""
        return np.zeros(0, np.int64)

    def _open(self, file: DataFile) -> pa.NativeFile:
        try:
            return self._store.open_input_file(file.path)
        except FileNotFoundError:
            raise ReplicaError(
                f"{file.path}: the Delta table has this file, but it is gone. "
                "Put it back, or begin anew, with an empty target"
            ) from None

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
        """Write rows to new data files, which `commit` adds to the table; return these files."""
        writer = _FilesWriter(self._store, self.schema)
        writer.write(batches)
        return writer.close()

    def delete(self, paths: Iterable[str]) -> None:
        """Delete data files that no version of the table has.

        Raises:
            OSError: A file cannot be deleted.
        """
        for path in paths:
            self._store.delete_file(path)

    def commit(
        self,
        added: Iterable[DataFile],
        removed: Iterable[DataFile] | None,
        schema: Schema,
        changes: ChangeRange | None = None,
    ) -> None:
        """Replace data files of the Delta table in one commit.

        Args:
            added: The new files, as returned by `write`.
            removed: The files to remove; None for all files.
            schema: The columns of the table, which may change only if all files are removed.
            changes: The changes that the commit applies; None to leave the table's position where it is.

        Raises:
            deltalake.exceptions.DeltaError: A concurrent commit has changed the table.
        """
        added = list(added)
        flush_files(self._table, [file.path for file in added])
        now = int(time.time() * 1000)
        new = [AddAction(file.path, file.size, {}, now, True, file.statistics) for file in added]
        gone = [RemoveAction(file.path, True, now, file.size, {}) for file in removed or ()]
        self._table.create_write_transaction(
            [*new, *gone],
            "overwrite" if removed is None else "append",
            schema,
            commit_properties=commit_properties(self._table, changes),
            post_commithook_properties=NO_CLEANING,
        )
        end_commit(self._table)
        remove_old_files(self._table)


class StagedFiles(DataFiles):
    """Data files that no commit has added to a Delta table yet; at first there are none.

    Args:
        table: The Delta table.
        schema: The columns of the data files.
    """

    def __init__(self, table: DeltaTable, schema: pa.Schema) -> None:
        super().__init__(table, schema)
        self._staged: list[DataFile] = []
        self._writer = _FilesWriter(self._store, schema)

    def __iter__(self) -> Iterator[DataFile]:
        self._staged += self._writer.close()
        return iter(self._staged)

    def append(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows to the last data file, and to further data files when it is complete."""
        self._writer.write(batches)

    def replace(self, added: Iterable[DataFile], removed: Iterable[DataFile]) -> None:
        """Add data files, and delete data files that are not needed any more."""
        gone = {file.path for file in removed}
        self._staged = [*(file for file in self if file.path not in gone), *added]
        self.delete(gone)


class PendingFiles(DataFiles):
    """The data files of a Delta table with changes that no commit has applied yet.

    New rows are in new data files. Removed rows stay in their data files; their numbers are kept.

    Args:
        table: The Delta table.
        schema: The columns of the Delta table.

    Attributes:
        removed: Numbers of the removed rows, by path of the data file; the numbers ascend.
    """

    def __init__(self, table: DeltaTable, schema: pa.Schema) -> None:
        super().__init__(table, schema)
        self.removed: dict[str, Numbers] = {}
        self._added: list[DataFile] = []
        self._unwritten: Iterable[pa.RecordBatch] = ()

    @property
    def added(self) -> list[DataFile]:
        """The new data files."""
        self._write()
        return self._added

    @property
    def count(self) -> int:
        """Number of new data files, without those of the last change."""
        return len(self._added)

    def __iter__(self) -> Iterator[DataFile]:
        return chain(super().__iter__(), self.added)

    def ended(self, file: DataFile) -> Numbers:
        """Return the numbers of the rows in a data file that were removed."""
        return self.removed.get(file.path, super().ended(file))

    def change(self, added: Iterable[pa.RecordBatch], removed: Mapping[str, Numbers]) -> None:
        """Add rows, which are written later, and remove rows, given as ascending numbers by path."""
        self._write()
        self._unwritten = added
        for path, numbers in removed.items():
            known = self.removed.get(path)
            self.removed[path] = numbers if known is None else np.sort(np.concatenate((known, numbers)))

    def merge(self) -> tuple[list[DataFile], list[DataFile], list[DataFile]]:
        """Write the remaining rows of data files that lose rows; combine small data files.

        Returns:
            The new data files to commit, the data files of the table that they replace, and the new data
            files that they replace, which no commit needs.
        """
        new = self._added
        known = [*super().__iter__(), *new]
        small = small_files(known)
        replaced = [file for file in known if file.path in self.removed or file.path in small]
        remaining = (
            batch for file in replaced for batch in self.read_except(file, self.removed.get(file.path))
        )
        written = self.write(
            chain(self._unwritten, remaining)
        )  # the rows of the last change, to the same files
        self._unwritten, self._added = (), new + written
        gone, own = {file.path for file in replaced}, {file.path for file in new}
        return (
            [file for file in self._added if file.path not in gone],
            [file for file in replaced if file.path not in own],
            [file for file in replaced if file.path in own],
        )

    def discard(self) -> None:
        """Delete the new data files, which must not be part of a commit."""
        self._unwritten = ()
        self.delete(file.path for file in self._added)

    def _write(self) -> None:
        rows, self._unwritten = self._unwritten, ()
        self._added += self.write(rows)


class _FilesWriter:
    """A writer of data files that are each complete when they have `FILE_BYTES`."""

    def __init__(self, store: fs.FileSystem, schema: pa.Schema) -> None:
        self._store = store
        self._schema = schema
        self._files: list[DataFile] = []
        self._writer: _FileWriter | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows, to the last file as long as it is not complete."""
        for batch in batches:
            if not batch.num_rows:
                continue
            if self._writer is None:
                self._writer = _FileWriter(self._store, self._schema)
            if self._writer.write(batch) > FILE_BYTES:
                self._end_file()

    def close(self) -> list[DataFile]:
        """Complete the last file; return the files that were written since the last call."""
        self._end_file()
        files, self._files = self._files, []
        return files

    def _end_file(self) -> None:
        if self._writer is not None:
            self._files.append(self._writer.close())
            self._writer = None


class _FileWriter:
    """A writer of one data file."""

    def __init__(self, store: fs.FileSystem, schema: pa.Schema) -> None:
        self._path = f"part-{uuid.uuid4()}.parquet"
        self._sink = store.open_output_stream(self._path)
        self._schema = schema
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            # A dictionary of numbers takes longer to write, and rarely makes the file smaller.
            use_dictionary=[field.name for field in schema if pa.types.is_string(field.type)],
            metadata_collector=self._metadata,
        )
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> int:
        """Write rows to the data file; return the file's size so far, in bytes."""
        self._rows.append(batch)
        self._bytes += batch.nbytes
        if sum(rows.num_rows for rows in self._rows) >= _BATCH_ROWS or self._bytes >= FILE_BYTES:
            self._flush()
        return int(self._sink.tell())

    def close(self) -> DataFile:
        """Complete the file, and return it."""
        self._flush()
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        (metadata,) = self._metadata
        return DataFile(self._path, size, metadata.num_rows, *_statistics(self._schema, metadata))

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._rows))
            self._rows = []
            self._bytes = 0


def _statistics(schema: pa.Schema, metadata: pq.FileMetaData) -> tuple[dict[str, Any], ...]:
    """Return the least values, the greatest values and the NULL counts of a data file, by column name.

    Nested columns have no statistics. Only integers and dates have a least and a greatest value.
    """
    nulls, least, greatest = {}, {}, {}
    for number in range(metadata.num_columns):
        column = metadata.schema.column(number)
        if column.max_definition_level > 1 or column.max_repetition_level:
            continue  # a part of a nested column
        groups = [metadata.row_group(at).column(number).statistics for at in range(metadata.num_row_groups)]
        nulls[column.path] = sum(group.null_count for group in groups)
        type_ = schema.field(column.path).type
        known = [group for group in groups if group.has_min_max]
        if known and (pa.types.is_integer(type_) or pa.types.is_date(type_)):
            least[column.path] = min(group.min for group in known)
            greatest[column.path] = max(group.max for group in known)
    return least, greatest, nulls
