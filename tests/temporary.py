"""Keep temporary files of the tests in memory where there is room, so that tests do not wait for the disk."""

from __future__ import annotations

import os
import tempfile
from typing import Final

MEMORY: Final = "/dev/shm"
"""Folder of a file system in memory, which most Linux systems have."""

ROOM: Final = 6 << 30
"""Free bytes that `MEMORY` must have."""

SERVERS: Final = "LOGICALREP_TEST_SERVER_FOLDER"
"""Environment variable with the folder for the data of PostgreSQL servers; /tmp if it is not set."""


def use_memory() -> None:
    """Keep temporary files of this process and its children in memory, if there is room and no TMPDIR."""
    if "TMPDIR" not in os.environ and _has_room():
        os.environ["TMPDIR"] = os.environ[SERVERS] = MEMORY
        tempfile.tempdir = None  # it may have been determined already


def _has_room() -> bool:
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return False
    runs_programs = not found.f_flag & getattr(os, "ST_NOEXEC", 0)
    return runs_programs and os.access(MEMORY, os.W_OK) and found.f_bavail * found.f_frsize >= ROOM
