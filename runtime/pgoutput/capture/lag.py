"""How far the server's WAL has come, asked on a connection of its own: a stream does not say it."""

from __future__ import annotations

from threading import Event, Thread
from typing import Final

from pgoutput.capture.connection import Connection
from pgoutput.errors import PgoutputError
from pgoutput.wire import parse_lsn

_SECONDS: Final = 2.0

_QUERY: Final = """\
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"""


class WalEnd:
    """Asks now and then for the end of a server's WAL, in a thread; a context manager.

    Attributes:
        lsn: The last answer; None while the server does not answer.

    Args:
        dsn: The server that streams, and the database; see `Connection.pinned_dsn`.
    """

    def __init__(self, dsn: str) -> None:
        self.lsn: int | None = None
        self._dsn = dsn
        self._stop = Event()
        self._thread = Thread(target=self._run, name="pgoutput-lag", daemon=True)

    def __enter__(self) -> WalEnd:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(_SECONDS)  # it may wait for a server that does not answer

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with Connection(self._dsn) as connection:
                    while not self._stop.is_set():
                        self.lsn = parse_lsn(str(connection.query(_QUERY)[0][0]))
                        self._stop.wait(_SECONDS)
            except (PgoutputError, ValueError):
                self.lsn = None
                self._stop.wait(_SECONDS)
