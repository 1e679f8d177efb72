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

from logicalrep.errors import RecordingError
from logicalrep.recording import sync_path

_DISK_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def new_output(*targets: Path, folder: bool = False) -> Iterator[list[Path]]:
    """Yield a temporary path for each target; rename them to the targets at the end of the `with` block.

    Args:
        targets: New files or folders, all in one parent folder. If the block fails, none of them is created.
        folder: Whether a target may already exist as an empty folder.

    Raises:
        RecordingError: A target exists, or another process is writing the first target.
        OSError: The disk is full.
    """
    for target in targets:
        if target.exists() and not (folder and target.is_dir() and not any(target.iterdir())):
            wrong = (
                "is not an empty folder; choose a new or empty folder"
                if folder
                else "exists already; choose another name"
            )
            raise RecordingError(f"{target} {wrong}")
    stage = targets[0].with_name(f".{targets[0].name}.partial")
    stage.mkdir(parents=True, exist_ok=True)
    lock = os.open(stage, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordingError(
                f"{targets[0]}: another process is writing it; wait for it, or choose another name"
            ) from None
        for leftover in stage.iterdir():  # left by a process that was killed
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        try:
            yield [stage / target.name for target in targets]
            for target in reversed(targets):
                sync_path(stage / target.name)
                (stage / target.name).rename(target)
            sync_path(targets[0].parent)
        except OSError as error:
            if error.errno not in _DISK_FULL_ERRORS:
                raise
            text = f"{os.strerror(error.errno)}; partial output was deleted; free disk space, or write less"
            raise OSError(error.errno, text, str(targets[0])) from None
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    finally:
        with suppress(OSError):
            os.close(lock)
