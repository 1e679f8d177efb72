"""Flush, copy and remove the data files of a table, in any table format."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from pgoutput._text import one_line
from pgoutput.errors import ReplicaError
from pgoutput.recording import Location, sync_path


def flush_files(folder: Location, paths: Sequence[str]) -> None:
    """Flush new files to the disk (fsync), if their folder is local.

    Args:
        folder: The folder that the paths are relative to.
        paths: Paths of the files.
    """
    if folder.is_local and paths:
        for path in (*paths, ""):
            sync_path(Path(folder.path, path))


def copy_file(file: Location, copy: Path) -> None:
    """Copy a file that does not change to a local path; a local file gets a hard link.

    Raises:
        ReplicaError: The file cannot be read, or the copy cannot be written.
    """
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.is_local:
            os.link(file.path, copy)
        else:
            fs.copy_files(file.path, str(copy), file.filesystem, fs.LocalFileSystem())
    except (OSError, pa.ArrowException) as error:
        raise ReplicaError(f"{file} cannot be copied to {copy}: {one_line(error)}") from error


def delete_files(store: fs.FileSystem, paths: Iterable[str]) -> None:
    """Remove files that no version of a table has; what cannot be removed is left for later cleaning."""
    for path in paths:
        with suppress(OSError):
            store.delete_file(path)
