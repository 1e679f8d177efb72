"""The snapshot: copies of published tables as of a consistent point, written as segments.

The copy follows the server's own initial synchronization (fetch_table_list and copy_table in
src/backend/replication/logical/tablesync.c). Unlike the server, it copies tables in ranges, and several
workers copy ranges of one table.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, Self

from logicalrep.columns import Cells, encode_inserts
from logicalrep.errors import ConnectionLost, ReplicationError
from logicalrep.recorder.catalogs import PublishedTable, check_privileges, published_tables, query_catalog
from logicalrep.recorder.client import Connection, Interrupted, PermissionDenied
from logicalrep.recorder.events import Event, Snapshotted
from logicalrep.recorder.options import Settings
from logicalrep.recorder.snapshots.copy_folder import CopiedRange, CopyFolder
from logicalrep.recorder.snapshots.copy_format import copied_cells
from logicalrep.recorder.snapshots.exported import ExportedSnapshot
from logicalrep.recorder.snapshots.ranges import RangePlan, Task, identity
from logicalrep.recorder.snapshots.row_keys import Keys
from logicalrep.recorder.snapshots.segment import SnapshotSegment
from logicalrep.recording import Source
from logicalrep.wire import EPOCH_UNIX_MICROSECONDS

_SNAPSHOT: Final = """\
SELECT (extract(epoch FROM now()) * 1000000)::int8,
    txid_snapshot_xmin(txid_current_snapshot()) % 4294967296"""
"""Query for the time of a snapshot in microseconds, and for the first xid that the snapshot may lack."""


class SchemaChanged(Exception):
    """A table was altered after the snapshot was exported and before the table was locked."""


class TableCopy:
    """Copies the missing ranges of published tables, as of an exported snapshot, to a folder.

    Args:
        snapshot: The snapshot.
        source: Server, slot, publications and options of the stream that continues the snapshot.
        folder: Folder for the copied rows.
        settings: Settings of the recorder.
        rows: Keys of the rows to copy, by OID of the table; None for all rows of all published tables.
    """

    def __init__(
        self,
        snapshot: ExportedSnapshot,
        source: Source,
        folder: CopyFolder,
        settings: Settings,
        rows: Mapping[int, Keys] | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._source = source
        self._folder = folder
        self._settings = settings
        self._wanted = rows
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._tables_done = self._ranges_done = self._bytes_done = self._bytes_copied = 0
        self._rows: Counter[int] = Counter()
        """Number of rows copied from this snapshot, by OID of the table."""
        self._locked: list[Task] = []
        """Ranges of tables that a worker could not lock; the connection with the locks copies these."""
        self._has_rest = False
        """Whether ranges were left for a later snapshot, because this one is too old."""

    def run(self, report: Callable[[Event], None], stop: Callable[[], bool]) -> dict[int, Keys] | None:
        """Copy the missing ranges of the tables.

        Args:
            report: Called with `Snapshotted` events, from several threads.
            stop: Returns whether to stop.

        Returns:
            Keys of the copied rows (None for all rows), by OID of each copied table. None instead of a dict
            if ranges were left for a later snapshot, because this one is older than `max_snapshot_age`.

        Raises:
            Interrupted: The copy was stopped.
            SchemaChanged: A table was altered; the copy must be repeated with a new snapshot.
            ReplicationError: The server refuses a statement, or the connection was lost.
            OSError: A segment cannot be written.
        """
        self._report, self._stop = report, stop
        with self._snapshot.connect(self._is_over, self._report) as connection:
            now, xmin = connection.query(_SNAPSHOT)[0]
            self._time, self._xmin = int(now) - EPOCH_UNIX_MICROSECONDS, int(xmin)
            tables = self._lock_tables(connection)
            self._plan = self._make_plan(connection, tables)
            copied = self._folder.tables
            oids = sorted((table.relation.oid for table in tables), key=self._plan.mixable.__contains__)
            missing = {oid: self._plan.missing(oid, copied[oid]) for oid in oids}
            self._tables = len(tables)
            self._tables_done = sum(not tasks for tasks in missing.values())
            self._bytes_done = sum(self._plan.size(place) for oid in oids for place in copied[oid].last)
            self._copy_all(connection, [task for tasks in missing.values() for task in tasks])
            if self._has_rest:
                return None
            outdated = [self._plan.outdated(oid, copied[oid], self._snapshot.lsn) for oid in oids]
            self._copy_all(connection, [task for tasks in outdated for task in tasks])
        return {oid: self._plan.keys.get(oid) for oid in oids}

    def _make_plan(self, connection: Connection, tables: list[PublishedTable]) -> RangePlan:
        """Divide the tables into ranges; remove copied ranges that do not fit the tables any more."""
        catalog = query_catalog(connection, self._source.publications, self._snapshot.lsn)
        folder, plan = self._folder, RangePlan(connection, tables, catalog, self._wanted or {})
        folder.forget(folder.tables.keys() - catalog.tables.keys())
        for table in tables:
            oid = table.relation.oid
            description = identity(table, catalog, self._source.timeline, plan.keys.get(oid))
            copied = folder.begin(oid, description)
            lsns = copied.lsns | ({self._snapshot.lsn} if plan.missing(oid, copied) else set())
            if len(lsns) > 1 and oid not in plan.mixable:
                folder.forget([oid])
                folder.begin(oid, description)
        return plan

    def _copy_all(self, connection: Connection, tasks: list[Task]) -> None:
        """Copy ranges with several workers; `connection` copies from tables that the workers cannot lock."""
        if not tasks:
            return
        pending = iter(tasks)
        self._left = Counter(task.table.relation.oid for task in tasks)
        count = min(self._settings.workers, len(tasks))
        with ThreadPoolExecutor(count, "logicalrep-snapshot") as pool:
            workers = [pool.submit(self._work, pending) for _ in range(count)]
        errors = [error for worker in workers if (error := worker.exception()) is not None]
        if errors:
            # When a worker fails, the others are interrupted: raise the error of the worker that failed.
            raise min(errors, key=lambda error: isinstance(error, Interrupted))
        with _Storing() as storing:
            while self._locked:
                self._copy(connection, self._locked.pop(), storing)

    def _lock_tables(self, connection: Connection) -> list[PublishedTable]:
        """Lock the published tables against changes of their columns; return the tables as of the snapshot.

        Raises:
            SchemaChanged: A table was altered after the snapshot.
        """
        tables = self._published(connection)
        try:
            check_privileges(connection, [table.relation.oid for table in tables])
            for table in tables:
                connection.query(table.lock)
            with Connection(self._snapshot.dsn, stop=self._is_over) as latest:
                # If an ALTER TABLE waits for these locks, this connection would wait behind the ALTER TABLE.
                latest.query("SET lock_timeout = '1s'")
                now = self._published(latest)
        except (ConnectionLost, PermissionDenied):
            raise
        except ReplicationError as error:  # a table or column was dropped
            raise SchemaChanged(str(error)) from None
        if {table.lock: table for table in now} != {table.lock: table for table in tables}:
            raise SchemaChanged("tables were altered after the snapshot was taken")
        return tables

    def _published(self, connection: Connection) -> list[PublishedTable]:
        binary = self._source.options.get("binary") == "on"
        tables = published_tables(connection, self._source.publications, binary=binary)
        return [one for one in tables if self._wanted is None or one.relation.oid in self._wanted]

    def _work(self, pending: Iterator[Task]) -> None:
        """Copy ranges from `pending` until none is left, or the snapshot is too old."""
        locked: dict[int, bool] = {}
        try:
            with self._snapshot.connect(self._is_over, self._report) as connection, _Storing() as storing:
                while (task := self._next(pending)) is not None:
                    oid = task.table.relation.oid
                    if oid not in locked:
                        locked[oid] = self._lock_table(connection, task.table)
                    if locked[oid]:
                        self._copy(connection, task, storing)
                    else:
                        self._locked.append(task)
        except BaseException:
            self._failed = True
            raise

    _failed = False
    """Whether a worker has failed; the other workers then stop."""

    @staticmethod
    def _lock_table(connection: Connection, table: PublishedTable) -> bool:
        """Lock a table without waiting; return whether the table could be locked.

        `_lock_tables` has locked the table on another connection. If an ALTER TABLE waits for that lock, any
        later lock request, such as that of `connection`, would wait behind the ALTER TABLE. Then only the
        other connection can read the table.
        """
        connection.query("SAVEPOINT before")
        try:
            connection.query(f"{table.lock} NOWAIT")
        except ConnectionLost:
            raise
        except ReplicationError:
            connection.query("ROLLBACK TO before")
            return False
        return True

    def _next(self, pending: Iterator[Task]) -> Task | None:
        self._check()
        with self._lock:
            task = next(pending, None)
            if task is None or not self._is_too_old_for(task):
                return task
            self._has_rest = True
            return None

    def _is_too_old_for(self, task: Task) -> bool:
        """Return whether a range must wait for a later snapshot, because this one exceeds `max_snapshot_age`.

        Some ranges need not wait: the first range that is copied from this snapshot, ranges of a table whose
        ranges must all come from one snapshot, and ranges of which only newer rows are copied (`Task.since`).
        """
        limit = self._settings.max_snapshot_age
        return (
            limit is not None
            and self._age > limit
            and self._ranges_done > 0
            and task.since is None
            and task.table.relation.oid in self._plan.mixable
        )

    @property
    def _age(self) -> float:
        return time.monotonic() - self._begun

    def _copy(self, connection: Connection, task: Task, storing: _Storing) -> None:
        """Copy a range. The range counts as copied when `storing` has stored the last segment of its rows."""
        table, segments = task.table, []
        oid, width = table.relation.oid, len(table.relation.columns)
        segment = None
        if task.since is None:  # an empty table has a segment too, which describes the table
            segment = self._segment(table)
            segments.append(segment.number)
        rows = connection.copy_out(self._plan.statement(task))
        for cells in _read_ahead(copied_cells(rows, table.binary, width)):
            data = encode_inserts(oid, [cells], proto_version=self._source.proto_version)
            with self._lock:
                self._rows[oid] += len(data)
            while len(data):
                if segment is None:
                    segment = self._segment(table)
                    segments.append(segment.number)
                data = data.slice(segment.add(data))
                if len(data):
                    storing.run(segment.finish)
                    segment = None
            self._check()
            self._report_rows(table)
        storing.run(partial(self._store, task, segments, segment))

    def _store(self, task: Task, segments: Sequence[int], last: SnapshotSegment | None) -> None:
        """Store the last segment of a range, and register that the range is copied.

        Args:
            task: The range.
            segments: Numbers of all segments with rows of the range.
            last: The last of these segments; None if it is stored already.
        """
        if last is not None:
            last.finish()
        oid = task.table.relation.oid
        copied = CopiedRange(task.leaf.oid, task.number, self._snapshot.lsn, self._xmin, tuple(segments))
        self._folder.add(oid, copied)
        with self._lock:
            self._left[oid] -= 1
            self._ranges_done += 1
            if task.since is None:
                self._tables_done += not self._left[oid]
                self._bytes_done += self._plan.size(copied.place)
                self._bytes_copied += self._plan.size(copied.place)
        self._report_rows(task.table)

    def _segment(self, table: PublishedTable) -> SnapshotSegment:
        return SnapshotSegment(
            self._folder.directory,
            self._folder.next_segment(),
            self._source,
            self._snapshot.lsn,
            self._time,
            table,
            self._settings.segment_bytes,
        )

    def _is_over(self) -> bool:
        return self._failed or self._stop()

    def _check(self) -> None:
        if self._is_over():
            raise Interrupted

    def _report_rows(self, table: PublishedTable) -> None:
        age = self._age
        self._report(
            Snapshotted(
                table=table.name,
                rows=self._rows[table.relation.oid],
                tables_done=self._tables_done,
                tables=self._tables,
                rows_of_all=self._rows.total(),
                bytes_done=self._bytes_done,
                bytes=self._plan.bytes,
                bytes_per_second=self._bytes_copied / age,
                snapshot_seconds=age,
            )
        )


class _Storing:
    """A thread that stores segments while the next rows are copied.

    It is a context manager, whose exit waits for the thread and raises its error, if there is one.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "logicalrep-store")
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._pool.shutdown()
        if kind is None:
            self._wait()

    def run(self, function: Callable[[], None]) -> None:
        """Start a function in the thread, after the previous function has returned.

        This method waits for the previous function, and not for this one.

        Raises:
            Exception: The error of the previous function, if it has raised one.
        """
        self._wait()
        self._last = self._pool.submit(function)

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()


def _read_ahead(batches: Iterator[Cells]) -> Iterator[Cells]:
    """Yield `batches`; a thread reads the next one ahead, so that the server does not wait for the caller."""
    with ThreadPoolExecutor(1, "logicalrep-copy") as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch
