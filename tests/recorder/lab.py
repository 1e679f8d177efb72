"""A test database, its recordings, and comparisons of recordings with the tables of the database.

Comparisons share no code with the recorder; they read the server's values on another connection, in text and
in binary format.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest

from logicalrep import recording as recorded
from logicalrep.recorder import Connected, Event, Progress, Recorder
from logicalrep.recording import Metadata, RecordingReader, find_inconsistencies
from logicalrep.stream import Tables
from logicalrep.wire import UNCHANGED, parse_lsn
from tests.server import Server

E = TypeVar("E", bound=Event)

PATIENCE = 120.0
"""Seconds to wait for a condition before a test fails."""

_WAL_PAGE_BYTES = 8192
_WAL_PAGE_HEADERS = (24, 40)
"""Sizes of the header of a WAL page, in bytes: the second is that of the first page in a WAL file."""

_NUMBERS = itertools.count(1)

_SETTINGS = (
    "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3 -c bytea_output=hex -c timezone=UTC"
)


class Recording:
    """A recorder that runs in a thread.

    Attributes:
        events: Events that the recorder has reported.
        recorder: The recorder.
    """

    def __init__(self, recorder: Callable[..., Recorder], **run: Any) -> None:
        self.events: list[Event] = []
        self.recorder = recorder(on_event=self.events.append)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, kwargs=run)
        self._thread.start()

    def stop(self) -> None:
        """Stop the recorder; if the recorder has failed, raise its error."""
        self.recorder.stop()
        self.join()

    def join(self) -> None:
        """Wait until the recorder has ended; if the recorder has failed, raise its error."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    @property
    def is_running(self) -> bool:
        """Whether the recorder has not ended."""
        return self._thread.is_alive()

    def wait(self, kind: type[E], count: int = 1) -> E:
        """Wait until the recorder has reported `count` events of a class; return the last event."""
        wait_until(lambda: len(self.events_of(kind)) >= count or not self._thread.is_alive())
        if self._failure is not None:
            self.join()
        return self.events_of(kind)[-1]

    def events_of(self, kind: type[E]) -> list[E]:
        """Return the reported events of a class."""
        return [event for event in self.events if isinstance(event, kind)]

    def has_read_catalogs(self, session: int = 1) -> bool:
        """Return whether the recorder has read the catalogs since session number `session` (from 1) began."""
        begins = [place for place, one in enumerate(self.events) if isinstance(one, Connected)]
        return len(begins) >= session and any(
            isinstance(one, Progress) and one.wal_lsn for one in self.events[begins[session - 1] :]
        )

    def _run(self, **run: Any) -> None:
        try:
            self.recorder.run(**run)
        except BaseException as failure:
            self._failure = failure


