"""A connection to a server: SQL, COPY, and the streaming replication protocol, on psycopg's libpq."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgoutput import envelope
from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.messages import Message
from pgoutput.recorder.events import Notice
from pgoutput.recorder.failures import error_of_attempt, error_of_result, field, one_line, text_of

Row: TypeAlias = tuple[str | None, ...]

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
    "client_min_messages": "notice",
}
"""How values are written, in the stream and in the snapshot alike (libpqrcv_connect asks for the first four),
no time limits, an error where a policy would hide rows (as pg_dump has them), and all notices."""

_SETTINGS_SINCE: Final = {14: "idle_session_timeout", 17: "transaction_timeout"}
"""Time limits that older servers do not know."""

_CANCELED: Final = b"57014"
_SKIPPED_PUBLICATION: Final = ("55000", "LoadPublications")
"""SQLSTATE and C function of the warning that the server streams on without a publication (pgoutput.c, since
PostgreSQL 18; older servers end the stream). Both are the same in every language of the server's messages."""

_COPYING: Final = (pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH)

_RECEIVE: Final = 1 << 20
"""Bytes that are received at a time; the last message may have more."""

_LITTLE: Final = 1000
_GATHER_SECONDS: Final = 0.00002
"""Pause before the next read where fewer bytes than these came.

A busy server sends each message by itself. One read for each few of them takes a fifth of the time.
"""

_PATIENCE: Final = 0.25
"""Seconds between two looks whether to stop, at most."""


class Interrupted(Exception):
    """The recorder was stopped while it waited for the server."""


def _never() -> bool:
    return False


