"""The files of one version of an Iceberg table, and which of their rows are deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _read_deletes
from pyiceberg.manifest import DataFile as ManifestedFile, DataFileContent, FileFormat
from pyiceberg.table.snapshots import Snapshot

from logicalrep._arrays import NO_NUMBERS, Numbers
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets.iceberg.files import only_data_file
from logicalrep.targets.iceberg.manifests import Manifest, read_manifests
from logicalrep.targets.iceberg.places import errors


@dataclass(eq=False)
class Content:
    """The files of one version. They are read when they are first needed.

    Args:
        place: The place of the table, for error messages.
        folder: URI of the folder with the data files, with a slash at its end.
        io: Reads the manifests.
        snapshot: The snapshot of the version; None for the version before the first snapshot.
    """

    place: Location
    folder: str
    io: FileIO
    snapshot: Snapshot | None

    @cached_property
    def manifests(self) -> list[Manifest]:
        """The manifests of the version.

        Raises:
            ReplicaError: A file cannot be read, or another program has added files that logicalrep cannot
                read.
        """
        with errors(self.place):
            found = read_manifests(self.io, self.snapshot)
        for file in (entry.data_file for one in found for entry in one.entries):
            if problem := self._problem(file):
                raise ReplicaError(
                    f"{self.place}: another program has added {problem}, which logicalrep does not read: "
                    f"{file.file_path}. Build the table anew with `logicalrep replicate --reset-table`"
                )
        return found

    def _problem(self, file: ManifestedFile) -> str:
        if file.content == DataFileContent.EQUALITY_DELETES:
            return "equality deletes"
        if file.file_format != FileFormat.PARQUET:
            return f"files of the format {file.file_format.value}"
        return "" if file.file_path.startswith(self.folder) else f"files outside of {self.folder}"

    @property
    def _all(self) -> Iterator[ManifestedFile]:
        return (entry.data_file for one in self.manifests for entry in one.entries)

    @property
    def uris(self) -> set[str]:
        """The URIs of all data files and delete files."""
        return {file.file_path for file in self._all}

    @property
    def files(self) -> Iterator[ManifestedFile]:
        """The data files."""
        return (file for file in self._all if file.content == DataFileContent.DATA)

    @cached_property
    def _deletes(self) -> dict[str, list[ManifestedFile]]:
        """The position delete files of each data file, by URI of the data file."""
        found: dict[str, list[ManifestedFile]] = {}
        for file in self._all:
            for uri in self._deleted_from(file) if file.content == DataFileContent.POSITION_DELETES else ():
                found.setdefault(uri, []).append(file)
        return found

    def _deleted_from(self, deletes: ManifestedFile) -> Iterable[str]:
        """Return the URIs of the data files that a position delete file deletes rows of."""
        if (uri := only_data_file(deletes)) is not None:
            return [uri]
        return [uri for uri, _ in self._read(deletes)]

    def _read(self, deletes: ManifestedFile) -> Iterator[tuple[str, Numbers]]:
        """Yield the URI and the deleted row numbers of each data file in a position delete file."""
        with errors(self.place):
            found = _read_deletes(self.io, deletes)
        for uri, rows in found.items():
            yield uri, np.unique(np.asarray(rows.combine_chunks(), np.int64))

    def own_deletes(self, uri: str) -> list[str]:
        """Return the URIs of the position delete files that are for this data file only."""
        return [one.file_path for one in self._deletes.get(uri, ()) if only_data_file(one) is not None]

    def deleted_rows(self, uri: str) -> Numbers:
        """Return the row numbers of a data file's deleted rows, in ascending order."""
        rows = NO_NUMBERS
        for deletes in self._deletes.get(uri, ()):
            for of, more in self._read(deletes):
                rows = np.union1d(rows, more) if of == uri else rows
        return rows

    def deleted_count(self, uri: str) -> int:
        """Return the number of deleted rows of a data file."""
        found = self._deletes.get(uri, [])
        if len(found) == 1 and only_data_file(found[0]) is not None:
            return int(found[0].record_count)
        return len(self.deleted_rows(uri))
