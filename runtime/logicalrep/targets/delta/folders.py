"""Move and remove the folder of a Delta table, on any filesystem."""

from __future__ import annotations

import os
from contextlib import suppress
from threading import RLock

from pyarrow import ArrowException, fs

from logicalrep._text import one_line
from logicalrep.errors import ReplicaError
from logicalrep.recording import Location

_LOG = "/_delta_log/"

RENAMES = RLock()
"""Held while a folder is renamed, and while a thread relies on the folder of a table keeping its name."""


def move_folder(place: Location, to: Location) -> None:
    """Rename the folder of a Delta table; in an object store, copy the folder, and leave the old one.

    The copy can be read as a Delta table only once its last file is copied. If the process is killed before,
    another call completes the copy.

    Raises:
        ReplicaError: The folder cannot be read or written, or the new folder exists in the local filesystem.
    """
    try:
        if place.is_local:
            with RENAMES:
                place.filesystem.move(place.path, to.path)
            return
        for file in _files(place):
            place.filesystem.copy_file(file, to.path + file.removeprefix(place.path))
    except (OSError, ArrowException) as error:
        raise ReplicaError(f"{place}: cannot be renamed to {to}: {one_line(error)}") from error


def log_inode(place: Location) -> int:
    """Return the inode of a local table's log, which a rename of the folder keeps; 0 if there is none."""
    with suppress(OSError):
        return os.stat(f"{place.path}{_LOG}").st_ino if place.is_local else 0
    return 0


def remove_folder(place: Location) -> None:
    """Remove the folder of a Delta table. Until its last file is removed, the table's properties can be read.

    Raises:
        ReplicaError: The folder cannot be read or removed.
    """
    try:
        files = _files(place)
        data = [file for file in files if _LOG not in file]
        for file in [*data, *reversed(files[len(data) :])]:
            place.filesystem.delete_file(file)
        place.filesystem.delete_dir(place.path)  # in an object store: the empty objects that Arrow makes
    except (OSError, ArrowException) as error:
        raise ReplicaError(f"{place}: cannot be removed: {one_line(error)}") from error


def _files(place: Location) -> list[str]:
    """Return the paths of a table's files: data files first, then the log, from the oldest commit on."""
    selector = fs.FileSelector(place.path, recursive=True, allow_not_found=True)
    files = [info.path for info in place.filesystem.get_file_info(selector) if info.is_file]
    return sorted(files, key=lambda path: (_LOG in path, path))
