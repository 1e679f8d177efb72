"""Handle one client's connection from startup to disconnection (src/backend/tcop/postgres.c)."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from struct import Struct
from typing import Final

from logicalrep.standin import protocol
from logicalrep.standin.authentication import authenticate
from logicalrep.standin.backend import Backend
from logicalrep.standin.frontend import (
    MessageReader,
    parse_startup_options,
    read_message,
    read_startup_packet,
)
from logicalrep.standin.protocol import ServerError
from logicalrep.standin.replication import ReplicationExecutor, Terminated
from logicalrep.standin.server_state import ServerState
from logicalrep.standin.settings import REPORTED
from logicalrep.standin.sql import Engine, ExtendedQuery, StatementExecutor, split_statements
from logicalrep.standin.values import encode_value

_AUTHENTICATION_SECONDS: Final = 60.0
"""Time that a client has to authenticate, in seconds (authentication_timeout)."""

_FLUSHING_TAGS: Final = (b"Q", b"S", b"H")
"""Tags of the frontend messages after which buffered responses are sent: Query, Sync and Flush."""

_MAX_BUFFERED_BYTES: Final = 8192
"""Size in bytes above which buffered responses are sent without waiting for Sync or Flush."""

_CANCEL_KEY: Final = Struct(">II")
_TRUE_WORDS: Final = ("true", "on", "yes", "1")


class Connection:
    """Handles the connection of one client.

    Args:
        server: State of the server.
        engine: Executes queries on the catalogs.
        reader: Stream that receives from the client.
        writer: Stream that sends to the client.
        tls: TLS context with the server's certificate, or None to decline TLS.
        certificate_hash: SHA-256 of the certificate for channel binding, or None to offer no channel binding.
    """

    def __init__(
        self,
        server: ServerState,
        engine: Engine,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        tls: ssl.SSLContext | None,
        certificate_hash: bytes | None,
    ) -> None:
        self._server = server
        self._engine = engine
        self._reader = reader
        self._writer = writer
        self._tls = tls
        self._certificate_hash = certificate_hash
        # As in PostgreSQL, responses are buffered: a client may send many messages before it reads any.
        self._responses: list[bytes] = []

    async def run(self) -> None:
        """Serve the client until it disconnects or an error ends the connection.

        Raises:
            OSError: The connection is lost.
        """
        try:
            async with asyncio.timeout(_AUTHENTICATION_SECONDS):
                options = await self._start()
                if options is not None:
                    await self._authenticate(options)
            if options is not None:
                await self._serve(options)
        except ServerError as error:
            self._writer.write(protocol.error_response(error))
        except asyncio.CancelledError:
            text = "terminating connection due to administrator command"
            with suppress(RuntimeError):  # a fault has closed the sending side
                self._writer.write(protocol.error_response(ServerError("57P01", text, fatal=True)))
            raise
        except (asyncio.IncompleteReadError, TimeoutError, Terminated):
            return

    async def _start(self) -> dict[str, str] | None:
        """Handle the startup packets. Return the startup options by name, or None after a CancelRequest."""
        while True:
            code, body = await read_startup_packet(self._reader)
            match code:
                case protocol.SSL_REQUEST if self._tls is not None and not self._is_encrypted:
                    self._writer.write(b"S")
                    await self._writer.drain()
                    await self._writer.start_tls(self._tls)
                case protocol.SSL_REQUEST | protocol.GSSENC_REQUEST:
                    self._writer.write(b"N")
                case protocol.CANCEL_REQUEST:
                    if len(body) == _CANCEL_KEY.size:
                        self._server.cancel(*_CANCEL_KEY.unpack(body))
                    return None
                case _ if code >> 16 == 3:
                    options = parse_startup_options(body)
                    self._negotiate_version(code, options)
                    return options
                case _:
                    version = f"{code >> 16}.{code & 0xFFFF}"
                    text = f"unsupported frontend protocol {version}: server supports 3.0 to 3.0"
                    raise ServerError("0A000", text, fatal=True)

    @property
    def _is_encrypted(self) -> bool:
        return self._writer.get_extra_info("sslcontext") is not None

    def _negotiate_version(self, code: int, options: dict[str, str]) -> None:
        unknown = [name for name in options if name.startswith("_pq_.")]
        if code > protocol.PROTOCOL_3_0 or unknown:
            self._writer.write(protocol.negotiate_version(unknown))

    async def _authenticate(self, options: dict[str, str]) -> None:
        user = options.get("user")
        if not user:
            raise ServerError("28000", "no PostgreSQL user name specified in startup packet", fatal=True)
        if self._server.verifier is not None:
            certificate_hash = self._certificate_hash if self._is_encrypted else None
            await authenticate(self._server.verifier, user, self._reader, self._writer, certificate_hash)
        self._writer.write(protocol.authentication(0))
        database = options.get("database") or user
        if self._server.source.database not in ("", database) and _replication_mode(options) != "physical":
            raise ServerError("3D000", f'database "{database}" does not exist', fatal=True)

    async def _serve(self, options: dict[str, str]) -> None:
        backend = self._server.open_backend(options.get("database") or options["user"], options["user"])
        try:
            executor = StatementExecutor(self._server, backend, self._engine)
            mode = _replication_mode(options)
            replication = None
            if mode != "none":
                replication = ReplicationExecutor(
                    self._server,
                    backend,
                    is_logical=mode == "logical",
                    reader=self._reader,
                    writer=self._writer,
                )
            for name, value in options.items():
                if name not in ("user", "database", "replication", "options") and name[:5] != "_pq_.":
                    backend.change_setting(name, value)
            settings = backend.settings
            self._writer.write(b"".join(protocol.parameter_status(name, settings[name]) for name in REPORTED))
            self._writer.write(protocol.backend_key(backend.pid, backend.secret) + _ready_for_query(backend))
            backend.take_notifications()
            await self._loop(backend, executor, replication)
        finally:
            self._server.close_backend(backend)

    async def _loop(
        self, backend: Backend, executor: StatementExecutor, replication: ReplicationExecutor | None
    ) -> None:
        extended_query = ExtendedQuery(executor, backend)
        write, skipping_to_sync = self._responses.append, False
        while True:
            tag, body = await read_message(self._reader)
            if tag == b"X":
                return
            if tag == b"S":
                skipping_to_sync = False
                extended_query.sync()
                write(_ready_for_query(backend))
            elif not skipping_to_sync:
                try:
                    if tag == b"Q":
                        await self._simple_query(MessageReader(body).string(), executor, replication)
                    else:
                        write(extended_query.handle(tag, body))
                except ServerError as error:
                    if error.fatal:
                        raise
                    backend.fail_transaction()
                    skipping_to_sync = tag != b"Q"
                    write(backend.take_notifications() + protocol.error_response(error))
                if tag == b"Q":
                    write(_ready_for_query(backend))
            await self._flush(0 if tag in _FLUSHING_TAGS else _MAX_BUFFERED_BYTES)

    async def _flush(self, threshold: int) -> None:
        """Send the buffered responses if their total size exceeds `threshold` bytes."""
        if sum(map(len, self._responses)) > threshold:
            self._writer.write(b"".join(self._responses))
            self._responses.clear()
            await self._writer.drain()

    async def _simple_query(
        self, sql: str, executor: StatementExecutor, replication: ReplicationExecutor | None
    ) -> None:
        """Execute the SQL statements or the replication command in the text of a Query message."""
        if replication is not None:
            response = await replication.execute(sql)
            if response is not None:
                self._responses.append(response)
                return
        statements = [statement for statement in split_statements(sql) if statement]
        for statement in statements:
            self._responses.append(_execute(executor, statement))
            await self._flush(_MAX_BUFFERED_BYTES)
            await asyncio.sleep(0)  # other connections must not wait for thousands of statements
        if not statements:
            self._responses.append(protocol.encode_message(b"I"))


def _replication_mode(options: dict[str, str]) -> str:
    """Return the mode that the startup option `replication` requests: logical, physical or none."""
    replication = options.get("replication", "").lower()
    if replication == "database":
        return "logical"
    return "physical" if replication in _TRUE_WORDS else "none"


def _ready_for_query(backend: Backend) -> bytes:
    return protocol.ready_for_query(backend.transaction_status.value)


def _execute(executor: StatementExecutor, statement: str) -> bytes:
    """Execute a statement and return the encoded response, with all values in text format."""
    result = executor.execute(statement)
    parts = [protocol.row_description(result.fields)] if result.fields else []
    if result.copied is not None:
        parts.append(protocol.copy_out(result.copied))
    for row in result.rows:
        typed = zip(row, result.fields, strict=True)
        parts.append(protocol.data_row([encode_value(value, field.type_oid, 0) for value, field in typed]))
    notifications = executor.backend.take_notifications()
    return b"".join((*parts, notifications, protocol.command_complete(result.tag)))
