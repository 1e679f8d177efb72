"""Run a stand-in server: listen, accept connections and shut down."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from typing import Final

from logicalrep.standin.authentication import ScramVerifier
from logicalrep.standin.connection import Connection
from logicalrep.standin.faults import Faults
from logicalrep.standin.protocol import ServerError, error_response
from logicalrep.standin.server_state import ServerState
from logicalrep.standin.source import Source, StreamFactory, as_source
from logicalrep.standin.sql import Engine

_MAX_CONNECTIONS: Final = 500
"""Maximum number of simultaneous connections (max_connections)."""

_CLOSE_SECONDS: Final = 1.0
"""Time that a client has to read the last responses before its connection is aborted, in seconds."""

_THREAD_SECONDS: Final = 10.0
"""Maximum time to wait until the server's thread has started or ended, in seconds."""


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection. Abort it if the client has not read all responses within `_CLOSE_SECONDS`."""
    writer.close()
    with suppress(OSError, TimeoutError, asyncio.CancelledError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await writer.wait_closed()
            return
    writer.transport.abort()


class StandIn:
    """A stand-in server. As a context manager, it runs in a thread, on a free port of 127.0.0.1.

    Attributes:
        port: Port that the server listens on; 0 before the server listens.
        user: Name with which clients connect.
        database: Database to which clients connect.

    Args:
        source: What the server serves: a scenario or another stream factory, or a `RecordedSource`.
        user: Name of the only user that may connect; None to accept everybody.
        password: Password of the user, for SCRAM-SHA-256 authentication.
        tls: TLS context with the server's certificate; None to decline TLS.
        certificate_hash: SHA-256 of the DER-encoded certificate, for the channel binding
            tls-server-end-point of a certificate signed with SHA-256 (RFC 5929); None to offer no channel
            binding.
        faults: Faults to inject; None for no faults.
        wal_sender_timeout: Seconds after which a silent client is disconnected; 0 to never disconnect.
        settings: Values of settings (GUC parameters) by name, which replace the defaults or add settings.

    Raises:
        ValueError: A user is given without a password, or a password without a user.
    """

    def __init__(
        self,
        source: Source | StreamFactory,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        certificate_hash: bytes | None = None,
        faults: Faults | None = None,
        wal_sender_timeout: float = 60.0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if (user is None) != (password is None):
            raise ValueError("pass both a user and a password, or neither")
        verifier = None if user is None or password is None else ScramVerifier.from_password(user, password)
        self.port: int = 0
        self.user: str = user or "postgres"
        self._password = password
        self._tls = tls
        self._certificate_hash = certificate_hash
        source = as_source(source)
        self.database: str = source.database or "postgres"
        self._state = ServerState(source, faults or Faults(), verifier, wal_sender_timeout, settings or {})
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, name="logicalrep-standin", daemon=True)

    async def serve(
        self, host: str = "127.0.0.1", port: int = 0, listening: Callable[[int], None] = lambda port: None
    ) -> None:
        """Run the server until the calling asyncio task is cancelled.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0 for any free port.
            listening: Function that is called with the port once the server listens.

        Raises:
            OSError: The server cannot listen on the address.
        """
        engine = Engine()
        connections: set[asyncio.Task[None]] = set()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                if len(connections) > _MAX_CONNECTIONS:
                    error = ServerError("53300", "sorry, too many clients already", fatal=True)
                    writer.write(error_response(error))
                else:
                    await Connection(
                        self._state, engine, reader, writer, self._tls, self._certificate_hash
                    ).run()
            except (OSError, asyncio.CancelledError):  # the client disconnected, or the server shuts down
                pass
            finally:
                await _close(writer)
                connections.discard(task)

        server = await asyncio.start_server(handle, host, port)
        try:
            self.port = server.sockets[0].getsockname()[1]
            listening(self.port)
            await asyncio.Event().wait()
        finally:
            server.close()
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
            engine.close()

    def __enter__(self) -> StandIn:
        self._thread.start()
        self._started.result(_THREAD_SECONDS)
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(_THREAD_SECONDS)

    @property
    def dsn(self) -> str:
        """Connection string (libpq keywords) of the server, including the password if there is one."""
        quoted = (self._password or "").replace("\\", "\\\\").replace("'", "\\'")
        secret = f" password='{quoted}'" if quoted else ""
        return f"host=127.0.0.1 port={self.port} user={self.user} dbname={self.database}{secret}"

    @property
    def acknowledged(self) -> dict[str, dict[int, datetime]]:
        """Time (UTC) at which a client first acknowledged each LSN, by slot name, then by rising LSN.

        A Standby Status Update acknowledges the LSN in its field `flushed_lsn`. Dropped slots are included.
        """
        return {slot: dict(lsns) for slot, lsns in self._state.acknowledged.copy().items()}

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as failure:
            if not self._started.done():
                self._started.set_exception(failure)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.ensure_future(self.serve(listening=self._started.set_result))
        with suppress(asyncio.CancelledError):
            await self._task
