"""Walsender: stream to one client and handle its status updates (src/backend/replication/walsender.c)."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from logicalrep import envelope
from logicalrep.errors import DecodeError
from logicalrep.messages import HotStandbyFeedback, StandbyStatusUpdate
from logicalrep.standin.backend import ReplicationProgress
from logicalrep.standin.faults import Incident
from logicalrep.standin.frontend import read_message
from logicalrep.standin.protocol import ServerError
from logicalrep.standin.replication.decoding import source_failed
from logicalrep.standin.replication.source_reader import SourceReader, encode_keepalive
from logicalrep.standin.server_state import ServerState

_MAX_UNSENT_BYTES: Final = 1 << 20
"""Number of unsent bytes above which no keepalives are sent, because the client has enough data to read."""

_LINGER_SECONDS: Final = 2.0
"""Time that a client has to notice a dropped connection before the socket is closed, in seconds."""


class Terminated(Exception):
    """Raised to close a connection without an error message."""


class WalSender:
    """Streams a slot to one client.

    Args:
        progress: Progress of the stream; updated by the walsender.
        source_reader: Supplies the encoded stream.
        server: State of the server.
        reader: Stream that receives from the client.
        writer: Stream that sends to the client.
    """

    def __init__(
        self,
        progress: ReplicationProgress,
        source_reader: SourceReader,
        server: ServerState,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._progress = progress
        self._source_reader = source_reader
        self._server = server
        self._sends_keepalives = not server.faults.stall_keepalive
        self._timeout = server.wal_sender_timeout if self._sends_keepalives else 0.0
        self._is_dropped = self._is_frozen = False
        self._reader = reader
        self._writer = writer
        self._last_reply = time.monotonic()

    async def run(self) -> None:
        """Stream until the client ends the stream.

        Raises:
            ServerError: The stream ended with an error.
            Terminated: The connection must be closed without an error message.
            OSError: The connection is lost.
            IncompleteReadError: The connection ended inside a message.
        """
        jobs = (self._receive(), self._send(), self._watch_timeout(), self._watch_cancel())
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task in done:
                    task.result()
        finally:
            self._source_reader.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._is_dropped:  # the client ended the stream while the server was dropping the connection
            raise Terminated

    async def _send(self) -> None:
        while (taken := await self._take()) is not None:
            data, lsn = taken
            self._writer.write(data)
            self._progress.sent_lsn = max(self._progress.sent_lsn, lsn)
            await self._writer.drain()
        if self._source_reader.ending is not None:
            await self._end(self._source_reader.ending)
        await asyncio.Event().wait()

    async def _end(self, ending: Incident) -> None:
        if ending == "freeze":
            self._is_frozen, self._sends_keepalives, self._timeout = True, False, math.inf
            return
        if ending in ("error", "invalidate-slot"):
            self._progress.slot.is_lost = ending == "invalidate-slot"
            raise ServerError("57P01", "terminating connection due to administrator command", fatal=True)
        if ending == "switch-timeline":
            self._server.switch_timeline()
        await self._drop_connection()

    async def _take(self) -> tuple[bytes, int] | None:
        try:
            return await self._source_reader.take()
        except Exception as error:  # a source is user code and may raise any exception
            raise source_failed(error) from None

    async def _drop_connection(self) -> None:
        """Close the sending side, wait `_LINGER_SECONDS`, then raise Terminated.

        Closing the socket at once could reset the connection, and the client would lose data that it has not
        read.
        """
        self._is_dropped = True  # prevents writes after write_eof, which would fail
        with suppress(NotImplementedError):  # TLS has no write_eof
            self._writer.write_eof()
        await asyncio.sleep(_LINGER_SECONDS)
        raise Terminated

    async def _receive(self) -> None:
        """Handle the client's messages until the client ends the stream (ProcessRepliesIfAny)."""
        while True:
            tag, body = await read_message(self._reader)
            self._last_reply = time.monotonic()
            match tag:
                case _ if self._is_frozen and tag != b"X":
                    pass
                case b"d":
                    self._handle_reply(body)
                case b"c" if not self._is_dropped:
                    return
                case b"c" | b"X":
                    raise Terminated
                case _:
                    raise ServerError("08P01", f"invalid standby message type {tag!r}", fatal=True)

    def _handle_reply(self, body: bytes) -> None:
        try:
            reply = envelope.decode(body)
        except DecodeError as error:
            raise ServerError("08P01", f"invalid standby message: {error}", fatal=True) from None
        if isinstance(reply, StandbyStatusUpdate):
            progress, slot = self._progress, self._progress.slot
            progress.written_lsn = max(progress.written_lsn, reply.written_lsn)
            if reply.flushed_lsn > slot.confirmed_flush_lsn:
                slot.confirmed_flush_lsn = reply.flushed_lsn
                self._server.acknowledged[slot.name][reply.flushed_lsn] = datetime.now(UTC)
            if reply.reply_requested:
                self._send_keepalive()
        elif not isinstance(reply, HotStandbyFeedback):
            text = f"unexpected message {type(reply).__name__} of a client"
            raise ServerError("08P01", text, fatal=True)

    async def _watch_timeout(self) -> None:
        """Request a reply after half of the timeout; raise Terminated after the timeout without any message.

        Follows WalSndKeepaliveIfNecessary and WalSndCheckTimeOut. Without a timeout, wait forever.
        """
        if not self._timeout:
            await asyncio.Event().wait()
        requested = 0.0
        while (silent := time.monotonic() - self._last_reply) < self._timeout:
            if silent >= self._timeout / 2 and requested != self._last_reply:
                requested = self._last_reply
                self._send_keepalive(reply_requested=True)
            await asyncio.sleep(min(1.0, self._timeout / 10))
        raise Terminated

    async def _watch_cancel(self) -> None:
        await self._progress.cancelled.wait()
        raise ServerError("57014", "canceling statement due to user request")

    def _send_keepalive(self, *, reply_requested: bool = False) -> None:
        unsent = self._writer.transport.get_write_buffer_size()
        if not self._sends_keepalives or self._is_dropped or unsent > _MAX_UNSENT_BYTES:
            return
        with suppress(OSError):
            self._writer.write(encode_keepalive(self._progress.sent_lsn, reply_requested=reply_requested))
