"""The interface of a table format: tables whose rows and position change in one commit.

A table consists of data files, which hold rows and are never changed. A row is identified by its data file
and its number in the file. A commit adds and removes data files, and may delete single rows of the
remaining files. Each commit makes the next version of the table.
`logicalrep.targets.delta` and `logicalrep.targets.iceberg` implement this interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from logicalrep._arrays import Numbers
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location

KEY: Final = "logicalrep.key"
"""Key of a table property; the value is a JSON array of the names of the columns that identify a row."""

RENAMED: Final = b"logicalrep.renamed"
"""Key in the metadata of a renamed column, in a schema that a commit sets; the value is the old name.

Tables do not store this key.
"""


class ConflictError(ReplicaError):
    """Nothing was committed, because another commit has changed the table."""


class Position(NamedTuple):
    """The last change that a table has applied. Positions sort in the order of the changes."""

    commit_lsn: int
    position: int
    row: int
    """Index of the change, from 0, among the changes of its message."""


NOTHING: Final = Position(-1, -1, -1)
"""The position of a table without changes."""


class ChangeRange(NamedTuple):
    """The range of the changes that a commit applies, from the first change to the last."""

    first_lsn: int
    """Commit LSN of the first change."""
    last: Position
    """The last change."""
    commit_time: int | None
    """Last commit time in the years 1 to 9999 of the changes, in microseconds since 1970-01-01 00:00 UTC;
    None without such a time."""

    @classmethod
    def join(cls, ranges: Iterable[ChangeRange]) -> ChangeRange:
        """Return the range from the first to the last change of several ranges."""
        ordered = sorted(ranges, key=lambda one: one.last)
        times = [one.commit_time for one in ordered if one.commit_time is not None]
        first_lsn = min(one.first_lsn for one in ordered)
        return ChangeRange(first_lsn, ordered[-1].last, times[-1] if times else None)


class Version(NamedTuple):
    """The number of a version of a table, and the last change that the version contains."""

    number: int
    applied: Position
    """The last change that the version contains."""


class State(NamedTuple):
    """The rows that a table had between two commits of changes."""

    version: int | None
    """The version of the table with these rows; None before the table was created."""
    after: int
    """The rows equal the source as of each LSN greater than `after`, up to and including `until`."""
    until: int
    commit_time: int | None
    """Last commit time of the changes since the preceding state, as in `ChangeRange`."""


class RowGroup(NamedTuple):
    """A part of a data file that can be read alone."""

    rows: range
    """Numbers of its rows in the file."""
    bounds: Callable[[str], tuple[Any, Any] | None]
    """Returns least and greatest value of a column; None if they are not known, or if it has NULLs."""


class DataFile(msgspec.Struct, frozen=True):
    """A data file of a table."""

    path: str
    """Path of the file, relative to the folder of the table."""
    size: int
    """Size of the file, in bytes."""
    rows: int
    """Number of rows in the file; 0 if the table's metadata do not contain the number."""
    min_values: Mapping[str, Any]
    """Least value of each column in the file, by column name; only columns with statistics."""
    max_values: Mapping[str, Any]
    """Greatest value of each column in the file, by column name; only columns with statistics."""
    null_counts: Mapping[str, Any]
    """Number of NULLs of each column in the file, by column name; only columns with statistics."""
    deleted: int = 0
    """Number of rows in the file that are deleted from the table: see `Table.deleted_rows`."""
    partition: tuple[Any, ...] = ()
    """Values that identify the file's partition, as the format needs them; empty without partitions."""


NO_ROWS: Final[Mapping[str, Numbers]] = {}
"""An empty mapping from paths of data files to row numbers."""


class Writer(Protocol):
    """Writes new data files. They belong to the table once a commit adds them."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write rows to the last file, or to a new file if the last file has reached its maximum size."""

    def close(self) -> list[DataFile]:
        """Complete the last file; return the files that were written since the last call."""


