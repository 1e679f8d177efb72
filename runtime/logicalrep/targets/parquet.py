"""Read and write the Parquet files of a table."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets.data_files import LOST, NewFile, table_error
from logicalrep.targets.protocol import DataFile, RowGroup

FILE_BYTES: Final = 32 << 20
"""Size in bytes at which a data file is complete; further rows are written to a new file."""

_BATCH_ROWS: Final = 1 << 16
_DICTIONARY_BYTES: Final = 1 << 17
"""Maximum size of a column's dictionary, in bytes. Larger ones make most files larger, and take longer."""


FIELD_ID: Final = b"PARQUET:field_id"
"""Key in the metadata of an Arrow field; the value is the column's field ID in a Parquet file."""


def read_parquet(
    folder: Location, file: DataFile, schema: pa.Schema, ids: Mapping[str, int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a data file.

    Args:
        folder: The folder that the path of the data file is relative to.
        file: The data file.
        schema: The columns to read; a column that the file lacks is NULL.
        ids: Field ID of each column, by name; None to find columns by name.

    Raises:
        ReplicaError: The data file does not exist any more, or is damaged.
    """
    return (batch for _, batch in read_groups(folder, file, schema, lambda _: True, ids))


def read_groups(
    folder: Location,
    file: DataFile,
    schema: pa.Schema,
    wanted: Callable[[RowGroup], bool],
    ids: Mapping[str, int] | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the wanted row groups of a data file: number of the first row, and rows; else as `read_parquet`.

    Row groups are read one at a time: the writer held one row group in memory, but a batch with rows of
    several row groups could need more memory.
    """
    try:
        with _open(folder, file) as source, pq.ParquetFile(source) as parquet:
            present, first = _names_in_file(parquet.schema_arrow, schema, ids), 0
            for number in range(parquet.num_row_groups):
                group = parquet.metadata.row_group(number)
                at, first = first, first + group.num_rows
                if wanted(RowGroup(range(at, first), partial(_bounds, group, present))):
                    for batch in parquet.iter_batches(_BATCH_ROWS, [number], [*present.values()], False):
                        yield at, _with_schema(batch, schema, present)
                        at += batch.num_rows
    except (OSError, pa.ArrowException) as error:
        raise table_error(folder / file.path, "the data file cannot be read", error) from error


def _bounds(group: pq.RowGroupMetaData, present: Mapping[str, str], name: str) -> tuple[Any, Any] | None:
    paths = [group.column(number).path_in_schema for number in range(group.num_columns)]
    if present.get(name) not in paths:
        return None
    found = group.column(paths.index(present[name])).statistics
    is_known = found is not None and found.has_min_max and found.has_null_count and not found.null_count
    return (found.min, found.max) if is_known else None


def _open(folder: Location, file: DataFile) -> pa.NativeFile:
    try:
        return folder.filesystem.open_input_file(f"{folder.path}/{file.path}")
    except FileNotFoundError:
        raise ReplicaError(
            f"{folder / file.path}: the table refers to this data file, but the file is missing. {LOST}"
        ) from None


def _with_schema(batch: pa.RecordBatch, schema: pa.Schema, present: Mapping[str, str]) -> pa.RecordBatch:
    """Return a batch of a file with the columns of `schema`; `present` has their names in the file."""
    arrays = [
        batch[present[field.name]].cast(field.type)
        if field.name in present
        else pa.nulls(batch.num_rows, field.type)  # the column was added later
        for field in schema
    ]
    if not arrays:  # without columns a record batch loses its number of rows
        return pa.record_batch([pa.nulls(batch.num_rows)], names=["_"])
    return pa.record_batch(arrays, schema=schema)


def _names_in_file(file: pa.Schema, schema: pa.Schema, ids: Mapping[str, int] | None) -> dict[str, str]:
    """Return the name that each column of `schema` has in a data file, without columns that the file lacks.

    `ids` has the field IDs by which columns are found; None finds columns by name.
    """
    if ids is None:
        present = set(file.names)
        return {name: name for name in schema.names if name in present}
    known = {int((field.metadata or {}).get(FIELD_ID, -1)): field.name for field in file}
    return {name: known[ids[name]] for name in schema.names if ids[name] in known}


class ParquetWriter:
    """Writes rows to data files, and begins the next file when a file exceeds `FILE_BYTES`.

    Args:
        folder: The folder of the files.
        schema: The columns of the files.
        writers: Number of writers that share a buffer of `FILE_BYTES` bytes for unwritten rows.
    """

    def __init__(self, folder: Location, schema: pa.Schema, writers: int = 1) -> None:
        self._folder = folder
        self._schema = schema
        self._writers = writers
        self._files: list[DataFile] = []
        self._writer: _FileWriter | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows to the last file, or to a new file if the last one is larger than `FILE_BYTES`."""
        with self._discarding():
            for batch in batches:
                if not batch.num_rows:
                    continue
                if self._writer is None:
                    self._writer = _FileWriter(self._folder, self._schema, FILE_BYTES // self._writers)
                if self._writer.write(batch) > FILE_BYTES:
                    self._end_file()

    def close(self) -> list[DataFile]:
        """Complete the last file; return the files that were written since the last call."""
        with self._discarding():
            self._end_file()
        files, self._files = self._files, []
        return files

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        """Remove the last file, which is not complete, after an error such as a full disk."""
        try:
            yield
        except BaseException:
            if self._writer is not None:
                self._writer.discard()
                self._writer = None
            raise

    def _end_file(self) -> None:
        if self._writer is not None:
            self._files.append(self._writer.close())
            self._writer = None


class _FileWriter:
    """A writer of one data file."""

    def __init__(self, folder: Location, schema: pa.Schema, held: int) -> None:
        self._held = held
        self._path = f"part-{uuid.uuid4()}.parquet"
        self._file = NewFile(folder, self._path)
        self._schema = schema
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._file.sink,
            schema,
            # A dictionary of numbers takes longer to write, and rarely makes the file smaller.
            use_dictionary=[field.name for field in schema if pa.types.is_string(field.type)],
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            metadata_collector=self._metadata,
        )
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> int:
        """Write rows to the data file; return the file's size so far, in bytes."""
        if batch.schema != self._schema:  # an Iceberg table has no integers of 16 bits
            batch = batch.cast(self._schema)
        self._rows.append(batch)
        self._bytes += batch.nbytes
        if sum(rows.num_rows for rows in self._rows) >= _BATCH_ROWS or self._bytes >= self._held:
            self._flush()
        return int(self._file.sink.tell())

    def close(self) -> DataFile:
        """Complete the file, and return it."""
        self._flush()
        self._writer.close()
        size = self._file.complete()
        (metadata,) = self._metadata
        least, greatest, nulls = _statistics(self._schema, metadata)
        return DataFile(self._path, size, metadata.num_rows, least, greatest, nulls)

    def discard(self) -> None:
        """Remove the file, which is not complete."""
        self._writer.is_open = False  # its destructor would write the footer, and print an error
        self._file.discard()

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
