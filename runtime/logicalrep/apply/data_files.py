"""The data files of a Delta table. Changes are written to new data files, which one commit adds to the table.

A row is identified by its data file and its row number in that file. A commit that removes rows from a data
file either marks them in a deletion vector, if the table may have such vectors, or writes the file's
remaining rows to a new file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from logicalrep._arrays import NO_NUMBERS, Numbers, join_sorted
from logicalrep.recording import Location
from logicalrep.targets import FILE_BYTES, ConflictError, DataFile, Table

SMALL_FILE_BYTES: Final = 8 << 20
"""Size in bytes below which a data file is small and may be combined with other small files."""
MAX_SMALL_FILES: Final = 10
"""Maximum number of small data files of a partition. With more, the next commit combines the smallest.

A table without partitions counts as one partition. Each data file makes later commits slower.
"""
_DELETED_SHARE: Final = 1 / 4
"""Largest share of deleted rows in a data file; a commit that deletes more rows rewrites the file."""
_FOLDED_SHARE: Final = 1 / 20
"""Largest share of deleted rows in a data file; maintenance rewrites a file with more."""
_VECTOR_BYTES_PER_ROW: Final = 2
"""Size of a deletion vector, in bytes for each deleted row, if few rows are deleted."""
_REWRITTEN_BYTES: Final = 2 * FILE_BYTES
"""Total size, in bytes, of data files with too many deleted rows, after which a commit rewrites no more.

