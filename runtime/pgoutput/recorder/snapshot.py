"""The snapshot: copies of the published tables as of a slot's consistent point, written as segments.

The copy follows the server's own initial synchronization (fetch_table_list and copy_table in
src/backend/replication/logical/tablesync.c).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from pgoutput._arrays import binary_array, repeated_int64, value_offsets
from pgoutput._build import build, fitted
from pgoutput.columns import encode_inserts
from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.jsonlines import to_json
from pgoutput.recorder.connection import Connection, Interrupted
from pgoutput.recorder.copy_format import cell_columns, row_batches
from pgoutput.recorder.events import Event, Snapshotted
from pgoutput.recorder.published_tables import PublishedTable, published_tables
from pgoutput.recording import (
    MESSAGE_SCHEMA,
    Directory,
    Metadata,
    SchemaVersion,
    SegmentFile,
    Source,
    segment_name,
)
from pgoutput.stream import encode_for
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_WORKERS: Final = 4
"""Largest number of tables that are copied in parallel."""

_SEGMENT_MESSAGES: Final = 1 << 20
"""Largest number of messages in a segment of the snapshot; each segment has this many positions reserved."""


class SchemaChanged(Exception):
    """A table was altered after the snapshot was exported and before the table was locked."""


class TableCopy:
    """Copies the published tables, as of an exported snapshot, to segments.

    Args:
        dsn: DSN of the database, on the server that exports the snapshot.
        source: Server, slot, publications and options of the stream that continues the snapshot.
        folder: Folder for the segments.
        snapshot: Name of the exported snapshot.
        lsn: Consistent point of the slot, where the stream begins.
        oids: OIDs of the tables to copy; None for all published tables.
    """

    def __init__(
        self,
        dsn: str,
        source: Source,
        folder: Path,
        snapshot: str,
        lsn: int,
        oids: frozenset[int] | None = None,
    ) -> None:
        self._dsn = dsn
        self._source = source
        self._directory = Directory(folder)
        self._snapshot = snapshot
        self._lsn = lsn
        self._oids = oids
        self._lock = threading.Lock()
        self._segments = 0
        self._tables_done = 0
        self._locked: list[PublishedTable] = []
        """Tables that a worker could not lock; the connection that locked all tables copies these."""

    def run(
        self, report: Callable[[Event], None], stop: Callable[[], bool], segment_bytes: int
    ) -> frozenset[int]:
        """Copy all published tables; return the OIDs of the tables.

        Args:
            report: Called with `Snapshotted` events, from several threads.
            stop: Returns whether to stop.
            segment_bytes: Total size of messages at which a segment ends, in bytes.

        Raises:
            Interrupted: The copy was stopped.
            SchemaChanged: A table was altered; the copy must be repeated with a new snapshot.
            ReplicationError: The server refuses a statement, or the connection was lost.
            OSError: A segment cannot be written.
        """
        self._report, self._stop, self._segment_bytes = report, stop, segment_bytes
        with self._transaction() as connection:
            now = connection.query("SELECT (extract(epoch FROM now()) * 1000000)::int8")[0][0]
            self._time = int(str(now)) - EPOCH_UNIX_MICROSECONDS
            tables = self._lock_tables(connection)
            self._tables = len(tables)
            pending = iter(tables)
            with ThreadPoolExecutor(_WORKERS, "pgoutput-snapshot") as pool:
                workers = [pool.submit(self._work, pending) for _ in range(min(_WORKERS, len(tables)))]
            errors = [error for worker in workers if (error := worker.exception()) is not None]
            if errors:
                # Other workers are interrupted after one has failed: raise the error of that one.
                raise min(errors, key=lambda error: isinstance(error, Interrupted))
            for table in self._locked:
                self._copy(connection, table)
        return frozenset(table.relation.oid for table in tables)

    def _transaction(self) -> Connection:
        """Return a new connection in a transaction that sees the exported snapshot."""
        connection = Connection(self._dsn, stop=self._is_over, on_notice=self._report)
        connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.query(f"SET TRANSACTION SNAPSHOT '{self._snapshot}'")
        return connection

    def _lock_tables(self, connection: Connection) -> list[PublishedTable]:
        """Lock the published tables against changes of their columns; return the tables as of the snapshot.

        Raises:
            SchemaChanged: A table was altered after the snapshot.
        """
        tables = self._published(connection)
        try:
            for table in tables:
                connection.query(table.lock)
            with Connection(self._dsn, stop=self._is_over) as latest:
                # An ALTER TABLE may wait for the locks, and let this connection wait behind it.
                latest.query("SET lock_timeout = '1s'")
                now = self._published(latest)
        except ConnectionLost:
            raise
        except ReplicationError as error:  # a table or column was dropped
            raise SchemaChanged(str(error)) from None
        if {table.lock: table for table in now} != {table.lock: table for table in tables}:
            raise SchemaChanged("tables were altered while the snapshot began")
        return tables

    def _published(self, connection: Connection) -> list[PublishedTable]:
        binary = self._source.options.get("binary") == "on"
        tables = published_tables(connection, self._source.publications, binary=binary)
        return [one for one in tables if self._oids is None or one.relation.oid in self._oids]

    def _work(self, pending: Iterator[PublishedTable]) -> None:
        """Copy tables from `pending` until no table is left."""
        try:
            with self._transaction() as connection:
                while (table := self._next(pending)) is not None:
                    if self._lock_table(connection, table):
                        self._copy(connection, table)
                    else:
                        self._locked.append(table)
        except BaseException:
            self._failed = True
            raise

    _failed = False
    """Whether a worker has failed; the other workers then stop."""

    @staticmethod
    def _lock_table(connection: Connection, table: PublishedTable) -> bool:
        """Lock a table without waiting; return whether the table could be locked.

        If an ALTER TABLE waits for the lock that `_lock_tables` has taken, every later lock request waits
        behind the ALTER TABLE. Only the connection with the lock can still read the table.
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

    def _next(self, pending: Iterator[PublishedTable]) -> PublishedTable | None:
        self._check()
        with self._lock:
            return next(pending, None)

    def _copy(self, connection: Connection, table: PublishedTable) -> None:
        oid, width = table.relation.oid, len(table.relation.columns)
        segment = self._segment(table)
        copied = 0
        for rows in row_batches(connection.copy_out(table.query), is_binary=table.binary is not None):
            cells = cell_columns(rows, table.binary, width)
            data = encode_inserts(oid, cells, proto_version=self._source.proto_version)
            while len(data := data.slice(segment.add(data))):
                segment.finish()
                segment = self._segment(table)
            copied += len(rows)
            self._check()
            self._report_rows(table, copied)
        segment.finish()
        with self._lock:
            self._tables_done += 1
        self._report_rows(table, copied)

    def _segment(self, table: PublishedTable) -> _Segment:
        with self._lock:
            self._segments += 1
            number = self._segments
        return _Segment(
            self._directory, number, self._source, self._lsn, self._time, table, self._segment_bytes
        )

    def _is_over(self) -> bool:
        return self._failed or self._stop()

    def _check(self) -> None:
        if self._is_over():
            raise Interrupted

    def _report_rows(self, table: PublishedTable, rows: int) -> None:
        self._report(
            Snapshotted(table=table.name, rows=rows, tables_done=self._tables_done, tables=self._tables)
        )


