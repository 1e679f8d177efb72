"""Read CopyData messages from the socket of a connection: rows of COPY … TO STDOUT, or a replication stream.

libpq returns one message per call and holds the GIL meanwhile, which takes most of the time of a copy. This
module reads the socket itself, and the compiled kernel (`logicalrep._kernel`) divides the received bytes into
messages. libpq does not see the messages from CopyOutResponse to CopyDone of COPY … TO STDOUT. Of a
replication stream, it sees nothing from CopyBothResponse to the end, including an error that ends the
stream.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Self

from logicalrep import compiled
from logicalrep.columns import XLogDataBatch, decode_copy_data
from logicalrep.recorder.client.errors import ErrorFields

_BATCH_BYTES: Final = 1 << 20
"""Size at which a batch of messages is complete, in bytes."""
_READ_BYTES: Final = 1 << 16

_SMALL_READ: Final = 1 << 14
"""Number of bytes below which a read of a replication stream counts as small; the next read is delayed."""
_DELAY_SECONDS: Final = 0.0002
"""Delay after a small read, in seconds.

A busy server sends each message in a packet of its own. Reading hundreds of messages at once takes a
hundredth of the system calls. The delay is short enough that the buffer of a socket does not become full.
"""
_GATHER_SECONDS: Final = 0.02
"""Time for which a call of `receive` waits for more messages after the first ones, in seconds.

Few large batches are faster than many small ones: each batch costs the recorder 1 to 2 ms, whatever its size,
during which the buffer of the socket becomes full and the server waits.
"""

_HEADER_BYTES: Final = 5
"""Size of a message's type and length (Message Formats of the frontend/backend protocol)."""
_LENGTH_BYTES: Final = 4
"""Size of the length, which counts itself."""
_COPY_OUT, _COPY_BOTH, _COPY_DATA, _COPY_DONE, _ERROR, _NOTICE = b"H", b"W", b"d", b"c", b"E", b"N"
_READ_HERE: Final = (_COPY_OUT, _COPY_BOTH, _COPY_DONE, _NOTICE, b"S", b"A")
"""Message types, besides CopyData, that are not left to libpq (S ParameterStatus, A NotificationResponse)."""

_LOST: Final = ErrorFields.of_contents(b"Mserver closed the connection unexpectedly")


class CopiedRows(NamedTuple):
    """Rows from COPY … TO STDOUT."""

    number: int
    """Number of rows. In binary format, the header and the trailer may count as rows."""
    data: bytes | memoryview
    """The rows, as COPY writes them."""


class _CopySocket:
    """Reads the messages that follow a statement directly from the socket of a connection, without libpq.

    A context manager. Its exit closes only the duplicate of the socket: the connection stays open.

    Args:
        descriptor: The socket, in non-blocking mode and without encryption. libpq must not have read from it
            since the statement was sent.
        wait: Called to wait until the socket can be read.
    """

    def __init__(self, descriptor: int, wait: Callable[[], None]) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._wait = wait
        self._buffer = bytearray()
        self._end = self._count = 0
        """Size in bytes, and number, of the complete CopyData messages at the start of `_buffer`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the duplicate of the socket; the connection stays open."""
        self._socket.close()

    def _take(self, peeked: bytes) -> bool:
        """Move CopyData messages from the socket to the buffer, the last of them perhaps only in part.

        Args:
            peeked: The bytes that `_peek` has returned, which are still in the socket.

        Returns:
            True if a message of another type follows, or if the connection was lost; False if more CopyData
            may follow.
        """
        assert compiled.kernel is not None
        buffer, size = self._buffer, len(self._buffer)
        buffer += peeked
        self._end, more = compiled.kernel.copy_data_end(buffer, self._end)
        self._count += more
        is_other = not peeked or buffer[self._end : self._end + 1] not in (b"", _COPY_DATA)
        if is_other:
            del buffer[self._end :]
        self._read(len(buffer) - size)
        return is_other

    def _clear(self) -> None:
        """Remove the complete CopyData messages from the buffer."""
        del self._buffer[: self._end]
        self._end = self._count = 0

    def _read_other(self, on_notice: Callable[[bytes], None]) -> bool:
        """Read a message other than CopyData, or leave it to libpq; return whether CopyData may follow it.

        False after CopyDone, and after a message that is left in the socket for libpq, such as an error.
        """
        kind = self._peek()[:1]
        if kind not in _READ_HERE:
            return False
        length = int.from_bytes(self._read(_HEADER_BYTES)[1:])
        contents = self._read(length - _LENGTH_BYTES)
        if kind == _NOTICE:
            on_notice(contents)
        return kind != _COPY_DONE

    def _read(self, size: int) -> bytes:
        """Wait for `size` bytes and read them; return fewer bytes if the connection was lost."""
        data = bytearray()
        while len(data) < size and (read := self._receive(size - len(data), 0)):
            data += read
        return bytes(data)

    def _peek(self) -> bytes:
        """Wait for bytes; return them and leave them in the socket. Return b"" if the connection was lost."""
        return self._receive(_READ_BYTES, socket.MSG_PEEK)

    def _receive(self, size: int, flags: int) -> bytes:
        while True:
            try:
                return self._socket.recv(size, flags)
            except BlockingIOError:
                self._wait()
            except OSError:
                return b""  # libpq reports the error


