"""A connection to a server: SQL, COPY, and the streaming replication protocol, on psycopg's libpq."""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from logicalrep import compiled, envelope
from logicalrep._text import one_line
from logicalrep.columns import XLogDataBatch, decode_xlog_data
from logicalrep.errors import ChangesLost, ConnectionLost, ReplicationError
from logicalrep.messages import Message
from logicalrep.recorder.client.copy_data import CopiedRows, CopyOutSocket, ReplicationSocket
from logicalrep.recorder.client.errors import ErrorFields, error_of, error_of_attempt
from logicalrep.recorder.events import Notice

Row: TypeAlias = tuple[Any, ...]
"""A row of a query's result: values as text, None for NULL."""

_SETTINGS: Final = {
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "timezone": "UTC",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "row_security": "off",
    "quote_all_identifiers": "off",
    "client_min_messages": "notice",
}
"""Server settings of every connection, by name.

client_encoding to timezone and quote_all_identifiers fix the text format of values, in the stream and in the
snapshot alike (libpqrcv_connect sets the first four of these settings). As in pg_dump, the timeouts disable
time limits, and row_security makes a query fail that would hide rows. client_min_messages makes the server
send all notices.
"""

_TIMEOUTS_SINCE: Final = {14: "idle_session_timeout", 17: "transaction_timeout"}
"""Timeouts that only newer servers have: names of the settings, by first major server version."""

_CANCELED: Final = b"57014"
_SKIPPED_PUBLICATION: Final = ("55000", "LoadPublications")
"""SQLSTATE and C function of the warning that the server skips a missing publication (pgoutput.c).

Servers send this warning since PostgreSQL 18; older servers end the stream. SQLSTATE and function are the
same in every language of the server.
"""

_PORTS: Final = re.compile(r"[\d, ]*")
"""Pattern for the port in a DSN: a number, or a list with a number or an empty text for each host."""

_COPY_STATES: Final = (pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH)

_RECEIVE_BYTES: Final = 1 << 20
"""Largest number of bytes that one call of `receive` returns; only the last message may exceed the limit."""

_SMALL_READ: Final = 1000
"""Number of bytes below which a read by libpq counts as small; the next read is then delayed."""

_DELAY_SECONDS: Final = 0.00002
"""Delay after a small read, in seconds, because a busy server sends each message in a packet of its own."""

_POLL_SECONDS: Final = 0.25
"""Largest number of seconds between two calls of `stop` while the connection waits for the server."""


class PublicationSkipped(ChangesLost):
    """The stream lacks changes that were made while a publication did not exist, or had another name."""


class Interrupted(Exception):
    """The recorder was stopped while it waited for the server; not an error."""


def _never() -> bool:
    return False


