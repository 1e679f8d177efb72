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
    """An open folder; a context manager.

    Files are created in the opened folder, even if the folder is moved and another folder is created at its
    path.

    Attributes:
        path: Path of the folder when it was opened.
        descriptor: File descriptor of the folder.

    Raises:
        OSError: The path does not exist or is not a folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path)
        self.descriptor: int = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

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

    def names(self) -> list[str]:
        """Return the names of the files and folders in the folder."""
        return os.listdir(self.descriptor)

    def create(self, name: str) -> BinaryIO:
        """Create a file under a temporary name, for writing; `publish` gives the file its final name.

        An unfinished file with the same final name is removed first.
        """
        # Removed, not truncated: an abandoned writer may still have the old file open, and writes its end
        # when it is garbage-collected.
        self.remove(_partial(name))
        return open(
            _partial(name),
            "xb",
            opener=lambda path, flags: os.open(path, flags, 0o666, dir_fd=self.descriptor),
        )

    def publish(self, name: str) -> None:
        """Give a file that `create` opened its final name, durably.

        The file's content must have been flushed to the disk (fsync) before.

        Raises:
            FileExistsError: A file of this name exists already; the existing file is not changed.
            OSError: The folder was removed, or the disk failed.
        """
        partial = _partial(name)
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
        """Create or replace a small file atomically: after a crash, its content is the old or the new one.

        Raises:
            OSError: The folder was removed, or the disk failed.
        """
        with self.create(name) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.rename(_partial(name), name)
        os.fsync(self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file; a missing file is no error."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_partial(self) -> None:
        """Remove unfinished files: files that `create` opened and `publish` did not rename."""
        for name in self.names():
            if name.startswith(".") and name.endswith(_PARTIAL):
                mode = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode
                if not stat.S_ISDIR(mode):  # an unfinished snapshot is a folder
                    self.remove(name)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder; an existing file or empty folder of the name `new` is replaced.

        Raises:
            OSError: `old` does not exist, or `new` exists and cannot be replaced.
        """
        os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)


def _partial(name: str) -> str:
    return f".{name}{_PARTIAL}"


def sync_path(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
