"""One client's connection, from its startup packet to its end (src/backend/tcop, postgres.c)."""

from __future__ import annotations

import asyncio
import ssl
from struct import Struct
from typing import Final

from pgoutput.standin import incoming, protocol
from pgoutput.standin.authentication import authenticate
from pgoutput.standin.hub import Hub
from pgoutput.standin.protocol import Refused
from pgoutput.standin.replication import Replication
from pgoutput.standin.sql.extended import Extended
from pgoutput.standin.sql.rewriting import statements
from pgoutput.standin.sql.settings import REPORTED
from pgoutput.standin.sql.statements import Backend
from pgoutput.standin.sql.values import write_value
from pgoutput.standin.streaming import Terminated

_STARTUP_SECONDS: Final = 60.0
"""That a client has until it is authenticated (authentication_timeout)."""

_FLUSHING: Final = (b"Q", b"S", b"H")
"""Messages whose answers are waited for."""

_BUFFERED: Final = 8192
"""Bytes of answers that wait for others."""

_KEY: Final = Struct(">II")
_BOOLEANS: Final = ("true", "on", "yes", "1")


class Connection:
    """Speaks with one client.

    Args:
        hub: What all connections share.
        reader: From the client.
        writer: To it.
        tls: The server's certificate; None if it has none.
        certificate_hash: Its SHA-256, for channel binding; None offers none.
    """

    def __init__(
        self,
        hub: Hub,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        tls: ssl.SSLContext | None,
        certificate_hash: bytes | None,
    ) -> None:
        self._hub = hub
        self._reader = reader
        self._writer = writer
        self._tls = tls
        self._certificate_hash = certificate_hash
        self._answers: list[bytes] = []
        """What is sent together, as a server does: a client that waits for the rest may do nothing else."""

    async def run(self) -> None:
        """Speak, until the client or an error ends it.

        Raises:
            OSError: The connection is lost.
        """
        try:
            try:
                async with asyncio.timeout(_STARTUP_SECONDS):
                    options = await self._start()
                    if options is not None:
                        await self._authenticate(options)
                if options is not None:
                    await self._serve(options)
            except Refused as refused:
                self._writer.write(protocol.error(refused))
            except asyncio.CancelledError:
                text = "terminating connection due to administrator command"
                self._writer.write(protocol.error(Refused("57P01", text, fatal=True)))
                raise
        except (asyncio.IncompleteReadError, TimeoutError, Terminated):
            return

    async def _start(self) -> dict[str, str] | None:
        """The options of the startup packet; None if the client wanted something else."""
        while True:
            packet = await incoming.read_startup(self._reader)
            match packet.code:
                case protocol.SSL_REQUEST if self._tls is not None and not self._is_encrypted:
                    self._writer.write(b"S")
                    await self._writer.drain()
                    await self._writer.start_tls(self._tls)
                case protocol.SSL_REQUEST | protocol.GSSENC_REQUEST:
                    self._writer.write(b"N")
                case protocol.CANCEL_REQUEST:
                    if len(packet.body) == _KEY.size:
                        self._hub.cancel(*_KEY.unpack(packet.body))
                    return None
                case code if code >> 16 == 3:
                    return self._negotiated(code, incoming.startup_options(packet.body))
                case code:
                    version = f"{code >> 16}.{code & 0xFFFF}"
                    text = f"unsupported frontend protocol {version}: server supports 3.0 to 3.0"
                    raise Refused("0A000", text, fatal=True)

    @property
    def _is_encrypted(self) -> bool:
        return self._writer.get_extra_info("sslcontext") is not None

    def _negotiated(self, code: int, options: dict[str, str]) -> dict[str, str]:
        unknown = [name for name in options if name.startswith("_pq_.")]
        if code > protocol.PROTOCOL_3_0 or unknown:
            self._writer.write(protocol.negotiate_version(unknown))
        return options

    async def _authenticate(self, options: dict[str, str]) -> None:
        if not options.get("user"):
            raise Refused("28000", "no PostgreSQL user name specified in startup packet", fatal=True)
        certificate_hash = self._certificate_hash if self._is_encrypted else None
        await authenticate(self._hub.verifier, options["user"], self._reader, self._writer, certificate_hash)
        database = options.get("database") or options["user"]
        if self._hub.source.database not in ("", database) and self._wants(options) != "physical":
            raise Refused("3D000", f'database "{database}" does not exist', fatal=True)

    @staticmethod
    def _wants(options: dict[str, str]) -> str:
        """What kind of connection it is: of a walsender for a database, of one for none, or ordinary."""
        replication = options.get("replication", "").lower()
        if replication == "database":
            return "logical"
        return "physical" if replication in _BOOLEANS else "ordinary"

    async def _serve(self, options: dict[str, str]) -> None:
        pid, secret = self._hub.enter()
        try:
            kind = self._wants(options)
            database = options.get("database") or options["user"]
            self._backend = Backend(self._hub, pid, database, options["user"])
            self._extended = Extended(self._backend)
            self._replication = (
                None if kind == "ordinary" else Replication(self._backend, is_logical=kind == "logical")
            )
            for name, value in options.items():
                if name not in ("user", "database", "replication", "options") and name[:5] != "_pq_.":
                    self._backend.set(name, value)
            settings = self._backend.settings
            self._writer.write(b"".join(protocol.parameter_status(name, settings[name]) for name in REPORTED))
            self._writer.write(protocol.backend_key(pid, secret) + protocol.ready())
            self._backend.take_notices()
            await self._loop()
        finally:
            self._hub.leave(pid)

    async def _loop(self) -> None:
        backend, write, skipping = self._backend, self._answers.append, False
        while True:
            tag, body = await incoming.read_message(self._reader)
            if tag == b"X":
                return
            if tag == b"S":
                skipping = False
                self._extended.sync()
                write(protocol.ready(backend.status))
            elif not skipping:
                try:
                    if tag == b"Q":
                        await self._query(incoming.Body(body).string())
                    else:
                        write(self._extended.take(tag, body))
                except Refused as refused:
                    if refused.fatal:
                        raise
                    backend.failed()
                    skipping = tag != b"Q"
                    write(backend.take_notices() + protocol.error(refused))
                if tag == b"Q":
                    write(protocol.ready(backend.status))
            await self._flush(0 if tag in _FLUSHING else _BUFFERED)

    async def _flush(self, kept: int) -> None:
        """Send the answers, if they have more bytes than these."""
        if sum(map(len, self._answers)) > kept:
            self._writer.write(b"".join(self._answers))
            self._answers.clear()
            await self._writer.drain()

    async def _query(self, sql: str) -> None:
        """A simple query, or a command of the replication protocol."""
        if self._replication is not None:
            answer = await self._replication.run(sql, self._reader, self._writer)
            if answer is not None:
                self._answers.append(answer)
                return
        some = [one for one in statements(sql) if one]
        for one in some:
            self._answers.append(self._answer(one))
            await self._flush(_BUFFERED)
            await asyncio.sleep(0)  # there may be thousands, and others have questions too
        if not some:
            self._answers.append(protocol.message(b"I"))

    def _answer(self, statement: str) -> bytes:
        result = self._backend.execute(statement)
        parts = [protocol.row_description(result.fields)] if result.fields else []
        for row in result.rows:
            typed = zip(row, result.fields, strict=True)
            parts.append(protocol.data_row([write_value(value, field.type_oid, 0) for value, field in typed]))
        return b"".join((*parts, self._backend.take_notices(), protocol.command_complete(result.tag)))
