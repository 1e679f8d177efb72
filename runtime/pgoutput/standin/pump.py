"""A source's messages to bytes, in a thread: it may read from a disk, or wait, and nobody else does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import Final

from pgoutput.messages import PrimaryKeepalive, XLogData
from pgoutput.standin.faults import Faults, Progress, Striker
from pgoutput.standin.source import Sent
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS

_AHEAD: Final = 1 << 20
"""Bytes that are read ahead, but for the last message."""

_TAKE: Final = 1 << 18
"""Bytes that are taken at a time, likewise."""

_PAUSE: Final = 0.02
"""Seconds between two looks at a source that has nothing more for now."""

_XLOG_DATA: Final = Struct(">cIcQQq")
_KEEPALIVE: Final = Struct(">cIcQqB")
_LSN: Final = Struct(">Q")

_END_LSN: Final = dict.fromkeys(b"CKPpr", 10) | dict.fromkeys(b"c", 14)
"""Where the messages that end a transaction have the LSN up to which they do, by their tags."""


def keepalive(wal_end: int, *, reply_requested: bool) -> bytes:
    """A keepalive, in its CopyData."""
    return _KEEPALIVE.pack(b"d", 22, b"k", wal_end, _now(), reply_requested)


def _now() -> int:
    """Microseconds since 2000."""
    return time.time_ns() // 1000 - EPOCH_UNIX_MICROSECONDS


class Pump:
    """Reads a source ahead, as far as its bound, and gives bytes to send.

    Args:
        messages: What the source gives.
        faults: What is done to it.
        progress: Of the slot.
        start_lsn: What ended up to here is not in it.
    """

    def __init__(
        self, messages: Iterator[Sent | None], faults: Faults, progress: Progress, start_lsn: int
    ) -> None:
        self._messages = messages
        self._faults = faults
        self._striker = Striker(faults, progress) if faults.strikes else None
        self._ended_lsn = start_lsn
        self._frames: deque[tuple[bytes, int]] = deque()
        self._put = self._taken = 0
        """Bytes; each is counted by one thread only."""
        self._room = threading.Event()
        self._closed = self._ended = self._hungry = False
        self._failure: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._food = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="pgoutput-standin-source", daemon=True)
        self._thread.start()

    @property
    def broken(self) -> bool:
        """Whether a fault breaks the connection behind what was taken."""
        return self._striker is not None and self._striker.broken

    async def take(self) -> tuple[bytes, int] | None:
        """The next bytes, and the LSN up to which all has ended with them; None at the end.

        Raises:
            Exception: What the source has raised.
        """
        while True:
            ended = self._ended  # asked first: what was put before the end is seen below
            if self._frames:
                break
            if ended:
                if self._failure is not None:
                    raise self._failure
                return None
            self._food.clear()
            self._hungry = True  # from here on the thread tells; what it put before is seen now
            if not self._frames and not self._ended:
                await self._food.wait()
            self._hungry = False
        taken: list[bytes] = []
        size = lsn = 0
        while self._frames and size < _TAKE:
            frame, lsn = self._frames.popleft()
            taken.append(frame)
            size += len(frame)
        self._taken += size
        self._room.set()
        return b"".join(taken), lsn

    def close(self) -> None:
        """Have the thread end; it may still wait for its source."""
        self._closed = True
        self._room.set()

    def _run(self) -> None:
        try:
            self._fill()
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ended = True
            self._tell()
            close = getattr(self._messages, "close", None)
            if close is not None:
                with suppress(Exception):
                    close()

    def _fill(self) -> None:
        delay = (self._faults.delay or 0) / 1000
        striker = self._striker
        for message in self._messages:
            if message is None:
                time.sleep(_PAUSE)
            elif delay:
                time.sleep(delay)
            if type(message) is XLogData:
                if striker is None:
                    self._add(message)
                else:
                    for struck in striker.strike(message, self._ended_lsn):
                        self._add(struck)
                    self._follow(message.data)
            elif type(message) is PrimaryKeepalive and not self._faults.stall_keepalive:
                self._ended_lsn = max(self._ended_lsn, message.wal_end)
                self._append(keepalive(message.wal_end, reply_requested=message.reply_requested))
            if self._closed or self.broken:
                return

    def _add(self, message: XLogData) -> None:
        data = message.data
        if self._striker is None and data and data[0] in _END_LSN:
            self._follow(data)
        head = _XLOG_DATA.pack(b"d", len(data) + 29, b"w", message.wal_start, message.wal_end, _now())
        self._append(head + data)

    def _follow(self, data: bytes) -> None:
        """Take note of what ends."""
        place = _END_LSN.get(data[0]) if data else None
        if place is not None:
            self._ended_lsn = max(self._ended_lsn, _LSN.unpack_from(data, place)[0])

    def _append(self, frame: bytes) -> None:
        while self._put - self._taken >= _AHEAD and not self._closed:
            self._room.clear()
            if self._put - self._taken >= _AHEAD and not self._closed:
                self._room.wait()
        self._frames.append((frame, self._ended_lsn))
        self._put += len(frame)
        if self._hungry:
            self._hungry = False
            self._tell()

    def _tell(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._food.set)
