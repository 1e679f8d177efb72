"""The stand-in itself: it listens, and ends in good order."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from pgoutput.standin.authentication import Verifier
from pgoutput.standin.connection import Connection
from pgoutput.standin.faults import Faults
from pgoutput.standin.hub import Hub
from pgoutput.standin.protocol import Refused, error
from pgoutput.standin.source import Source, Streams, as_source

_CONNECTIONS: Final = 500
"""At a time, at most (max_connections)."""

_FAREWELL_SECONDS: Final = 1.0
"""That clients have to take what was sent last."""

_PATIENCE: Final = 10.0


async def serve(
    source: Source | Streams,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    user: str | None = None,
    password: str | None = None,
    tls: ssl.SSLContext | None = None,
    certificate_hash: bytes | None = None,
    faults: Faults | None = None,
    sender_timeout: float = 60.0,
    settings: Mapping[str, str] | None = None,
    listening: Callable[[int], None] = lambda port: None,
) -> None:
    """Serve a source, until it is cancelled.

    Args:
        source: What is served; or what makes streams, a scenario for instance.
        host: The address to listen on.
        port: The port; 0 for any that is free.
        user: The only user that may connect, with the password; everybody if there is none.
        password: Its password, which is asked for by SCRAM-SHA-256.
        tls: The certificate; without one, requests for TLS are declined.
        certificate_hash: SHA-256 of the certificate in DER, for the channel binding tls-server-end-point of a
            certificate that is signed with SHA-256 (RFC 5929); without it, channel binding is not offered.
        faults: What goes wrong on purpose.
        sender_timeout: Seconds after which a silent client is given up (wal_sender_timeout); 0 for never.
        settings: Values of settings that differ from the usual ones, or that are not there otherwise.
        listening: Is told the port when it listens.

    Raises:
        OSError: The address cannot be listened on.
        ValueError: A user has no password, or a password no user.
    """
    if (user is None) != (password is None):
        raise ValueError("a user and a password go together")
    verifier = None if user is None or password is None else Verifier.of(user, password)
    hub = Hub(as_source(source), faults or Faults(), verifier, sender_timeout, settings or {})
    connections: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            if len(connections) > _CONNECTIONS:
                writer.write(error(Refused("53300", "sorry, too many clients already", fatal=True)))
            else:
                await Connection(hub, reader, writer, tls, certificate_hash).run()
        except (OSError, asyncio.CancelledError):  # the client has gone, or the stand-in goes
            pass
        finally:
            await _close(writer)
            connections.discard(task)

    server = await asyncio.start_server(handle, host, port)
    try:
        listening(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection; a client that does not read is not waited for."""
    writer.close()
    with suppress(OSError, TimeoutError, asyncio.CancelledError):
        async with asyncio.timeout(_FAREWELL_SECONDS):
            await writer.wait_closed()
            return
    writer.transport.abort()


class StandIn:
    """A stand-in in a thread of this process, on a free port of this machine; a context manager.

    Attributes:
        port: Where it listens.

    Args:
        source: As `serve` takes it, and so the others.
        user: The only user that may connect.
        password: Its password.
        tls: The certificate.
        certificate_hash: As `serve` takes it.
        faults: What goes wrong on purpose.
        sender_timeout: wal_sender_timeout in seconds.
        settings: As `serve` takes them.
    """

    def __init__(
        self,
        source: Source | Streams,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        certificate_hash: bytes | None = None,
        faults: Faults | None = None,
        sender_timeout: float = 60.0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.port = 0
        self._user = user
        self._password = password
        self._database = as_source(source).database or "postgres"
        self._serving = serve(
            source,
            user=user,
            password=password,
            tls=tls,
            certificate_hash=certificate_hash,
            faults=faults,
            sender_timeout=sender_timeout,
            settings=settings,
            listening=self._listens,
        )
        self._listening = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pgoutput-standin", daemon=True)

    def __enter__(self) -> StandIn:
        self._thread.start()
        self._listening.wait(_PATIENCE)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(_PATIENCE)

    @property
    def dsn(self) -> str:
        """Where it is, as libpq takes it. The password is in it, if there is one."""
        quoted = (self._password or "").replace("\\", "\\\\").replace("'", "\\'")
        secret = f" password='{quoted}'" if quoted else ""
        user = self._user or "postgres"
        return f"host=127.0.0.1 port={self.port} user={user} dbname={self._database}{secret}"

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._listening.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.ensure_future(self._serving)
        with suppress(asyncio.CancelledError):
            await self._task

    def _listens(self, port: int) -> None:
        self.port = port
        self._listening.set()
