"""Index a recorded stream before it is served: where its transactions end, and which messages it contains."""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from logicalrep import messages
from logicalrep._roles import CHANGES, CLOSERS, ROLES, End, classes, read_end, tags
from logicalrep.errors import DecodeError, RecordingError
from logicalrep.jsonlines import from_json
from logicalrep.messages import Message
from logicalrep.standin.recorded.recording import RecordedStream
from logicalrep.stream import TrackedTransaction, TransactionTracker

CHANGE_TAGS: Final = tags(*CHANGES)
"""Tags of Insert, Update, Delete and Truncate messages, which are served without being decoded."""

ABANDONED: Final = -1
"""Value in `StreamIndex.end_lsns` for a transaction that is incomplete in its session, because the connection
ended. A later session contains the whole transaction. The value is lower than any LSN, so that the incomplete
transaction is never served."""

NEVER: Final = 1 << 64
"""Placeholder for an LSN or position that is not known: larger than any LSN and any position."""


class StreamIndex(msgspec.Struct):
    """Index of a recorded stream: its LSNs, tags and tables. Positions count its messages, from 0."""

    start_lsn: int = NEVER
    """LSN before the first transaction of the stream."""
    end_lsn: int = 0
    """LSN at or after the end of the last transaction of the stream."""
    tags: set[int] = set()
    """Tags of the messages that the stream may contain."""
    end_lsns: dict[int, int] = {}
    """LSN of the commit, prepare or abort of each transaction whose first message does not contain that LSN,
    by position of the first message; `ABANDONED` if a later session contains the transaction again."""
    incomplete_from: int = NEVER
    """Position of the first message of the transaction or stream block that is incomplete at the stream's
    end, or `NEVER`. Only messages before this position are served."""
    relations: dict[int, messages.Relation] = {}
    """Last Relation message of each table, by OID."""
    has_lsns: bool = False
    """Whether the LSNs of the messages' envelopes were recorded."""


def index_stream(stream: RecordedStream) -> StreamIndex:
    """Return the index of a stream, made from the segments' metadata if possible, else from the messages.

    Raises:
        RecordingError: The recording cannot be read, or a message of the stream is invalid.
    """
    return _index_from_metadata(stream) or _index_from_messages(stream)


def _index_from_metadata(stream: RecordedStream) -> StreamIndex | None:
    """Return the index of a stream, made from the segments' metadata, or None if that is not possible.

    It is possible if the stream has one session and every transaction ends with Commit.
    """
    metadata = stream.metadata
    ended = {end.begin for one in metadata for end in one.ends if end.type in _COMMITS}
    other_ends = [end for one in metadata for end in one.ends if end.type not in _COMMITS]
    begun = {part.begin for one in metadata for part in one.parts}
    if not metadata or other_ends or begun - ended or len({one.session for one in metadata}) > 1:
        return None
    relations = [from_json(epoch.relation) for one in metadata for epoch in one.relations]
    options = stream.options
    end_lsn = max(metadata[-1].end_lsn, 2)
    optional = ["payload"] * options.messages + ["origin"] * (options.origin == "any")
    return StreamIndex(
        start_lsn=max(min(metadata[0].start_lsn, end_lsn - 1), 1),
        end_lsn=end_lsn,
        # The metadata does not say whether the stream has logical messages and origins. If the stream options
        # allow them, they count as present.
        tags=set(tags(*_ALWAYS_SENT, *optional)),
        relations={one.oid: one for one in relations if isinstance(one, messages.Relation)},
        has_lsns=any(lsn for _, lsn, _ in islice(stream.messages(), 1000)),
    )