class _Segment:
    """A snapshot segment being written, which contains one transaction that inserts rows of one table.

    Args:
        directory: Folder of the snapshot.
        number: Number of the segment.
        source: Server, slot, publications and options of the stream that continues the snapshot.
        lsn: Consistent point of the slot, the LSN of all messages.
        time: Time of the snapshot, in microseconds since 2000-01-01 00:00 UTC.
        table: Table whose rows the segment contains.
        segment_bytes: Size of the rows at which the segment is full, in bytes.
    """

    def __init__(
        self,
        directory: Directory,
        number: int,
        source: Source,
        lsn: int,
        time: int,
        table: PublishedTable,
        segment_bytes: int,
    ) -> None:
        self._bytes_left = self._messages = 0
        self._number, self._source, self._lsn, self._time = number, source, lsn, time
        # Several segments are written in parallel: each has a range of positions reserved.
        self._first = (number - 1) * _SEGMENT_MESSAGES
        self._file = SegmentFile(directory.path / segment_name(number), directory)
        version = source.proto_version
        self._types = [fitted(type_, version) for type_ in table.types]
        self._relation = fitted(table.relation, version)
        begin = build("begin", version, lsn=lsn, time=time)
        first = (begin, *self._types, self._relation)
        self._write(binary_array([encode_for(message, version) for message in first]))
        self._bytes_left = segment_bytes
        commit = build("commit", version, lsn=lsn, end_lsn=lsn, time=time)
        self._commit = binary_array([encode_for(commit, version)])

    def add(self, data: pa.BinaryArray) -> int:
        """Write as many messages as fit into the segment; return the number of written messages."""
        ends = value_offsets(data)[1:] - value_offsets(data)[:1]
        room = int(np.searchsorted(ends, self._bytes_left)) + 1 if self._bytes_left > 0 else 0
        room = min(room, len(data), _SEGMENT_MESSAGES - 1 - self._messages)  # without the Commit
        if room:
            self._write(data.slice(0, room))
        return room

    def finish(self) -> None:
        """Write the last messages and the Commit of the snapshot's rows, and rename the file."""
        self._write(self._commit)
        types, relation = tuple(map(to_json, self._types)), to_json(self._relation)
        version = SchemaVersion(self._first + 1 + len(types), self._lsn, relation, types)
        self._file.finish(
            Metadata(
                kind="snapshot",
                number=self._number,
                session=0,
                source=self._source,
                first_position=self._first,
                messages=self._messages,
                keyframe=0,
                start_lsn=self._lsn,
                end_lsn=self._lsn,
                transactions=1,
                last_commit_time=self._time,
                relations=(version,),
            )
        )

    def _write(self, data: pa.BinaryArray) -> None:
        numbers = (self._lsn, self._time + EPOCH_UNIX_MICROSECONDS)
        columns = [
            repeated_int64(one, len(data), field.type)
            for one, field in zip(numbers, MESSAGE_SCHEMA, strict=False)
        ]
        rows = pa.record_batch([*columns, data], schema=MESSAGE_SCHEMA)
        self._file.add(self._first + self._messages, [rows])
        self._messages += len(data)
        self._bytes_left -= int(value_offsets(data)[-1] - value_offsets(data)[0])
