"""The beginning of a new recording: its slot is created, and its snapshot is copied."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from pgoutput.errors import ConnectionLost, RecordingError, ReplicationError
from pgoutput.recorder import slots
from pgoutput.recorder.catalog import Catalog, read_catalog
from pgoutput.recorder.catalog_changes import compare_catalogs, tables_with_earlier_rows
from pgoutput.recorder.connection import Connection
from pgoutput.recorder.events import Event
from pgoutput.recorder.folder import Folder, State
from pgoutput.recorder.options import Settings
from pgoutput.recorder.server import Server
from pgoutput.recorder.slot_wait import SlotWait
from pgoutput.recorder.snapshot import SchemaChanged, TableCopy
from pgoutput.recording import Source
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_SNAPSHOT_ATTEMPTS: Final = 5
"""Largest number of attempts to copy the tables; an attempt fails if a table is altered meanwhile."""


class SlotCreator:
    """Creates the slot of a new recording, with or without a snapshot.

    After an error, neither the slot nor a partial snapshot is left.

    Args:
        connection: Replication connection.
        catalog_connection: Connection for queries of the catalogs.
        server: Server of the connections.
        folder: Folder of the recording.
        settings: Settings of the recorder.
        report: Called with events, from several threads.
        stop: Returns whether to stop.
    """

    def __init__(
        self,
        connection: Connection,
        catalog_connection: Connection,
        server: Server,
        folder: Folder,
        settings: Settings,
        report: Callable[[Event], None],
        stop: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._catalog_connection = catalog_connection
        self._server = server
        self._folder = folder
        self._settings = settings
        self._report = report
        self._stop = stop

    def create(self, state: State, source: Source, before: Catalog) -> tuple[int, Catalog]:
        """Create the slot, and copy the tables if a snapshot is requested.

        Args:
            state: State of the new recording.
            source: Server, slot, publications and options of the stream.
            before: The catalogs as read before the slot is created.

        Returns:
            The slot's consistent point, and the catalogs read after it.

        Raises:
            Interrupted: The recorder was stopped.
            ReplicationError: The settings or the server do not allow the slot to be created, or tables are
                altered again and again while they are copied.
            RecordingError: The folder was moved or removed.
            OSError: A file cannot be written.
        """
        if not (self._settings.create_slot or self._settings.snapshot):
            raise ReplicationError(
                f"there is no slot {self._settings.slot}: have it created (--create-slot), or give the name "
                "of another"
            )
        if not self._settings.snapshot:
            return self._create_without_snapshot(state)
        for attempts_left in reversed(range(_SNAPSHOT_ATTEMPTS)):
            try:
                return self._create_with_snapshot(state, source, before)
            except SchemaChanged as error:
                if not attempts_left:
                    raise ReplicationError(f"the snapshot cannot begin: {error}") from None
        raise AssertionError

    def adopt(self, state: State, catalog: Catalog, lsn: int) -> None:
        """Save the state of a recording that begins with an existing slot, without a snapshot.

        Args:
            state: State of the new recording.
            catalog: The catalogs, read after the slot's consistent point.
            lsn: LSN that the slot has confirmed.
        """
        self._folder.save_catalog(catalog)
        incomplete = tables_with_earlier_rows(catalog, self._catalog_connection)
        self._folder.save(msgspec.structs.replace(state, acknowledged_lsn=lsn, incomplete=incomplete))

    def _create_without_snapshot(self, state: State) -> tuple[int, Catalog]:
        lsn, _ = self._create_slot()
        try:
            catalog = self._read_catalog()
            self.adopt(state, catalog, lsn)
        except BaseException:  # an unused slot would retain WAL
            self._undo(state)
            raise
        return lsn, catalog

    def _create_with_snapshot(self, state: State, source: Source, before: Catalog) -> tuple[int, Catalog]:
        folder = self._folder
        folder.save_catalog(before)
        folder.save(msgspec.structs.replace(state, snapshot="running"))
        try:
            lsn, snapshot = self._create_slot()
        except ConnectionLost:  # the slot may exist nevertheless: the next start drops it
            raise
        except BaseException:
            folder.reset(state)
            raise
        try:
            copy = TableCopy(
                self._connection.pinned_dsn, source, folder.create_partial_snapshot(), str(snapshot), lsn
            )
            copied = copy.run(self._report, self._stop, self._settings.segment_bytes)
            folder.publish_snapshot()
            catalog = self._read_catalog()
            now = time.time_ns() // 1000 - EPOCH_UNIX_MICROSECONDS
            changes = compare_catalogs(before, catalog, now, self._catalog_connection, copied)
            folder.save_catalog(catalog)
            folder.save(
                msgspec.structs.replace(
                    state, acknowledged_lsn=lsn, snapshot="complete", incomplete=changes.incomplete
                )
            )
        except BaseException:  # an unused slot would retain WAL
            self._undo(state)
            raise
        return lsn, catalog

    def _create_slot(self) -> tuple[int, str | None]:
        connection = self._connection
        with SlotWait(connection.pinned_dsn, connection.backend_pid, self._report):
            return slots.create_slot(
                connection,
                self._settings.slot,
                self._server,
                two_phase=self._settings.options.two_phase,
                failover=self._settings.failover,
                export_snapshot=self._settings.snapshot,
                stop=self._stop,
            )

    def _read_catalog(self) -> Catalog:
        return read_catalog(self._catalog_connection, self._settings.publications)

    def _undo(self, state: State) -> None:
        """Drop the slot, reset the folder; if the connection is lost, the recorder's next start does so."""
        with suppress(ConnectionLost):
            slots.drop_slot(self._connection, self._settings.slot)
            with suppress(RecordingError):  # the folder was moved or removed
                self._folder.reset(state)
