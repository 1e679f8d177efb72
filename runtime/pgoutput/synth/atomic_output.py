"""Write files and folders atomically: a file or folder appears under its name only when complete."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pgoutput.errors import RecordingError

_DISK_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def require_absent(path: Path) -> None:
    """Check that a file or folder does not exist.

    Raises:
        RecordingError: The path exists.
    """
    if path.exists():
        raise RecordingError(f"{path} exists already; remove it, or choose another name")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, and rename this folder to `path` at the end of the `with` block.

    Raises:
        RecordingError: The path is a file, or a folder that is not empty, or another process is writing it.
        OSError: The disk is full.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise RecordingError(f"{path} is not an empty folder; choose a new or empty folder")
    with staging_folder(path) as stage:
        temporary = stage / path.name
        temporary.mkdir()
        yield temporary
        temporary.rename(path)


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """Yield a locked temporary folder beside `target`, and delete this folder at the end of the `with` block.

    Raises:
        RecordingError: Another process is writing `target`.
        OSError: The disk is full.
    """
    stage = target.with_name(f".{target.name}.partial")
    stage.mkdir(parents=True, exist_ok=True)
    lock = os.open(stage, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordingError(
                f"{target}: another process is writing it; wait for it, or choose another name"
            ) from None
        for leftover in stage.iterdir():  # left by a process that was killed
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        try:
            yield stage
        except OSError as error:
            if error.errno not in _DISK_FULL_ERRORS:
                raise
            text = f"{os.strerror(error.errno)}; partial output was deleted; free disk space, or write less"
            raise OSError(error.errno, text, str(target)) from None
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    finally:
        with suppress(OSError):
            os.close(lock)
