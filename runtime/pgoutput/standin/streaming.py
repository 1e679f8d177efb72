"""A stream to one client: messages, keepalives, status updates (src/backend/replication/walsender.c)."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from pgoutput import envelope
from pgoutput.errors import DecodeError
from pgoutput.messages import HotStandbyFeedback, StandbyStatusUpdate
from pgoutput.standin.incoming import read_message
from pgoutput.standin.protocol import Refused
from pgoutput.standin.pump import Pump, keepalive
from pgoutput.standin.slots import Slot
from pgoutput.standin.sql.statements import Backend

_BUFFERED: Final = 1 << 20
"""Bytes that wait for the client, beyond which keepalives are left out: they would say nothing new."""

_LINGER_SECONDS: Final = 2.0
"""That a client has to notice that the connection is broken, before it is closed."""


class Terminated(Exception):
    """The client has ended the connection, or a fault has."""


class WalSender:
    """Streams to one client.

    Attributes:
        backend: Of the connection.
        slot: From which slot.
        sent_lsn: What ended up to here has been sent.
        written_lsn: What ended up to here the client says it has.

    Args:
        backend: Of the connection.
        slot: From which slot.
        pump: What is sent.
        start_lsn: What ended up to here is not.
    """

    def __init__(self, backend: Backend, slot: Slot, pump: Pump, start_lsn: int) -> None:
        self.backend = backend
        self.slot = slot
        self.sent_lsn = self.written_lsn = start_lsn
        self._pump = pump
        self._silent = backend.hub.faults.stall_keepalive
        self._timeout = 0.0 if self._silent else backend.hub.sender_timeout
        self._heard = time.monotonic()
        self._cancelled = asyncio.Event()

    def cancel(self) -> None:
        """End the stream with an error, as a CancelRequest does."""
        self._cancelled.set()

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Stream until the client ends it.

        Raises:
            Refused: The stream ends with an error.
            Terminated: The connection is to end without a word.
            OSError: The connection is lost.
            IncompleteReadError: Likewise.
        """
        self._writer = writer
        jobs = (self._receive(reader), self._send(), self._watch(), self._await_cancel())
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task in done:
                    task.result()
        finally:
            self._pump.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self) -> None:
        while (taken := await self._take()) is not None:
            data, lsn = taken
            self._writer.write(data)
            self.sent_lsn = max(self.sent_lsn, lsn)
            await self._writer.drain()
        if self._pump.broken:
            await self._break()
        await asyncio.Event().wait()

    async def _take(self) -> tuple[bytes, int] | None:
        try:
            return await self._pump.take()
        except Exception as error:  # a scenario is its user's own, and may raise anything
            text = f"the stand-in's source has failed: {type(error).__name__}: {error}"
            raise Refused("XX000", text) from None

    async def _break(self) -> None:
        """Say nothing more, but listen: a reset would take away what the client has not read."""
        with suppress(NotImplementedError):  # TLS has no such half
            self._writer.write_eof()
        await asyncio.sleep(_LINGER_SECONDS)
        raise Terminated

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """What the client says, until it ends the stream (ProcessRepliesIfAny)."""
        while True:
            tag, body = await read_message(reader)
            self._heard = time.monotonic()
            match tag:
                case b"d":
                    self._hear(body)
                case b"c":
                    return
                case b"X":
                    raise Terminated
                case _:
                    raise Refused("08P01", f"invalid standby message type {tag!r}", fatal=True)

    def _hear(self, body: bytes) -> None:
        try:
            said = envelope.decode(body)
        except DecodeError as error:
            raise Refused("08P01", f"invalid standby message: {error}", fatal=True) from None
        if isinstance(said, StandbyStatusUpdate):
            self.written_lsn = max(self.written_lsn, said.written_lsn)
            self.slot.confirmed_flush_lsn = max(self.slot.confirmed_flush_lsn, said.flushed_lsn)
            if said.reply_requested:
                self._keepalive()
        elif not isinstance(said, HotStandbyFeedback):
            raise Refused("08P01", f"unexpected message {type(said).__name__} of a client", fatal=True)

    async def _watch(self) -> None:
        """Ask a silent client whether it is there, and give it up in the end (WalSndKeepaliveIfNecessary)."""
        if not self._timeout:
            await asyncio.Event().wait()
        asked = 0.0
        while (silent := time.monotonic() - self._heard) < self._timeout:
            if silent >= self._timeout / 2 and asked != self._heard:
                asked = self._heard
                self._keepalive(reply_requested=True)
            await asyncio.sleep(min(1.0, self._timeout / 10))
        raise Terminated

    async def _await_cancel(self) -> None:
        await self._cancelled.wait()
        raise Refused("57014", "canceling statement due to user request")

    def _keepalive(self, *, reply_requested: bool = False) -> None:
        if self._silent or self._writer.transport.get_write_buffer_size() > _BUFFERED:
            return
        with suppress(OSError):
            self._writer.write(keepalive(self.sent_lsn, reply_requested=reply_requested))
