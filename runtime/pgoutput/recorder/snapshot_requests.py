"""Requests for snapshots of single tables: files in the folder of a recording, which the recorder reads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from pgoutput._text import qualified_name
from pgoutput.errors import RecordingError
from pgoutput.recorder.catalog import Catalog
from pgoutput.recording import STATE_FILE, Directory

_PREFIX: Final = "_snapshot-"
_SUFFIX: Final = ".json"

_SEARCH_SECONDS: Final = 1.0
"""Seconds between two searches for requests."""


class SnapshotRequest(msgspec.Struct, frozen=True):
    """A request to add the rows of tables to a recording. The recorder removes the file of a finished one."""

    tables: tuple[str, ...]
    """Names of the tables, such as `public.orders`."""
    error: str = ""
    """Why the recorder has given up the request; empty if it has not."""


def request_snapshot(folder: Path, tables: Sequence[str]) -> Path:
    """Ask the recorder of a recording, or the next one, to add the rows of tables; return the request's file.

    Raises:
        RecordingError: The folder is not a recording that a recorder has written.
        OSError: The file cannot be written.
    """
    if not (folder / STATE_FILE).exists():
        raise RecordingError(f"{folder}: no recording of a server: give the folder that `record` writes")
    directory = Directory(folder)
    name = f"{_PREFIX}{uuid4()}{_SUFFIX}"
    try:
        directory.replace(name, msgspec.json.encode(SnapshotRequest(tuple(tables))) + b"\n")
    finally:
        directory.close()
    return folder / name


def is_requested(path: Path) -> bool:
    """Return whether a request is unfinished.

    Raises:
        RecordingError: The recorder has given up the request. The request's file is removed.
    """
    try:
        request = msgspec.json.decode(path.read_bytes(), type=SnapshotRequest)
    except FileNotFoundError:
        return False
    if request.error:
        path.unlink()
        raise RecordingError(request.error)
    return True


class SnapshotRequests:
    """The requests in the folder of a recording, as the recorder sees them.

    Args:
        directory: Folder of the recording.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._tables: dict[str, set[int]] = {}
        """OIDs of the tables that are not stored yet, by file name of the request."""
        self._found: set[str] = set()
        """File names of all requests found so far."""
        self._next_search = 0.0

    @property
    def oids(self) -> frozenset[int]:
        """OIDs of the tables that are requested and not stored yet."""
        return frozenset().union(*self._tables.values())

    def find(self) -> list[str]:
        """Return the file names of new requests; none if the last search was just now."""
        if time.monotonic() < self._next_search:
            return []
        self._next_search = time.monotonic() + _SEARCH_SECONDS
        names = [
            name
            for name in self._directory.names()
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX) and name not in self._found
        ]
        self._found.update(names)
        return names

    def read(self, names: Iterable[str], catalog: Catalog) -> frozenset[int]:
        """Return the OIDs of the tables that new requests name.

        Args:
            names: File names of the requests.
            catalog: The catalogs, read after the requests were found. A request that names another table is
                given up.
        """
        found: set[int] = set()
        oids = {qualified_name(one.namespace, one.name): oid for oid, one in catalog.tables.items()}
        for name in names:
            request = self._load(name)
            if request is None or request.error:
                continue
            if unknown := [table for table in request.tables if table not in oids]:
                self._give_up(name, f"no publication has the table {', '.join(unknown)}")
                continue
            self._tables[name] = {oids[table] for table in request.tables}
            found |= self._tables[name]
        return frozenset(found)

    def finish(self, oids: Iterable[int], error: str = "") -> None:
        """Note that the rows of tables are stored, or why they cannot be; finished requests are removed."""
        done = set(oids)
        for name, tables in list(self._tables.items()):
            if error and tables & done:
                del self._tables[name]
                self._give_up(name, error)
            elif not error:
                tables -= done
                if not tables:
                    del self._tables[name]
                    self._directory.remove(name)

    def _load(self, name: str) -> SnapshotRequest | None:
        try:
            content = (self._directory.path / name).read_bytes()
            return msgspec.json.decode(content, type=SnapshotRequest)
        except (OSError, msgspec.DecodeError):
            return None

    def _give_up(self, name: str, error: str) -> None:
        request = self._load(name) or SnapshotRequest(())
        failed = msgspec.structs.replace(request, error=error)
        self._directory.replace(name, msgspec.json.encode(failed) + b"\n")
