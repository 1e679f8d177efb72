"""Requests for snapshots of tables: files in the folder of a recording, which the recorder reads."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import uuid4

import msgspec

from logicalrep._text import qualified_name
from logicalrep.errors import RecordingError
from logicalrep.recorder.catalogs import Catalog
from logicalrep.recorder.snapshots.row_keys import Keys, RowKey, covers, merge_keys
from logicalrep.recording import (
    STATE_FILE,
    Directory,
    Location,
    PathOrUri,
    locate,
    remove_file,
    replace_file,
)

_PREFIX: Final = "_snapshot-"
_SUFFIX: Final = ".json"


class SnapshotRequest(msgspec.Struct, frozen=True):
    """A request to add the rows of tables to a recording. The recorder removes a finished request's file."""

    tables: tuple[str, ...]
    """Names of the tables, such as `public.orders`."""
    keys: dict[str, tuple[RowKey, ...]] = {}
    """Keys of the rows to add, by name of the table. If a table has no entry, all its rows are added."""
    error: str = ""
    """Why the recorder has given up the request; empty if it has not."""


def request_snapshot(
    recording: PathOrUri, tables: Sequence[str], keys: Mapping[str, Collection[RowKey]] = {}
) -> Location:
    """Ask the recorder of a recording to add the rows of tables; return the location of the request's file.

    If no recorder is running, the next recorder of the recording reads the request.

    Args:
        recording: Path or URL of the recording.
        tables: Names of the tables, such as `public.orders`.
        keys: Keys of the rows to add, by name of the table. If a table has no entry, all its rows are added.
            A key has the values of the columns of the replica identity, as text. The recorder adds all rows
            of a table if the rows with these keys alone would not make the table equal to its source.

    Raises:
        ValueError: `keys` has a table that `tables` lacks.
        RecordingError: The folder is not a recording that a recorder has written.
        OSError: The file cannot be written.
    """
    if unknown := keys.keys() - set(tables):
        raise ValueError(
            f"`keys` has {', '.join(sorted(unknown))}, but `tables` does not: add the name to `tables`"
        )
    location = locate(recording)
    if not (location / STATE_FILE).is_file:
        raise RecordingError(
            f"{location}: {STATE_FILE} is missing: give the folder or URL that `logicalrep record` writes"
        )
    name = f"{_PREFIX}{uuid4()}{_SUFFIX}"
    request = SnapshotRequest(tuple(tables), {table: tuple(keys[table]) for table in keys})
    content = msgspec.json.encode(request) + b"\n"
    replace_file(location / name, content)
    return location / name


def is_requested(request_file: Location) -> bool:
    """Return whether a request is unfinished.

    Raises:
        RecordingError: The recorder has given up the request. This call has removed the request's file.
    """
    if (content := request_file.content()) is None:
        return False
    request = msgspec.json.decode(content, type=SnapshotRequest)
    if request.error:
        remove_file(request_file)
        raise RecordingError(request.error)
    return True


class SnapshotRequests:
    """The snapshot requests of users in the folder of a recording.

    Args:
        directory: Folder of the recording.
        seconds: Seconds between two searches for requests.
    """

    def __init__(self, directory: Directory, seconds: float) -> None:
        self._directory = directory
        self._seconds = seconds
        self._rows: dict[str, dict[int, Keys]] = {}
        """Keys of the rows that are not stored yet, by file name of the request and OID of the table."""
        self._found: set[str] = set()
        """File names of all requests found so far."""
        self._next_search = 0.0

    @property
    def rows(self) -> dict[int, Keys]:
        """Keys of the rows (None for all rows) that are requested and not stored yet, by OID of the table."""
        found: dict[int, Keys] = {}
        for rows in self._rows.values():
            for oid, keys in rows.items():
                found[oid] = merge_keys(found[oid], keys) if oid in found else keys
        return found

    def find(self) -> list[str]:
        """Return the file names of new requests; [] if the last search was less than `seconds` ago."""
        if time.monotonic() < self._next_search:
            return []
        self._next_search = time.monotonic() + self._seconds
        names = [
            name
            for name in self._directory.names(_PREFIX)
            if name.endswith(_SUFFIX) and name not in self._found
        ]
        self._found.update(names)
        return names

    def read(self, names: Iterable[str], catalog: Catalog) -> frozenset[int]:
        """Read new requests; return the OIDs of the tables that they name.

        Args:
            names: File names of the requests.
            catalog: The catalogs, read after the requests were found. A request for a table that they lack
                is given up, as is a request that cannot be read.
        """
        found: set[int] = set()
        oids = {qualified_name(one.namespace, one.name): oid for oid, one in catalog.tables.items()}
        for name in names:
            try:
                content = self._directory.read(name)
                request = None if content is None else msgspec.json.decode(content, type=SnapshotRequest)
            except (OSError, ValueError) as error:
                self._give_up(name, f"{name}: the request cannot be read ({error}): request the tables again")
                continue
            if request is None or request.error:
                continue
            if unknown := [table for table in request.tables if table not in oids]:
                self._give_up(
                    name, f"no recorded publication has the table {', '.join(unknown)}: add it to one"
                )
                continue
            keys = {table: frozenset(request.keys[table]) for table in request.keys}
            self._rows[name] = {oids[table]: keys.get(table) or None for table in request.tables}
            found.update(self._rows[name])
        return frozenset(found)

    def finish(self, stored: Mapping[int, Keys]) -> None:
        """Remove requests whose rows are all stored; `stored` maps OIDs of tables to keys of stored rows."""
        for name, rows in list(self._rows.items()):
            left = {
                oid: keys for oid, keys in rows.items() if oid not in stored or not covers(stored[oid], keys)
            }
            if left:
                self._rows[name] = left
            else:
                del self._rows[name]
                self._directory.remove(name)

    def fail(self, oids: Collection[int], error: str) -> None:
        """Give up all requests that name one of the tables with these OIDs; `error` says why."""
        for name, rows in list(self._rows.items()):
            if not rows.keys().isdisjoint(oids):
                del self._rows[name]
                self._give_up(name, error)

    def _give_up(self, name: str, error: str) -> None:
        self._directory.replace(name, msgspec.json.encode(SnapshotRequest((), error=error)) + b"\n")