Otherwise a commit would take long if many files reach the limit of deleted rows at once. The next commits
rewrite the other files.
"""


def small_files(files: Iterable[DataFile]) -> set[str]:
    """Return the paths of the small data files that the next commit combines; empty if there are few.

    In a partition with too many small files, the five smallest files are combined, and with them the next
    larger files, until a file is larger than all smaller files together. This file and larger files are not
    combined. This limit keeps rows from being rewritten often: the new file is at least twice as large as
    each combined file except the five smallest.
    """
    partitions: dict[tuple[Any, ...], list[DataFile]] = {}
    for file in sorted(files, key=attrgetter("size")):
        if file.size < SMALL_FILE_BYTES:
            partitions.setdefault(file.partition, []).append(file)
    paths: set[str] = set()
    for small in partitions.values():
        size = 0
        for count, file in enumerate(small if len(small) > MAX_SMALL_FILES else ()):
            if count >= MAX_SMALL_FILES // 2 and file.size > size:
                break
            paths.add(file.path)
            size += file.size
    return paths


class Merged(NamedTuple):
    """The data files that a commit adds and removes, and the rows that it deletes."""

    added: list[DataFile]
    removed: list[DataFile]
    unused: list[DataFile]
    """Uncommitted data files whose remaining rows were written again, to other files."""
    deleted: dict[str, Numbers]
    """Row numbers to delete, by path of a data file that the commit adds or keeps."""


def rewritten_files(
    table: Table, files: Sequence[DataFile], removed: Mapping[str, Numbers]
) -> list[DataFile]:
    """Return the data files of a table whose remaining rows the next commit writes to new data files.

    If there are too many small files, the smallest files are returned. If the table has no deletion vectors,
    each file with removed or deleted rows is returned. Otherwise a file that loses rows is returned in two
    cases:

    - Too many rows of the file are then deleted.
    - Its deletion vectors written so far are larger than the file, by estimate. Each commit that deletes rows
      writes the whole vector twice: when it is added, and when it is removed. The estimate assumes that each
      earlier commit has deleted as many rows of the file as this one.

    The total size of the files of these two cases is limited: the next commits rewrite the other files.

    Args:
        table: The table.
        files: The data files of the table, and new data files that are not committed yet.
        removed: Row numbers of the rows that the commit removes, by path of the data file.
    """
    combined = small_files(files)
    if not table.deletes_rows:
        return [file for file in files if file.path in removed or file.path in combined or file.deleted]
    rewritten = []
    left = _REWRITTEN_BYTES
    for file in files:
        if file.path in combined:
            rewritten.append(file)
        elif file.path in removed and left > 0:
            deleted = file.deleted + len(removed[file.path])
            commits = deleted / len(removed[file.path])
            written = commits * _VECTOR_BYTES_PER_ROW * deleted  # the mean is half of the last; written twice
            if deleted > _DELETED_SHARE * file.rows or written > file.size:
                left -= file.size
                rewritten.append(file)
    return rewritten


def add_rows(known: dict[str, Numbers], more: Mapping[str, Numbers]) -> None:
    """Add `more` to `known`, both ascending row numbers by path of the data file. No row may be in both."""
    for path, numbers in more.items():
        known[path] = join_sorted(known.get(path, NO_NUMBERS), numbers)


class DataFiles:
    """The data files of a version of a table.

    Args:
        table: The table.
        schema: The columns to read and write; None for the columns of the table.
    """

    def __init__(self, table: Table, schema: pa.Schema | None = None) -> None:
        self._table = table
        self.schema: pa.Schema = table.schema if schema is None else schema
        self._files: list[DataFile] | None = None

    @property
    def place(self) -> Location:
        """Location of the table."""
        return self._table.place

    @property
    def deletes_rows(self) -> bool:
        """Whether commits may delete single rows of a data file."""
        return self._table.deletes_rows

    def column_id(self, name: str) -> int | str:
        """Return what identifies a column in the data files: its field ID, or its name if it has none."""
        return self._field_ids.get(name, name)

    @cached_property
    def _field_ids(self) -> Mapping[str, int]:
        return self._table.field_ids(self.schema) or {}

    def __iter__(self) -> Iterator[DataFile]:
        if self._files is None:
            self._files = self._table.files()
        return iter(self._files)

    def read(self, file: DataFile, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file, except deleted rows.

        Args:
            file: The data file.
            columns: Names of the columns to read; all columns if None.

        Raises:
            ReplicaError: The data file does not exist any more, or is damaged.
        """
        return _leave_out(self.read_all(file, columns), self.deleted(file))

    def read_all(self, file: DataFile, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a data file, including deleted rows; otherwise as `read`."""
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        return self._table.read(file, schema)

    def deleted(self, file: DataFile) -> Numbers:
        """Return the row numbers of a data file's deleted rows, in ascending order."""
        return self._table.deleted_rows(file) if file.deleted else NO_NUMBERS

    def read_except(self, file: DataFile, rows: Numbers) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file, except deleted rows and the row numbers `rows` (ascending)."""
        return _leave_out(self.read_all(file), join_sorted(self.deleted(file), rows))

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
        """Write rows to new data files, and return the files. `Table.commit` can add them to the table."""
        writer = self._table.writer(self.schema)
        writer.write(batches)
        return writer.close()

    def delete(self, paths: Iterable[str]) -> None:
        """Delete data files. The caller ensures that no version of the table uses them."""
        self._table.delete(paths)


def write_again(table: Table) -> None:
    """Rewrite each data file that has many deleted rows, without these rows, in a commit of its own.

    A data file that a concurrent commit changes stays as it is.

    Raises:
        ReplicaError: The table cannot be read or written.
    """
    for file in [one for one in table.files() if one.deleted > _FOLDED_SHARE * one.rows]:
        files = DataFiles(table)
        if file in files:
            added = files.write(files.read(file))
            while not _replace(table, file, added):
                table.refresh()
                if file not in table.files():
                    table.delete(one.path for one in added)
                    break


def _replace(table: Table, file: DataFile, added: Iterable[DataFile]) -> bool:
    """Commit `added` in place of a data file; return False if a concurrent commit has changed the table."""
    try:
        table.commit(added, [file])
    except ConflictError:
        return False
    return True


def _leave_out(batches: Iterator[pa.RecordBatch], rows: Numbers) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches`, except the row numbers `rows` (ascending, from 0)."""
    first = 0
    for batch in batches if len(rows) else ():
        low, high = np.searchsorted(rows, (first, first + batch.num_rows))
        kept = np.ones(batch.num_rows, np.bool_)
        kept[rows[low:high] - first] = False
        first += batch.num_rows
        yield batch.filter(pa.array(kept))
    yield from batches


class StagedFiles(DataFiles):
    """Data files that no commit has added to a table yet; at first there are none.

    Args:
        table: The table.
        schema: The columns of the data files.
    """

    def __init__(self, table: Table, schema: pa.Schema) -> None:
        super().__init__(table, schema)
        self._staged: list[DataFile] = []
        self._writer = table.writer(schema)

    def __iter__(self) -> Iterator[DataFile]:
        self._staged += self._writer.close()
        return iter(self._staged)

    def append(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows to the last data file, and to further data files when it is full."""
        self._writer.write(batches)

    def replace(self, added: Iterable[DataFile], removed: Iterable[DataFile]) -> None:
        """Add data files, and delete data files that are not needed any more."""
        gone = {file.path for file in removed}
        self._staged = [*(file for file in self if file.path not in gone), *added]
        self.delete(gone)


class PendingFiles(DataFiles):
    """The data files of a table, and changes to them that no commit has applied yet.

    New rows are in new data files. Removed rows stay in their data files; `removed` has their row numbers.

    Args:
        table: The table.

    Attributes:
        removed: Row numbers of the removed rows, in ascending order, by path of the data file.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table)
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
        """Number of the new data files that are written; rows of the last `change` may still be unwritten."""
        return len(self._added)

    def __iter__(self) -> Iterator[DataFile]:
        return chain(super().__iter__(), self.added)

    def deleted(self, file: DataFile) -> Numbers:
        """Return, in ascending order, the numbers of rows that commits have deleted or `change` removed."""
        known, removed = super().deleted(file), self.removed.get(file.path)
        return known if removed is None else join_sorted(known, removed)

    def change(self, added: Iterable[pa.RecordBatch], removed: Mapping[str, Numbers]) -> None:
        """Add rows, and remove rows.

        Args:
            added: The rows to add. They are read and written to data files later: by the next iteration over
                this object, by the next `merge` or `change`, or when the property `added` is read.
            removed: Row numbers of the rows to remove, in ascending order, by path of the data file.
        """
        self._write()
        self._unwritten = added
        add_rows(self.removed, removed)

    def merge(self) -> Merged:
        """Write the rows of the last `change`, and return what to commit.

        The remaining rows of the data files that `rewritten_files` chooses are also written to new files.
        """
        new = self._added
        known = [*super().__iter__(), *new]
        replaced = rewritten_files(self._table, known, self.removed)
        remaining = (batch for file in replaced for batch in self.read(file))
        written = self.write(chain(self._unwritten, remaining))  # with the rows of the last change
        self._unwritten, self._added = (), new + written
        gone, own = {file.path for file in replaced}, {file.path for file in new}
        return Merged(
            [file for file in self._added if file.path not in gone],
            [file for file in replaced if file.path not in own],
            [file for file in replaced if file.path in own],
            {path: numbers for path, numbers in self.removed.items() if path not in gone},
        )

    def discard(self) -> None:
        """Delete the new data files. They must not be part of a commit."""
        self._unwritten = ()
        self.delete(file.path for file in self._added)

    def _write(self) -> None:
        rows, self._unwritten = self._unwritten, ()
        self._added += self.write(rows)
