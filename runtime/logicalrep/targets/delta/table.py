"""The table format Delta, for the tables of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, Field, Schema, TableFeatures
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from logicalrep._arrays import NO_NUMBERS, Numbers
from logicalrep._text import one_line
from logicalrep.errors import LogicalrepError, ReplicaError
from logicalrep.recording import Location, locate, uses_profile
from logicalrep.targets.commits import foreign_change, read_states, version_before
from logicalrep.targets.data_files import copy_file, delete_files, flush_files, table_error
from logicalrep.targets.delta import log
from logicalrep.targets.delta.actions import (
    LOG_FOLDER,
    AddFile,
    add_file,
    commit_file,
    commit_info,
    mark_rows,
    read_files,
    remove_file,
    write_commit,
)
from logicalrep.targets.delta.cleaning import (
    COMMITS,
    PROPERTIES,
    checkpoint_interval,
    is_due,
    old_files,
    unused_files,
)
from logicalrep.targets.delta.folders import RENAMES, log_inode, move_folder, remove_folder
from logicalrep.targets.delta.vectors import decode_vector, encode_vector, is_absolute
from logicalrep.targets.parquet import ParquetWriter, read_groups, read_parquet
from logicalrep.targets.protocol import (
    NO_ROWS,
    RENAMED,
    ChangeRange,
    ConflictError,
    DataFile,
    Position,
    RowGroup,
    State,
    Table,
    Version,
)
from logicalrep.targets.small_files import create_file

_PAUSE: Final = 0.3
"""Seconds in which a reader that has listed the log of a table has read it, or finds that it is gone."""
_VECTORS: Final = "deletionVectors"
"""Name of the table feature for deletion vectors ("Deletion Vectors" in the Delta protocol)."""
_ENABLED: Final = "delta.enableDeletionVectors"
"""Property of a Delta table: whether commits may write deletion vectors."""
_KNOWN_FEATURES: Final = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "deletionVectors",
    "domainMetadata",
    "generatedColumns",
    "invariants",
    "timestampNtz",
    "variantType",
    "variantType-preview",
}
"""Table features that demand nothing of a commit, or nothing for the columns that logicalrep writes."""
_LAST_WITHOUT_FEATURES: Final = 4
"""Newest writer version of the protocol without column mapping and table features."""


class DeltaFormat:
    """The table format Delta. `TableFormat` documents the methods."""

    types: Mapping[int, pa.DataType] = {}

    def open(self, place: Location, version: int | None = None) -> Table | None:
        """Open a Delta table in a version, or the newest if None; return None if there is no table."""
        try:
            return _Table(place, version)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise table_error(place, "the Delta table cannot be read", error) from error

    def create(self, place: Location, schema: pa.Schema, properties: Mapping[str, str]) -> Table:
        """Create a Delta table and open it, or open the table that already exists.

        If two processes create a table at the same place at the same time, delta-rs commits the second
        creation as version 1 of the table. To prevent this, the table is created in a temporary folder, and
        its first commit is then copied to `place`, unless a commit exists there.
        """
        failure: DeltaError | ReplicaError | None = None
        with TemporaryDirectory(prefix="logicalrep-") as folder:
            try:
                configuration: dict[str, str | None] = {**properties, **PROPERTIES}
                DeltaTable.create(folder, schema, configuration=configuration, raise_if_key_not_exists=False)
                create_file(commit_file(place, 0), Path(commit_file(locate(folder), 0).path).read_text())
                log.flush_folders(place)
            except (DeltaError, ReplicaError) as error:  # a concurrent task may have created a table
                failure = error
        if (created := self.open(place)) is None:
            cause = "no table exists after the attempt" if failure is None else one_line(failure)
            raise ReplicaError(f"{place}: a Delta table cannot be created here: {cause}") from failure
        return created

    def names(self, target: Location) -> list[str]:
        """Return the names of the folders in a target that may be Delta tables."""
        return [name for name in target.names() if not name.startswith(("_", "."))]

    def rename_pause(self, target: Location) -> float | None:
        """Return how long the name of a folder must be free before another table gets it."""
        return _PAUSE if target.is_local else None

    def move(self, place: Location, to: Location) -> None:
        """Move the folder of a Delta table."""
        move_folder(place, to)

    def remove(self, place: Location) -> None:
        """Remove the folder of a Delta table."""
        remove_folder(place)


class _Table:
    """A Delta table at one of its versions. `logicalrep.targets.protocol.Table` documents the methods."""

    def __init__(self, place: Location, version: int | None = None) -> None:
        self.place: Location = place
        self._inode = log_inode(place)  # before the log is read: the folder may be renamed meanwhile
        self._read = _read_log(place, version)
        self._version = self._cleaned = self._read.version()
        self._position: Position | None = None
        """The position of the version; None if it was not read yet."""
        self._files: dict[str, DataFile] | None = None
        """The data files of the version, by path; None if they were not read yet."""
        self._added: dict[str, AddFile] = {}
        """The actions that added data files, by path: of all data files if the table has deletion vectors,
        otherwise of the files that this object has committed."""
        self._deleted: dict[str, Numbers] = {}
        """Row numbers of deleted rows, by path of the data file; only of files whose vectors were decoded."""

    @property
    def _table(self) -> DeltaTable:
        """The table as read by delta-rs. If `self` has committed since, the newest version is read first."""
        if self._read.version() != self._version:
            self.refresh()
        return self._read

    @property
    def version(self) -> int:
        return self._version

    @property
    def reader_version(self) -> int:
        return self._version

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    @property
    def properties(self) -> Mapping[str, str]:
        return {key: text or "" for key, text in self._table.metadata().configuration.items()}

    @property
    def position(self) -> Position:
        table = self._table  # after a commit, this also finds commits of other programs
        if self._position is None:
            with self._errors():
                self._position = log.read_position(self.place, table)
        return self._position

    def refresh(self) -> None:
        with self._errors():
            self._read.update_incremental()
            if self._read.version() != self._version:  # what was read is of an older version
                self._files = self._position = None
                self._deleted = {}
            self._version = self._read.version()

    def _end_commit(self) -> None:
        """Read the version that deltalake has just committed, and flush its commit to the disk."""
        self.refresh()
        log.flush_commit(self.place, self._version)

    def at(self, version: int) -> Table:
        with self._errors():
            return _Table(self.place, version)

    def field_ids(self, schema: pa.Schema) -> None:
        return None

    @property
    def deletes_rows(self) -> bool:
        return self._has_vectors and self.properties.get(_ENABLED) == "true"

    @property
    def _has_vectors(self) -> bool:
        """Whether data files may have deletion vectors."""
        return _VECTORS in (self._table.protocol().reader_features or ())

    def files(self) -> list[DataFile]:
        return list(self._by_path().values())

    def _by_path(self) -> dict[str, DataFile]:
        table = self._table
        if self._files is None:
            with self._errors():
                if self._has_vectors:
                    self._added = read_files(self.place, self._version)
                    schema = self.schema
                    self._files = {path: one.data_file(schema) for path, one in self._added.items()}
                else:
                    actions = pa.table(table.get_add_actions()).to_pylist()
                    self._files = {one["path"]: _data_file(one) for one in actions}
        return self._files

    def deleted_rows(self, file: DataFile) -> Numbers:
        self._by_path()
        added = self._added.get(file.path)
        if added is None or added.deletion_vector is None:
            return NO_NUMBERS
        if file.path not in self._deleted:
            try:
                with self._errors():
                    self._deleted[file.path] = decode_vector(added.deletion_vector, self._read_bytes)
            except ValueError as error:
                raise ReplicaError(
                    f"{self.place}/{file.path}: the deleted rows of the data file cannot be read: "
                    f"{one_line(error)}"
                ) from error
        return self._deleted[file.path]

    def _read_bytes(self, path: str, offset: int, size: int) -> bytes:
        place = locate(path) if is_absolute(path) else self.place / path
        with place.filesystem.open_input_file(place.path) as file:
            return bytes(file.read_at(size, offset))

    def read(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return read_parquet(self.place, msgspec.structs.replace(file, path=unquote(file.path)), schema)

    def read_groups(
        self, file: DataFile, schema: pa.Schema, wanted: Callable[[RowGroup], bool]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        return read_groups(self.place, msgspec.structs.replace(file, path=unquote(file.path)), schema, wanted)

    def writer(self, schema: pa.Schema) -> ParquetWriter:
        return ParquetWriter(self.place, schema)

    def delete(self, paths: Iterable[str]) -> None:
        delete_files(self.place, paths)

    def commit(
        self,
        added: Iterable[DataFile],
        removed: Iterable[DataFile] | None,
        changes: ChangeRange | None = None,
        schema: pa.Schema | None = None,
        deleted: Mapping[str, Numbers] = NO_ROWS,
    ) -> None:
        if schema is not None:
            with self._errors():
                self._enable_timestamps_without_time_zone(schema)
        position = self.position if changes is None else changes.last
        changes_rows = changes is not None or schema is not None
        known = self._by_path()
        gone = {file.path: file for file in (known.values() if removed is None else removed)}
        new = {file.path: file for file in added}
        actions = {path: add_file(file, changes_rows=changes_rows) for path, file in new.items()}
        marked: dict[str, Numbers] = {}
        for path, numbers in deleted.items():
            if path in known:
                gone[path] = known[path]
                numbers = np.union1d(self.deleted_rows(known[path]), numbers)
            marked[path] = numbers
            file = new.get(path) or known[path]
            new[path] = msgspec.structs.replace(file, deleted=len(numbers))
            actions[path] = mark_rows(actions.get(path) or self._added[path], encode_vector(numbers))
        removals = [
            remove_file(file, self._added.get(path), changes_rows=changes_rows, stays=path in new)
            for path, file in gone.items()
        ]
        properties, has_vectors = self.properties, self._has_vectors  # after the commit, this rereads the log
        self._check_writable(properties, removes=bool(gone))
        with self._errors():
            flush_files(self.place, [path for path in new if path not in known])
        self._write_commit(
            *log.position_actions(position, changes),
            *([] if schema is None else [self._metadata(schema)]),
            *({"remove": action} for action in removals),
            *({"add": action} for action in actions.values()),
        )
        self._position = position
        self._files = {path: file for path, file in known.items() if path not in gone} | new
        self._added = {path: file for path, file in self._added.items() if path not in gone} | actions
        self._deleted = {path: rows for path, rows in self._deleted.items() if path not in gone} | marked
        # Write a checkpoint if a removed file has a deletion vector. An earlier commit, which replaced the
        # vector, may have written a remove action of the file without deletionTimestamp. VACUUM of delta-rs
        # (1.6) would then delete the file at once, although readers may use it. Checkpoints omit the action.
        has_vector = any(file.deleted for path, file in gone.items() if path not in new)
        self._clean(1 if has_vector else checkpoint_interval(properties))
        is_disabled = has_vectors and properties.get(_ENABLED) == "false"
        if is_disabled and not any(file.deleted for file in self._by_path().values()):
            with suppress(ConflictError):  # the next commit tries again
                self.set_deletes_rows(False)

    def _write_commit(self, *actions: Mapping[str, Any]) -> None:
        with RENAMES:
            self._check_folder()
            write_commit(self.place, self._version + 1, actions)
        self._version += 1

    def _check_folder(self) -> None:
        """Raise ConflictError if another process or thread has given the folder's name to another table."""
        if log_inode(self.place) != self._inode:
            raise ConflictError(f"{self.place}: the table was moved to another folder. Repeat the command")

    def _clean(self, checkpoints: int) -> None:
        """Write a checkpoint if one is due, and remove old files if a removal is due.

        A checkpoint is due if a version since the last call is a multiple of `checkpoints`. A removal is due
        if a version since the last call is a multiple of `COMMITS`. Only `commit` calls this method, but the
        versions since the last call also include those of other commits, such as commits of properties or of
        other programs.
        """
        versions = range(self._cleaned + 1, self._version + 1)
        self._cleaned = self._version
        with RENAMES, suppress(LogicalrepError), self._errors():  # the next commits repeat what fails
            self._check_folder()
            if is_due(versions, checkpoints):
                self._table.create_checkpoint()
            if is_due(versions, COMMITS):
                unneeded = old_files(_read_log(self.place), {*self.place.names()})
                self.delete({*unneeded} - self._by_path().keys())

    def _check_writable(self, properties: Mapping[str, str], *, removes: bool) -> None:
        """Raise ReplicaError if the table has a feature or property with which logicalrep must not commit.

        `removes` says whether the commit removes files or rows.
        """
        protocol = self._table.protocol()
        unknown = {*(protocol.writer_features or ())} - _KNOWN_FEATURES
        if not protocol.writer_features and protocol.min_writer_version > _LAST_WITHOUT_FEATURES:
            unknown = {f"of writer version {protocol.min_writer_version}"}
        if unknown:
            raise ReplicaError(
                f"{self.place}: another program has enabled table features that logicalrep does not write: "
                f"{', '.join(sorted(unknown))}. Disable these features, or build the table anew (`logicalrep "
                "replicate --reset-table`)"
            )
        if removes and properties.get("delta.appendOnly") == "true":
            raise ReplicaError(
                f"{self.place}: the changes remove rows, which the property delta.appendOnly of the Delta "
                "table forbids. Remove the property"
            )

    def _metadata(self, schema: pa.Schema | None = None, **properties: str) -> dict[str, Any]:
        """Return the action `metaData` with new columns or properties of the table ("Change Metadata").

        Args:
            schema: The new columns; None keeps the columns.
            properties: New values of properties, by name. All other properties are kept.
        """
        known = self._table.metadata()
        columns = self._table.schema() if schema is None else Schema.from_arrow(_without_renames(schema))
        return {
            "metaData": {
                "id": str(known.id),
                "name": known.name,
                "description": known.description,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": columns.to_json(),
                "partitionColumns": known.partition_columns,
                "configuration": {**self.properties, **properties},
                "createdTime": known.created_time,
            }
        }

    def set_deletes_rows(self, enabled: bool) -> None:
        protocol = self._table.protocol()
        readers, writers = ({*(of or ())} for of in (protocol.reader_features, protocol.writer_features))
        if not writers:  # the features that writers of version 2 know
            writers = {"appendOnly", "invariants"}
        actions = [self._metadata(**{_ENABLED: str(enabled).lower()})]
        if enabled and not self._has_vectors:
            actions.append(_protocol(readers | {_VECTORS}, writers | {_VECTORS}))
        if not enabled and not any(file.deleted for file in self.files()):
            actions.append(_protocol(readers - {_VECTORS}, writers - {_VECTORS}))
        self._write_metadata(*actions)
        with self._errors():
            # A reader without support for vectors begins at this checkpoint. It skips the earlier commits,
            # which may have vectors.
            self._table.create_checkpoint()

    def _write_metadata(self, *actions: Mapping[str, Any]) -> None:
        """Commit `actions`, which change the table's metadata.

        deltalake (1.6) is not used: it would also enable table features that the new metadata do not need.
        """
        self._write_commit(commit_info("SET TBLPROPERTIES", {}), *actions)
        self.refresh()

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self._write_metadata(self._metadata(**properties))

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
        return foreign_change(log.read_commits(self.place, self._table.version()))

    def version_before(self, lsn: int) -> Version:
        return version_before(log.read_commits(self.place, self.version), self.version, self.place, lsn)

    def states(self, reached: int) -> Iterator[State]:
        return read_states(log.read_commits(self.place, self.version), reached)

    def copy(self, folder: Path) -> None:
        place, names = self.place, (self.place / LOG_FOLDER).names()
        commits = [name for name in names if name[:20].isdecimal() and int(name[:20]) <= self.version]
        files, added = self.files(), self._added.values()
        vectors = {one.deletion_vector.path for one in added if one.deletion_vector is not None}
        for path in [
            *(f"{LOG_FOLDER}/{name}" for name in commits),
            *(unquote(file.path) for file in files),
            *(path for path in vectors if path and not is_absolute(path)),
        ]:
            copy_file(place / path, folder / path)

    def remove_unused(self) -> int:
        with RENAMES, self._errors():
            self._check_folder()
            unused = unused_files(_read_log(self.place), {*self.place.names()})
            self.delete(unused)
            return len(unused)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the errors of deltalake and of filesystems in a `with` block as `ReplicaError`."""
        try:
            yield
        except CommitFailedError as error:
            raise ConflictError(
                f"{self.place}: the commit failed: {one_line(error)}. Repeat the command"
            ) from error
        except (DeltaError, OSError, pa.ArrowException, msgspec.MsgspecError) as error:
            raise table_error(self.place, "the Delta table cannot be read or written", error) from error


def _read_log(place: Location, version: int | None = None) -> DeltaTable:
    """Open a Delta table; a table in S3 with the credentials of the AWS profile, if `uses_profile()`."""
    is_s3 = place.place.startswith("s3")
    options = {"aws_force_credential_load": "true"} if is_s3 and uses_profile() else None
    return DeltaTable(place.place, version, storage_options=options)


def _without_renames(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [field.remove_metadata() if RENAMED in (field.metadata or {}) else field for field in schema]
    )


def _protocol(readers: set[str], writers: set[str]) -> dict[str, Any]:
    """Return the action `protocol`: features that readers and writers must know ("Protocol Evolution")."""
    features = {"readerFeatures": sorted(readers), "writerFeatures": sorted(writers)}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}


def _data_file(action: dict[str, Any]) -> DataFile:
    """Return the `DataFile` for an action `add` in the form in which delta-rs returns such actions."""
    least, greatest, nulls = (action.get(name) or {} for name in ("min", "max", "null_count"))
    return DataFile(
        action["path"], action["size_bytes"], action.get("num_records") or 0, least, greatest, nulls
    )
