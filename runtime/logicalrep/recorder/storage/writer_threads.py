"""Threads that write and store segments, so that the connection is served while a disk or store is slow."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue
from threading import Thread
from typing import Final

from logicalrep.recording import Job

_MAX_WRITES: Final = 4
"""Largest number of queued jobs that write; each job keeps some megabytes of messages in memory."""

_MAX_ENDS: Final = 1
"""Largest number of queued jobs that store a segment. One more written segment can wait in `submit_end`."""

_WAIT_SECONDS: Final = 0.25
"""Seconds between two calls of `waiting`."""


class WriterThreads:
    """Two threads: one writes segments, the other stores the written segments; a context manager.

    The exit waits for the remaining jobs, and ends the threads.

    Each thread runs its jobs, which are callables, in the order in which they are submitted. After a job has
    failed, no further job is run, and every method raises the error of the job.

    Args:
        waiting: Called several times a second while a method waits for the end of jobs.
    """

    def __init__(self, waiting: Callable[[], None]) -> None:
        self._waiting = waiting
        self._writes: Queue[Job | None] = Queue(_MAX_WRITES)
        self._ends: Queue[Job | None] = Queue(_MAX_ENDS)
        self._error: BaseException | None = None
        self._read_pipe, self._write_pipe = os.pipe()
        os.set_blocking(self._write_pipe, False)
        self._threads = {
            queue: Thread(target=self._run, args=(queue,), name=f"logicalrep-{name}", daemon=True)
            for name, queue in (("write", self._writes), ("store", self._ends))
        }
        for thread in self._threads.values():
            thread.start()

    def __enter__(self) -> WriterThreads:
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait for the remaining jobs, and end the threads."""
        for queue, thread in self._threads.items():
            queue.put(None)
            thread.join()
        os.close(self._read_pipe)
        os.close(self._write_pipe)

    def fileno(self) -> int:
        """Return a file descriptor for select(); readable from the end of a job until `collect` is called."""
        return self._read_pipe

    @property
    def is_idle(self) -> bool:
        """Whether all jobs have ended."""
        # A writing job submits its storing job before it ends, so the queues are not empty in between.
        return all(queue.unfinished_tasks == 0 for queue in self._threads)

    def submit(self, job: Job) -> None:
        """Queue a job that writes; wait while the queue is full."""
        while True:
            self.check()
            try:
                return self._writes.put(job, timeout=_WAIT_SECONDS)
            except Full:
                self._waiting()

    def submit_end(self, job: Job) -> None:
        """Queue a job that stores a segment; wait while the queue is full. Called by jobs that write."""
        self._ends.put(job)

    def collect(self) -> None:
        """Make the file descriptor unreadable again, and raise the error of a failed job."""
        os.read(self._read_pipe, 1 << 16)
        self.check()

    def flush(self) -> None:
        """Wait until all jobs have ended."""
        for queue in self._threads:
            while queue.unfinished_tasks:
                with queue.all_tasks_done:
                    if queue.unfinished_tasks:
                        queue.all_tasks_done.wait(_WAIT_SECONDS)
                self._waiting()
        self.check()

    def check(self) -> None:
        """Raise the error of a failed job; do nothing if no job has failed."""
        if self._error is not None:
            raise self._error

    def _run(self, queue: Queue[Job | None]) -> None:
        while (job := queue.get()) is not None:
            try:
                if self._error is None:
                    job()
            except BaseException as error:
                self._error = self._error or error
            queue.task_done()
            with suppress(BlockingIOError):  # a full pipe is readable already
                os.write(self._write_pipe, b".")
