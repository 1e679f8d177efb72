"""The contents of published tables as they stood when a slot began, as segments.

What is copied follows the server's own initial synchronization: fetch_table_list and copy_table in
src/backend/replication/logical/tablesync.c. Relation and Type messages are as pgoutput would have sent them
(proto.c, logicalrep_write_rel and logicalrep_write_typ).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from pgoutput import messages
from pgoutput._arrays import binary_array, repeated_int64, value_offsets
from pgoutput.columns import encode_inserts
from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.jsonlines import to_json
from pgoutput.recorder.connection import Connection, Interrupted
from pgoutput.recorder.copied import cell_columns, row_batches
from pgoutput.recorder.events import Event, Snapshotted
from pgoutput.recorder.published import PublishedTable, published_tables
from pgoutput.recording import (
    MESSAGE_SCHEMA,
    Directory,
    Metadata,
    SchemaVersion,
    SegmentFile,
    Source,
    segment_name,
)
from pgoutput.versions import CODECS
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS, shown_text

_WORKERS: Final = 4
"""Tables that are copied at a time."""

_SEGMENT_MESSAGES: Final = 1 << 20
"""Messages of a segment, at most. So many positions are set aside for each."""


class SchemaChanged(Exception):
    """A table was altered between the snapshot and the lock: its rows and its columns do not fit together."""


class TableCopy:
    """Copies the published tables as of an exported snapshot.

    Args:
        dsn: The server that exports the snapshot, and the database.
        source: What the stream will be.
        folder: Where the segments go.
        snapshot: The name of the exported snapshot.
        lsn: The consistent point of the slot: the stream goes on from there.
    """

    def __init__(self, dsn: str, source: Source, folder: Path, snapshot: str, lsn: int) -> None:
        self._dsn = dsn
        self._source = source
        self._directory = Directory(folder)
        self._snapshot = snapshot
        self._lsn = lsn
        self._lock = threading.Lock()
        self._segments = 0
        self._tables_done = 0
        self._left: list[PublishedTable] = []

    def run(
        self, tell: Callable[[Event], None], stop: Callable[[], bool], segment_bytes: int
    ) -> frozenset[int]:
        """Copy all of them; return their OIDs.

        Args:
            tell: Is told how it goes; from several threads.
            stop: Says when to stop.
            segment_bytes: A segment ends when its messages have so many bytes.

        Raises:
            Interrupted: It was stopped.
            SchemaChanged: It must be done again, with a new snapshot.
            ReplicationError: The server refuses, or the connection was lost.
            OSError: A segment could not be written.
        """
        self._tell, self._stop, self._segment_bytes = tell, stop, segment_bytes
        with self._transaction() as connection:
            now = connection.query("SELECT (extract(epoch FROM now()) * 1000000)::int8")[0][0]
            self._time = int(str(now)) - EPOCH_UNIX_MICROSECONDS
            tables = self._lock_tables(connection)
            self._tables = len(tables)
            pending = iter(tables)
            with ThreadPoolExecutor(_WORKERS, "pgoutput-snapshot") as pool:
                workers = [pool.submit(self._work, pending) for _ in range(min(_WORKERS, len(tables)))]
            failures = [failure for worker in workers if (failure := worker.exception()) is not None]
            if failures:
                # A worker that was interrupted may only have followed another that had failed.
                raise min(failures, key=lambda failure: isinstance(failure, Interrupted))
            for table in self._left:
                self._copy(connection, table)
        self._directory.sync()
        return frozenset(table.relation.oid for table in tables)

    def _transaction(self) -> Connection:
        """A connection that sees what the snapshot does."""
        connection = Connection(self._dsn, stop=self._is_over, on_notice=self._tell)
        connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.query(f"SET TRANSACTION SNAPSHOT '{self._snapshot}'")
        return connection

    def _lock_tables(self, connection: Connection) -> list[PublishedTable]:
        """The tables as they were at the snapshot, locked so that they stay so."""
        tables = self._published(connection)
        try:
            for table in tables:
                connection.query(table.lock)
            with Connection(self._dsn, stop=self._is_over) as latest:
                latest.query("SET lock_timeout = '1s'")  # one who waits to alter a table stands before us
                now = self._published(latest)
        except ConnectionLost:
            raise
        except ReplicationError as error:  # there is no such table any more, or no such column
            raise SchemaChanged(str(error)) from None
        if {table.lock: table for table in now} != {table.lock: table for table in tables}:
            raise SchemaChanged("tables were altered while the snapshot began")
        return tables

    def _published(self, connection: Connection) -> list[PublishedTable]:
        binary = self._source.options.get("binary") == "on"
        return published_tables(connection, self._source.publications, binary=binary)

    def _work(self, pending: Iterator[PublishedTable]) -> None:
        """Copy tables while there are any."""
        try:
            with self._transaction() as connection:
                while (table := self._next(pending)) is not None:
                    if self._lock_table(connection, table):
                        self._copy(connection, table)
                    else:
                        self._left.append(table)
        except BaseException:
            self._failed = True
            raise

    _failed = False
    """Whether a worker has given up, so that the others need not go on."""

    @staticmethod
    def _lock_table(connection: Connection, table: PublishedTable) -> bool:
        """Whether it could be locked at once.

        If somebody waits to change the table, who comes later waits too, and that one waits for us, who have
        locked it already. The connection that has locked it can still read it.
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
            data = encode_inserts(oid, cell_columns(rows, table.binary, width))
            while len(data := data.slice(segment.add(data))):
                segment.finish()
                segment = self._segment(table)
            copied += len(rows)
            self._check()
            self._tell_rows(table, copied)
        segment.finish()
        with self._lock:
            self._tables_done += 1
        self._tell_rows(table, copied)

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

    def _tell_rows(self, table: PublishedTable, rows: int) -> None:
        self._tell(
            Snapshotted(
                table=shown_text(table.name), rows=rows, tables_done=self._tables_done, tables=self._tables
            )
        )


