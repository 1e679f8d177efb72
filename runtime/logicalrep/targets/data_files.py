"""Write, flush, copy and remove the data files of a table, in any table format."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs

from logicalrep._text import bounded, one_line
from logicalrep.errors import RecordingError, ReplicaError
from logicalrep.recording import Location, ObjectStore, StoreUnavailable, sync_path

_CAUSE_CHARACTERS: Final = 250
"""Largest number of characters of a cause in an error; delta-rs adds backtraces and structures."""

LOST: Final = (
    "If files are lost or damaged, put them back, copy the rows of the table again (`logicalrep snapshot`; "
    "not with --history), or build the table anew (`logicalrep replicate --reset-table`)"
)
"""What to do if files of a table are lost or damaged, as the last sentence of an error."""


def table_error(place: Location, problem: str, error: Exception) -> ReplicaError:
    """Return the error of a table or data file that cannot be read or written: what is wrong, and what to do.

    Args:
        place: The table or data file.
        problem: What cannot be done.
        error: The cause. Other errors of the operating system than a missing file get no advice.
    """
    cause = bounded(one_line(error), _CAUSE_CHARACTERS)
    is_clear = isinstance(error, OSError) and error.errno not in (None, errno.ENOENT)
    return ReplicaError(f"{place}: {problem}: {cause}" + ("" if is_clear else f". {LOST}"))


class NewFile:
    """A file that is being written. In an object store, one request stores the file when it is complete.

    Multipart uploads are not used: they take more requests, and if the process is killed, the parts stay in
    the store and cost money.

    Args:
        folder: The folder that the path is relative to.
        path: Path of the file.

    Attributes:
        sink: The stream to write to.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, folder: Location, path: str) -> None:
        self._folder, self._path = folder, path
        self.sink: pa.NativeFile = (
            folder.filesystem.open_output_stream(f"{folder.path}/{path}")
            if folder.is_local
            else pa.BufferOutputStream()
        )

    def discard(self) -> None:
        """Close and remove the file, which is not complete; errors are ignored."""
        with suppress(OSError):
            self.sink.close()
        if self._folder.is_local:
            delete_files(self._folder, [self._path])

    def complete(self) -> int:
        """Complete the file; return its size, in bytes.

        Raises:
            OSError: The file cannot be written.
            ReplicaError: The object store rejects the file, or is unavailable.
        """
        size = int(self.sink.tell())
        if self._folder.is_local:
            self.sink.close()
            return size
        try:
            ObjectStore(self._folder.place).create(self._path, self.sink.getvalue().to_pybytes())
        except (RecordingError, StoreUnavailable) as error:
            raise ReplicaError(f"{self._path}: the data file cannot be written: {one_line(error)}") from error
        return size


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
    """Copy an immutable file to a local path; a local file gets a hard link where that is possible.

    Raises:
        ReplicaError: The file cannot be read, or the copy cannot be written.
    """
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.is_local:
            try:
                os.link(file.path, copy)
            except OSError:  # the copy is on another filesystem, or on one without hard links
                shutil.copyfile(file.path, copy)
        else:
            fs.copy_files(file.path, str(copy), file.filesystem, fs.LocalFileSystem())
    except (OSError, pa.ArrowException) as error:
        raise ReplicaError(f"{file} cannot be copied to {copy}: {one_line(error)}") from error


def delete_files(folder: Location, paths: Iterable[str]) -> None:
    """Remove files that no version of a table uses. A file that cannot be removed is left for later cleaning.

    Args:
        folder: The folder that the paths are relative to.
        paths: Paths of the files.
    """
    if not folder.is_local:  # Arrow would use more requests, and list objects
        with suppress(RecordingError, StoreUnavailable):
            ObjectStore(folder.place).delete(*paths)
        return
    for path in paths:
        with suppress(OSError):
            folder.filesystem.delete_file(f"{folder.path}/{path}")
