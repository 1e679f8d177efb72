"""A session: stores the stream of one connection in segments, and then acknowledges it."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logicalrep._arrays import repeated_int64
from logicalrep.columns import ColumnDecoder, XLogDataBatch
from logicalrep.errors import ConnectionLost, ReplicationError
from logicalrep.messages import PrimaryKeepalive, StandbyStatusUpdate
from logicalrep.recorder.client import Connection
from logicalrep.recorder.options import Settings
from logicalrep.recorder.session.start import PreparedSession
from logicalrep.recorder.storage import WriterThreads
from logicalrep.recording import SCHEMA, Directory, Metadata, Remarks, SchemaVersion, SegmentWriter
from logicalrep.wire import format_lsn, timestamp_now

_TIME: Final = SCHEMA.field("received_at").type

_TICK: Final = 0.25
"""Largest number of seconds between two calls of `tick`, and from storing a segment to acknowledging it."""

_STATUS_SECONDS: Final = 10.0
"""Seconds between two status updates (wal_receiver_status_interval); fewer if wal_sender_timeout is short."""

_SILENCE_SECONDS: Final = 60.0
"""Seconds of silence after which the connection counts as lost, if wal_sender_timeout is not longer."""

_GOODBYE_SECONDS: Final = 5.0
"""Largest number of seconds to wait for the server to end the stream on request."""


class Session:
    """Records the stream of one connection: stores its messages in segments, then acknowledges them.

    Attributes:
        messages: Number of messages that were received.
        received_bytes: Size of the messages that were received, in bytes.
        received_lsn: LSN up to which all transactions were received.
        stored_lsn: LSN up to which everything is stored and may be acknowledged; set by other threads.
        acknowledged_lsn: LSN that was acknowledged last.
        last_commit_time: Time of the last received commit, in microseconds since 2000-01-01 00:00 UTC; None
            before the first commit.

    Args:
        connection: A connection that streams.
        folder: Folder for the segments.
        prepared: Where and how the session starts. Nothing is acknowledged until all transactions that the
            server sends again have arrived.
        settings: Settings of the recorder.
        on_stored: Called in the thread that stores segments, with path and metadata of each stored segment.
        save_lsn: Called in the thread that writes segments, with an LSN at which no segment ends, before the
            LSN is acknowledged. Must write the LSN to the disk: otherwise the next start finds that the
            slot is after the end of the recording, and reports lost changes.
        save_seconds: Least number of seconds between two calls of `save_lsn` while nothing is received.
        remarks: Returns incomplete tables and changes of publications for the metadata of a segment, given
            the schema versions that begin in the segment, and the descriptions of DDL statements in it.
    """

    def __init__(
        self,
        connection: Connection,
        folder: Directory,
        prepared: PreparedSession,
        settings: Settings,
        *,
        on_stored: Callable[[Path, Metadata], None],
        save_lsn: Callable[[int], None],
        save_seconds: float = 0.0,
        remarks: Callable[[Sequence[SchemaVersion], Sequence[bytes]], Remarks],
    ) -> None:
        source, sender_timeout = prepared.source, prepared.server.sender_timeout
        self.messages: int = 0
        self.received_bytes: int = 0
        self.acknowledged_lsn: int = prepared.acknowledged_lsn
        self.last_commit_time: int | None = None
        self._connection = connection
        self._segment_seconds = settings.segment_seconds
        self._on_stored = on_stored
        self._save_lsn = save_lsn
        self._save_seconds = save_seconds
        self._next_save = 0.0
        """Earliest time for the next call of `save_lsn`, by time.monotonic()."""
        self._silence_seconds = max(_SILENCE_SECONDS, sender_timeout)
        self._status_seconds = min(_STATUS_SECONDS, sender_timeout / 3 or _STATUS_SECONDS)
        self.stored_lsn: int = prepared.acknowledged_lsn
        self.received_lsn: int = prepared.start.lsn
        self._start_lsn = prepared.start.lsn
        self._status_sent = self._last_heard = time.monotonic()
        self._threads = WriterThreads(self._keep_alive)
        self._resent = prepared.resent
        self._writer = SegmentWriter(
            folder,
            source,
            prepared.start,
            run=self._threads.submit,
            end=self._threads.submit_end,
            stored=self._segment_stored,
            segment_bytes=settings.segment_bytes,
            remarks=remarks,
            resent=self._resent,
        )
        self._decoder = ColumnDecoder(
            source.proto_version, streaming=source.streaming, two_phase=source.slot_two_phase
        )
        """Decoder for all received messages, so that no undecodable message is acknowledged."""

    @property
    def open_transactions(self) -> int:
        """Number of transactions that have begun and not ended."""
        return self._writer.state.in_flight

    @property
    def oldest_transaction_seconds(self) -> float | None:
        """Seconds since the oldest of the open transactions began to arrive; None if none is open."""
        since = self._writer.state.oldest_since
        return None if since is None else time.monotonic() - since

    def run(self, until: int | None, stop: Callable[[], bool], tick: Callable[[], bool]) -> None:
        """Record until everything up to an LSN is stored and acknowledged, or until `stop` returns True.

        If the connection is lost, all messages received before are stored nevertheless.

        Args:
            until: LSN at which to end; None for no end.
            stop: Returns whether to stop.
            tick: Called several times a second; returns True to go on after `until`, for example because rows
                of tables are still being copied.

        Raises:
            ConnectionLost: The connection was lost.
            ReplicationError: The server has ended the stream with an error.
            DecodeError: A message cannot be decoded; the text names message, field, byte and LSN.
            OSError: A segment cannot be written.
        """
        with self._threads:
            try:
                is_copying = tick()
                while not (stop() or (self._has_reached(until) and not is_copying)):
                    self._step(is_hurried=is_copying or until is not None)
                    is_copying = tick()
            except ReplicationError:
                if self._resent.settled:  # otherwise the messages may come from another server than before
                    self._store_received()
                raise
            self._store_received()
            if not self._writer.state.in_flight and self._resent.settled:
                self._threads.submit(lambda: self._advance_to(self.received_lsn))
                self._threads.flush()
            self._acknowledge()
            self._end_stream()

    @property
    def truncates(self) -> dict[int, int]:
        """Maps a table's OID to the xid of the last transaction of the session that truncated the table.

        A transaction is included only if the Truncate is its last change, and if it is neither streamed nor
        prepared.
        """
        return self._writer.state.truncates

    @property
    def partitions(self) -> dict[tuple[int, int], int]:
        """Maps the OIDs of partitions and roots in the open segment to LSNs (see `StreamState`)."""
        return self._writer.state.partitions

    @property
    def alone(self) -> set[int]:
        """OIDs of the relations that were described without a root."""
        return self._writer.state.alone

    @property
    def complete_lsn(self) -> int:
        """LSN up to which all transactions that have ended are stored; it need not be acknowledged."""
        is_complete = not self._writer.has_ends and self._threads.is_idle and self._resent.settled
        return self.received_lsn if is_complete else self.stored_lsn

    def announce(self) -> None:
        """Write the current incomplete tables and publication changes to the metadata of a segment.

        The metadata is written when the open segment ends; if no segment is open, a segment without messages
        is written.
        """
        self._writer.announce()

    def has_received(self, lsn: int) -> bool:
        """Return whether all transactions before an LSN were received, and none is being received now."""
        return self.received_lsn >= lsn and not self._writer.state.inside and self._resent.settled

    def insert(self, messages: Callable[[int], Iterable[pa.BinaryArray]], report: Callable[[], None]) -> None:
        """Store transactions with copied rows, in snapshot segments between two transactions of the stream.

        The transactions are stored when the method returns. The server's messages are not read meanwhile.

        Args:
            messages: Returns the messages to store. Called when everything received before is stored, with
                the end LSN of the last recorded transaction.
            report: Called after each batch of messages, to report that the session is not stuck.

        Raises:
            OSError: A segment cannot be written.
        """
        self._store_received()
        self._writer.kind = "snapshot"
        for data in messages(self._writer.state.end_lsn):
            lsns = repeated_int64(self._writer.state.end_lsn, len(data), pa.int64())
            received = repeated_int64(time.time_ns() // 1000, len(data), _TIME)
            self._writer.write_batch(lsns, received, data)
            self._keep_alive()
            report()
        self._store_received()
        self._writer.kind = "stream"

    def _step(self, *, is_hurried: bool) -> None:
        """Wait for messages and receive them, end a segment that is due, send a status update that is due.

        Args:
            is_hurried: Whether to ask the server several times a second how far it has read the WAL.
        """
        connection, writer = self._connection.fileno(), self._threads.fileno()
        patience = 0.0 if self._connection.more else min(_TICK, self._segment_patience())
        readable, _, _ = select.select([connection, writer], [], [], patience)
        if writer in readable:
            self._threads.collect()
        if connection in readable or self._connection.more:
            self._handle(self._connection.receive())
        if self._is_segment_due():
            self._writer.rotate()
        now = time.monotonic()
        if self.stored_lsn > self.acknowledged_lsn and now - self._status_sent >= _TICK:
            self._acknowledge()
        elif now - self._status_sent >= (_TICK if is_hurried else self._status_seconds):
            # The reply shows that the server is alive, and how far it has read.
            self._acknowledge(reply_requested=True)
        if now - self._last_heard > self._silence_seconds:
            raise ConnectionLost(
                f"the server has been silent for {self._silence_seconds:.0f} seconds: the network or the "
                "server hangs"
            )

    def _handle(self, received: XLogDataBatch) -> None:
        """Write the messages in envelopes to the open segment, and answer keepalives."""
        lsns, data, others = received
        now = time.time_ns() // 1000
        start = 0
        for stop, message in (*others, (len(data), None)):
            self._write(lsns[start:stop], now, data[start:stop])
            start = stop
            if isinstance(message, PrimaryKeepalive):
                self._handle_keepalive(message)
        if self._connection.ended:
            self._connection.receive()  # raises the server's error, if there is one
            raise ConnectionLost("the server has ended the stream without an error: see the server's log")
        self._last_heard = time.monotonic()

    def _write(self, lsns: pa.Array, now: int, data: pa.BinaryArray) -> None:
        if len(data):
            self._check(lsns, data)
            self.messages += len(data)
            self.received_bytes += pc.sum(pc.binary_length(data)).as_py()
            self._writer.write_batch(lsns, repeated_int64(now, len(data), _TIME), data)
            state = self._writer.state
            self.received_lsn = max(self.received_lsn, state.end_lsn)
            if state.last_commit_time is not None:
                self.last_commit_time = state.last_commit_time

    def _check(self, lsns: pa.Array, data: pa.BinaryArray) -> None:
        """Check that all messages can be decoded.

        Raises:
            DecodeError: A message cannot be decoded.
        """
        if (found := self._decoder.find_error(data)) is None:
            return
        row, error = found
        lsn = ([self.received_lsn] + [lsn for lsn in lsns[: row + 1].to_pylist() if lsn])[-1]
        raise type(error)(
            f"{error}; this is message {self.messages + row} of the session, received at LSN "
            f"{format_lsn(lsn)}. This message and later ones are not acknowledged. Start the recorder again. "
            "If the error remains, the server or network damages messages, or the server is too new for "
            "logicalrep: install the newest logicalrep",
            message=error.message,
            field=error.field,
            offset=error.offset,
        )

    def _handle_keepalive(self, message: PrimaryKeepalive) -> None:
        """Note how far the server has read the WAL; have that LSN acknowledged if all messages are stored.

        Without this acknowledgement, the server would retain WAL while there are no published changes.
        """
        if not self._writer.state.inside:
            self.received_lsn = max(self.received_lsn, message.wal_end)
            if not self._resent.settled and message.wal_end >= self._start_lsn:
                self._resent.settle()
        if message.reply_requested:
            self._acknowledge()
        is_idle = not self._writer.open_for and not self._writer.state.in_flight and self._threads.is_idle
        if is_idle and self._resent.settled and time.monotonic() >= self._next_save:
            self._next_save = time.monotonic() + self._save_seconds
            self._threads.submit(lambda: self._advance_to(message.wal_end))

    def _advance_to(self, lsn: int) -> None:
        """Save an LSN up to which everything is stored; it is acknowledged with the next status update."""
        if lsn > self.stored_lsn:
            self._save_lsn(lsn)
            self.stored_lsn = lsn

    def _segment_stored(self, path: Path, metadata: Metadata) -> None:
        self._on_stored(path, metadata)
        if self._resent.settled:
            self.stored_lsn = max(self.stored_lsn, metadata.end_lsn)

    def _is_segment_due(self) -> bool:
        """Return whether the open segment is old enough to end.

        A segment that has only unfinished transactions stays open.
        """
        writer = self._writer
        return writer.open_for >= self._segment_seconds and (writer.has_ends or not writer.state.in_flight)

    def _segment_patience(self) -> float:
        """Return the seconds until the open segment should end; infinity if no transaction ends in it."""
        if not self._writer.has_ends:
            return math.inf
        return max(0.0, self._segment_seconds - self._writer.open_for)

    def _has_reached(self, until: int | None) -> bool:
        return until is not None and self.received_lsn >= until and not self._writer.state.inside

    def _keep_alive(self) -> None:
        """Send status updates while the session waits for the disk."""
        self._last_heard = time.monotonic()  # messages of the server are not read meanwhile
        if self._last_heard - self._status_sent >= self._status_seconds:
            with suppress(ReplicationError):  # the next `receive` raises the error again
                self._acknowledge()

    def _acknowledge(self, *, reply_requested: bool = False) -> None:
        """Acknowledge the stored LSN, so that the server does not send earlier transactions again.

        With `reply_requested`, the server answers at once, which shows that it is alive.
        """
        lsn = self.stored_lsn
        now = timestamp_now()
        self._connection.send(
            StandbyStatusUpdate(
                written_lsn=lsn,
                flushed_lsn=lsn,
                applied_lsn=lsn,
                send_time=now,
                reply_requested=reply_requested,
            )
        )
        self.acknowledged_lsn = lsn
        self._status_sent = time.monotonic()

    def _store_received(self) -> None:
        """Store all messages that were received."""
        self._writer.rotate()
        self._threads.flush()

    def _end_stream(self) -> None:
        """End the stream, and discard messages that still arrive: the next session gets these again."""
        with suppress(ConnectionLost):
            self._connection.end_replication()
            deadline = time.monotonic() + _GOODBYE_SECONDS
            while not self._connection.ended and (left := deadline - time.monotonic()) > 0:
                if self._connection.more or select.select([self._connection], [], [], left)[0]:
                    self._connection.receive()