class _Segment:
    """A segment of the snapshot: a transaction that inserts rows of one table.

    Args:
        directory: Where it goes.
        number: Its number.
        source: What the stream will be.
        lsn: The consistent point.
        time: The time of the snapshot, in microseconds since 2000.
        table: Whose rows they are.
        segment_bytes: It is full when its rows have so many.
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
        self._table = table
        # So many positions are set aside for each segment, as several are written at a time.
        self._first = (number - 1) * _SEGMENT_MESSAGES
        self._file = SegmentFile(directory.path / segment_name(number), directory)
        encode = CODECS[source.proto_version].encode
        first = (messages.Begin(lsn, time, 0), *table.types, table.relation)
        self._write(binary_array([encode(message) for message in first]))
        self._bytes_left = segment_bytes
        self._commit = binary_array([encode(messages.Commit(lsn, lsn, time))])

    def add(self, data: pa.BinaryArray) -> int:
        """Write messages, as many as it has room for; gives how many."""
        ends = value_offsets(data)[1:] - value_offsets(data)[:1]
        room = int(np.searchsorted(ends, self._bytes_left)) + 1 if self._bytes_left > 0 else 0
        room = min(room, len(data), _SEGMENT_MESSAGES - 1 - self._messages)  # but for the Commit
        if room:
            self._write(data.slice(0, room))
        return room

    def finish(self) -> None:
        """Write it to the disk."""
        self._write(self._commit)
        types, relation = self._table.types, to_json(self._table.relation)
        version = SchemaVersion(self._first + 1 + len(types), self._lsn, relation, tuple(map(to_json, types)))
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
        same = [
            repeated_int64(number, len(data), field.type)
            for number, field in zip(numbers, MESSAGE_SCHEMA, strict=False)
        ]
        rows = pa.record_batch([*same, data], schema=MESSAGE_SCHEMA)
        self._file.add(self._first + self._messages, [rows])
        self._messages += len(data)
        self._bytes_left -= int(value_offsets(data)[-1] - value_offsets(data)[0])
