"""A snapshot of the database as of an LSN, for several connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from logicalrep.recorder.client import Connection, SlotWait, create_temporary_slot
from logicalrep.recorder.events import Event


class ExportedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of the database that connections can use as long as the exporting transaction is open."""

    dsn: str
    """DSN of the server that exports the snapshot."""
    lsn: int
    """The snapshot contains the transactions with lower commit LSNs."""
    name: str
    """Name of the exported snapshot."""

    def connect(
        self, stop: Callable[[], bool], on_notice: Callable[[Event], None] = lambda event: None
    ) -> Connection:
        """Return a new connection in a transaction that sees the snapshot.

        Args:
            stop: Called while the connection waits for the server; returns whether to stop waiting.
            on_notice: Called with each notice of the server.
        """
        connection = Connection(self.dsn, stop=stop, on_notice=on_notice)
        connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.query(f"SET TRANSACTION SNAPSHOT '{self.name}'")
        return connection


@contextmanager
def export_snapshot(
    dsn: str, report: Callable[[Event], None], stop: Callable[[], bool]
) -> Iterator[ExportedSnapshot]:
    """Export a snapshot of the database as of the consistent point of a temporary slot.

    The slot is removed at once, so that it retains no WAL.

    Args:
        dsn: DSN of one server.
        report: Called with a `Waiting` event when a transaction delays the slot.
        stop: Returns whether to stop waiting for the slot.
    """
    with Connection(dsn, replication=True, stop=stop) as slot_connection:
        with SlotWait(dsn, slot_connection.backend_pid, report):
            snapshot = ExportedSnapshot(dsn, *create_temporary_slot(slot_connection, stop))
        holder = snapshot.connect(stop)
    with holder:
        exported = holder.query("SELECT pg_export_snapshot()")[0][0]
        yield ExportedSnapshot(dsn, snapshot.lsn, exported)