class Table(Protocol):
    """A table at one of its versions. `commit` moves on to the version that it makes.

    All functions raise `ReplicaError` if the table or a data file cannot be read, or if a commit fails.
    """

    place: Location
    """Location of the table."""

    @property
    def version(self) -> int:
        """Number of the version, from 0."""

    @property
    def reader_version(self) -> int:
        """Number of the version for readers of the format; in Iceberg, the snapshot ID."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, with the metadata of the fields."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Texts that are stored with the table, by name."""

    @property
    def position(self) -> Position:
        """The last change that the table has applied."""

    def refresh(self) -> None:
        """Read the newest version."""

    def at(self, version: int) -> Table:
        """Return the table at the version with this number."""

    @property
    def deletes_rows(self) -> bool:
        """Whether commits may delete single rows of a data file.

        If not, a commit replaces the data file by a new one with the remaining rows.
        """

    def field_ids(self, schema: pa.Schema) -> Mapping[str, int] | None:
        """Return the IDs of columns in data files, by name; None if names identify them.

        With IDs, a commit can rename columns and keep the data files.
        """

    def files(self) -> list[DataFile]:
        """Return the data files of the version."""

    def deleted_rows(self, file: DataFile) -> Numbers:
        """Return the row numbers that this version has deleted from a data file, in ascending order."""

    def read(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a data file in the order of the file, including deleted rows.

        Args:
            file: A data file of any version, or one that a writer has written.
            schema: The columns to read; a column that the file lacks is NULL.
        """

    def read_groups(
        self, file: DataFile, schema: pa.Schema, wanted: Callable[[RowGroup], bool]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the wanted row groups of a data file: number of the first row, and rows; else as `read`."""

    def writer(self, schema: pa.Schema) -> Writer:
        """Return a writer of data files with these columns."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete data files that no version uses (not checked). A file that cannot be deleted stays."""

    def commit(
        self,
        added: Iterable[DataFile],
        removed: Iterable[DataFile] | None,
        changes: ChangeRange | None = None,
        schema: pa.Schema | None = None,
        deleted: Mapping[str, Numbers] = NO_ROWS,
    ) -> None:
        """Replace data files in one commit, which lasts through a power failure once the function returns.

        Args:
            added: The new files, as returned by a writer.
            removed: The files to remove; None for all files.
            changes: The changes that the commit applies; None to leave the position where it is.
            schema: The new columns of the table; None to leave the columns as they are. Columns can change
                only if all files are removed, or if they have `field_ids` and keep their types.
                If `schema` and `changes` are None, the added files must have the rows of the removed files.
            deleted: Numbers of the rows to delete, in ascending order, by path of a data file that the commit
                adds or keeps; only if `deletes_rows`.

        Raises:
            ConflictError: A concurrent commit has changed the table. The new files stay.
        """

    def set_deletes_rows(self, enabled: bool) -> None:
        """Set whether later commits may delete single rows of data files; see `deletes_rows`.

        If `enabled` is false, the next commit of changes replaces each data file that has deleted rows by a
        new one without these rows.

        Raises:
            ConflictError: As in `commit`.
        """

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Add or change properties in a commit.

        Raises:
            ConflictError: As in `commit`.
        """

    def change_columns(self, added: Iterable[pa.Field], metadata: Iterable[pa.Field]) -> None:
        """Add columns, and replace the metadata of existing columns. The data files stay as they are.

        Args:
            added: The columns to add, which are NULL in all rows.
            metadata: Columns with their new metadata.

        Raises:
            ConflictError: As in `commit`.
        """

    def foreign_change(self) -> str:
        """Return how another program has changed rows since the last commit of changes.

        Commits that leave the rows as they are, such as those of a compaction, do not count.

        Returns:
            A clause with the version and its operation; an empty string if no other program has changed rows.
        """

    def version_before(self, lsn: int) -> Version:
        """Return the newest version that contains only changes with commit LSNs lower than `lsn`.

        Raises:
            ReplicaError: The remaining log of the table does not contain the position of that version.
        """

    def states(self, reached: int) -> Iterator[State]:
        """Yield the states (rows between two commits of changes) still in the table's log, newest first.

        Args:
            reached: LSN below which the table has all changes, by their commit LSNs. The newest state gets it
                as `State.until`.
        """

    def copy(self, folder: Path) -> None:
        """Copy this version of the table into a local folder. The copies of local files are hard links.

        Raises:
            ReplicaError: A file of the version is gone; or the table is local, but on another disk than
                `folder`.
        """

    def remove_unused(self) -> int:
        """Remove data files that were replaced, or written and not added by a commit, at least a day ago.

        A writer that is killed before its commit leaves files that no commit adds. A longer retention time
        that a user has set is respected.

        Returns:
            Number of removed files.
        """


class TableFormat(Protocol):
    """A table format."""

    @property
    def types(self) -> Mapping[int, pa.DataType]:
        """Arrow types of columns by type OID, where they differ from `logicalrep.values.arrow_type`."""

    def open(self, place: Location, version: int | None = None) -> Table | None:
        """Return the table at a place; None if there is none.

        Args:
            place: Where the table is.
            version: Number of the version; None for the newest.

        Raises:
            ReplicaError: The table cannot be read.
        """

    def create(self, place: Location, schema: pa.Schema, properties: Mapping[str, str]) -> Table:
        """Create a table, and return it.

        If another process creates the table at the same time, one process creates it, and both return it.

        Raises:
            ReplicaError: The table cannot be created.
        """

    def names(self, target: Location) -> list[str]:
        """Return the names of the tables in a target; other folders may be among them.

        Raises:
            ReplicaError: The target cannot be read.
        """

    def rename_pause(self, target: Location) -> float | None:
        """Return the seconds for which a folder's name must be free before another table gets it.

        In this time, readers of the old table notice that it has moved. None if the tables of the target
        cannot be renamed without copying them.
        """

    def move(self, place: Location, to: Location) -> None:
        """Move a table in the local filesystem; in an object store, copy it, and leave the old table.

        The copy can be read only once its last file is copied. If the process is killed before the copy is
        complete, another call completes it.

        Raises:
            ReplicaError: The table cannot be read or written, or the new place exists and is local.
        """

    def remove(self, place: Location) -> None:
        """Remove a table. Until its last file is removed, its properties can be read.

        Raises:
            ReplicaError: The table cannot be read or removed.
        """
