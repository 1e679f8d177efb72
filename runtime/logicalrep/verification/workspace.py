"""The folder `_verification` of a target: finished key ranges, and temporary copies of tables."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import msgspec

from logicalrep.errors import ReplicaError
from logicalrep.recording import Location
from logicalrep.targets import read_file, write_file
from logicalrep.verification.key_ranges import KeyRanges
from logicalrep.verification.source_rows import Total

_FOLDER: Final = "_verification"
_STATE: Final = "finished.json"
_SECONDS: Final = 5.0
"""Least time between two writes of the progress, in seconds. Each write contains all tables."""


class FinishedRange(msgspec.Struct, frozen=True):
    """A key range that was found equal.

    It counts as equal until its total in the replica changes: the number of its rows, or the sum of their
    hashes.
    """

    lsn: int
    """The range was equal as of this LSN."""
    time: str
    """Time of the comparison in UTC."""
    total: Total
    """Number of rows in the range, and the sum of their hashes."""


class TableProgress(msgspec.Struct):
    """The key ranges of a table, and which of them were found equal."""

    columns: tuple[tuple[str, int, int], ...]
    """Name, type OID and type modifier of the compared columns."""
    ranges: KeyRanges
    finished: dict[int, FinishedRange] = {}
    """The key ranges that were found equal, by number of the key range."""

    @property
    def is_finished(self) -> bool:
        """Whether all key ranges were found equal."""
        return len(self.finished) == len(self.ranges)

    @property
    def unfinished(self) -> list[int]:
        """Numbers of the key ranges that are not finished."""
        return [number for number in range(len(self.ranges)) if number not in self.finished]

    @property
    def rows(self) -> int:
        """Number of rows in the finished key ranges."""
        return sum(one.total[0] for one in self.finished.values())


class Workspace:
    """The folder `_verification` of a target, with the progress of a comparison. Use as a context manager.

    Entering the context reads the finished key ranges of an interrupted comparison. Leaving the context after
    an exception writes the finished key ranges; otherwise the comparison is complete, and leaving the
    context deletes the folder. A local folder is locked until the context is left.

    Args:
        target: The folder that holds the replica.

    Raises:
        ReplicaError: The target cannot be read, or another process compares the same local target.
        OSError: The folder cannot be written.
    """

    def __init__(self, target: Location) -> None:
        self._place = target / _FOLDER
        self._tables: dict[int, TableProgress] = {}
        self._stored = time.monotonic()
        """When the progress was written last, by `time.monotonic()`."""

    def __enter__(self) -> Self:
        if self._place.is_local:
            Path(self._place.path).mkdir(0o700, exist_ok=True)
            self._descriptor = os.open(self._place.path, os.O_RDONLY)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._descriptor)
                raise ReplicaError(
                    f"{self._place}: another process verifies this replica: wait until it has ended"
                ) from None
        with suppress(msgspec.DecodeError):
            self._tables = msgspec.json.decode(read_file(self._place / _STATE), type=dict[int, TableProgress])
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None and self._tables:
            self._write()
        elif exception[0] is None and self._place.is_folder:  # the comparison is complete
            self._place.filesystem.delete_dir(self._place.path)
        if self._place.is_local:
            os.close(self._descriptor)

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """Yield an empty local folder. Leaving the context deletes the folder.

        If the target is local, the folder is on the target's disk.
        """
        with TemporaryDirectory(
            prefix="logicalrep-", dir=self._place.path if self._place.is_local else None
        ) as folder:
            yield Path(folder)

    def progress(self, oid: int, columns: tuple[tuple[str, int, int], ...]) -> TableProgress | None:
        """Return the progress of an interrupted comparison of a table; None if there is none.

        Also return None if the interrupted comparison was one of other columns.

        Args:
            oid: OID of the table.
            columns: Name, type OID and type modifier of each column to compare.
        """
        known = self._tables.get(oid)
        return known if known is not None and known.columns == columns else None

    def store(self, oid: int, progress: TableProgress) -> None:
        """Keep the progress of a table; write it if the last write was more than `_SECONDS` seconds ago."""
        self._tables[oid] = progress
        if time.monotonic() > self._stored + _SECONDS:
            self._write()

    def _write(self) -> None:
        write_file(self._place / _STATE, msgspec.json.encode(self._tables).decode())
        self._stored = time.monotonic()
