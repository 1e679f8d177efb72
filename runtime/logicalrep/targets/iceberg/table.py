"""The table format Iceberg, for the tables of a target.

A version is a snapshot. The number of a version is the snapshot's sequence number, or 0 before the first
snapshot. Every commit makes a snapshot, even if the commit changes only properties or columns. The table's
position is in the summary of the snapshot, and in a property, in case another program expires the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import ne
from pathlib import Path
from typing import ClassVar, Final
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyarrow import fs
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile as ManifestedFile, DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable, update
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Identifier

from logicalrep._arrays import Numbers
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location, locate
from logicalrep.targets.commits import Commit, commit_metadata, foreign_change, read_states, version_before
from logicalrep.targets.data_files import copy_file, delete_files, flush_files, table_error
from logicalrep.targets.iceberg.catalogs import create_namespace, open_catalog
from logicalrep.targets.iceberg.cleaning import PROPERTIES, expired, needed_files, unneeded_files
from logicalrep.targets.iceberg.columns import (
    COLUMN_TYPES,
    file_schema,
    lacks_columns,
    sort_order,
    to_arrow,
    to_iceberg,
    with_key,
)
from logicalrep.targets.iceberg.content import Content
from logicalrep.targets.iceberg.deletes import DELETE_FIELDS, write_deletes
from logicalrep.targets.iceberg.files import data_file, manifested_file, partition_of
from logicalrep.targets.iceberg.manifests import write_snapshot
from logicalrep.targets.iceberg.partitions import partition_spec, transforms, unpartitioned
from logicalrep.targets.iceberg.places import errors, folder_uri, locate_part
from logicalrep.targets.parquet import ParquetWriter, read_groups, read_parquet
from logicalrep.targets.partitions import PartitionField, PartitionWriter
from logicalrep.targets.protocol import (
    KEY,
    NO_ROWS,
    NOTHING,
    ChangeRange,
    DataFile,
    Position,
    RowGroup,
    State,
    Table,
    Version,
    Writer,
)

_NO_NAMESPACE: Final = "_"
"""Namespace of a table whose name contains no namespace."""
_DELETES: Final = DataFileContent.POSITION_DELETES
_UPDATES: Final = "logicalrep.updates"
"""Property: "vectors" if commits may write position deletes."""
_PROPERTIES: Final = {**PROPERTIES, _UPDATES: "vectors"}
"""Properties of a new table. Every reader of Iceberg knows position deletes."""
_POSITION: Final = "logicalrep.position"
"""Property with the position of the table and the sequence number of its snapshot, a JSON array."""
_FORMER: Final = "logicalrep.former_properties"
"""Field of a summary: the values that properties had before the snapshot changed them, as JSON."""
_UNUSED_HOURS: Final = 24
"""Age in hours at which files that no commit has added are removed; a running commit may add younger ones."""


class IcebergFormat(msgspec.Struct, frozen=True):
    """The table format Iceberg; its functions are described at `TableFormat`."""

    catalog: str = ""
    """Name of the catalogue in the configuration of pyiceberg; empty for one in the target's folder."""
    namespace: str = ""
    """Prefix of the namespaces of the tables; a dot separates levels."""
    partition: tuple[PartitionField, ...] = ()
    """Partition fields of new tables. A table gets those fields whose column it has."""
    types: ClassVar[Mapping[int, pa.DataType]] = COLUMN_TYPES

    def _catalog(self, target: Location) -> Catalog:
        return open_catalog(target, self.catalog)

    def _identifier(self, place: Location) -> Identifier:
        """Return the name that the catalogue has for the table at a place."""
        namespace, _, name = place.path.rpartition("/")[2].rpartition(".")
        return (*self._namespace(namespace or _NO_NAMESPACE), name)

    def _namespace(self, name: str) -> Identifier:
        """Return the catalogue's namespace for the tables of a schema of PostgreSQL."""
        return tuple(f"{self.namespace}_{name}".split(".")) if self.namespace else (name,)

    def open(self, place: Location, version: int | None = None) -> Table | None:
        """Open an Iceberg table in a version, or the newest if None; return None if there is no table."""
        with errors(place):
            try:
                table = self._catalog(place.parent).load_table(self._identifier(place))
            except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
                return None
            except FileNotFoundError as error:
                raise table_error(place, "the Iceberg table is gone", error) from error
        found = _Table(place, table)
        return found if version is None else found.at(version)

    def create(self, place: Location, schema: pa.Schema, properties: Mapping[str, str]) -> Table:
        """Create an Iceberg table."""
        catalog, identifier = self._catalog(place.parent), self._identifier(place)
        location = folder_uri(place)
        with errors(place):
            if place.names():  # the folder has files of a renamed table
                location += f"-{uuid4().hex[:8]}"
            create_namespace(catalog, identifier)
            columns = with_key(to_iceberg(schema), _key(properties) or ())
            spec, order = partition_spec(columns, self.partition), sort_order(columns)
            table = catalog.create_table_if_not_exists(
                identifier, columns, location, spec, order, {**_PROPERTIES, **properties}
            )
            return _Table(place, table)

    def names(self, target: Location) -> list[str]:
        """Return the names of the tables of a target."""
        with errors(target):
            catalog = self._catalog(target)
            *outer, prefix = self._namespace("")
            try:
                namespaces = catalog.list_namespaces(tuple(outer))
            except exceptions.NoSuchNamespaceError:
                return []
            own = (one for one in namespaces if one[-1].startswith(prefix))
            tables = (
                (one[-1].removeprefix(prefix), table[-1]) for one in own for table in catalog.list_tables(one)
            )
            return [".".join(name for name in one if name != _NO_NAMESPACE) for one in tables]

    def rename_pause(self, target: Location) -> float:
        """Return 0: a reader asks the catalogue once for the name, and then reads the files by their URIs."""
        return 0.0

    def move(self, place: Location, to: Location) -> None:
        """Rename an Iceberg table; its files stay where they are."""
        catalog = self._catalog(place.parent)
        with errors(place):
            create_namespace(catalog, self._identifier(to))
            catalog.rename_table(self._identifier(place), self._identifier(to))

    def remove(self, place: Location) -> None:
        """Remove an Iceberg table from its catalogue, and its files."""
        catalog, identifier = self._catalog(place.parent), self._identifier(place)
        with errors(place):
            try:
                folder = catalog.load_table(identifier).location()
            except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
                return
            except Exception:  # the metadata are lost or damaged
                folder = folder_uri(place)
            files = locate_part(place, folder)  # raises for a table of another target
            catalog.drop_table(identifier)
            if files.is_folder:
                files.filesystem.delete_dir(files.path)


