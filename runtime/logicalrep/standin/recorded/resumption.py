"""Resume a recorded stream for a client that has received a part of it.

Transactions that ended before the LSN acknowledged by the client are left out. The relation cache of a new
connection is empty, so Relation and Type messages of the omitted part are sent before their first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from logicalrep._roles import ROLES, read_end
from logicalrep.messages import Message, XLogData
from logicalrep.standin.recorded.descriptions import Descriptions
from logicalrep.standin.recorded.index import CHANGE_TAGS, NEVER, StreamIndex
from logicalrep.standin.recorded.recording import RecordedMessage, RecordedStream
from logicalrep.stream import StreamDecoder, TrackedTransaction, TransactionTracker, encode_for


def resume(
    recorded: Iterable[RecordedMessage], stream: RecordedStream, index: StreamIndex, after_lsn: int
) -> Iterator[XLogData]:
    """Yield the envelopes to send on a new connection.

    Args:
        recorded: Messages of the stream with their sessions and LSNs.
        stream: The recorded stream.
        index: Index of the stream.
        after_lsn: LSN that the client has acknowledged. Transactions with a lower commit LSN are left out
            (SnapBuildXactNeedsSkip).
    """
    resumption = _Resumption(stream, index, after_lsn)
    current = None
    for position, (session, lsn, data) in enumerate(recorded):
        if position >= index.incomplete_from:
            return
        if session != current:
            resumption.start_session()
            current = session
        if data[0] in CHANGE_TAGS:
            if resumption.skipping:
                continue
            if resumption.lacks_descriptions:
                for description in resumption.missing_descriptions(data):
                    yield XLogData(wal_start=0, wal_end=0, send_time=0, data=description)
        elif not resumption.is_sent(data, position):
            continue
        yield XLogData(wal_start=lsn, wal_end=lsn, send_time=0, data=data)


class _Transaction(TrackedTransaction):
    """A transaction of the recorded stream."""

    is_skipped: bool = False
    """Whether the transaction is left out: the client has acknowledged it, or a later session contains it."""


class _Resumption:
    """Decides which messages of a recorded stream are sent on one connection."""

    def __init__(self, stream: RecordedStream, index: StreamIndex, after_lsn: int) -> None:
        self._descriptions = Descriptions()
        self._stream = stream
        self._index = index
        self._after_lsn = after_lsn
        self._ended_lsn = 0
        self._position = 0
        self._decoder: StreamDecoder = stream.decoder()
        self._tracker = TransactionTracker(self._new, lenient=True)

    def _new(self, xid: int, message: Message | None) -> _Transaction:
        lsn = None if message is None else read_end(message).lsn
        end_lsn = self._index.end_lsns.get(self._position, NEVER if lsn is None else lsn)
        return _Transaction(xid, message, is_skipped=message is not None and end_lsn < self._after_lsn)

    @property
    def skipping(self) -> bool:
        """Whether the current transaction or stream block is left out."""
        return self._tracker.current is not None and self._tracker.current.is_skipped

    @property
    def lacks_descriptions(self) -> bool:
        """Whether the client may need a Relation message before the next change."""
        return bool(self._descriptions.unsent) and not self._tracker.in_block

    def start_session(self) -> None:
        """Start the recording's next session. Forget open transactions: the session contains them again."""
        self._decoder = self._stream.decoder()
        self._tracker.reconnect()

    def is_sent(self, data: bytes, position: int) -> bool:
        """Update the state with the message `data`, and return whether to send the message.

        The message is not an Insert, Update, Delete or Truncate.
        """
        self._position = position
        message = self._decoder.decode(data)
        event = self._tracker.feed(message)
        kind, transaction = event.kind, event.transaction
        self._descriptions.read(message)
        if not self.skipping:
            self._descriptions.sent(message)
        role, end = ROLES[type(message)], read_end(message)
        if end.end_lsn is not None and kind != "began":
            self._ended_lsn = max(self._ended_lsn, end.end_lsn)
        match role:
            case "commit_prepared":
                return bool(end.lsn >= self._after_lsn)
            case "rollback_prepared":
                return bool(end.end_lsn > self._after_lsn)
            case "abort_streamed" if transaction is None or transaction.opener is None:
                # A server also sends Stream Abort for transactions that it did not stream (bug 19616). The
                # message may have no LSN, so compare the end of the last transaction before the message.
                return self._ended_lsn >= self._after_lsn
        if kind == "emitted":
            return end.lsn is None or bool(end.lsn > self._after_lsn)
        return transaction is None or not transaction.is_skipped

    def missing_descriptions(self, data: bytes) -> Iterator[bytes]:
        """Yield the encoded Type and Relation messages that must be sent before the change message `data`."""
        for description in self._descriptions.missing(self._decoder.decode(data)):
            self._descriptions.sent(description)
            yield encode_for(description, self._stream.options.proto_version)
