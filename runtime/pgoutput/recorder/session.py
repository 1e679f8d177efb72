"""One connection's stream to segments: store first, acknowledge after."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from pgoutput._arrays import repeated_int64
from pgoutput.columns import ColumnDecoder, decode_xlog_data
from pgoutput.errors import ConnectionLost, ReplicationError
from pgoutput.messages import PrimaryKeepalive, StandbyStatusUpdate
from pgoutput.recorder.connection import Connection
from pgoutput.recorder.disk import Disk
from pgoutput.recording import (
    SCHEMA,
    Directory,
    Metadata,
    Remarks,
    ResentCommitCheck,
    SegmentWriter,
    SessionStart,
    Source,
)
from pgoutput.wire import EPOCH_UNIX_MICROSECONDS, format_lsn

_TIME: Final = SCHEMA.field("received_at").type

_TICK: Final = 0.25
"""Seconds after which what is due by time is looked at, at the latest."""

_STATUS_SECONDS: Final = 10.0
"""Between two status updates, where the server does not want them sooner (wal_receiver_status_interval)."""

_SILENCE_SECONDS: Final = 60.0
"""After which a server that does not answer is taken for gone (wal_receiver_timeout), unless its own
wal_sender_timeout is longer."""

_FAREWELL_SECONDS: Final = 5.0
"""That the server has to end the stream when it is asked to."""


class Session:
    """Records from one connection.

    Attributes:
        messages: How many were taken.
        acknowledged_lsn: What the server was told last.
        last_commit_time: Of what has passed, in microseconds since 2000; None if nothing was committed.

    Args:
        connection: It streams already.
        folder: Where the segments go.
        source: What it streams.
        start: Where it goes on.
        acknowledged_lsn: What the server was told before.
        sender_timeout: As `Server` has it.
        segment_bytes: A segment ends when its messages have so many bytes.
        segment_seconds: Or when it is so old, and holds what can be acknowledged.
        stored: Is told of each segment that is safe on the disk.
        acknowledging: Is told, and must note on the disk, what the server will be told although no segment
            ends there.
        remarks: As for `SegmentWriter`.
        resent: As for `SegmentWriter`. Until it is settled, nothing more is acknowledged.
    """

    def __init__(
        self,
        connection: Connection,
        folder: Directory,
        source: Source,
        start: SessionStart,
        *,
        acknowledged_lsn: int,
        sender_timeout: float,
        segment_bytes: int,
        segment_seconds: float,
        stored: Callable[[Path, Metadata], None],
        acknowledging: Callable[[int], None],
        remarks: Callable[[Sequence[int]], Remarks] = lambda oids: Remarks(),
        resent: ResentCommitCheck | None = None,
    ) -> None:
        self.messages = 0
        self.acknowledged_lsn = acknowledged_lsn
        self.last_commit_time: int | None = None
        self._connection = connection
        self._segment_seconds = segment_seconds
        self._tell_stored = stored
        self._acknowledging = acknowledging
        self._silence_seconds = max(_SILENCE_SECONDS, sender_timeout)
        self._status_seconds = min(_STATUS_SECONDS, sender_timeout / 3 or _STATUS_SECONDS)
        self._stored_lsn = acknowledged_lsn
        """What may be acknowledged; set by the disk's thread."""
        self._heard_lsn = start.lsn
        """What ended up to here has come."""
        self._status_sent = self._heard = time.monotonic()
        self._disk = Disk(self._keep_alive)
        self._resent = resent or ResentCommitCheck()
        self._writer = SegmentWriter(
            folder,
            source,
            start,
            run=self._disk.submit,
            stored=self._stored,
            segment_bytes=segment_bytes,
            remarks=remarks,
            resent=self._resent,
        )
        self._start_lsn = start.lsn
        self._reader = ColumnDecoder(
            source.proto_version, streaming=source.streaming, two_phase=source.slot_two_phase
        )
        """Reads every message, so that none is acknowledged that nobody can read."""

    @property
    def open_transactions(self) -> int:
        """How many have begun and not ended."""
        return self._writer.state.in_flight

    def run(self, until: int | None, stop: Callable[[], bool], tick: Callable[[], None]) -> None:
        """Record, until all that ended up to an LSN is stored and acknowledged, or until it is stopped.

        What has come when the connection ends is stored all the same.

        Args:
            until: The LSN; None for no end.
            stop: Says when to stop.
            tick: Is called several times a second.

        Raises:
            ConnectionLost: The connection ended.
            ReplicationError: The server has ended the stream with an error.
            DecodeError: The server sent a message that cannot be read; it names message, field, byte and LSN.
            OSError: A segment could not be written.
        """
        with self._disk:
            try:
                while not (stop() or self._reached(until)):
                    self._step(until is not None)
                    tick()
            except ReplicationError:
                if self._resent.settled:  # else nothing is to be kept, or it is not this server's
                    self._finish()
                raise
            self._finish()
            if not self._writer.state.in_flight and self._resent.settled:
                self._disk.submit(lambda: self._note(self._heard_lsn))
                self._disk.flush()
            self._acknowledge()
            self._say_goodbye()

    def announce(self) -> None:
        """Store remarks that are not in a segment yet; one that is being written will have them."""
        self._writer.announce()

    def _step(self, hurry: bool) -> None:
        """Take what has come, and do what is due."""
        connection, disk = self._connection.fileno(), self._disk.fileno()
        readable, _, _ = select.select([connection, disk], [], [], 0.0 if self._connection.more else _TICK)
        if disk in readable:
            self._disk.done()
        if connection in readable or self._connection.more:
            self._take(self._connection.receive())
        if self._is_due():
            self._writer.rotate()
        now = time.monotonic()
        if self._stored_lsn > self.acknowledged_lsn and now - self._status_sent >= _TICK:
            self._acknowledge()
        elif now - self._status_sent >= (_TICK if hurry else self._status_seconds):
            # The answer says how far the server has read, and that it is alive.
            self._acknowledge(reply_requested=True)
        if now - self._heard > self._silence_seconds:
            raise ConnectionLost(f"the server has been silent for {self._silence_seconds:.0f} seconds")

    def _take(self, payloads: list[bytes]) -> None:
        """Store what has come."""
        lsns, data, others = decode_xlog_data(payloads)
        now = time.time_ns() // 1000
        start = 0
        for stop, message in (*others, (len(data), None)):
            self._write(lsns[start:stop], now, data[start:stop])
            start = stop
            if isinstance(message, PrimaryKeepalive):
                self._keepalive(message)
        if self._connection.ended:
            raise ConnectionLost("the server has ended the stream")
        self._heard = time.monotonic()

    def _write(self, lsns: pa.Array, now: int, data: pa.BinaryArray) -> None:
        if len(data):
            self._check(lsns, data)
            self.messages += len(data)
            self._writer.write_batch(lsns, repeated_int64(now, len(data), _TIME), data)
            state = self._writer.state
            self._heard_lsn = max(self._heard_lsn, state.end_lsn)
            self.last_commit_time = state.last_commit_time or self.last_commit_time

    def _check(self, lsns: pa.Array, data: pa.BinaryArray) -> None:
        """See that all messages can be read.

        Raises:
            DecodeError: One cannot.
        """
        if (wrong := self._reader.find_error(data)) is None:
            return
        row, error = wrong
        given = [lsn for lsn in lsns[: row + 1].to_pylist() if lsn] or [self._heard_lsn]
        raise type(error)(
            f"{error}; it came at {format_lsn(given[-1])}, is message {self.messages + row} of the session, "
            "and neither it nor what follows is acknowledged. If it comes again after a restart, the server "
            "or the network damages it, or this package does not know the server's version",
            message=error.message,
            field=error.field,
            offset=error.offset,
        )

    def _keepalive(self, message: PrimaryKeepalive) -> None:
        """Learn how far the server has read; advance an idle slot, so that the server can let go of WAL."""
        if not self._writer.state.inside:
            self._heard_lsn = max(self._heard_lsn, message.wal_end)
            if not self._resent.settled and message.wal_end >= self._start_lsn:
                self._resent.settle()
        if message.reply_requested:
            self._acknowledge()
        idle = not self._writer.open_for and not self._writer.state.in_flight and self._disk.idle
        if idle and self._resent.settled:
            self._disk.submit(lambda: self._note(message.wal_end))

    def _note(self, lsn: int) -> None:
        """Have it on the disk that the server will be told so: then nobody can take it for a gap."""
        if lsn > self._stored_lsn:
            self._acknowledging(lsn)
            self._stored_lsn = lsn

    def _stored(self, path: Path, metadata: Metadata) -> None:
        self._tell_stored(path, metadata)
        if self._resent.settled:
            self._stored_lsn = max(self._stored_lsn, metadata.end_lsn)

    def _is_due(self) -> bool:
        """Whether the segment is old enough, and of use to the server or to nobody else."""
        writer = self._writer
        return writer.open_for >= self._segment_seconds and (writer.has_ends or not writer.state.in_flight)

    def _reached(self, until: int | None) -> bool:
        return until is not None and self._heard_lsn >= until and not self._writer.state.inside

    def _keep_alive(self) -> None:
        """Tell the server that we are here, while we wait for the disk."""
        self._heard = time.monotonic()  # it may well speak, but we do not listen
        if self._heard - self._status_sent >= self._status_seconds:
            with suppress(ReplicationError):  # which is noticed when we listen again; the disk goes on
                self._acknowledge()

    def _acknowledge(self, *, reply_requested: bool = False) -> None:
        """Tell the server what is stored. It may forget that, and sends it no more."""
        lsn = self._stored_lsn
        now = time.time_ns() // 1000 - EPOCH_UNIX_MICROSECONDS
        self._connection.send(StandbyStatusUpdate(lsn, lsn, lsn, now, reply_requested))
        self.acknowledged_lsn = lsn
        self._status_sent = time.monotonic()

    def _finish(self) -> None:
        """Store what has come."""
        self._writer.rotate()
        self._disk.flush()

    def _say_goodbye(self) -> None:
        """End the stream; what still comes will come again."""
        with suppress(ConnectionLost):
            self._connection.end_replication()
            deadline = time.monotonic() + _FAREWELL_SECONDS
            while not self._connection.ended and (left := deadline - time.monotonic()) > 0:
                if self._connection.more or select.select([self._connection], [], [], left)[0]:
                    self._connection.receive()
