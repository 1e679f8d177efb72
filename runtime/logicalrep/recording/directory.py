"""Durable, atomic file creation in a local folder: a file appears only when it is complete."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

_PARTIAL: Final = ".partial"

_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Error numbers (errno) that link(2) returns on file systems without hard links."""


class Directory:
    """An open folder; a context manager, whose exit closes the folder's file descriptor.

    Files are created in the opened folder, even if the folder is moved and another folder is created at its
    path.

    Attributes:
        path: Path of the folder when it was opened.
        descriptor: File descriptor of the folder.
        segment_marks: Entries to add to the Parquet metadata of each segment that is written to the folder.

    Raises:
        OSError: The path does not exist or is not a folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path)
        self.descriptor: int = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self.segment_marks: dict[bytes, bytes] = {}

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder's file descriptor."""
        os.close(self.descriptor)

    @property
    def in_place(self) -> bool:
        """Whether `path` still leads to the opened folder, which may have been moved or removed."""
        try:
            current = self.path.stat()
        except OSError:
            return False
        return os.path.samestat(current, os.fstat(self.descriptor))

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of the files and folders in the folder that begin with `prefix`."""
        return [name for name in os.listdir(self.descriptor) if name.startswith(prefix)]

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the files and folders in the folder, in bytes, by name.

        Raises:
            OSError: The folder cannot be read.
        """
        found: dict[str, int] = {}
        for name in os.listdir(self.descriptor):
            with suppress(FileNotFoundError):
                found[name] = self.size(name)
        return found

    def size(self, name: str) -> int:
        """Return the size of a file, in bytes.

        Raises:
            OSError: The file does not exist, or cannot be read.
        """
        return os.stat(name, dir_fd=self.descriptor).st_size

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist.

        Raises:
            OSError: The file cannot be read.
        """
        try:
            with self.open(name) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            OSError: The file does not exist, or cannot be read.
        """
        return open(name, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=self.descriptor))

    def create(self, name: str) -> BinaryIO:
        """Create a file under a temporary name, for writing; `publish` gives the file its final name.

        An unfinished file with the same final name is removed first. The file gets the folder's permissions
        to read and write, reduced by the umask.
        """
        # Removed, not truncated: an abandoned writer may still have the old file open. When this writer is
        # garbage-collected, it writes the end of the old file.
        partial = partial_name(name)
        self._unlink(partial)
        mode = os.fstat(self.descriptor).st_mode & 0o666  # readable for those who may read the folder
        return open(
            partial,
            "xb",
            opener=lambda path, flags: os.open(path, flags, mode, dir_fd=self.descriptor),
        )

    def publish(self, name: str) -> None:
        """Rename a file that `create` opened to its final name, durably.

        The file's content must have been flushed to the disk (fsync) before.

        Raises:
            FileExistsError: A file of this name exists already; the existing file is not changed.
            OSError: The folder was removed, or the disk failed.
        """
        partial = partial_name(name)
        try:
            os.link(partial, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if name in self.names():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None
            self.rename(partial, name)
        else:
            os.unlink(partial, dir_fd=self.descriptor)
        os.fsync(self.descriptor)

    def replace(self, name: str, content: bytes) -> None:
        """Create or replace a small file atomically: after a crash, the file has the old or the new content.

        Raises:
            OSError: The folder was removed, or the disk failed.
        """
        with self.create(name) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.rename(partial_name(name), name)
        os.fsync(self.descriptor)

    def remove(self, *names: str) -> None:
        """Remove files; a missing file is no error."""
        for name in names:
            self._unlink(name)

    def remove_partial(self) -> None:
        """Remove unfinished files: files that `create` opened and `publish` did not rename."""
        for name in os.listdir(self.descriptor):
            if name.startswith(".") and name.endswith(_PARTIAL):
                mode = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode
                if not stat.S_ISDIR(mode):  # an unfinished snapshot is a folder
                    self._unlink(name)

    def _unlink(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder; an existing file or empty folder of the name `new` is replaced.

        Raises:
            OSError: `old` does not exist, or `new` exists and cannot be replaced.
        """
        os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)


def make_folder(path: Path) -> None:
    """Create a folder that only its owner can enter, and missing parents; an existing folder is not changed.

    Raises:
        OSError: The folder cannot be created.
    """
    try:
        path.mkdir(0o700, exist_ok=True)
    except FileNotFoundError:
        make_folder(path.parent)
        path.mkdir(0o700, exist_ok=True)


def partial_name(name: str) -> str:
    """Return the temporary name of a file that `Directory.create` opens."""
    return f".{name}{_PARTIAL}"


def sync_path(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
