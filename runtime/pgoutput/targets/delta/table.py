"""Delta tables as the tables of a target."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Field, Schema, TableFeatures
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from pgoutput._text import one_line
from pgoutput.errors import PgoutputError, ReplicaError
from pgoutput.recording import Location
from pgoutput.targets.delta import log
from pgoutput.targets.delta.cleaning import NO_CLEANING, PROPERTIES, is_due, old_files, unused_files
from pgoutput.targets.delta.folders import move_folder, remove_folder
from pgoutput.targets.parquet import ParquetWriter, read_parquet
from pgoutput.targets.protocol import ChangeRange, ConflictError, DataFile, Position, State, Table, Version
from pgoutput.targets.small_files import create_file

_VECTORS: Final = "deletionVectors"
"""Table feature ("Deletion Vectors" in the Delta protocol); a removed file that has a vector must name it."""
_STATISTICS: Final = ("min", "max", "null_count")
_FIRST_COMMIT: Final = f"{0:020}.json"
"""Name of the file with the first commit of a Delta table."""


class DeltaFormat:
    """The table format Delta; its functions are described at `TableFormat`."""

    def open(self, place: Location, version: int | None = None) -> Table | None:
        """Open a Delta table."""
        try:
            return _Table(place, DeltaTable(place.place, version))
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise ReplicaError(f"{place}: the Delta table cannot be read: {one_line(error)}") from error

    def create(self, place: Location, schema: pa.Schema, properties: Mapping[str, str]) -> Table:
        """Create a Delta table.

        If two processes create a table at the same time, delta-rs makes the second creation version 1 of the
        first table. So the table is created elsewhere, and its first commit is written only where none is.
        """
        failure: DeltaError | ReplicaError | None = None
        with TemporaryDirectory(prefix="pgoutput-") as folder:
            try:
                configuration: dict[str, str | None] = {**properties, **PROPERTIES}
                DeltaTable.create(folder, schema, configuration=configuration, raise_if_key_not_exists=False)
                commit = Path(folder, log.LOG_FOLDER, _FIRST_COMMIT).read_text()
                create_file(place / log.LOG_FOLDER / _FIRST_COMMIT, commit)
            except (DeltaError, ReplicaError) as error:  # a concurrent task may have created a table
                failure = error
        if (created := self.open(place)) is None:
            cause = "no table exists after the attempt" if failure is None else one_line(failure)
            raise ReplicaError(f"{place}: a Delta table cannot be created here: {cause}") from failure
        return created

    def move(self, place: Location, to: Location) -> None:
        """Move the folder of a Delta table."""
        move_folder(place, to)

    def remove(self, place: Location) -> None:
        """Remove the folder of a Delta table."""
        remove_folder(place)


class _Table:
    """A Delta table; the functions are described at `Table`."""

    def __init__(self, place: Location, table: DeltaTable) -> None:
        self.place: Location = place
        self._read = table
        self._version = table.version()
        self._position: Position | None = None
        """The position of the version; None if it was not looked for."""
        self._check_vectors()

    def _check_vectors(self) -> None:
        """Refuse a version with deletion vectors: its data files cannot be read without them."""
        features = self._read.protocol().reader_features or ()
        if _VECTORS in features and pa.table(self._read.deletion_vectors()).num_rows:
            raise ReplicaError(
                f"{self.place}: another program has added deletion vectors to the Delta table, which "
                "pgoutput does not read: compact the table, or build it anew with `pgoutput replicate "
                "--reset-table`"
            )

    @property
    def _table(self) -> DeltaTable:
        """The table, read again after a commit: only what needs more than its number waits for this."""
        if self._read.version() != self._version:
            self.refresh()
        return self._read

    @property
    def version(self) -> int:
        return self._version

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    @property
    def properties(self) -> Mapping[str, str]:
        return {key: text or "" for key, text in self._table.metadata().configuration.items()}

    @property
    def position(self) -> Position:
        table = self._table  # after a commit, this also finds commits of others
        if self._position is None:
            with self._errors():
                self._position = log.read_position(self.place, table)
        return self._position

    def refresh(self) -> None:
        with self._errors():
            self._read.update_incremental()
            self._version, self._position = self._read.version(), None
            self._check_vectors()

    def _end_commit(self) -> None:
        """Read the version that an alteration has made, and flush its commit to the disk."""
        self.refresh()
        log.flush_commit(self.place, self._version)

    def at(self, version: int) -> Table:
        with self._errors():
            return _Table(self.place, DeltaTable(self.place.place, version))

    def files(self) -> list[DataFile]:
        with self._errors():
            actions = pa.table(self._table.get_add_actions())
        return [
            DataFile(
                one["path"],
                one["size_bytes"],
                one.get("num_records") or 0,
                *(one.get(name) or {} for name in _STATISTICS),
            )
            for one in actions.to_pylist()
        ]

    @cached_property
    def _store(self) -> fs.FileSystem:
        with self._errors():
            return fs.PyFileSystem(DeltaStorageHandler.from_table(self._table._table))

    def read(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return read_parquet(self._store, file, schema)

    def writer(self, schema: pa.Schema) -> ParquetWriter:
        return ParquetWriter(self._store, schema)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(OSError):  # VACUUM removes the file too
                self._store.delete_file(path)

    def commit(
        self,
        added: Iterable[DataFile],
        removed: Iterable[DataFile] | None,
        changes: ChangeRange | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        added = list(added)
        with self._errors():
            if schema is not None:
                self._enable_timestamps_without_time_zone(schema)
            log.flush_files(self.place, [file.path for file in added])
            position = self.position if changes is None else changes.last
            now = int(time.time() * 1000)
            new = [AddAction(file.path, file.size, {}, now, True, _statistics(file)) for file in added]
            gone = [RemoveAction(file.path, True, now, file.size, {}) for file in removed or ()]
            self._table.create_write_transaction(
                [*new, *gone],
                "overwrite" if removed is None else "append",
                self._table.schema() if schema is None else Schema.from_arrow(schema),
                commit_properties=log.commit_properties(position, changes),
                post_commithook_properties=NO_CLEANING,
            )
            self._version, self._position = self._version + 1, position
            log.flush_commit(self.place, self._version)
        if is_due(self._version):
            with suppress(PgoutputError), self._errors():  # the next cleaning removes the same files
                self.delete(old_files(self._table, {*self.place.names()}))

    def set_properties(self, properties: Mapping[str, str]) -> None:
        with self._errors():
            self._table.alter.set_table_properties(dict(properties), raise_if_not_exists=False)
            self._end_commit()

    def change_columns(self, added: Iterable[pa.Field], metadata: Iterable[pa.Field]) -> None:
        with self._errors():
            if new := pa.schema(list(added)):
                self._enable_timestamps_without_time_zone(new)
                fields = [Field(one.name, one.type) for one in Schema.from_arrow(new).fields]
                self._table.alter.add_columns(fields)
                self._end_commit()
            for field in metadata:
                texts = {key.decode(): text.decode() for key, text in field.metadata.items()}
                self._table.alter.set_column_metadata(field.name, texts)
                self._end_commit()

    def _enable_timestamps_without_time_zone(self, schema: pa.Schema) -> None:
        """Enable the table feature `timestampNtz` if some column is a timestamp without time zone."""
        elements = [one.type.value_type if pa.types.is_list(one.type) else one.type for one in schema]
        is_needed = any(pa.types.is_timestamp(type_) and type_.tz is None for type_ in elements)
        if is_needed and "timestampNtz" not in (self._table.protocol().writer_features or ()):
            feature = TableFeatures.TimestampWithoutTimezone
            self._table.alter.add_feature(feature, allow_protocol_versions_increase=True)
            self._end_commit()

    def foreign_change(self) -> str:
        return log.foreign_change(self.place, self._table)

    def version_before(self, lsn: int) -> Version:
        return log.version_before(self.place, self.version, lsn)

    def states(self, reached: int) -> Iterator[State]:
        return log.read_states(self.place, self.version, reached)

    def copy(self, folder: Path) -> None:
        place, names = self.place, (self.place / log.LOG_FOLDER).names()
        commits = [name for name in names if name[:20].isdecimal() and int(name[:20]) <= self.version]
        for path in [
            *(f"{log.LOG_FOLDER}/{name}" for name in commits),
            *(file.path for file in self.files()),
        ]:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            source, copy = (place / path).path, folder / path
            try:
                if place.is_local:
                    os.link(source, copy)
                else:
                    fs.copy_files(source, str(copy), place.filesystem, fs.LocalFileSystem())
            except (OSError, pa.ArrowException) as error:
                raise ReplicaError(
                    f"{place}: version {self.version} cannot be read: {one_line(error)}"
                ) from error

    def remove_unused(self) -> int:
        with self._errors():
            unused = unused_files(self._table, {*self.place.names()})
            self.delete(unused)
            return len(unused)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the errors of deltalake and of filesystems as `ReplicaError`."""
        try:
            yield
        except CommitFailedError as error:
            raise ConflictError(f"{self.place}: {one_line(error)}") from error
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise ReplicaError(f"{self.place}: {one_line(error)}") from error


def _statistics(file: DataFile) -> str:
    """Return row count and statistics as JSON of the Delta log ("Per-file Statistics" in its protocol)."""
    found = {
        "numRecords": file.rows,
        "minValues": file.min_values,
        "maxValues": file.max_values,
        "nullCount": file.null_counts,
    }
    return msgspec.json.encode(found).decode()
