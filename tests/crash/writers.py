"""Threads that write to a server, and reconnect after restarts of the server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Event, Thread
from typing import Any, Protocol, Self, TypeAlias

import psycopg

# It warns about lost connections, which are intended in crash tests.
logging.getLogger("psycopg").setLevel(logging.ERROR)

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]


class Writer(Protocol):
    """A writer that changes tables in random steps."""

    steps: int
    """Number of steps that the writer has run."""

    def step(self, connection: Connection) -> None:
        """Run one or several random statements."""

    def settle(self, connection: Connection) -> None:
        """End what the writer has left unfinished; called after each connect and at the end."""


class Writers:
    """Writers that run in threads; a context manager whose exit ends the threads.

    Attributes:
        dsn: DSN of the server. After a failover, set it to the DSN of the new primary.
        reconnects: Number of times that a writer has reconnected.

    Args:
        dsn: DSN of the server.
        writers: The writers.
        pause: Seconds that each writer waits after a step, in addition to its own pauses.
    """

    def __init__(self, dsn: str, writers: Sequence[Writer], pause: float = 0.0) -> None:
        self.dsn = dsn
        self.reconnects = 0
        self._stop = Event()
        self._failures: list[BaseException] = []
        self._writers = writers
        self._pause = pause
        self._threads = [Thread(target=self._run, args=[writer]) for writer in writers]

    @property
    def steps(self) -> int:
        """Number of steps that all writers have run."""
        return sum(writer.steps for writer in self._writers)

    def check(self) -> None:
        """Raise the error of a writer that has failed."""
        if self._failures:
            raise self._failures[0]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.check()
        if exception[0] is None:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                for writer in self._writers:
                    writer.settle(connection)

    def _run(self, writer: Writer) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self.dsn, autocommit=True, prepare_threshold=None) as connection:
                    writer.settle(connection)
                    while not self._stop.is_set():
                        writer.step(connection)
                        self._stop.wait(self._pause)
            except psycopg.OperationalError:  # a restart, or a deadlock
                self.reconnects += 1
                self._stop.wait(0.05)
            except BaseException as failure:
                self._failures.append(failure)
                return