class Connection:
    """A connection to one database.

    Args:
        dsn: As libpq takes it: keywords and values, or a URI.
        replication: Whether it can run the commands of the streaming replication protocol as well.
        stop: Says when no query is to be waited for any more.
        on_notice: Called with each notice and warning of the server, once for each text.

    Raises:
        ConnectionLost: The connection cannot be made now.
        ReplicationError: The DSN cannot be used, or the server refuses role, password or database.
        ValueError: The DSN cannot be read.
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
            "fallback_application_name": "pgoutput",
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
        self._libpq.notice_handler = self._noticed
        self._on_notice = on_notice
        self._notices: set[str] = set()
        self._stop = stop
        self.ended = self.more = False
        self._failure: ReplicationError | None = None
        """What has ended the connection, where it is still to be told."""
        try:
            for name, value in _SETTINGS.items():  # said so, they beat the environment and the DSN
                self.query(f"SET {name} = '{value}'")
            if self._libpq.parameter_status(b"server_encoding") == b"SQL_ASCII":
                self.query("SET client_encoding = 'SQL_ASCII'")  # its bytes are in no known encoding
            for version, name in _SETTINGS_SINCE.items():
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
        """Close it."""
        self._connection.close()

    def fileno(self) -> int:
        """The socket, for select."""
        self._check()
        return self._libpq.socket

    @property
    def pinned_dsn(self) -> str:
        """The DSN with the host, address and port of this connection instead of all that were given.

        Further connections of a session must reach the same server, also when the DSN lists several.
        """
        libpq = self._libpq
        place = {"host": libpq.host, "hostaddr": libpq.hostaddr, "port": libpq.port}
        return make_conninfo(self._dsn, **{name: value.decode() for name, value in place.items()})

    @property
    def backend_pid(self) -> int:
        """Process ID of the server process."""
        return self._libpq.backend_pid

    @property
    def server_version(self) -> int:
        """As server_version_num: 180004 is 18.4."""
        return self._libpq.server_version

    def query(self, sql: str, *, stop: Callable[[], bool] = _never) -> list[Row]:
        """The rows of a query, or of a command of the replication protocol, as text.

        Args:
            sql: The query.
            stop: Says when it is not to be waited for any more.

        Raises:
            ReplicationError: The server refuses it. ConnectionLost if it may be tried again.
            Interrupted: It was stopped, and has not been done.
        """
        result = self._execute(sql, stop)
        return [
            tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def copy_out(self, sql: str) -> Iterator[bytes]:
        """What COPY … TO STDOUT gives, a row at a time.

        Raises:
            ReplicationError: As `query`.
            Interrupted: As `query`.
        """
        self._execute(sql)
        try:
            while True:
                size, data = self._libpq.get_copy_data(1)
                if size > 0:
                    yield bytes(data)
                elif size < 0:
                    break
                elif self._stop():  # closing the connection ends it
                    raise Interrupted
                else:
                    select.select([self], [], [], _PATIENCE)
                    self._libpq.consume_input()
        except psycopg.OperationalError as error:
            raise ConnectionLost(one_line(str(error))) from None
        self._end_of_copy()

    def start_replication(self, command: str) -> None:
        """Begin to stream.

        Raises:
            ReplicationError: As `query`.
        """
        self._execute(command)
        self.more = True  # what came together with the answer is at hand already

    def receive(self) -> list[bytes]:
        """What has come since the last call, as it stood in CopyData; does not wait.

        `more` then says whether there is more at hand, and `ended` whether the server has ended the stream.
        What came before an error is given first; then every use of the connection raises the error.

        Raises:
            ConnectionLost: The connection ended.
            ReplicationError: The server has ended the stream with an error.
        """
        self._check()
        received: list[bytes] = []
        try:
            self._receive(received)
        except (ConnectionLost, ReplicationError) as error:
            if not received:
                raise
            self._failure = error
        return received

    def _receive(self, received: list[bytes]) -> None:
        try:
            room = self._take_at_hand(received, _RECEIVE)
            while room > 0 and not self.ended:
                self._libpq.consume_input()  # of some kilobytes only
                before, room = room, self._take_at_hand(received, room)
                if room == before:
                    break
                if before - room < _LITTLE:
                    time.sleep(_GATHER_SECONDS)
        except psycopg.OperationalError as error:
            raise ConnectionLost(one_line(str(error))) from None
        self.more = room <= 0

    def _take_at_hand(self, received: list[bytes], room: int) -> int:
        """What libpq has read already, until no room is left; how much is."""
        get = self._libpq.get_copy_data
        while room > 0:
            size, data = get(1)
            if self._failure is not None:  # announced by a notice that was sent before this message
                raise self._failure
            if size < 0:
                self._end_of_copy()
                self.ended = True
            if size <= 0:
                break
            received.append(bytes(data))  # no garbage to collect, as views are
            room -= size
        return room

    def _noticed(self, result: pq.abc.PGresult) -> None:
        """Report a notice; keep the failure that one of them announces.

        libpq reads messages in order: what `get_copy_data` gives after this call was sent after the notice.
        """
        severity = field(result, pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        sqlstate = field(result, pq.DiagnosticField.SQLSTATE)
        text = text_of(result)
        if (sqlstate, field(result, pq.DiagnosticField.SOURCE_FUNCTION)) == _SKIPPED_PUBLICATION:
            self._failure = ReplicationError(
                f"the stream lacks changes that were made while a publication did not exist ({text}): "
                "nothing from there on is stored or acknowledged; record anew in another folder and from a "
                "new slot"
            )
        if text not in self._notices and self._on_notice is not None:
            self._notices.add(text)
            self._on_notice(Notice(severity=severity, sqlstate=sqlstate, message=text))

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def send(self, message: Message) -> None:
        """Send a message of the streaming replication protocol.

        Raises:
            ConnectionLost: The connection ended.
        """
        self._check()
        try:
            self._libpq.put_copy_data(envelope.encode(message))
            self._libpq.flush()
        except psycopg.Error as error:
            raise ConnectionLost(one_line(str(error))) from None

    def end_replication(self) -> None:
        """Ask the server to end the stream.

        Raises:
            ConnectionLost: The connection ended.
        """
        self._check()
        try:
            self._libpq.put_copy_end()
            self._libpq.flush()
        except psycopg.Error as error:
            raise ConnectionLost(one_line(str(error))) from None

    def _execute(self, sql: str, stop: Callable[[], bool] = _never) -> pq.abc.PGresult:
        cancelled = False
        try:
            self._libpq.send_query(sql.encode("utf-8", "surrogateescape"))
            while self._libpq.flush():
                select.select([], [self], [], _PATIENCE)
            while self._libpq.is_busy():
                select.select([self], [], [], _PATIENCE)
                self._libpq.consume_input()
                if not cancelled and (stop() or self._stop()):
                    cancelled = True
                    self._libpq.get_cancel().cancel()
            result = self._libpq.get_result()
            assert result is not None
            if result.status not in _COPYING:
                while self._libpq.get_result() is not None:
                    pass
        except psycopg.OperationalError as error:
            raise ConnectionLost(one_line(str(error))) from None
        if cancelled and result.error_field(pq.DiagnosticField.SQLSTATE) == _CANCELED:
            raise Interrupted
        return self._checked(result)

    def _end_of_copy(self) -> None:
        while (result := self._libpq.get_result()) is not None:
            self._checked(result)

    def _checked(self, result: pq.abc.PGresult) -> pq.abc.PGresult:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise error_of_result(result)
        return result


def parse_dsn(dsn: str) -> dict[str, str | int | None]:
    """Return the parameters of a DSN.

    Raises:
        ValueError: It cannot be read.
    """
    try:
        return conninfo_to_dict(dsn)
    except (psycopg.ProgrammingError, UnicodeError):  # which may quote a password
        raise ValueError(
            "the DSN cannot be read: give keywords and values as in 'host=db dbname=shop', or a URI"
        ) from None


def quote_identifier(name: str) -> str:
    """The name as SQL has it (quote_ident, but always quoted)."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """The text as SQL has it (quote_literal)."""
    quoted = "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"
    return f"E{quoted}" if "\\" in text else quoted


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "surrogateescape")