def _index_from_messages(stream: RecordedStream) -> StreamIndex:
    """Return the index of a stream by reading all of its messages.

    Raises:
        RecordingError: The recording cannot be read, or a message of the stream is invalid.
    """
    indexer = _Indexer()
    decoder, current = stream.decoder(), None
    index = indexer.index
    for position, (session, lsn, data) in enumerate(stream.messages()):
        if session != current:
            indexer.start_session()
            decoder, current = stream.decoder(), session
        if lsn:
            index.has_lsns = True
            if lsn > index.end_lsn:
                index.end_lsn = lsn
        if not (data and data[0] in CHANGE_TAGS):
            try:
                indexer.add(decoder.decode(data), position)
            except DecodeError as error:
                raise RecordingError(f"{stream.path}: message {position + 1}: {error}") from None
        index.tags.add(data[0])
    return indexer.finish()


class _Transaction(TrackedTransaction):
    """A transaction of the recorded stream."""

    begin: int = 0
    """Position of the transaction's first message."""
    is_sent_late: bool = False
    """Whether the transaction was prepared before two_phase was enabled for the slot. Such a transaction is
    sent when it is committed (ReorderBufferFinishPrepared), so no client has received it before."""


class _Indexer:
    def __init__(self) -> None:
        self.index = StreamIndex()
        self._position = 0
        self._block_position = 0
        """Position of the message that opened the current transaction or stream block."""
        self._ended_lsn = 0
        self._tracker = TransactionTracker(self._new, lenient=True)

    def _new(self, xid: int, message: Message | None) -> _Transaction:
        return _Transaction(xid, message, begin=self._position)

    def add(self, message: Message, position: int) -> None:
        """Update the index for a message that is not an Insert, Update, Delete or Truncate."""
        self._position = position
        event = self._tracker.feed(message)
        kind, transaction = event.kind, event.transaction
        end = read_end(message)
        match kind:
            case "began":
                assert transaction is not None
                self._block_position = position
                self._extend_start(end.lsn)
                transaction.is_sent_late = end.end_lsn is not None and end.end_lsn <= self._ended_lsn
            case "block_opened":
                self._block_position = position
            case "committed" | "prepared" | "rolled_back":
                self._add_end(ROLES[type(message)], end, transaction)
            case "emitted" if end.lsn is not None:
                self._extend_start(end.lsn)
                self._ended_lsn = max(self._ended_lsn, end.lsn)
            case "described" if isinstance(message, messages.Relation):
                self.index.relations[message.oid] = message

    def _add_end(self, role: str, end: End, transaction: _Transaction | None) -> None:
        if role == "abort_streamed":  # the message may have no LSN
            lsn, end_lsn = self._ended_lsn, None
        else:
            lsn, end_lsn = end.end_lsn if end.lsn is None else end.lsn, end.end_lsn
        begins_without_lsn = role in _STREAMED_ENDS or (transaction is not None and transaction.is_sent_late)
        if transaction is not None and transaction.opener and begins_without_lsn and role != "prepare":
            self.index.end_lsns[transaction.begin] = lsn
        if end_lsn is not None:
            if role not in CLOSERS:
                self._extend_start(lsn)
            self._ended_lsn = max(self._ended_lsn, end_lsn)

    def start_session(self) -> None:
        """Start a new session. Mark open transactions as `ABANDONED`: the session contains them again."""
        tracker = self._tracker
        if tracker.current is not None and not tracker.in_block:
            self.index.end_lsns[tracker.current.begin] = ABANDONED
        self.index.end_lsns.update({one.begin: ABANDONED for one in tracker.streamed.values()})
        tracker.reconnect()

    def finish(self) -> StreamIndex:
        """Complete the index after the last message, and return it."""
        index = self.index
        if self._tracker.current is not None:
            index.incomplete_from = self._block_position
        index.end_lsn = max(index.end_lsn, self._ended_lsn, 2)
        index.start_lsn = max(min(index.start_lsn, index.end_lsn) - 1, 1)
        return index

    def _extend_start(self, lsn: int) -> None:
        self.index.start_lsn = min(self.index.start_lsn, lsn)


_COMMITS: Final = {kind.__name__ for kind in classes("commit")}
_ALWAYS_SENT: Final = ("begin", "commit", *CHANGES, "relation", "type")
_STREAMED_ENDS: Final = ("commit_streamed", "prepare_streamed", "abort_streamed")
