"""A thread that reads a server's catalogs and timeline again and again while its stream is recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Condition, Thread
from typing import Final

import msgspec

from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.recorder.catalog import Catalog, read_catalog
from pgoutput.recorder.catalog_changes import (
    CatalogChanges,
    PublicationRecreated,
    check_publication_oids,
    compare_catalogs,
)
from pgoutput.recorder.connection import Connection
from pgoutput.recorder.timelines import Timeline, read_timelines
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_MIN_PAUSE: Final = 2.0
"""Smallest number of seconds between two readings."""

_PAUSE_FACTOR: Final = 20
"""Ratio of a pause to the duration of a reading, to limit the load on servers with many tables."""


class CatalogUpdate(msgspec.Struct, frozen=True):
    """A reading of the catalogs that differs from the one before."""

    catalog: Catalog
    """The reading."""
    changes: CatalogChanges
    """Differences from the reading before."""


class TimelineChanged(ConnectionLost):
    """The server has switched to another timeline; the next session checks and records the switch."""


class CatalogWatch:
    """A thread that reads the catalogs on a connection of its own; a context manager.

    Attributes:
        wal_lsn: End of the server's WAL at the last reading; None while the server does not answer.

    Args:
        dsn: DSN of the server that streams, and of no other server.
        publications: Names of the recorded publications.
        before: The reading of the catalogs to compare with first.
        timelines: History of the server's WAL if the server is a standby, whose timeline may change; else
            None.
    """

    def __init__(
        self, dsn: str, publications: Sequence[str], before: Catalog, timelines: Sequence[Timeline] | None
    ) -> None:
        self._dsn = dsn
        self._publications = publications
        self._before = before
        self._timelines = timelines
        self.wal_lsn: int | None = None
        self._condition = Condition()
        self._requested = self._answered = 0
        """Number of readings that `read_now` has requested, and number of them that are done."""
        self._stopped = False
        self._updates: list[CatalogUpdate] = []
        self._error: ReplicationError | None = None
        self._thread = Thread(target=self._run, name="pgoutput-watch", daemon=True)

    def __enter__(self) -> CatalogWatch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        self._thread.join(_MIN_PAUSE)  # not longer: the server may not answer

    def take_updates(self) -> list[CatalogUpdate]:
        """Return the updates since the last call.

        Raises:
            ReplicationError: A publication was dropped and created again.
            ConnectionLost: The timeline of the server has changed.
        """
        with self._condition:
            if self._error is not None:
                raise self._error
            updates, self._updates = self._updates, []
            return updates

    def read_now(self, timeout: float) -> bool:
        """Wait for a reading that begins after this call.

        Args:
            timeout: Largest number of seconds to wait.

        Returns:
            Whether the reading was done in time.
        """
        with self._condition:
            self._requested += 1
            number = self._requested
            self._condition.notify_all()
            return self._condition.wait_for(lambda: self._answered >= number or self._error, timeout) is True

    def _run(self) -> None:
        while not self._stopped:
            try:
                # Its queries are not cancelled: libpq would hold the GIL until the server has answered.
                with Connection(self._dsn, replication=self._timelines is not None) as connection:
                    while not self._stopped:
                        self._read(connection)
            except (PublicationRecreated, TimelineChanged) as error:
                with self._condition:
                    self._error = error
                    self._condition.notify_all()
                return
            except ReplicationError:  # a permanent error too: the next session begins with a reading
                self.wal_lsn = None
                self._pause(_MIN_PAUSE)

    def _read(self, connection: Connection) -> None:
        """Read the catalogs, note an update, and pause."""
        with self._condition:
            requested = self._requested
        began = time.monotonic()
        if self._timelines is not None and read_timelines(connection) != tuple(self._timelines):
            raise TimelineChanged("the standby was promoted, or follows another timeline")
        catalog = read_catalog(connection, self._publications)
        self.wal_lsn = catalog.lsn
        check_publication_oids(self._before, catalog)
        now = time.time_ns() // 1000 - EPOCH_UNIX_MICROSECONDS
        changes = compare_catalogs(self._before, catalog, now, connection)
        with self._condition:
            if (catalog.tables, catalog.publications) != (self._before.tables, self._before.publications):
                self._updates.append(CatalogUpdate(catalog, changes))
            self._before = catalog
            self._answered = requested
            self._condition.notify_all()
        self._pause(max(_MIN_PAUSE, _PAUSE_FACTOR * (time.monotonic() - began)))

    def _pause(self, seconds: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._stopped or self._requested > self._answered, seconds)
