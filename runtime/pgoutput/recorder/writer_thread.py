"""A thread that writes files, so that the connection is served while the disk is slow."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue
from threading import Thread
from typing import Final

from pgoutput.recording import Job

_MAX_QUEUED: Final = 4
"""Largest number of queued jobs; each job keeps some megabytes of messages in memory."""

_WAIT_SECONDS: Final = 0.25
"""Seconds between two calls of `waiting`."""


class WriterThread:
    """A thread that runs jobs, which are callables, in the order of `submit` calls; a context manager.

    After a job has failed, no further job is run, and every method raises the error of the job.

    Args:
        waiting: Called several times a second while a method waits for the end of jobs.
    """

    def __init__(self, waiting: Callable[[], None]) -> None:
        self._waiting = waiting
        self._jobs: Queue[Job | None] = Queue(_MAX_QUEUED)
        self._error: BaseException | None = None
        self._read_pipe, self._write_pipe = os.pipe()
        os.set_blocking(self._write_pipe, False)
        self._thread = Thread(target=self._run, name="pgoutput-disk", daemon=True)
        self._thread.start()

    def __enter__(self) -> WriterThread:
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for the remaining jobs, and end the thread."""
        self._jobs.put(None)
        self._thread.join()
        os.close(self._read_pipe)
        os.close(self._write_pipe)

    def fileno(self) -> int:
        """Return a file descriptor for select(); readable from the end of a job until `collect` is called."""
        return self._read_pipe

    @property
    def is_idle(self) -> bool:
        """Whether all jobs have ended."""
        return self._jobs.unfinished_tasks == 0

    def submit(self, job: Job) -> None:
        """Queue a job; wait while the queue is full."""
        while True:
            self.check()
            try:
                return self._jobs.put(job, timeout=_WAIT_SECONDS)
            except Full:
                self._waiting()

    def collect(self) -> None:
        """Make the file descriptor unreadable again, and raise the error of a failed job."""
        os.read(self._read_pipe, 1 << 16)
        self.check()

    def flush(self) -> None:
        """Wait until all jobs have ended."""
        while not self.is_idle:
            with self._jobs.all_tasks_done:
                self._jobs.all_tasks_done.wait(_WAIT_SECONDS)
            self._waiting()
        self.check()

    def check(self) -> None:
        """Raise the error of a failed job; do nothing if no job has failed."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self._error is None:
                    job()
            except BaseException as error:
                self._error = error
            self._jobs.task_done()
            with suppress(BlockingIOError):  # a full pipe is readable already
                os.write(self._write_pipe, b".")
