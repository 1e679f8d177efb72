"""Writing in a thread, so that the connection is served while the disk is slow."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue
from threading import Thread
from typing import Final

from pgoutput.recording import Job

_QUEUED: Final = 4
"""Jobs that wait, at most: batches of some megabytes."""

_PATIENCE: Final = 0.25
"""Seconds between two calls of `waiting`."""


class Disk:
    """Runs jobs in a thread of its own, in their order; a context manager.

    After a job that failed no other is run, and every call raises what it raised.

    Args:
        waiting: Is called now and then while jobs must be waited for.
    """

    def __init__(self, waiting: Callable[[], None]) -> None:
        self._waiting = waiting
        self._jobs: Queue[Job | None] = Queue(_QUEUED)
        self._failure: BaseException | None = None
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = Thread(target=self._run, name="pgoutput-disk", daemon=True)
        self._thread.start()

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for the jobs that are left, and end the thread."""
        self._jobs.put(None)
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """For select: readable when a job was done; see `done`."""
        return self._read

    @property
    def idle(self) -> bool:
        """Whether all jobs are done."""
        return self._jobs.unfinished_tasks == 0

    def submit(self, job: Job) -> None:
        """Run a job after those before it; waits while there are many."""
        while True:
            self.check()
            try:
                return self._jobs.put(job, timeout=_PATIENCE)
            except Full:
                self._waiting()

    def done(self) -> None:
        """Take note of the jobs that were done."""
        os.read(self._read, 1 << 16)
        self.check()

    def flush(self) -> None:
        """Wait until all jobs are done."""
        while not self.idle:
            with self._jobs.all_tasks_done:
                self._jobs.all_tasks_done.wait(_PATIENCE)
            self._waiting()
        self.check()

    def check(self) -> None:
        """Raise what a job has raised."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self._failure is None:
                    job()
            except BaseException as failure:
                self._failure = failure
            self._jobs.task_done()
            with suppress(BlockingIOError):  # enough bytes are there to be noticed
                os.write(self._write, b".")
