"""How far the server's WAL has come, asked on a connection of its own: a stream does not say it."""

from __future__ import annotations

from typing import Final

from pgoutput.capture.connection import Row
from pgoutput.capture.polling import Poller
from pgoutput.wire import parse_lsn

_SECONDS: Final = 2.0

_QUERY: Final = """\
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"""


class WalEnd(Poller):
    """Asks now and then for the end of a server's WAL, in a thread; a context manager.

    Attributes:
        lsn: The last answer; None while the server does not answer.

    Args:
        dsn: The server that streams, and the database; see `Connection.pinned_dsn`.
    """

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, _QUERY, _SECONDS)
        self.lsn: int | None = None

    def answered(self, rows: list[Row] | None) -> None:
        """Keep the answer."""
        self.lsn = None if rows is None else parse_lsn(str(rows[0][0]))
