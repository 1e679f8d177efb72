"""Report the transaction that delays the creation of a slot.

To create a slot, the server waits for the end of each transaction that is already running, prepared
transactions included (SnapBuildWaitSnapshot in src/backend/replication/logical/snapbuild.c). A standby also
waits for a WAL record of the running transactions, which the primary writes from time to time (documentation,
"Logical Decoding on Standby").
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event as ThreadEvent, Thread
from typing import Final

from logicalrep.errors import LogicalrepError
from logicalrep.recorder.client.connection import Connection, Row
from logicalrep.recorder.events import Event, Waiting
from logicalrep.wire import shown_text

_INTERVAL: Final = 1.0
"""Seconds between two queries for the awaited transaction."""

_QUERY: Final = """\
SELECT pg_is_in_recovery(), w.transactionid, p.gid, coalesce(p.database, a.datname), h.pid,
    coalesce(p.owner, a.usename), a.application_name, a.state, coalesce(p.prepared, a.xact_start)
FROM (VALUES (1)) v
LEFT JOIN pg_locks w ON w.pid = {pid} AND w.locktype = 'transactionid' AND NOT w.granted
LEFT JOIN pg_locks h ON h.transactionid = w.transactionid AND h.locktype = 'transactionid' AND h.granted
LEFT JOIN pg_prepared_xacts p ON p.transaction = w.transactionid
LEFT JOIN pg_stat_activity a ON a.pid = h.pid
LIMIT 1"""
"""Query for the awaited transaction; returns one row, with NULLs if no transaction is awaited.

Every role may run this query. A role without privileges does not see state and start of transactions of other
roles.
"""


class SlotWait:
    """A thread that reports which transaction delays the creation of a slot; a context manager.

    Args:
        dsn: DSN of the server that creates the slot; see `Connection.pinned_dsn`.
        pid: Server process that creates the slot.
        report: Called in the thread with a `Waiting` event when the transaction is known, or has changed.
    """

    def __init__(self, dsn: str, pid: int, report: Callable[[Event], None]) -> None:
        self._dsn = dsn
        self._query = _QUERY.format(pid=pid)
        self._report = report
        self._stop = ThreadEvent()
        self._thread = Thread(target=self._run, name="logicalrep-waiting", daemon=True)
        self._last: list[Row] | None = None
        """Rows that the last query returned; None before the first query."""
        self._reported: list[Row] | None = None
        """Rows from which the last event was made; None before the first event."""

    def __enter__(self) -> SlotWait:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(_INTERVAL)  # not longer: the server may not answer

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(LogicalrepError, ValueError), Connection(self._dsn) as connection:
                while not self._stop.is_set():
                    self._handle(connection.query(self._query))
                    self._stop.wait(_INTERVAL)
            self._stop.wait(_INTERVAL)

    def _handle(self, rows: list[Row]) -> None:
        """Report the transaction in `rows`, a result of `_QUERY`, once two successive results are equal."""
        if rows == self._last and rows != self._reported:
            texts = (None if text is None else shown_text(text) for text in rows[0])
            standby, xid, gid, database, pid, user, application, state, since = texts
            if xid is not None or standby == "t":
                self._reported = rows
                self._report(
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
        self._last = rows