class _Table:
    """An Iceberg table; the functions are described at `Table`.

    Args:
        place: The place of the table in its target.
        table: The table as pyiceberg has read it.
        snapshot: The snapshot of the version; None for the current one.
    """

    def __init__(self, place: Location, table: IcebergTable, snapshot: Snapshot | None = None) -> None:
        self.place: Location = place
        self._table = table
        self._folder: str = f"{table.location()}/data/"
        """URI of the folder with the data files."""
        self._data: Location = locate_part(place, table.location()) / "data"
        self._use(snapshot or table.current_snapshot())
        if table.metadata.format_version != 2:
            raise ReplicaError(
                f"{place}: the Iceberg table has format version {table.metadata.format_version}, "
                "but logicalrep writes version 2. Build the table anew: `logicalrep replicate --reset-table`"
            )

    @property
    def version(self) -> int:
        return 0 if self._snapshot is None else self._snapshot.sequence_number or 0

    @property
    def reader_version(self) -> int:
        return -1 if self._snapshot is None else self._snapshot.snapshot_id

    @property
    def _history(self) -> Iterator[Snapshot]:
        """The snapshot of the version and its ancestors, newest first."""
        return iter(ancestors_of(self._snapshot, self._table.metadata))

    @property
    def _schema(self) -> Schema:
        snapshot, metadata = self._snapshot, self._table.metadata
        if snapshot is None or snapshot.snapshot_id == metadata.current_snapshot_id:
            return self._table.schema()  # other programs change it without a snapshot
        return self._table.schemas()[snapshot.schema_id or 0]

    @property
    def schema(self) -> pa.Schema:
        return to_arrow(self._schema)

    @property
    def properties(self) -> Mapping[str, str]:
        found = dict(self._table.metadata.properties)
        for snapshot in ancestors_of(self._table.current_snapshot(), self._table.metadata):
            if (snapshot.sequence_number or 0) <= self.version:
                break
            former = _summary(snapshot).get(_FORMER, "{}")
            found |= msgspec.json.decode(former, type=dict[str, str])
        return found

    @property
    def position(self) -> Position:
        for commit in self._commits():
            if commit.position is not None:
                return commit.position
        if (text := self._table.metadata.properties.get(_POSITION)) is None:
            return NOTHING
        *numbers, version = msgspec.json.decode(text, type=list[int])
        if version > self.version:
            raise ReplicaError(
                f"{self.place}: another program has restored an older snapshot of the table, and has expired "
                "the snapshots with its position. Build the table anew with `logicalrep replicate "
                "--reset-table`"
            )
        return Position(*numbers)

    def refresh(self) -> None:
        with errors(self.place):
            self._table.refresh()
        if (snapshot := self._table.current_snapshot()) != self._snapshot:
            self._use(snapshot)

    def _use(self, snapshot: Snapshot | None) -> None:
        """Switch to the version with this snapshot; None is the version before the first snapshot."""
        self._snapshot = snapshot
        self._content = Content(self.place, self._folder, self._table.io, snapshot)

    def at(self, version: int) -> Table:
        current, oldest = self._table.current_snapshot(), version + 1
        for snapshot in ancestors_of(current, self._table.metadata):
            oldest = snapshot.sequence_number or 0
            if oldest == version:
                return _Table(self.place, self._table, snapshot)
        if version or oldest > 1:
            raise ReplicaError(
                f"{self.place}: the snapshot with sequence number {version} was expired. Use a later version"
            )
        created = _Table(self.place, self._table)
        created._use(None)
        return created

    @property
    def deletes_rows(self) -> bool:
        return self.properties.get(_UPDATES) == "vectors"

    def set_deletes_rows(self, enabled: bool) -> None:
        self.set_properties({_UPDATES: "vectors" if enabled else "rewrite"})

    def files(self) -> list[DataFile]:
        fields = {field.field_id: field for field in self._schema.fields}
        return [
            data_file(self._folder, file, fields, self._content.deleted_count(file.file_path))
            for file in self._content.files
        ]

    def deleted_rows(self, file: DataFile) -> Numbers:
        return self._content.deleted_rows(self._folder + file.path)

    def read(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return read_parquet(self._data, file, schema, self.field_ids(schema))

    def read_groups(
        self, file: DataFile, schema: pa.Schema, wanted: Callable[[RowGroup], bool]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        return read_groups(self._data, file, schema, wanted, self.field_ids(schema))

    def field_ids(self, schema: pa.Schema) -> Mapping[str, int]:
        return {field.name: field.field_id for field in self._iceberg_schema(schema).fields}

    def _iceberg_schema(self, schema: pa.Schema) -> Schema:
        return to_iceberg(schema, self._schema, self._table.metadata.last_column_id)

    def writer(self, schema: pa.Schema) -> Writer:
        if self._data.is_local:
            Path(self._data.path).mkdir(parents=True, exist_ok=True)
        columns, spec = self._iceberg_schema(schema), self._table.spec()
        if spec.is_unpartitioned() or lacks_columns(columns, spec):
            return ParquetWriter(self._data, file_schema(columns))
        fields = transforms(columns, spec)
        return PartitionWriter(self._data, file_schema(columns), fields, (spec.spec_id,))

    def delete(self, paths: Iterable[str]) -> None:
        delete_files(self._data, paths)

    def commit(
        self,
        added: Iterable[DataFile],
        removed: Iterable[DataFile] | None,
        changes: ChangeRange | None = None,
        schema: pa.Schema | None = None,
        deleted: Mapping[str, Numbers] = NO_ROWS,
    ) -> None:
        gone = self._content.uris if removed is None else {self._folder + file.path for file in removed}
        self._replace(added, gone, changes, None if schema is None else self._iceberg_schema(schema), deleted)

    def _replace(
        self,
        added: Iterable[DataFile],
        gone: set[str],
        changes: ChangeRange | None,
        schema: Schema | None,
        deleted: Mapping[str, Numbers],
    ) -> None:
        """Commit: add files, remove files by URI (`gone`), delete rows of files by path (`deleted`)."""
        fields = {field.name: field for field in (schema or self._schema).fields}
        plain = (unpartitioned(self._table.specs()).spec_id,)
        new = [manifested_file(self._folder, file, fields, file.partition or plain) for file in added]
        known = {one.file_path: one for one in (*self._content.files, *new)} if deleted else {}
        for path, rows in deleted.items():
            uri = self._folder + path
            with errors(self.place):
                file = write_deletes(self._data, uri, np.union1d(self._content.deleted_rows(uri), rows))
            new.append(manifested_file(self._folder, file, DELETE_FIELDS, partition_of(known[uri]), _DELETES))
        for uri in [*gone, *(self._folder + path for path in deleted)]:
            gone.update(self._content.own_deletes(uri))
        with errors(self.place):
            flush_files(self._data, [one.file_path.removeprefix(self._folder) for one in new])
        self._write_snapshot(new, gone, changes, schema)

    def _write_snapshot(
        self,
        added: Sequence[ManifestedFile] = (),
        removed: Iterable[str] = (),
        changes: ChangeRange | None = None,
        schema: Schema | None = None,
        properties: Mapping[str, str] = {},
    ) -> None:
        """Commit a snapshot.

        Args:
            added: New data files and delete files.
            removed: URIs of the files to remove.
            changes: The changes that the commit applies.
            schema: The new schema of the table; None to leave it as it is.
            properties: Properties to set.
        """
        metadata = self._table.metadata
        schema = self._next_schema(schema, added, {**metadata.properties, **properties})
        position = self.position if changes is None else changes.last
        summary = commit_metadata(position, changes)
        if properties:
            former = {key: self.properties.get(key, "") for key in properties}
            summary[_FORMER] = msgspec.json.encode(former).decode()
        history = [*self._history]
        gone = expired(metadata, history)
        with errors(self.place):
            io, parent, known = self._table.io, self._snapshot, self._content.manifests
            columns = schema or self._schema
            snapshot, manifests = write_snapshot(
                metadata, io, parent, known, added, {*removed}, columns, summary
            )
            number = [*position, snapshot.sequence_number]
            stored = {**properties, _POSITION: msgspec.json.encode(number).decode()}
            updates: list[update.TableUpdate] = [
                *(() if schema is None else _schema_updates(self._table, schema)),
                update.AddSnapshotUpdate(snapshot=snapshot),
                update.SetSnapshotRefUpdate.model_validate(
                    {"ref-name": "main", "type": "branch", "snapshot-id": snapshot.snapshot_id}
                ),
                update.SetPropertiesUpdate(updates=stored),
            ]
            if gone:
                updates.append(
                    update.RemoveSnapshotsUpdate.model_validate(
                        {"snapshot-ids": [one.snapshot_id for one in gone]}
                    )
                )
            self._commit(updates, snapshot)
        self._use(snapshot)
        self._content.manifests = manifests  # saves reading them
        if gone:
            with suppress(ReplicaError), errors(self.place):  # `remove_unused` removes the rest
                self._remove([*unneeded_files(self._table.io, gone, history[-len(gone) - 1])])

    def _next_schema(
        self, schema: Schema | None, added: Iterable[ManifestedFile], properties: Mapping[str, str]
    ) -> Schema | None:
        """Return the schema for a commit that shall set `schema`; None if the current schema stays.

        The result has no identifier fields if a new file has NULL in one of them (a rescued value), or if
        the property KEY names other columns. KEY has no effect if the schema lacks a column that KEY names.
        """
        new, key = schema or self._schema, _key(properties)
        with_nulls = {one for file in added for one, count in (file.null_value_counts or {}).items() if count}
        is_other = key is not None and {*new.column_names} >= {*key} != new.identifier_field_names()
        if new.identifier_field_ids and (is_other or with_nulls.intersection(new.identifier_field_ids)):
            schema = with_key(new, ())
        if schema is None:
            return None
        schemas = self._table.metadata.schemas  # catalogues refuse a new ID for a known schema
        number = {"schema_id": max(one.schema_id for one in schemas) + 1}
        return next((one for one in schemas if one == schema), schema.model_copy(update=number))

    def _commit(self, updates: Sequence[update.TableUpdate], snapshot: Snapshot) -> None:
        """Commit updates, if the version is still the newest.

        If the catalogue does not reply, look for the snapshot: if it exists, the commit has succeeded.
        """
        table, metadata = self._table, self._table.metadata
        parent = None if self._snapshot is None else self._snapshot.snapshot_id
        requirements = (
            update.AssertTableUUID(uuid=metadata.table_uuid),
            update.AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            update.AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": parent}),
        )
        try:
            response = table.catalog.commit_table(table, requirements, tuple(updates))
        except exceptions.CommitStateUnknownException:
            self._table.refresh()
            if self._table.snapshot_by_id(snapshot.snapshot_id) is None:
                raise
            return
        self._table = IcebergTable(
            table.name(), response.metadata, response.metadata_location, table.io, table.catalog
        )
        if response.metadata.properties.get("write.metadata.delete-after-commit.enabled") == "true":
            kept = {log.metadata_file for log in response.metadata.metadata_log}
            self._remove({log.metadata_file for log in metadata.metadata_log} - kept)

    def _remove(self, uris: Iterable[str]) -> None:
        for uri in uris:
            with suppress(OSError):  # `remove_unused` removes the file later
                self._table.io.delete(uri)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self._write_snapshot(properties=properties)

    def change_columns(self, added: Iterable[pa.Field], metadata: Iterable[pa.Field]) -> None:
        changed = {field.name: field for field in (*added, *metadata)}
        fields = {field.name: field for field in self.schema} | changed
        if changed:
            self._write_snapshot(schema=self._iceberg_schema(pa.schema(fields.values())))

    def foreign_change(self) -> str:
        return foreign_change(self._commits())

    def version_before(self, lsn: int) -> Version:
        return version_before(self._commits(), self.version, self.place, lsn)

    def states(self, reached: int) -> Iterator[State]:
        return read_states(self._commits(), reached)

    def _commits(self) -> Iterator[Commit]:
        """Yield the commits up to this version, newest first, without expired commits."""
        version = self.version
        for snapshot in self._history:
            operation = "a commit" if snapshot.summary is None else snapshot.summary.operation.value
            version = snapshot.sequence_number or 0
            changes_rows = partial(ne, operation, Operation.REPLACE.value)
            yield Commit(version, _summary(snapshot), operation, changes_rows)
        if version <= 1:  # the creation of the table makes no snapshot
            yield Commit(0, {}, "", lambda: False)

    def copy(self, folder: Path) -> None:
        # Omit the position, which `_replace` sets, and KEY: with it, `create` would make a wrong sort order.
        properties = {key: text for key, text in self.properties.items() if key not in (_POSITION, KEY)}
        copy = IcebergFormat().create(locate(folder), self.schema, properties)
        assert isinstance(copy, _Table)
        files, position = [replace(one, partition=()) for one in self.files()], self.position
        for file in files:
            copy_file(self._data / file.path, Path(copy._data.path, file.path))
        changes = None if position == NOTHING else ChangeRange(position.commit_lsn, position, None)
        deleted = {file.path: self.deleted_rows(file) for file in files if file.deleted}
        copy._replace(files, set(), changes, self._schema, deleted)  # with the field IDs of the files

    def remove_unused(self) -> int:
        with errors(self.place):
            uri = self._table.location()
            folder = locate_part(self.place, uri)
            found = folder.filesystem.get_file_info(fs.FileSelector(folder.path, recursive=True))
            before = datetime.now(UTC) - timedelta(hours=_UNUSED_HOURS)
            old = {
                f"{uri}{one.path.removeprefix(folder.path)}"
                for one in found
                if one.is_file and one.mtime is not None and one.mtime < before
            }
            unused = {one for one in old if one.startswith((self._folder, f"{uri}/metadata/"))}
            unused -= {self._table.metadata_location}
            unused -= needed_files(self._table.io, self._table.metadata) if unused else set()
            self._remove(unused)
            return len(unused)


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _key(properties: Mapping[str, str]) -> list[str] | None:
    """Return the names of the columns that identify a row; None if no property names them."""
    return msgspec.json.decode(properties[KEY], type=list[str]) if KEY in properties else None


def _schema_updates(table: IcebergTable, schema: Schema) -> list[update.TableUpdate]:
    updates: list[update.TableUpdate] = [
        *(() if schema in table.metadata.schemas else [update.AddSchemaUpdate(schema=schema)]),
        update.SetCurrentSchemaUpdate.model_validate({"schema-id": schema.schema_id}),
    ]
    if lacks_columns(schema, table.spec()):
        plain = unpartitioned(table.specs())
        if plain.spec_id not in table.specs():
            updates.append(update.AddPartitionSpecUpdate(spec=plain))
        updates.append(update.SetDefaultSpecUpdate.model_validate({"spec-id": plain.spec_id}))
    if lacks_columns(schema, table.sort_order()) or (
        table.schema().identifier_field_ids and not schema.identifier_field_ids
    ):
        updates.append(update.AddSortOrderUpdate.model_validate({"sort-order": UNSORTED_SORT_ORDER}))
        updates.append(update.SetDefaultSortOrderUpdate.model_validate({"sort-order-id": 0}))
    return updates
