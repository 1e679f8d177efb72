"""A thread that reads a server's catalogs and timeline again and again while its stream is recorded."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from threading import Condition, Thread
from typing import Final

from logicalrep.errors import ConnectionLost, ReplicationError
from logicalrep.recorder.catalogs.catalog import Catalog
from logicalrep.recorder.catalogs.changes import (
    CatalogChanges,
    PublicationRecreated,
    check_publication_oids,
    compare_catalogs,
)
from logicalrep.recorder.catalogs.column_changes import with_undescribed, without_undescribed
from logicalrep.recorder.catalogs.publication_changes import with_missing_publications
from logicalrep.recorder.catalogs.queries import existing_relations, read_catalog, wal_end
from logicalrep.recorder.client import Connection, Slot, Timeline, find_slot, read_timelines

_MIN_PAUSE: Final = 2.0
"""Smallest number of seconds between two readings of the catalogs."""

_PAUSE_FACTOR: Final = 100
"""Ratio of the pause after a reading of the catalogs to the duration of the reading.

The pause limits the load on servers with many tables.
"""

_MAX_PAUSE: Final = 5.0
"""Largest pause in seconds, unless this is less than ten times the duration of the reading.

A table that leaves a published schema and returns is noticed only by a reading of the catalogs.
"""

_ANSWER_SECONDS: Final = 5.0
"""Largest number of seconds that `read_now` waits for a reading of the catalogs."""

_COMPARED: Final = "tables", "publications", "types"
"""Fields of `Catalog` whose changes `take_updates` returns."""


class TimelineChanged(ConnectionLost):
    """The server has switched to another timeline; the next session checks the new timeline."""


class DdlEventsInstalled(ConnectionLost):
    """The event trigger that describes alterations was installed; the next session receives its messages."""


_ENDS: Final = PublicationRecreated, TimelineChanged, DdlEventsInstalled
"""Errors of the server after which the thread ends, so that the session ends too."""


class CatalogWatch:
    """A thread that reads the server's catalogs repeatedly, on its own connection; a context manager.

    Attributes:
        wal_lsn: End of the server's WAL at the last reading of the catalogs; None while the server does not
            answer.
        end_lsn: End of the server's WAL, read about every 2 seconds; None while the server does not answer.
        slot: The replication slot when `end_lsn` was read; None while the server does not answer.
        settled: Pair of xid and LSN: all transactions with a lower xid ended at or before this LSN.

    Args:
        dsn: DSN that names only the server that streams, as `Connection.pinned_dsn` does.
        slot: Name of the replication slot.
        publications: Names of the recorded publications.
        before: The catalogs as read before the thread starts; compared with the first reading.
        timelines: Timeline history of a standby, to notice when its timeline changes; None for a primary.
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        publications: Sequence[str],
        before: Catalog,
        timelines: Sequence[Timeline] | None,
    ) -> None:
        self._dsn = dsn
        self._slot = slot
        self._publications = publications
        self._before = before
        self._timelines = timelines
        self.wal_lsn: int | None = None
        self.end_lsn: int | None = None
        self.slot: Slot | None = None
        self.settled: tuple[int, int] = 0, 0
        self._condition = Condition()
        self._asked: Collection[int] = ()
        self._existing: frozenset[int] = frozenset()
        """OIDs in `_asked` whose relations exist."""
        self._described: set[int] = set()
        self._requested = self._answered = 0
        """Calls of `read_now`: number of all calls, and number of calls that a reading has answered."""
        self._stopped = False
        self._updates: list[tuple[Catalog, CatalogChanges]] = []
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, name="logicalrep-watch", daemon=True)

    def __enter__(self) -> CatalogWatch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        self._thread.join(_MIN_PAUSE)  # not longer: the server may not answer

    def take_updates(self) -> list[tuple[Catalog, CatalogChanges]]:
        """Return the catalog changes found since the previous call of this method, oldest first.

        Each pair has the catalogs as read after a change, and their differences from the catalogs before.

        Raises:
            ReplicationError: A publication was dropped and created again.
            ConnectionLost: The timeline of the server has changed, or the event trigger was installed.
            Exception: An unexpected error has ended the thread.
        """
        with self._condition:
            if self._error is not None:
                raise self._error
            updates, self._updates = self._updates, []
            return updates

    def note_described(self, oids: Collection[int]) -> None:
        """Note that Relation messages show all alterations of the tables with these OIDs.

        `CatalogTable.undescribed` has the columns before the oldest alteration that no Relation message shows
        yet. After the next reading, the thread sets it to None for these tables.
        """
        with self._condition:
            self._described.update(oids)

    def read_now(self, oids: Collection[int] = ()) -> Collection[int] | None:
        """Make the thread read the catalogs now, and wait until the catalogs were read, or cannot be read.

        Args:
            oids: OIDs of relations to check for existence.

        Returns:
            Those of `oids` whose relations exist; None if the catalogs were not read in time.
        """
        with self._condition:
            self._requested += 1
            self._asked = oids
            number = self._requested
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._answered >= number or self._error, _ANSWER_SECONDS)
            self._asked = ()  # later readings do not look for the relations again
            return None if self._answered < number or self.wal_lsn is None else self._existing

    def _run(self) -> None:
        while not self._stopped:
            try:
                # The queries get no `stop`: it would cancel them, and libpq holds the GIL while a cancel
                # request waits for the server's answer.
                with Connection(self._dsn, replication=self._timelines is not None) as connection:
                    while not self._stopped:
                        self._read(connection)
            except Exception as error:
                self.wal_lsn = self.end_lsn = self.slot = None
                with self._condition:
                    self._condition.notify_all()
                    if not isinstance(error, ReplicationError) or isinstance(error, _ENDS):
                        self._error = error
                        return
                    # Connect again, even after a permanent error: a server that shuts down refuses new
                    # connections, but keeps streaming. The recorder's next session reads the catalogs first,
                    # and raises the error if it still occurs.
                    self._answered = self._requested
                self._pause(_MIN_PAUSE)

    def _read(self, connection: Connection) -> None:
        """Read the catalogs once, save changes for `take_updates`, and pause."""
        with self._condition:
            requested, asked = self._requested, self._asked
        began = time.monotonic()
        if self._timelines is not None and read_timelines(connection) != tuple(self._timelines):
            raise TimelineChanged(
                "the standby was promoted, or follows another timeline: the recorder has to connect again"
            )
        catalog = read_catalog(connection, self._publications)
        self.wal_lsn = self.end_lsn = catalog.lsn
        self.settled = self._before.xid, catalog.lsn
        self.slot = find_slot(connection, self._slot)
        check_publication_oids(self._before, catalog)
        if catalog.ddl_events and not self._before.ddl_events:
            raise DdlEventsInstalled(
                "the event trigger was installed: the recorder has to connect again to receive its messages"
            )
        changes = compare_catalogs(self._before, catalog, connection)
        catalog = with_missing_publications(self._before, catalog, self._publications)
        catalog = with_undescribed(self._before, catalog)
        existing = frozenset(existing_relations(connection, asked))
        with self._condition:
            if asked is self._asked:
                self._existing = existing
            if any(getattr(catalog, name) != getattr(self._before, name) for name in _COMPARED):
                self._updates.append((catalog, changes))
            self._before = without_undescribed(catalog, self._described)
            self._described.clear()
            self._answered = requested
            self._condition.notify_all()
        duration = time.monotonic() - began
        left = max(_MIN_PAUSE, min(_PAUSE_FACTOR * duration, max(_MAX_PAUSE, 10 * duration)))
        end = time.monotonic() + left
        while not self._pause(min(left, _MIN_PAUSE)) and (left := end - time.monotonic()) > 0:
            self.end_lsn, self.slot = wal_end(connection), find_slot(connection, self._slot)

    def _pause(self, seconds: float) -> bool:
        """Wait for at most `seconds`; return whether `read_now` or the exit ended the wait early."""
        with self._condition:
            return self._condition.wait_for(
                lambda: self._stopped or self._requested > self._answered, seconds
            )
