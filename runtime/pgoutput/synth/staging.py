"""Files and folders that are there when all of them is, and not before."""

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

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def new_file(path: Path) -> None:
    """See that a file or folder is not there yet.

    Raises:
        RecordingError: It is.
    """
    if path.exists():
        raise RecordingError(f"{path}: it is there already; remove it, or choose another name")


def new_folder(path: Path) -> None:
    """See that a folder is not there yet, or empty.

    Raises:
        RecordingError: Something is there.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise RecordingError(f"{path}: a new folder is wanted, or an empty one")


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A folder beside a target, for what is not finished; it goes in any case.

    Raises:
        RecordingError: Another makes the same.
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
                f"{target}: another is making it: let it go on, or choose another name"
            ) from None
        for left in stage.iterdir():  # by one that was killed
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        try:
            yield stage
        except OSError as error:
            if error.errno not in _FULL:
                raise
            text = f"{os.strerror(error.errno)}; nothing is left of what was made: make room, or make less"
            raise OSError(error.errno, text, str(target)) from None
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    finally:
        with suppress(OSError):
            os.close(lock)
