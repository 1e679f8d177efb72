"""The contents of published tables as they stood when a slot began, as segments.

What is copied follows the server's own initial synchronization: fetch_table_list and copy_table in
src/backend/replication/logical/tablesync.c. Relation and Type messages are as pgoutput would have sent them
(proto.c, logicalrep_write_rel and logicalrep_write_typ).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Final

from pgoutput import messages
from pgoutput.capture.connection import Connection, Interrupted
from pgoutput.capture.events import Event, Snapshotted
from pgoutput.capture.published import PublishedTable, published_tables
from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.jsonlines import to_json
from pgoutput.segments import Epoch, Metadata, SegmentFile, Source, segment_name
from pgoutput.segments.files import sync
from pgoutput.versions import CODECS
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_WORKERS: Final = 4
"""Tables that are copied at a time."""

_SEGMENT_MESSAGES: Final = 1 << 20
"""Messages of a segment, at most. So many positions are set aside for each."""

_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 16_384


class SchemaChanged(Exception):
    """A table was altered between the snapshot and the lock: its rows and its columns do not fit together."""


class TableCopy:
    """Copies the published tables as of an exported snapshot.

    Args:
        dsn: The server and the database.
        source: What the stream will be.
        folder: Where the segments go.
        snapshot: The name of the exported snapshot.
        lsn: The consistent point of the slot: the stream goes on from there.
    """

    def __init__(self, dsn: str, source: Source, folder: Path, snapshot: str, lsn: int) -> None:
        self._dsn = dsn
        self._source = source
        self._folder = folder
        self._snapshot = snapshot
        self._lsn = lsn
        self._lock = threading.Lock()
        self._segments = 0
        self._tables_done = 0
        self._left: list[PublishedTable] = []

    def run(self, tell: Callable[[Event], None], stop: Callable[[], bool], segment_bytes: int) -> None:
        """Copy all of them.

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
        sync(self._folder)

    def _transaction(self) -> Connection:
        """A connection that sees what the snapshot does."""
        connection = Connection(self._dsn, stop=self._is_over)
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
        rows = told = 0
        for values in read_rows(connection.copy_out(table.query), width, table.binary):
            if segment.is_full or segment.size >= self._segment_bytes:
                segment.finish()
                segment = self._segment(table)
            segment.add(messages.Insert(oid, values))
            rows += 1
            if rows - told >= _BATCH_ROWS:
                told = rows
                self._check()
                self._tell_rows(table, rows)
        segment.finish()
        with self._lock:
            self._tables_done += 1
        self._tell_rows(table, rows)

    def _segment(self, table: PublishedTable) -> _Segment:
        with self._lock:
            self._segments += 1
            number = self._segments
        return _Segment(self._folder, number, self._source, self._lsn, self._time, table)

    def _is_over(self) -> bool:
        return self._failed or self._stop()

    def _check(self) -> None:
        if self._is_over():
            raise Interrupted

    def _tell_rows(self, table: PublishedTable, rows: int) -> None:
        self._tell(
            Snapshotted(table=table.name, rows=rows, tables_done=self._tables_done, tables=self._tables)
        )


def read_rows(
    data: Iterable[bytes], width: int, binary: tuple[bool, ...] | None
) -> Iterator[messages.TupleData]:
    """The rows that COPY gives.

    Args:
        data: What it gives; a row at a time.
        width: The number of columns.
        binary: Which of them are to stay binary in COPY's binary format; None if it is the text format.
    """
    if binary is None:
        yield from (parse_line(line, width) for line in data)
        return
    rows = iter(data)
    first = next(rows)  # behind the header, of which the last four bytes say how much more of it there is
    start = len(_SIGNATURE) + 8 + int.from_bytes(first[len(_SIGNATURE) + 4 :][:4])
    for row in chain([first[start:]], rows):
        if row and row != _TRAILER:
            yield _parse_binary(row, binary)


_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_TRAILER: Final = b"\xff\xff"


def _parse_binary(row: bytes, binary: tuple[bool, ...]) -> messages.TupleData:
    """The values of a row in COPY's binary format (CopyOneRowTo)."""
    values: list[messages.Cell] = []
    place = 2
    for stays in binary:
        size = int.from_bytes(row[place : place + 4], signed=True)
        place += 4
        if size < 0:
            values.append(None)
            continue
        value = row[place : place + size]
        values.append(value if stays else value.decode("utf-8", "surrogateescape"))
        place += size
    return tuple(values)


_ESCAPES: Final = {
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)


def parse_line(line: bytes, width: int) -> messages.TupleData:
    """The values of a row in COPY's text format (CopyAttributeOutText)."""
    if not width:
        return ()
    return tuple(
        None if value == b"\\N" else _unescape(value).decode("utf-8", "surrogateescape")
        for value in line.removesuffix(b"\n").split(b"\t")
    )


def _unescape(value: bytes) -> bytes:
    if b"\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), value)


class _Segment:
    """A segment of the snapshot: a transaction that inserts rows of one table.

    Args:
        folder: Where it goes.
        number: Its number.
        source: What the stream will be.
        lsn: The consistent point.
        time: The time of the snapshot, in microseconds since 2000.
        table: Whose rows they are.
    """

    def __init__(
        self, folder: Path, number: int, source: Source, lsn: int, time: int, table: PublishedTable
    ) -> None:
        self.bytes = 0
        self.messages = 0
        self._number, self._source, self._lsn, self._time = number, source, lsn, time
        self._table = table
        # So many positions are set aside for each segment, as several are written at a time.
        self._first = (number - 1) * _SEGMENT_MESSAGES
        self._file = SegmentFile(folder / segment_name(number))
        self._data: list[bytes] = []
        self._batch_bytes = 0
        self._encode = CODECS[source.proto_version].encode
        for message in (messages.Begin(lsn, time, 0), *table.types, table.relation):
            self.add(message)

    def add(self, message: messages.Message) -> None:
        """Write a message."""
        data = self._encode(message)
        self._data.append(data)
        self._batch_bytes += len(data)
        if self._batch_bytes >= _BATCH_BYTES or len(self._data) >= _BATCH_ROWS:
            self._write_batch()

    @property
    def size(self) -> int:
        """Bytes of its messages."""
        return self.bytes + self._batch_bytes

    @property
    def is_full(self) -> bool:
        """Whether its positions are used up, but for the Commit."""
        return self.messages + len(self._data) >= _SEGMENT_MESSAGES - 1

    def finish(self) -> None:
        """Write it to the disk."""
        self.add(messages.Commit(self._lsn, self._lsn, self._time))
        self._write_batch()
        types, relation = self._table.types, to_json(self._table.relation)
        epoch = Epoch(self._first + 1 + len(types), self._lsn, relation, tuple(map(to_json, types)))
        self._file.finish(
            Metadata(
                kind="snapshot",
                number=self._number,
                session=0,
                source=self._source,
                first_position=self._first,
                messages=self.messages,
                keyframe=0,
                start_lsn=self._lsn,
                end_lsn=self._lsn,
                transactions=1,
                last_commit_time=self._time,
                relations=(epoch,),
            )
        )

    def _write_batch(self) -> None:
        data = self._data
        if data:
            received_at = self._time + EPOCH_UNIX_MICROSECONDS
            position = self._first + self.messages
            self._file.add(position, [self._lsn] * len(data), [received_at] * len(data), data)
            self.messages += len(data)
            self.bytes += self._batch_bytes
            self._data, self._batch_bytes = [], 0
