"""End the processes that a test run leaves behind, also when the run was interrupted.

Every process of a run inherits the environment variable named by `RUN`, also with another parent, session or
user. The variable identifies the processes that are left.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

RUN: Final = "PYTEST_LOGICALREP_RUN"
"""Name of the environment variable with the run's id. `Server` drops variables that start with PG."""
GRACE: Final = 5.0
"""Seconds that a process may take to end after SIGTERM."""


def watch() -> None:
    """End the run's other processes when this process exits, unless a parent process does so."""
    if RUN not in os.environ:
        os.environ[RUN] = uuid.uuid4().hex
        atexit.register(_end, os.environ[RUN])


def find(run: str) -> list[int]:
    """Return the ids of the run's other processes; none on systems without /proc."""
    marker = f"{RUN}={run}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if marker in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def _end(run: str) -> None:
    deadline = time.monotonic() + GRACE
    number = signal.SIGTERM
    while left := find(run):
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if time.monotonic() > deadline:
            if number == signal.SIGKILL:
                return
            number = signal.SIGKILL
            deadline += GRACE
        time.sleep(0.1)