class CopyOutSocket(_CopySocket):
    """Reads the output of COPY … TO STDOUT from the socket; the arguments are those of `_CopySocket`."""

    def has_output(self) -> bool:
        """Wait for the first message; return whether it is CopyOutResponse.

        The message stays in the socket.
        """
        return self._peek()[:1] == _COPY_OUT

    def rows(self, on_notice: Callable[[bytes], None]) -> Iterator[CopiedRows]:
        """Yield the rows in batches, until CopyDone or a message that is left to libpq, such as an error.

        Args:
            on_notice: Called with the contents of each NoticeResponse.
        """
        kernel = compiled.kernel
        assert kernel is not None
        while True:
            is_other = self._take(self._peek())
            if is_other or len(self._buffer) >= _BATCH_BYTES:
                if self._count:
                    contents = kernel.copy_data_contents(memoryview(self._buffer)[: self._end])
                    yield CopiedRows(self._count, memoryview(contents))
                self._clear()
            if is_other and not self._read_other(on_notice):
                return


class ReplicationSocket(_CopySocket):
    """Reads and writes a replication stream on the socket; the arguments are those of `_CopySocket`.

    All that follows CopyBothResponse is read here: libpq sees neither the end of the stream nor its error.

    Attributes:
        more: Whether further messages may have arrived.
        ended: Whether the server has ended the stream, or the connection was lost.
        error: Fields of the error that has ended the stream; None if `send_done` has ended it.
    """

    more: bool = True
    ended: bool = False
    error: ErrorFields | None = None
    _is_done = False

    def begins(self) -> bool:
        """Wait for the first message; return whether it is CopyBothResponse.

        CopyBothResponse is read here. Any other message stays in the socket, for libpq.
        """
        if self._peek()[:1] != _COPY_BOTH:
            return False
        self._read_other(lambda contents: None)
        return True

    def receive(self, on_notice: Callable[[bytes], None]) -> XLogDataBatch:
        """Return the envelopes that have arrived, and those that follow within 20 ms; about 1 MiB at most.

        If nothing has arrived when the method is called, it returns an empty batch at once.

        Args:
            on_notice: Called with the contents of a NoticeResponse that follows the envelopes.
        """
        assert compiled.kernel is not None
        buffer = self._buffer
        self.more = is_other = False
        end = time.monotonic() + _GATHER_SECONDS
        while not (is_other or self.more):
            size = self._receive_more()
            self._end, _ = compiled.kernel.copy_data_end(buffer, self._end)
            is_other = self.ended or buffer[self._end : self._end + 1] not in (b"", _COPY_DATA)
            self.more = self._end >= _BATCH_BYTES
            if not (size or self._end) or time.monotonic() > end:
                break
            if size < _SMALL_READ:
                time.sleep(_DELAY_SECONDS)
        batch = decode_copy_data(memoryview(buffer)[: self._end])
        self._clear()
        if is_other and not self.ended:
            self.more = True
            self._take_other(on_notice)
        return batch

    def _receive_more(self) -> int:
        """Append the bytes that have arrived to the buffer; return their number."""
        try:
            received = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            received = b""
        if not received and not self.ended:
            self.ended, self.error = True, _LOST
        self._buffer += received
        return len(received)

    def _take_other(self, on_notice: Callable[[bytes], None]) -> None:
        """Remove a message other than CopyData from the start of the buffer, and handle it.

        A message that has arrived only in part stays in the buffer. `more` then becomes False, so that the
        caller waits for the rest.
        """
        buffer = self._buffer
        end = 1 + int.from_bytes(buffer[1:_HEADER_BYTES])
        if len(buffer) < max(end, _HEADER_BYTES):
            self.more = False
            return
        kind, contents = bytes(buffer[:1]), bytes(buffer[_HEADER_BYTES:end])
        del buffer[: max(end, _HEADER_BYTES)]
        if kind == _NOTICE:
            on_notice(contents)
        elif kind == _ERROR:
            self.error = ErrorFields.of_contents(contents)
        self.ended = kind not in _READ_HERE or kind == _COPY_DONE
        if self.ended and not self._is_done and self.error is None:  # the server was shut down, for example
            self.error = _LOST

    def send(self, contents: bytes) -> None:
        """Send a CopyData message with these contents.

        Raises:
            OSError: The connection was lost.
        """
        self._send(_COPY_DATA, contents)

    def send_done(self) -> None:
        """Send CopyDone, unless it was sent before.

        Raises:
            OSError: The connection was lost.
        """
        if not self._is_done:
            self._is_done = True
            self._send(_COPY_DONE, b"")

    def _send(self, kind: bytes, contents: bytes) -> None:
        left = memoryview(kind + (len(contents) + _LENGTH_BYTES).to_bytes(_LENGTH_BYTES) + contents)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                select.select([], [self._socket], [])
