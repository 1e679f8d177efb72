"""Looks at a server's catalogs and timeline while its stream is recorded, on connections of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Condition, Thread
from typing import Final

import msgspec

from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.recorder.alterations import Difference, PublicationReplaced, check_identity, compare
from pgoutput.recorder.connection import Connection
from pgoutput.recorder.publications import Published, look
from pgoutput.recorder.timelines import Timeline, read_timelines
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_PAUSE: Final = 2.0
"""Seconds between two looks, at least."""

_SHARE: Final = 20
"""And so many times as long as a look takes, so that servers with many tables have little work from it."""


class Seen(msgspec.Struct, frozen=True):
    """What a look found."""

    published: Published
    difference: Difference


class TimelineChanged(ConnectionLost):
    """The server is on another timeline than when the session began; the next session notes it."""


class Watch:
    """Looks now and then, in a thread; a context manager.

    Attributes:
        wal_lsn: End of the server's WAL at the last look, which the stream does not tell; None while the
            server does not answer.

    Args:
        dsn: Leads to the server that streams, and to no other.
        publications: The publications that are recorded.
        before: What they published at the last look.
        timelines: The history of the server's WAL if it is a standby, whose timeline may change; else None.
    """

    def __init__(
        self, dsn: str, publications: Sequence[str], before: Published, timelines: Sequence[Timeline] | None
    ) -> None:
        self._dsn = dsn
        self._publications = publications
        self._before = before
        self._timelines = timelines
        self.wal_lsn: int | None = None
        self._condition = Condition()
        self._wanted = self._done = 0
        """Looks that were asked for at once, and how many of them have been answered."""
        self._stopped = False
        self._seen: list[Seen] = []
        self._failure: ReplicationError | None = None
        self._thread = Thread(target=self._run, name="pgoutput-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify_all()
        self._thread.join(_PAUSE)  # it may wait for a server that does not answer

    def news(self) -> list[Seen]:
        """Return what was found since the last call; empty where nothing is different.

        Raises:
            ReplicationError: A publication was dropped and created anew.
            ConnectionLost: The timeline changed.
        """
        with self._condition:
            if self._failure is not None:
                raise self._failure
            seen, self._seen = self._seen, []
            return seen

    def look_now(self, seconds: float) -> bool:
        """Wait for a look that begins after this call; return whether there was one in so many seconds."""
        with self._condition:
            self._wanted += 1
            wanted = self._wanted
            self._condition.notify_all()
            return self._condition.wait_for(lambda: self._done >= wanted or self._failure, seconds) is True

    def _run(self) -> None:
        while not self._stopped:
            try:
                # Its queries are not cancelled: libpq would hold the GIL until the server has answered.
                with Connection(self._dsn, replication=self._timelines is not None) as connection:
                    while not self._stopped:
                        self._step(connection)
            except (PublicationReplaced, TimelineChanged) as error:
                with self._condition:
                    self._failure = error
                    self._condition.notify_all()
                return
            except ReplicationError:  # also what the server refuses: the next session begins with a look
                self.wal_lsn = None
                self._wait(_PAUSE)

    def _step(self, connection: Connection) -> None:
        with self._condition:
            answered = self._wanted
        began = time.monotonic()
        if self._timelines is not None and read_timelines(connection) != tuple(self._timelines):
            raise TimelineChanged("the standby was promoted, or follows another timeline")
        now = look(connection, self._publications)
        self.wal_lsn = now.lsn
        check_identity(self._before, now)
        seen_at = time.time_ns() // 1000 - EPOCH_UNIX_MICROSECONDS
        difference = compare(self._before, now, seen_at, connection)
        with self._condition:
            if (now.tables, now.publications) != (self._before.tables, self._before.publications):
                self._seen.append(Seen(now, difference))
            self._before = now
            self._done = answered
            self._condition.notify_all()
        self._wait(max(_PAUSE, _SHARE * (time.monotonic() - began)))

    def _wait(self, seconds: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._stopped or self._wanted > self._done, seconds)
