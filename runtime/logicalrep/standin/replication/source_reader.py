"""Read and encode a source's stream in a thread, so that a slow source does not block the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from struct import Struct
from typing import Final

from logicalrep._offsets import offset_of
from logicalrep._roles import ENDS, classes, meaning_of
from logicalrep.envelope import encode as encode_envelope
from logicalrep.messages import PrimaryKeepalive, XLogData
from logicalrep.standin.faults import FaultInjector, Faults, Incident, SlotProgress
from logicalrep.standin.protocol import encode_message
from logicalrep.standin.source import Envelope
from logicalrep.stream import StreamDecoder
from logicalrep.wire import timestamp_now

_MAX_BUFFERED_BYTES: Final = 1 << 20
"""Number of buffered bytes at which the source's thread pauses. The last message may exceed this number."""

_MAX_TAKEN_BYTES: Final = 1 << 18
"""Number of bytes at which `SourceReader.take` returns. The last message may exceed this number."""

_POLL_SECONDS: Final = 0.02
"""Time to wait before reading again from a source that has no new message, in seconds."""

_LSN: Final = Struct(">Q")


def encode_keepalive(wal_end: int, *, reply_requested: bool) -> bytes:
    """Encode a CopyData message with a primary keepalive."""
    return encode_message(
        b"d",
        encode_envelope(
            PrimaryKeepalive(wal_end=wal_end, send_time=timestamp_now(), reply_requested=reply_requested)
        ),
    )


class SourceReader:
    """Reads a source in a thread and buffers the encoded CopyData messages, up to a limited size.

    Args:
        envelopes: Iterator that yields the source's envelopes, and None while no new message is available.
        faults: Faults to inject.
        progress: How far the slot's stream has been sent, shared by all connections of the slot.
        start_lsn: LSN after which the stream starts.
        proto_version: Protocol version that the client requested.
    """

    def __init__(
        self,
        envelopes: Iterator[Envelope | None],
        faults: Faults,
        progress: SlotProgress,
        start_lsn: int,
        proto_version: int,
    ) -> None:
        self._envelopes = envelopes
        self._faults = faults
        self._injector = FaultInjector(faults, progress) if faults.alter_messages else None
        self._ended_lsn = start_lsn
        self._end_lsn_offsets = _end_lsn_offsets(proto_version)
        self._decoder = StreamDecoder(proto_version, two_phase=True)
        self._buffer: deque[tuple[bytes, int]] = deque()
        # Total bytes added to and taken from the buffer: two counters, so that each is written by one thread.
        self._added = self._taken = 0
        self._has_room = threading.Event()
        self._closed = self._ended = self._waiting = False
        self._failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._available = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="logicalrep-standin-source", daemon=True)
        self._thread.start()

    @property
    def ending(self) -> Incident | None:
        """Incident (fault at one message) that ends the stream after all buffered data is sent, or None."""
        return None if self._injector is None else self._injector.ending

    async def take(self) -> tuple[bytes, int] | None:
        """Wait for data. Return encoded CopyData messages and an LSN, or None if the stream has ended.

        This and earlier calls have returned all transactions that end at or before the LSN.

        Raises:
            Exception: The error that the source raised.
        """
        while True:
            ended = self._ended  # read before the buffer, so that data added just before the end is sent
            if self._buffer:
                break
            if ended:
                if self._failure is not None:
                    raise self._failure
                return None
            self._available.clear()
            self._waiting = True  # the thread now reports new data; data added before is checked below
            if not self._buffer and not self._ended:
                await self._available.wait()
            self._waiting = False
        messages: list[bytes] = []
        size = lsn = 0
        while self._buffer and size < _MAX_TAKEN_BYTES:
            message, lsn = self._buffer.popleft()
            messages.append(message)
            size += len(message)
        self._taken += size
        self._has_room.set()
        return b"".join(messages), lsn

    def close(self) -> None:
        """Make the thread stop after the next envelope. Does not wait for the thread."""
        self._closed = True
        self._has_room.set()

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ended = True
            self._notify()
            close = getattr(self._envelopes, "close", None)
            if close is not None:
                with suppress(Exception):
                    close()

    def _read(self) -> None:
        delay = (self._faults.delay or 0) / 1000
        injector = self._injector
        for envelope in self._envelopes:
            if envelope is None:
                time.sleep(_POLL_SECONDS)
            elif delay:
                time.sleep(delay)
            if type(envelope) is XLogData:
                if injector is None:
                    self._add(envelope)
                else:
                    for altered in injector.apply(envelope, self._ended_lsn):
                        self._add(altered)
                    self._track_end(envelope.data)
            elif type(envelope) is PrimaryKeepalive and not self._faults.stall_keepalive:
                self._ended_lsn = max(self._ended_lsn, envelope.wal_end)
                self._append(encode_keepalive(envelope.wal_end, reply_requested=envelope.reply_requested))
            if self._closed or self.ending:
                return

    def _add(self, message: XLogData) -> None:
        data = message.data
        if self._injector is None and data and data[0] in self._end_lsn_offsets:
            self._track_end(data)
        sent = XLogData(
            wal_start=message.wal_start, wal_end=message.wal_end, send_time=timestamp_now(), data=data
        )
        self._append(encode_message(b"d", encode_envelope(sent)))

    def _track_end(self, data: bytes) -> None:
        """Update the end LSN of the last transaction if the message `data` ends a transaction."""
        if not data or data[0] not in self._end_lsn_offsets:
            return
        offset = self._end_lsn_offsets[data[0]]
        if offset is None:
            end_lsn = meaning_of(self._decoder.decode(data), "end_lsn")
        else:
            end_lsn = _LSN.unpack_from(data, offset)[0]
        self._ended_lsn = max(self._ended_lsn, end_lsn)

    def _append(self, copy_data: bytes) -> None:
        while self._added - self._taken >= _MAX_BUFFERED_BYTES and not self._closed:
            self._has_room.clear()
            if self._added - self._taken >= _MAX_BUFFERED_BYTES and not self._closed:
                self._has_room.wait()
        self._buffer.append((copy_data, self._ended_lsn))
        self._added += len(copy_data)
        if self._waiting:
            self._waiting = False
            self._notify()

    def _notify(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so nothing waits for data
            self._loop.call_soon_threadsafe(self._available.set)


@cache
def _end_lsn_offsets(proto_version: int) -> dict[int, int | None]:
    """Return the byte offset of the end LSN in messages that end a transaction, by the message's tag byte.

    An offset is None if it varies; such a message must be decoded.
    """
    return {ord(kind.wire_tag): offset_of(kind, "end_lsn", proto_version) for kind in classes(*ENDS)}
