"""A query that is repeated on a connection of its own, while another connection streams or waits."""

from __future__ import annotations

from threading import Event, Thread
from typing import Self

from pgoutput.capture.connection import Connection, Row
from pgoutput.errors import PgoutputError


class Poller:
    """Repeats a query in a thread; a context manager. Subclasses take the answers.

    Args:
        dsn: The server and the database; see `Connection.pinned_dsn`.
        query: The query.
        seconds: Seconds between two answers.
    """

    def __init__(self, dsn: str, query: str, seconds: float) -> None:
        self._dsn = dsn
        self._query = query
        self._seconds = seconds
        self._stop = Event()
        self._thread = Thread(target=self._run, name="pgoutput-poller", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(self._seconds)  # it may wait for a server that does not answer

    def answered(self, rows: list[Row] | None) -> None:
        """Take an answer, in the thread.

        Args:
            rows: The rows; None if the server does not answer.
        """
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with Connection(self._dsn) as connection:
                    while not self._stop.is_set():
                        self.answered(connection.query(self._query))
                        self._stop.wait(self._seconds)
            except (PgoutputError, ValueError):
                self.answered(None)
                self._stop.wait(self._seconds)
