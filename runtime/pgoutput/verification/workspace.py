"""The folder `_verification` of a target: finished key ranges, and temporary copies of tables."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from pgoutput.errors import ReplicaError
from pgoutput.recording import Location
from pgoutput.verification.key_ranges import KeyRanges

_FOLDER: Final = "_verification"
_STATE: Final = "finished.json"
_SECONDS: Final = 5.0
"""Least time between two writes of the progress, in seconds: it names all tables."""


class FinishedRange(msgspec.Struct, frozen=True):
    """A key range that was found equal."""

    lsn: int
    """The range was equal as of this LSN."""
    time: str
    """Time of the comparison in UTC."""
    rows: int


class TableProgress(msgspec.Struct):
    """The key ranges of a table, and which of them were found equal."""

    columns: tuple[tuple[str, int, int], ...]
    """Name, type OID and type modifier of the compared columns."""
    ranges: KeyRanges
    finished: dict[int, FinishedRange] = {}
    """By number of the key range."""

    @property
    def is_finished(self) -> bool:
        """Whether all key ranges were found equal."""
        return len(self.finished) == len(self.ranges)


class Workspace:
    """The folder `_verification` of a target; a context manager, and used by one process at a time.

    The folder keeps the finished key ranges if the comparison is interrupted.

    Args:
        target: The folder that holds the replica.

    Raises:
        ReplicaError: The target is not a local folder, or another process compares it.
        OSError: The folder cannot be written.
    """

    def __init__(self, target: Location) -> None:
        if not target.is_local:
            raise ReplicaError(f"{target}: only a replica in a local folder can be verified")
        self._folder = Path(target.path) / _FOLDER
        self._tables: dict[int, TableProgress] = {}
        self._stored = time.monotonic()
        """When the progress was written last, by `time.monotonic()`."""

    def __enter__(self) -> Self:
        self._folder.mkdir(exist_ok=True)
        self._descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise ReplicaError(f"{self._folder.parent}: another process verifies this replica") from None
        with suppress(FileNotFoundError, msgspec.DecodeError):
            content = (self._folder / _STATE).read_bytes()
            self._tables = msgspec.json.decode(content, type=dict[int, TableProgress])
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            shutil.rmtree(self._folder)  # the comparison is complete
        else:
            self._write()
        os.close(self._descriptor)

    @contextmanager
    def temporary(self, name: str) -> Iterator[Path]:
        """Return an empty folder for temporary files, which is removed afterwards."""
        path = self._folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def progress(self, oid: int, columns: tuple[tuple[str, int, int], ...]) -> TableProgress | None:
        """Return the progress of an earlier comparison of these columns of a table; None without one."""
        known = self._tables.get(oid)
        return known if known is not None and known.columns == columns else None

    def store(self, oid: int, progress: TableProgress) -> None:
        """Store the progress of a table, within a few seconds or when the context ends."""
        self._tables[oid] = progress
        if time.monotonic() > self._stored + _SECONDS:
            self._write()

    def _write(self) -> None:
        part = self._folder / f"{_STATE}.part"
        part.write_bytes(msgspec.json.encode(self._tables))
        part.replace(self._folder / _STATE)
        self._stored = time.monotonic()
