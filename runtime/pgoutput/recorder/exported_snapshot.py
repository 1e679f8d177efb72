"""A snapshot of the database as of an LSN, for several connections, and how far a recording has got."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from pgoutput.errors import RecordingError
from pgoutput.recorder.connection import Connection
from pgoutput.recorder.events import Event
from pgoutput.recorder.folder import LEASE_FILE
from pgoutput.recorder.lease import is_leased
from pgoutput.recorder.slot_wait import SlotWait
from pgoutput.recorder.slots import create_temporary_slot
from pgoutput.recording import STATE_FILE, PathOrUri, Recording, locate


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
    with Connection(dsn, stop=stop) as holder:
        with Connection(dsn, replication=True, stop=stop) as slot_connection:
            with SlotWait(dsn, slot_connection.backend_pid, report):
                lsn, name = create_temporary_slot(slot_connection, stop)
            holder.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            holder.query(f"SET TRANSACTION SNAPSHOT '{name}'")
            exported = str(holder.query("SELECT pg_export_snapshot()")[0][0])
        yield ExportedSnapshot(dsn, lsn, exported)


class _State(msgspec.Struct):
    acknowledged_lsn: int | None = None


def stored_lsn(folder: PathOrUri) -> int:
    """Return the LSN up to which a recording is known to have all published transactions.

    Raises:
        RecordingError: The folder is not a recording that a recorder has written.
    """
    file = locate(folder) / STATE_FILE
    try:
        state = msgspec.json.decode(file.content() or b"", type=_State)
    except msgspec.DecodeError as error:
        raise RecordingError(f"{file}: it cannot be read ({error}): give the folder of a recorder") from None
    last = Recording(folder, may_be_empty=True).last
    return max(state.acknowledged_lsn or 0, 0 if last is None else last.end_lsn)


def is_recording(folder: PathOrUri) -> bool:
    """Return whether a recorder writes a recording.

    Raises:
        RecordingError: The object store of the recording cannot be read.
        OSError: The folder does not exist.
    """
    location = locate(folder)
    if not location.is_local:
        return is_leased((location / LEASE_FILE).content())
    descriptor = os.open(location.path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
