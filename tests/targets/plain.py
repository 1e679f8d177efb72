"""A second table format: plain Parquet files, and a pickled file for each version, in a local folder."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa

from logicalrep._arrays import NO_NUMBERS, Numbers
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets import (
    NO_ROWS,
    NOTHING,
    ChangeRange,
    ConflictError,
    DataFile,
    ParquetWriter,
    Position,
    RowGroup,
    State,
    Version,
    read_groups,
    read_parquet,
)

_DAY = 86_400


class Stored(msgspec.Struct, frozen=True):
    """A version of a table, as it is stored in a file."""

    schema: pa.Schema
    properties: dict[str, str]
    files: tuple[DataFile, ...] = ()
    position: Position = NOTHING
    changes: ChangeRange | None = None
    """The changes of the commit; None if it applies none."""
    foreign: str = ""
    """The operation by which another program has changed rows; empty if none has."""


class PlainFormat:
    """The format of plain Parquet files; its functions are described at `TableFormat`."""

    types: Mapping[int, pa.DataType] = {}

    def open(self, place: Location, version: int | None = None) -> PlainTable | None:
        folder = Path(place.path)
        newest = max(_versions(folder), default=-1) if version is None else version
        return PlainTable(place, newest) if newest >= 0 else None

    def create(self, place: Location, schema: pa.Schema, properties: Mapping[str, str]) -> PlainTable:
        Path(place.path, "versions").mkdir(parents=True)
        _store(Path(place.path), 0, Stored(schema, dict(properties)))
        return PlainTable(place, 0)

    def names(self, target: Location) -> list[str]:
        return [name for name in target.names() if not name.startswith("_")]

    def rename_pause(self, target: Location) -> float:
        return 0.0

    def move(self, place: Location, to: Location) -> None:
        Path(place.path).rename(to.path)

    def remove(self, place: Location) -> None:
        shutil.rmtree(place.path)


class PlainTable:
    """A table of plain Parquet files; its functions are described at `Table`."""

    def __init__(self, place: Location, version: int) -> None:
        self.place = place
        self.version = version
        self._folder = Path(place.path)

    @property
    def reader_version(self) -> int:
        return self.version

    def _stored(self, version: int) -> Stored:
        try:
            return cast(Stored, pickle.loads(_file(self._folder, version).read_bytes()))
        except (OSError, pickle.UnpicklingError) as error:
            raise ReplicaError(f"{self.place}: version {version}: {error}") from error

    @property
    def schema(self) -> pa.Schema:
        return self._stored(self.version).schema

    @property
    def properties(self) -> Mapping[str, str]:
        return self._stored(self.version).properties

    @property
    def position(self) -> Position:
        return self._stored(self.version).position

    def refresh(self) -> None:
        self.version = max(_versions(self._folder))

    def at(self, version: int) -> PlainTable:
        return PlainTable(self.place, version)

    def field_ids(self, schema: pa.Schema) -> None:
        return None

    @property
    def deletes_rows(self) -> bool:
        return False

    def set_deletes_rows(self, enabled: bool) -> None:
        if enabled:
            raise ReplicaError(f"{self.place}: this format deletes no single rows")

    def deleted_rows(self, file: DataFile) -> Numbers:
        return NO_NUMBERS

    def files(self) -> list[DataFile]:
        return list(self._stored(self.version).files)

    def read(self, file: DataFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return read_parquet(self.place, file, schema)

    def read_groups(
        self, file: DataFile, schema: pa.Schema, wanted: Callable[[RowGroup], bool]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        return read_groups(self.place, file, schema, wanted)

    def writer(self, schema: pa.Schema) -> ParquetWriter:
        return ParquetWriter(self.place, schema)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            (self._folder / path).unlink(missing_ok=True)

    def commit(
        self,
        added: Iterable[DataFile],
        removed: Iterable[DataFile] | None,
        changes: ChangeRange | None = None,
        schema: pa.Schema | None = None,
        deleted: Mapping[str, Numbers] = NO_ROWS,
    ) -> None:
        added = list(added)
        gone = {file.path for file in (self.files() if removed is None else removed)}
        files = [*(file for file in self.files() if file.path not in gone), *added]
        columns = {} if schema is None else {"schema": schema}
        position = {} if changes is None else {"position": changes.last}
        self._commit(files=tuple(files), changes=changes, **columns, **position)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self._commit(properties={**self.properties, **properties})

    def change_columns(self, added: Iterable[pa.Field], metadata: Iterable[pa.Field]) -> None:
        fields = {field.name: field for field in [*self.schema, *added]}
        fields |= {field.name: field for field in metadata}
        self._commit(schema=pa.schema(fields.values()))

    def _commit(self, **changed: object) -> None:
        new = msgspec.structs.replace(
            self._stored(self.version), **{"changes": None, "foreign": "", **changed}
        )
        _store(self._folder, self.version + 1, new)
        self.version += 1

    def foreign_change(self) -> str:
        for version in range(self.version, 0, -1):
            stored = self._stored(version)
            if stored.foreign:
                return f"another program has changed rows: {stored.foreign} in version {version}"
            if stored.changes is not None:
                break
        return ""

    def version_before(self, lsn: int) -> Version:
        number = self.version
        while (position := self._stored(number).position).commit_lsn >= lsn:
            number -= 1
        return Version(number, position)

    def states(self, reached: int) -> Iterator[State]:
        until = reached
        for version in range(self.version, 0, -1):
            if (changes := self._stored(version).changes) is not None:
                yield State(version, changes.last.commit_lsn, until, changes.commit_time)
                until = changes.first_lsn
        yield State(None, -1, until, None)

    def copy(self, folder: Path) -> None:
        (folder / "versions").mkdir(parents=True)
        for version in range(self.version + 1):
            os.link(_file(self._folder, version), _file(folder, version))
        for file in self.files():
            os.link(self._folder / file.path, folder / file.path)

    def remove_unused(self) -> int:
        used = {file.path for file in self.files()}
        old = [
            path
            for path in self._folder.glob("*.parquet")
            if path.name not in used and path.stat().st_mtime < time.time() - _DAY
        ]
        self.delete(path.name for path in old)
        return len(old)


def _file(folder: Path, version: int) -> Path:
    return folder / "versions" / f"{version}.pickle"


def _versions(folder: Path) -> Iterator[int]:
    return (int(path.stem) for path in (folder / "versions").glob("*.pickle"))


def _store(folder: Path, version: int, stored: Stored) -> None:
    """Store a version of a table atomically; fail if the version exists."""
    part = folder / f"{os.getpid()}.part"
    part.write_bytes(pickle.dumps(stored))
    try:
        os.link(part, _file(folder, version))
    except FileExistsError:
        raise ConflictError(f"{folder}: version {version} was made by another commit") from None
    finally:
        with suppress(OSError):
            part.unlink()
