"""The folder of copied rows: segments, and a file that lists the ranges of tables in them.

The folder outlives the recorder: after a crash, the next recorder copies only the ranges that are missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

import msgspec

from logicalrep.recording import Directory, segment_name

_FILE: Final = "_copied.json"

_SAVE_SECONDS: Final = 1.0
"""Least number of seconds between two writes of the file that lists the copied ranges."""

Place: TypeAlias = tuple[int, int]
"""A range of a table: OID of the table or partition that stores it, and number of the range in it, from 0."""


class CopiedRange(msgspec.Struct, frozen=True, array_like=True):
    """A copy of one range of a table, as of one snapshot.

    The first copy of a range has all its rows; a later copy of the range has only rows that are newer than
    the snapshot of the copy before, and maybe some older rows.
    """

    leaf: int
    """OID of the table or partition that stores the range."""
    number: int
    """Number of the range in its table or partition, from 0."""
    lsn: int
    """LSN of the snapshot."""
    xmin: int
    """xmin of the snapshot, a transaction ID: the snapshot contains the rows of all earlier transactions."""
    segments: tuple[int, ...]
    """Numbers of the segments with the rows; empty if a later copy has found no newer rows."""

    @property
    def place(self) -> Place:
        """Place of the range: OID of the table or partition that stores it, and its number there."""
        return self.leaf, self.number


class CopiedTable(msgspec.Struct):
    """The copied ranges of one table."""

    identity: str
    """Digest of the table (see `ranges.identity`); if it changes, the ranges cannot be used any more."""
    ranges: list[CopiedRange] = msgspec.field(default_factory=list)
    """The copied ranges, those of earlier snapshots first."""

    @property
    def last(self) -> dict[Place, CopiedRange]:
        """The latest copy of each range, by place of the range."""
        return {one.place: one for one in self.ranges}

    @property
    def lsns(self) -> set[int]:
        """LSNs of the snapshots from which the latest copy of each range was made."""
        return {one.lsn for one in self.last.values()}

    @property
    def lsn(self) -> int:
        """LSN of the latest snapshot that rows were copied from."""
        return max(one.lsn for one in self.ranges)


class CopyFolder:
    """The folder of copied rows; a context manager, whose exit removes the folder if it has no tables.

    The methods may be called from several threads.

    Attributes:
        directory: The opened folder.
        tables: The copied tables, by OID.

    Args:
        path: Path of the folder, which is created if it does not exist.

    Raises:
        OSError: The folder cannot be created, or a file in it cannot be read or removed.
    """

    def __init__(self, path: Path) -> None:
        # The permissions are those of the recording's folder, because readers may use this folder later.
        path.mkdir(path.parent.stat().st_mode & 0o777, exist_ok=True)
        self.directory: Directory = Directory(path)
        self.tables: dict[int, CopiedTable] = {}
        try:
            content = (path / _FILE).read_bytes()
            self.tables = msgspec.json.decode(content, type=dict[int, CopiedTable])
        except (FileNotFoundError, ValueError):
            pass  # without the list, all ranges are copied anew
        self._lock = Lock()
        self._saved = 0.0
        kept = {number for table in self.tables.values() for one in table.ranges for number in one.segments}
        self._last_segment = max(kept, default=0)
        self._remove_files({_FILE, *map(segment_name, kept)})

    def __enter__(self) -> CopyFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if self.tables:
                self.save()
            else:
                self.directory.remove(_FILE)
                with suppress(OSError):  # not empty: it has the segments to be published
                    self.directory.path.rmdir()
        finally:
            self.directory.close()

    def next_segment(self) -> int:
        """Return the number of a new segment."""
        with self._lock:
            self._last_segment += 1
            return self._last_segment

    def add(self, oid: int, copied: CopiedRange) -> None:
        """Register a copied range of a table; write the list of copied ranges at most once a second."""
        with self._lock:
            self.tables[oid].ranges.append(copied)
            if time.monotonic() - self._saved >= _SAVE_SECONDS:
                self._save()

    def begin(self, oid: int, identity: str) -> CopiedTable:
        """Return the copied ranges of a table; remove them first if they were copied with another `identity`.

        Args:
            oid: OID of the table.
            identity: Digest of the table's columns, its publications, the requested keys and the timeline
                (see `ranges.identity`).
        """
        if oid not in self.tables or self.tables[oid].identity != identity:
            self.forget([oid])
            self.tables[oid] = CopiedTable(identity)
        return self.tables[oid]

    def forget(self, oids: Iterable[int]) -> None:
        """Remove the copied rows of tables from the folder."""
        removed = [self.tables.pop(oid) for oid in oids if oid in self.tables]
        if removed:
            self.save()  # first: after a crash, the file must not list removed segments
        for number in (number for table in removed for one in table.ranges for number in one.segments):
            self.directory.remove(segment_name(number))

    def save(self) -> None:
        """Write the file that lists the copied ranges."""
        with self._lock:
            self._save()

    def publish(self) -> None:
        """Make the exit of this context manager keep the segments, and remove the list of copied ranges.

        Call it when all ranges are copied. `Folder.publish_snapshot` then renames the folder for readers.
        """
        self.tables = {}

    def _save(self) -> None:
        self.directory.replace(_FILE, msgspec.json.encode(self.tables) + b"\n")
        self._saved = time.monotonic()

    def _remove_files(self, kept: set[str]) -> None:
        """Remove all files whose names are not in `kept`: files of ranges whose copy was not finished."""
        for name in self.directory.names():
            if name not in kept:
                self.directory.remove(name)
