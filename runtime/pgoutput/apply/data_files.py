"""The data files of a table, as changes are folded into them, and replaced in one commit.

A row is identified by its data file and its row number in that file. A commit that removes rows from a data
file writes the file's remaining rows to a new file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from pgoutput._arrays import Numbers
from pgoutput.targets import DataFile, Table

SMALL_FILE_BYTES: Final = 8 << 20
"""Size in bytes below which a data file is small and may be combined with other small files."""
MAX_SMALL_FILES: Final = 10
"""Maximum number of small data files of a table. If there are more, the next commit combines them.

The number is limited because each data file makes later commits slower.
"""


def small_files(files: Iterable[DataFile]) -> set[str]:
    """Return the paths of small data files if there are too many; the next commit combines them."""
    small = {file.path for file in files if file.size < SMALL_FILE_BYTES}
    return small if len(small) > MAX_SMALL_FILES else set()


class DataFiles:
    """The data files of a version of a table.

    Args:
        table: The table.
        schema: The columns that are read and written; those of the table if left out.
    """

    def __init__(self, table: Table, schema: pa.Schema | None = None) -> None:
        self._table = table
        self.schema: pa.Schema = table.schema if schema is None else schema
        self._files: list[DataFile] | None = None

    def __iter__(self) -> Iterator[DataFile]:
        if self._files is None:
            self._files = self._table.files()
        return iter(self._files)

    def read(self, file: DataFile, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file.

        Args:
            file: The data file.
            columns: Names of the columns to read; all columns if None.

        Raises:
            ReplicaError: The data file does not exist any more, or is damaged.
        """
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        return self._table.read(file, schema)

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

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
        """Write rows to new data files, which `Table.commit` adds to the table; return these files."""
        writer = self._table.writer(self.schema)
        writer.write(batches)
        return writer.close()

    def delete(self, paths: Iterable[str]) -> None:
        """Delete data files that no version of the table has."""
        self._table.delete(paths)


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
        """Write rows to the last data file, and to further data files when it is complete."""
        self._writer.write(batches)

    def replace(self, added: Iterable[DataFile], removed: Iterable[DataFile]) -> None:
        """Add data files, and delete data files that are not needed any more."""
        gone = {file.path for file in removed}
        self._staged = [*(file for file in self if file.path not in gone), *added]
        self.delete(gone)


class PendingFiles(DataFiles):
    """The data files of a table with changes that no commit has applied yet.

    New rows are in new data files. Removed rows stay in their data files; their numbers are kept.

    Args:
        table: The table.

    Attributes:
        removed: Numbers of the removed rows, by path of the data file; the numbers ascend.
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