class Lab:
    """A test database with a replication slot and a folder for recordings; a context manager.

    Args:
        server: Server to create the database on.
        folder: Folder for the recordings.
        options: Options of CREATE DATABASE.

    Attributes:
        server: Server of the database.
        version: Major version of the server.
        name: Name of the database.
        slot: Name of the replication slot.
        folder: Folder of the recording that `recorder` writes.
    """

    def __init__(self, server: Server, folder: Path, options: str = "") -> None:
        self.server = server
        self.version = server.version
        self.name = self.slot = f"lab_{next(_NUMBERS)}"
        self.folder = folder / "recording"
        self._options = options

    def __enter__(self) -> Lab:
        with self.server.connect() as connection:
            connection.execute(f"CREATE DATABASE {self.name} {self._options}".encode())
        self._connection = self.connect()
        return self

    def __exit__(self, *exception: object) -> None:
        self.reconnect()
        for (gid,) in self.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            self.run(f"ROLLBACK PREPARED '{gid}'")
        self._connection.close()
        with self.server.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [self.name]
            )
            users = (
                "SELECT pid FROM pg_stat_activity WHERE datname = %(name)s UNION ALL"
                " SELECT active_pid FROM pg_replication_slots WHERE database = %(name)s AND active_pid > 0"
            )
            wait_until(lambda: not connection.execute(users, {"name": self.name}).fetchall())
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
                [self.name],
            )
            connection.execute(f"DROP DATABASE {self.name}")

    @property
    def dsn(self) -> str:
        return self.server.dsn.replace("dbname=postgres", f"dbname={self.name}")

    def require(self, version: int, feature: str) -> None:
        """Skip the test if the server is older than the first major version with a feature."""
        if self.version < version:
            pytest.skip(f"{feature}: since PostgreSQL {version}")

    def connect(self) -> psycopg.Connection:
        """Return a new connection in autocommit mode."""
        return psycopg.connect(self.dsn, autocommit=True, options=_SETTINGS)

    def reconnect(self) -> None:
        """Replace the connection that `run` and `rows` use, after the server was restarted."""
        self._connection.close()
        self._connection = self.connect()

    def run(self, *statements: str) -> None:
        """Run SQL statements, each in its own transaction."""
        for statement in statements:
            self._connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query.encode()).fetchall()

    def value(self, query: str) -> Any:
        return self.rows(query)[0][0]

    def lsn(self) -> int:
        """Return the end of the last record in the server's WAL."""
        lsn = parse_lsn(self.value("SELECT pg_current_wal_insert_lsn()"))
        begin = lsn - lsn % _WAL_PAGE_BYTES
        # After a full page, the insert position already counts the header of the next page.
        return begin if lsn - begin in _WAL_PAGE_HEADERS else lsn

    def confirmed_lsn(self) -> int:
        """Return the LSN that the slot has confirmed."""
        query = f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        return parse_lsn(self.value(query))

    def slots(self) -> list[str]:
        """Return the names of the database's slots."""
        query = f"SELECT slot_name FROM pg_replication_slots WHERE database = '{self.name}'"
        return [row[0] for row in self.rows(query)]

    def recorder(self, *publications: str, **options: Any) -> Recorder:
        """Return a recorder that creates the test database's slot, and ends segments after 0.1 seconds."""
        settings: dict[str, Any] = {"create_slot": True, "segment_seconds": 0.1} | options
        place: dict[str, Any] = {"dsn": self.dsn, "slot": self.slot, "recording": self.folder}
        return Recorder(publications=publications or ("p",), **(place | settings))

    def command(self, *options: str) -> list[str]:
        """Return a command line that runs `logicalrep record` in a new process."""
        settings = {"dsn": self.dsn, "slot": self.slot, "publication": "p", "recording": self.folder}
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        return [sys.executable, "-m", "logicalrep.cli", "record", *arguments, *options]

    def record(self, *publications: str, **options: Any) -> list[Event]:
        """Record up to the current end of the WAL; return the events that the recorder reported."""
        events: list[Event] = []
        self.recorder(*publications, on_event=events.append, **options).run(until="now")
        return events

    @contextmanager
    def recording(
        self, *publications: str, run: dict[str, Any] | None = None, **options: Any
    ) -> Iterator[Recording]:
        """Run a recorder in a thread until the end of the `with` block."""

        def recorder(on_event: Callable[[Event], None]) -> Recorder:
            return self.recorder(*publications, on_event=on_event, **options)

        recording = Recording(recorder, **(run or {}))
        try:
            yield recording
        except BaseException:
            recording.recorder.stop()
            raise
        recording.stop()

    def segments(self, folder: Path | str | None = None) -> list[Metadata]:
        """Return the metadata of all segments of the recording; check that no segment is missing."""
        recording = recorded.Recording(folder or self.folder)
        metadata = recording.metadata(recording.numbers)
        assert list(find_inconsistencies(metadata)) == []
        return metadata

    def replay(self, folder: Path | str | None = None) -> Tables:
        """Return the tables that result from the transactions of the recording."""
        self.segments(folder)
        tables = Tables()
        with RecordingReader(folder or self.folder) as segments:
            for transaction in segments.transactions():
                tables.apply(transaction)
        return tables

    def published(self, publication: str = "p") -> dict[int, tuple[str, str]]:
        """Return each published table's quoted name, and a FROM item for the published rows, by OID."""
        query = f"""SELECT DISTINCT relid::int8, relid::regclass::text,
            CASE relkind WHEN 'r' THEN 'ONLY ' ELSE '' END || relid::regclass
            FROM pg_get_publication_tables('{publication}') JOIN pg_class c ON c.oid = relid"""
        return {oid: (name, place) for oid, name, place in self.rows(query)}

    def assert_equal(
        self,
        *,
        folder: Path | str | None = None,
        publication: str = "p",
        where: dict[str, str] | None = None,
        columns: dict[str, list[str]] | None = None,
    ) -> Tables:
        """Check that the tables of the recording equal the server's tables; return the recorded tables.

        Args:
            folder: Folder or URL of the recording; None for `Lab.folder`.
            publication: Publication of the tables.
            where: Row filters as SQL conditions, by quoted name of the table.
            columns: Column lists, by quoted name of the table. Tables without a list are compared without
                generated columns.
        """
        tables = self.replay(folder)
        published = self.published(publication)
        assert set(tables) <= set(published)
        for oid, (name, from_) in published.items():
            condition = (where or {}).get(name, "true")
            names, values = self._columns(oid, (columns or {}).get(name))
            query = f"SELECT {values} FROM {from_} WHERE {condition}"
            texts, binaries = self._table(query, 0), self._table(query, 1)
            if oid not in tables:  # without messages, the table must be empty
                assert texts == [], name
                continue
            table = tables[oid]
            assert [column.name for column in table.relation.columns] == names, name
            as_text = [
                dict(zip((row[n] for row in binaries), (row[n] for row in texts), strict=True))
                for n in range(len(names))
            ]
            found = [
                tuple(_as_text(cell, as_text[n]) for n, cell in enumerate(row.values())) for row in table
            ]
            assert Counter(found) == Counter(texts), name
        return tables

    def _columns(self, oid: int, listed: list[str] | None) -> tuple[list[str], str]:
        """Return the names of the published columns of a table, and SQL for their values.

        Args:
            oid: OID of the table.
            listed: Column list; None for all columns that are not generated.
        """
        generated = "attgenerated <> ''" if self.version >= 12 else "false"
        columns = self.rows(f"""SELECT attname,
            quote_ident(attname) || CASE WHEN typsend = 0 THEN '::text' ELSE '' END, {generated}
            FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
            WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped ORDER BY attnum""")
        names = [name for name, _, out in columns if (not out if listed is None else name in listed)]
        return names, ", ".join(value for name, value, _ in columns if name in names)

    def _table(self, query: str, result_format: int) -> list[tuple[bytes | None, ...]]:
        result = self._connection.pgconn.exec_params(query.encode(), None, result_format=result_format)
        assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
        return [
            tuple(result.get_value(row, place) for place in range(result.nfields))
            for row in range(result.ntuples)
        ]


def _as_text(cell: object, binaries: dict[bytes | None, bytes | None]) -> object:
    """Return a cell in text format.

    Args:
        cell: Cell in text or binary format.
        binaries: Each value in text format, by the same value in binary format.
    """
    assert cell is not UNCHANGED
    if isinstance(cell, str):
        return cell.encode("utf-8", "surrogateescape")
    if cell is None:
        return None
    assert isinstance(cell, bytes)
    return binaries.get(cell, f"no such value: {cell!r}")


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until a condition is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)
