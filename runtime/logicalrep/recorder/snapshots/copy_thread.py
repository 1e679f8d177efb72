"""Snapshots of single tables that are copied while the stream is recorded.

A thread copies the rows of the tables as of the consistent point of a temporary slot. When all transactions
that committed before that point are recorded, the session adds one transaction per table to the recording: a
Truncate, the copied rows, and the table's later changes that are recorded already. From there on the
recording has all rows of the table, and readers treat them like other rows. If only the rows with some keys
are copied, the transaction has Deletes of these keys instead of the Truncate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Queue, SimpleQueue
from threading import Event as Flag, Semaphore, Thread
from typing import Final

from logicalrep._pauses import Pauses
from logicalrep._text import one_line
from logicalrep.errors import ConnectionLost, LogicalrepError, ReplicationError
from logicalrep.recorder.client import Interrupted
from logicalrep.recorder.events import Event
from logicalrep.recorder.options import Settings
from logicalrep.recorder.snapshots.copied_rows import CopiedTables
from logicalrep.recorder.snapshots.copy_folder import CopyFolder
from logicalrep.recorder.snapshots.exported import export_snapshot
from logicalrep.recorder.snapshots.row_keys import Keys
from logicalrep.recorder.snapshots.table_copy import SchemaChanged, TableCopy
from logicalrep.recording import Source

_ATTEMPTS: Final = 5
"""Largest number of attempts to copy tables; an attempt fails if a table is altered meanwhile."""

_RETRY_SECONDS: Final = 1.0
"""Seconds between two attempts if the connection is lost."""

MIN_PAUSE: float = 10.0
"""Seconds until a table that could not be copied is tried again; twice as long after each further failure."""

_GREATEST_PAUSE: Final = 120.0
"""Largest number of seconds until a table that could not be copied is tried again."""


class TableSnapshots:
    """A thread that copies tables on request, one group of tables after the other; a context manager.

    Attributes:
        failures: For each group of tables that could not be copied, their OIDs and the text of the error.

    Args:
        dsn: DSN that names only the server that streams, as `Connection.pinned_dsn` does.
        source: Server, slot, publications and options of the stream.
        folder: Folder for the copied rows, which keeps them until they are part of the recording.
        settings: Settings of the recorder.
        report: Called with events, from several threads.
    """

    def __init__(
        self, dsn: str, source: Source, folder: Path, settings: Settings, report: Callable[[Event], None]
    ) -> None:
        self._dsn, self._source, self._folder = dsn, source, folder
        self._settings, self._report = settings, report
        self._requests: Queue[dict[int, Keys] | None] = Queue()
        self._requested: set[int] = set()
        """OIDs of all tables that were requested and not stored; also of those that could not be copied."""
        self._failed: set[int] = set()
        """OIDs of the tables that could not be copied."""
        self._pauses = Pauses(MIN_PAUSE, _GREATEST_PAUSE)
        self.failures: SimpleQueue[tuple[frozenset[int], str]] = SimpleQueue()
        self._copied: CopiedTables | None = None
        self._stored = Semaphore(0)
        """Semaphore that is released when the tables in `copied` are stored, or when the session ends."""
        self._stop = Flag()
        self._thread = Thread(target=self._run, name="logicalrep-tables", daemon=True)

    def __enter__(self) -> TableSnapshots:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop copying; the next session goes on with the ranges that are not copied."""
        self._stop.set()
        self._stored.release()
        self._requests.put(None)
        self._thread.join()

    def request(self, rows: Mapping[int, Keys]) -> None:
        """Make the thread copy rows; ignore a table if an earlier request for its rows is unfinished.

        A table that could not be copied is copied again after a pause, as its rows may be readable by then.

        Args:
            rows: Keys of the rows to copy, by OID of the table.
        """
        self.retry(self._pauses.ended())
        new = {oid: keys for oid, keys in rows.items() if oid not in self._requested}
        self._requested |= new.keys()
        of_keys: dict[int, Keys] = {oid: keys for oid, keys in new.items() if keys is not None}
        of_tables: dict[int, Keys] = dict.fromkeys(new.keys() - of_keys.keys())
        # Request the rows with given keys first: they are copied quickly, and so do not wait for copies of
        # whole tables.
        for group in (of_keys, of_tables):
            if group:
                self._requests.put(group)

    def retry(self, oids: Collection[int]) -> None:
        """Allow new requests for tables that could not be copied in this session."""
        self._requested -= self._failed.intersection(oids)
        self._failed -= set(oids)

    def retry_later(self, oids: Iterable[int]) -> None:
        """Begin a pause for tables that could not be copied; `request` accepts them again after the pause."""
        for oid in oids:
            self._pauses.begin(oid)

    @property
    def is_copying(self) -> bool:
        """Whether a requested table is not stored yet, and its copy has not failed."""
        return bool(self._requested - self._failed)

    @property
    def copied(self) -> CopiedTables | None:
        """Tables that wait to be added to the recording, or None."""
        return self._copied

    def stored(self) -> None:
        """Note that the tables in `copied` are stored; the thread then copies the next requested tables."""
        assert self._copied is not None
        self._requested -= self._copied.keys.keys()
        for oid in self._copied.keys:
            self._pauses.forget(oid)
        self._copied = None
        self._stored.release()

    def _run(self) -> None:
        while (rows := self._requests.get()) is not None and not self._stop.is_set():
            try:
                self._copied = self._copy(rows)
            except (Interrupted, ConnectionLost):  # the session requests the tables again
                self._stop.wait(_RETRY_SECONDS)
                self._requested -= rows.keys()
            except Exception as error:  # an unexpected error of one table must not end the thread
                if len(rows) > 1:  # the other tables can be copied without the one that has failed
                    for oid, keys in rows.items():
                        self._requests.put({oid: keys})
                elif None not in rows.values():  # the server may refuse a requested key: copy all rows
                    self._requests.put(dict.fromkeys(rows))
                else:
                    self._failed |= rows.keys()
                    known = isinstance(error, LogicalrepError | OSError)
                    reason = one_line(error) if known else f"{type(error).__name__}: {one_line(error)}"
                    self.failures.put((frozenset(rows), reason))
            else:
                self._stored.acquire()
                if self.copied is None:
                    self._forget(rows)

    def _forget(self, oids: Iterable[int]) -> None:
        """Remove copied rows from the folder of copied rows, as they are now part of the recording.

        An OSError is ignored: a later copy of a table removes or uses the rows that remain.
        """
        with suppress(OSError), CopyFolder(self._folder) as folder:
            folder.forget(oids)

    def _copy(self, rows: Mapping[int, Keys]) -> CopiedTables:
        attempts_left = _ATTEMPTS
        with CopyFolder(self._folder) as folder:
            while True:
                try:
                    copied = self._copy_from_snapshot(folder, rows)
                except SchemaChanged as error:
                    attempts_left -= 1
                    if not attempts_left:
                        raise ReplicationError(
                            f"the rows could not be copied in {_ATTEMPTS} attempts: {error}. Do not alter "
                            "the tables while they are copied"
                        ) from None
                else:
                    if copied is not None:
                        tables = {oid: folder.tables[oid] for oid in copied}
                        return CopiedTables(self._folder, {oid: copied.get(oid) for oid in rows}, tables)

    def _copy_from_snapshot(self, folder: CopyFolder, rows: Mapping[int, Keys]) -> dict[int, Keys] | None:
        """Copy missing ranges from a new snapshot; return the keys of the copied rows, by OID of the table.

        The result is None if ranges were left for a later snapshot, as in `TableCopy.run`.
        """
        with export_snapshot(self._dsn, self._report, self._stop.is_set) as snapshot:
            copy = TableCopy(snapshot, self._source, folder, self._settings, rows)
            return copy.run(self._report, self._stop.is_set)