class Connection:
    """A connection to one database of a server; a context manager.

    Attributes:
        more: Whether libpq may have buffered messages; then call `receive` without waiting for the socket.
        ended: Whether the server has ended the stream.
        may_skip_publications: Whether to go on without an error if the stream lacks changes from the time
            when a publication did not exist. True while the server sends what precedes a reading of the
            catalogs that shows which tables lack changes.

    Args:
        dsn: Connection string of libpq: keywords and values, or a URI.
        replication: Whether the connection also accepts commands of the streaming replication protocol.
        stop: Called while the connection waits for the server; returns whether to stop waiting.
        on_notice: Called with notices and warnings of the server, once for each different text.

    Raises:
        ConnectionLost: The connection was refused, but may be accepted later.
        ReplicationError: The DSN has unusable values, or the server refuses the role, password or database.
        ValueError: The DSN cannot be parsed.
    """

    def __init__(
        self,
        dsn: str,
        *,
        replication: bool = False,
        stop: Callable[[], bool] = _never,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> None:
        options = {
            "connect_timeout": parse_dsn(dsn).get("connect_timeout") or 10,
            "fallback_application_name": "logicalrep",
        }
        if replication:
            options["replication"] = "database"
        try:
            self._connection = psycopg.connect(make_conninfo(dsn, **options), autocommit=True)
        except psycopg.OperationalError as error:
            raise error_of_attempt(error) from None
        except (psycopg.Error, UnicodeError) as error:
            raise ReplicationError(f"the DSN cannot be used: {one_line(str(error))}") from None
        self._dsn = dsn
        self._libpq = self._connection.pgconn
        self._libpq.notice_handler = self._handle_notice
        self._on_notice = on_notice
        self._notices: set[str] = set()
        self._stop = stop
        self.ended: bool = False
        self.more: bool = False
        self._stream: ReplicationSocket | None = None
        self.may_skip_publications = False
        self._error: ReplicationError | None = None
        """The error that ended the connection, or None; each later use of the connection raises the error."""
        try:
            for name, value in _SETTINGS.items():  # SET overrides the environment and the DSN
                self.query(f"SET {name} = '{value}'")
            if self._libpq.parameter_status(b"server_encoding") == b"SQL_ASCII":
                # A database with SQL_ASCII has text of unknown encodings, which cannot be converted to UTF8.
                self.query("SET client_encoding = 'SQL_ASCII'")
            for version, name in _TIMEOUTS_SINCE.items():
                if version <= self.server_version // 10_000:
                    self.query(f"SET {name} = 0")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            self._stream.close()
        self._connection.close()

    def fileno(self) -> int:
        """Return the socket's file descriptor, for select()."""
        self._check()
        return self._libpq.socket

    @property
    def pinned_dsn(self) -> str:
        """DSN that names only the server that this connection has reached, by host, address and port.

        Further connections of a session use this DSN: the original DSN may list several servers.
        """
        libpq = self._libpq
        place = {"host": libpq.host, "hostaddr": libpq.hostaddr, "port": libpq.port}
        return make_conninfo(self._dsn, **{name: value.decode() for name, value in place.items()})

    @property
    def sslmode(self) -> str:
        """Mode of TLS, from the DSN, the environment, a service file or libpq's default."""
        (value,) = (one.val for one in self._libpq.info if one.keyword == b"sslmode")
        return (value or b"").decode()

    @property
    def backend_pid(self) -> int:
        """Process ID of the server process of this connection."""
        return self._libpq.backend_pid

    @property
    def server_version(self) -> int:
        """Version of the server as server_version_num; 180004 is 18.4."""
        return self._libpq.server_version

    def query(self, query: str | sql.Composable, *, stop: Callable[[], bool] = _never) -> list[Row]:
        """Run a query or a command of the replication protocol; return the rows, with values as text.

        Args:
            query: The query. If it is composed with psycopg.sql, its text must be valid UTF-8.
            stop: Returns whether to cancel the query.

        Raises:
            ConnectionLost: The connection was lost, or the server refuses the query for now.
            ReplicationError: The server refuses the query.
            Interrupted: The query was cancelled, and had no effect.
        """
        result = self._execute(query if isinstance(query, str) else query.as_string(), stop)
        return [
            tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def copy_out(self, statement: str) -> Iterator[CopiedRows]:
        """Run COPY … TO STDOUT; yield the rows, in the format of the statement, in batches of about 1 MiB.

        Raises:
            ConnectionLost: The connection was lost.
            ReplicationError: The server refuses the statement.
            Interrupted: The copy was stopped.
        """
        self._send(statement)
        if self._reads_socket:
            with CopyOutSocket(self._libpq.socket, self.wait) as copied:
                if copied.has_output():
                    yield from copied.rows(self._handle_copy_notice)
                    self._result(self._stop)
                    return
        self._result(self._stop)
        self.ended = False
        rows: list[bytes] = []
        room = _RECEIVE_BYTES
        with _connection_errors():
            is_over = False
            while not is_over:
                room = self._take_buffered(rows, room)
                is_over = self.ended
                if rows and (is_over or room <= 0):
                    yield CopiedRows(len(rows), b"".join(rows))
                    rows, room = [], _RECEIVE_BYTES
                elif not is_over:
                    self.wait()
                    self._libpq.consume_input()

    @property
    def _reads_socket(self) -> bool:
        """Whether CopyData is read without libpq, which needs the compiled kernel and no encryption."""
        return compiled.kernel is not None and not (self._libpq.ssl_in_use or self._libpq.used_gssapi)

    def wait(self) -> None:
        """Wait until the socket is readable, for at most a quarter of a second.

        Raises:
            Interrupted: The recorder is stopped. A COPY in progress goes on until the connection is closed.
        """
        if self._stop():
            raise Interrupted
        select.select([self], [], [], _POLL_SECONDS)

    def start_replication(self, command: str) -> None:
        """Run a START_REPLICATION command, after which the server streams.

        Raises:
            ConnectionLost: The connection was lost, or the slot is in use.
            ReplicationError: The server refuses the command.
        """
        self._send(command)
        if self._reads_socket:
            stream = ReplicationSocket(self._libpq.socket, self.wait)
            if stream.begins():
                self._stream = stream
            else:
                stream.close()
        if self._stream is None:
            self._result(self._stop)
        self.more = True  # libpq may have buffered messages after the reply to the command

    def receive(self) -> XLogDataBatch:
        """Return the envelopes that have arrived; if none has arrived, return an empty batch at once.

        Sets `more` and `ended`. Messages that arrived before an error are returned first; after that, every
        use of the connection raises the error.

        Raises:
            ConnectionLost: The connection was lost.
            ReplicationError: The server has ended the stream with an error.
            DecodeError: An envelope is not a message of the streaming replication protocol.
        """
        self._check()
        if self._stream is not None:
            return self._receive_from(self._stream)
        received: list[bytes] = []
        try:
            self._receive(received)
        except (ConnectionLost, ReplicationError) as error:
            if not received:
                raise
            self._error = error
        return decode_xlog_data(received)

    def _receive_from(self, stream: ReplicationSocket) -> XLogDataBatch:
        batch = stream.receive(self._handle_copy_notice)
        self.more, self.ended = stream.more, stream.ended
        if stream.error is not None:
            self._error = error_of(stream.error)
        return batch

    def _receive(self, received: list[bytes]) -> None:
        with _connection_errors():
            room = self._take_buffered(received, _RECEIVE_BYTES)
            while room > 0 and not self.ended:
                self._libpq.consume_input()  # reads some kilobytes only
                before, room = room, self._take_buffered(received, room)
                if room == before:
                    break
                if before - room < _SMALL_READ:
                    time.sleep(_DELAY_SECONDS)
        self.more = room <= 0

    def _take_buffered(self, received: list[bytes], room: int) -> int:
        """Move about `room` bytes of messages from libpq's buffer to `received`; return the room left."""
        get = self._libpq.get_copy_data
        while room > 0:
            size, data = get(1)
            if self._error is not None:  # set by a notice that was sent before this message
                raise self._error
            if size < 0:
                self._end_of_copy()
                self.ended = True
            if size <= 0:
                break
            received.append(bytes(data))  # unlike a memoryview, not tracked by the garbage collector
            room -= size
        return room

    def _handle_notice(self, result: pq.abc.PGresult) -> None:
        """Pass a notice to `on_notice`; fail the connection if the notice reports a missing publication.

        libpq calls this method when it reads the notice. The messages before the notice were read already, so
        they are not lost when the connection fails.
        """
        self._report(ErrorFields.of_result(result))

    def _handle_copy_notice(self, contents: bytes) -> None:
        """Pass a notice to `on_notice`; fail the connection if the notice reports a missing publication.

        `contents` are the contents of a NoticeResponse that was read without libpq.
        """
        self._report(ErrorFields.of_contents(contents))

    def _report(self, fields: ErrorFields) -> None:
        text = fields.text
        if (fields.sqlstate, fields.function) == _SKIPPED_PUBLICATION and not self.may_skip_publications:
            self._error = PublicationSkipped(
                f"the stream lacks changes that were made while a publication did not exist ({text}): "
                "later messages are not stored or acknowledged; record anew in another folder and from a "
                "new slot"
            )
        if text not in self._notices and self._on_notice is not None:
            self._notices.add(text)
            self._on_notice(Notice(severity=fields.severity, sqlstate=fields.sqlstate, message=text))

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def send(self, message: Message) -> None:
        """Send a message of the streaming replication protocol.

        Raises:
            ConnectionLost: The connection was lost.
        """
        self._check()
        with _connection_errors():
            if self._stream is not None:
                self._stream.send(envelope.encode(message))
                return
            self._libpq.put_copy_data(envelope.encode(message))
            self._libpq.flush()

    def end_replication(self) -> None:
        """Ask the server to end the stream.

        Raises:
            ConnectionLost: The connection was lost.
        """
        self._check()
        with _connection_errors():
            if self._stream is not None:
                self._stream.send_done()
                return
            self._libpq.put_copy_end()
            self._libpq.flush()

    def _execute(self, query: str, stop: Callable[[], bool] = _never) -> pq.abc.PGresult:
        self._send(query)
        return self._result(lambda: stop() or self._stop())

    def _send(self, query: str) -> None:
        with _connection_errors():
            self._libpq.send_query(query.encode("utf-8", "surrogateescape"))
            while self._libpq.flush():
                select.select([], [self], [], _POLL_SECONDS)

    def _result(self, stop: Callable[[], bool]) -> pq.abc.PGresult:
        """Wait for the result of a query, and return it; if `stop` returns True, cancel the query.

        Raises:
            Interrupted: The query was cancelled before its end.
            ConnectionLost: The connection was lost, or the server refuses the query for now.
            ReplicationError: The server refuses the query.
        """
        cancelled = False
        with _connection_errors():
            while self._libpq.is_busy():
                select.select([self], [], [], _POLL_SECONDS)
                self._libpq.consume_input()
                if not cancelled and stop():
                    cancelled = True
                    self._libpq.get_cancel().cancel()
            result = self._libpq.get_result()
            assert result is not None
            if result.status not in _COPY_STATES:
                while self._libpq.get_result() is not None:
                    pass
        if cancelled and result.error_field(pq.DiagnosticField.SQLSTATE) == _CANCELED:
            raise Interrupted
        return self._checked(result)

    def _end_of_copy(self) -> None:
        while (result := self._libpq.get_result()) is not None:
            self._checked(result)

    def _checked(self, result: pq.abc.PGresult) -> pq.abc.PGresult:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise error_of(ErrorFields.of_result(result))
        return result


def parse_dsn(dsn: str) -> dict[str, str | int | None]:
    """Return the values of a DSN's parameters, by parameter name.

    Raises:
        ValueError: The DSN cannot be parsed. The error does not quote the DSN, which may have a password.
    """
    with suppress(psycopg.ProgrammingError, UnicodeError):  # the text of the error may have a password
        values = conninfo_to_dict(dsn)
        # Refuse an invalid port, and a host with @. In a URI, a : / or @ that is not percent-encoded ends the
        # password early, and the rest of the password becomes the port or host. Errors of libpq would quote
        # it.
        if _PORTS.fullmatch(str(values.get("port", ""))) and "@" not in str(values.get("host", ""))[1:]:
            return values
    raise ValueError(
        "the DSN cannot be read: give keywords and values as in 'host=db dbname=shop', or a URI, in which "
        "special characters of the password are percent-encoded, such as %40 for @"
    )


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Convert errors of libpq and of the socket inside the `with` block to ConnectionLost."""
    try:
        yield
    except (OSError, psycopg.Error) as error:
        raise ConnectionLost(one_line(error)) from None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")
