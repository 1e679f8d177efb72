"""What the creation of a slot waits for.

The server waits for the end of each transaction that runs when it begins (SnapBuildWaitSnapshot in
src/backend/replication/logical/snapbuild.c), prepared ones included. A standby also waits for a record of the
running transactions, which the primary writes now and then (documentation, "Logical Decoding on Standby").
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event as ThreadEvent
from threading import Thread
from typing import Final

from pgoutput.errors import PgoutputError
from pgoutput.recorder.connection import Connection, Row
from pgoutput.recorder.events import Event, Waiting
from pgoutput.wire import shown_text

_SECONDS: Final = 1.0

_QUERY: Final = """\
SELECT pg_is_in_recovery(), w.transactionid, p.gid, coalesce(p.database, a.datname), h.pid,
    coalesce(p.owner, a.usename), a.application_name, a.state, coalesce(p.prepared, a.xact_start)
FROM (VALUES (1)) v
LEFT JOIN pg_locks w ON w.pid = {pid} AND w.locktype = 'transactionid' AND NOT w.granted
LEFT JOIN pg_locks h ON h.transactionid = w.transactionid AND h.locktype = 'transactionid' AND h.granted
LEFT JOIN pg_prepared_xacts p ON p.transaction = w.transactionid
LEFT JOIN pg_stat_activity a ON a.pid = h.pid
LIMIT 1"""
"""One row. Every role may read it, but sees neither state nor start of the transactions of others."""


class SlotWait:
    """Reports what the creation of a slot waits for, if it lasts; a context manager with a thread.

    Args:
        dsn: The server that creates the slot; see `Connection.pinned_dsn`.
        pid: The server process that creates it.
        tell: Called with an event when the cause is known or has changed; in a thread.
    """

    def __init__(self, dsn: str, pid: int, tell: Callable[[Event], None]) -> None:
        self._dsn = dsn
        self._query = _QUERY.format(pid=pid)
        self._tell = tell
        self._stop = ThreadEvent()
        self._thread = Thread(target=self._run, name="pgoutput-waiting", daemon=True)
        self._seen: list[Row] | None = None
        self._told: list[Row] | None = None

    def __enter__(self) -> SlotWait:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(_SECONDS)  # it may wait for a server that does not answer

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(PgoutputError, ValueError), Connection(self._dsn) as connection:
                while not self._stop.is_set():
                    self._see(connection.query(self._query))
                    self._stop.wait(_SECONDS)
            self._stop.wait(_SECONDS)

    def _see(self, rows: list[Row]) -> None:
        """Report a cause that is seen at two looks one after the other, once."""
        if rows == self._seen and rows != self._told:
            texts = (None if text is None else shown_text(text) for text in rows[0])
            standby, xid, gid, database, pid, user, application, state, since = texts
            if xid is not None or standby == "t":
                self._told = rows
                self._tell(
                    Waiting(
                        xid=None if xid is None else int(xid),
                        gid=gid,
                        database=database,
                        pid=None if pid is None else int(pid),
                        user=user,
                        application=application,
                        state=state,
                        since=since,
                    )
                )
        self._seen = rows
