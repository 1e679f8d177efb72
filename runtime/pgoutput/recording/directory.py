"""A local folder that files are added to: whole or not at all, and never in place of another."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

_PARTIAL: Final = ".partial"

_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems without hard links answer (link(2))."""


class Directory:
    """A folder, held open; a context manager.

    Files go into this folder even if its path leads to another one later: to a new folder after the first was
    moved, or to nothing after it was removed.

    Attributes:
        path: Where it was when it was opened.
        descriptor: Its file descriptor.

    Raises:
        OSError: It is not there, or is no folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)

    @property
    def in_place(self) -> bool:
        """Whether its path still leads to it."""
        try:
            there = self.path.stat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self.descriptor))

    def names(self) -> list[str]:
        """Return the names of its files and folders."""
        return os.listdir(self.descriptor)

    def create(self, name: str) -> BinaryIO:
        """Open a new file that readers do not see before `publish`; one left unfinished is removed.

        It is not written to again: a writer of this process that was given up may still have it open, and
        ends its file when it is collected as garbage.
        """
        self.remove(_partial(name))
        return open(
            _partial(name),
            "xb",
            opener=lambda path, flags: os.open(path, flags, 0o666, dir_fd=self.descriptor),
        )

    def publish(self, name: str) -> None:
        """Give a file made by `create`, which is on the disk, its name.

        Raises:
            FileExistsError: There is a file of this name; it stays as it is.
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
        """Write a small file in place of the one of this name; a crash leaves the old one or the new one.

        Raises:
            OSError: The folder was removed, or the disk failed.
        """
        with self.create(name) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.rename(_partial(name), name)
        os.fsync(self.descriptor)

    def sync(self) -> None:
        """Wait until the names of its files are on the disk."""
        os.fsync(self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_partial(self) -> None:
        """Remove files that were not published: a writer left them unfinished."""
        for name in self.names():
            if name.startswith(".") and name.endswith(_PARTIAL):
                mode = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode
                if not stat.S_ISDIR(mode):  # a snapshot that was not finished is a folder
                    self.remove(name)

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name; a file of that name is replaced, a folder with files is not."""
        os.rename(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)


def _partial(name: str) -> str:
    return f".{name}{_PARTIAL}"
