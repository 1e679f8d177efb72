"""Index a recorded stream before it is served: where its transactions end, and which messages it contains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from pgoutput import messages
from pgoutput.errors import DecodeError, RecordingError
from pgoutput.jsonlines import from_json
from pgoutput.messages import Message
from pgoutput.standin.recorded.recording import RecordedStream

CHANGE_TAGS: Final = frozenset(b"IUDT")
"""Tags of Insert, Update, Delete and Truncate messages, which are served without being decoded."""

ABANDONED: Final = -1
"""Value in `StreamIndex.end_lsns` for a transaction that was not completed in its session, and that a later
session sends again. The value is lower than any LSN, so that the incomplete transaction is never served."""

_NEVER: Final = 1 << 64
"""Placeholder for an LSN or position that is not known: larger than any LSN and any position."""


class StreamIndex(msgspec.Struct):
    """Index of a recorded stream. Positions count the messages of the stream, from 0."""

    start_lsn: int = _NEVER
    """LSN before the first transaction of the stream."""
    end_lsn: int = 0
    """LSN at or after the end of the last transaction of the stream."""
    tags: set[int] = set()
    """Tags of the messages that the stream may contain."""
    end_lsns: dict[int, int] = {}
    """LSN of the commit, prepare or abort of each transaction whose first message does not contain that LSN,
    by position of the first message; `ABANDONED` for a transaction that a later session sends again."""
    incomplete_from: int = _NEVER
    """Position of the first message of an incomplete transaction or stream block at the stream's end;
    `_NEVER` if the stream ends between transactions. Only messages before this position are served."""
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
    """Return the index of a stream without reading its messages, or None if that is impossible.

    The index can be made from metadata if the stream has one session and every transaction ends with Commit.
    """
    metadata = stream.metadata
    ended = {end.begin for one in metadata for end in one.ends if end.type == "Commit"}
    other_ends = [end for one in metadata for end in one.ends if end.type != "Commit"]
    begun = {part.begin for one in metadata for part in one.parts}
    if not metadata or other_ends or begun - ended or len({one.session for one in metadata}) > 1:
        return None
    relations = [from_json(epoch.relation) for one in metadata for epoch in one.relations]
    options = stream.options
    end_lsn = max(metadata[-1].end_lsn, 2)
    return StreamIndex(
        start_lsn=max(min(metadata[0].start_lsn, end_lsn - 1), 1),
        end_lsn=end_lsn,
        # The metadata does not tell whether there are logical messages and origins.
        tags=set(b"BCIUDTRY" + b"M" * options.messages + b"O" * (options.origin == "any")),
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
    tags = index.tags
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
        tags.add(data[0])
    return indexer.finish()


class _Indexer:
    def __init__(self) -> None:
        self.index = StreamIndex()
        self._position = 0
        self._open_position: int | None = None
        """Position of the first message of the open transaction or stream block, or None."""
        self._is_block = False
        """True if `_open_position` belongs to a stream block, False if it belongs to a transaction."""
        self._streamed: dict[int, int] = {}
        """Position of the first message of each open streamed transaction, by xid."""
        self._sent_late: dict[str, int] = {}
        """Position of the first message of each transaction sent only at COMMIT PREPARED, by gid."""
        self._ended_lsn = 0
        self._handlers: Mapping[type[Message], Callable[[Any], None]] = {
            messages.Begin: self._begin,
            messages.BeginPrepare: self._begin_prepare,
            messages.Commit: self._commit,
            messages.Prepare: self._prepare,
            messages.StreamStart: self._stream_start,
            messages.StreamStop: self._stream_stop,
            messages.StreamCommit: self._stream_commit,
            messages.StreamPrepare: self._stream_prepare,
            messages.StreamAbort: self._stream_abort,
            messages.CommitPrepared: self._commit_prepared,
            messages.RollbackPrepared: self._rollback_prepared,
            messages.LogicalMessage: self._logical_message,
            messages.Relation: self._relation,
        }

    def add(self, message: Message, position: int) -> None:
        """Update the index for a message that is not an Insert, Update, Delete or Truncate."""
        self._position = position
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)

    def start_session(self) -> None:
        """Start a new session: mark open transactions as abandoned, because the session sends them again."""
        if self._open_position is not None and not self._is_block:
            self.index.end_lsns[self._open_position] = ABANDONED
        self.index.end_lsns.update(dict.fromkeys(self._streamed.values(), ABANDONED))
        self._streamed.clear()
        self._open_position = None

    def finish(self) -> StreamIndex:
        """Complete the index after the last message, and return it."""
        index = self.index
        if self._open_position is not None:
            index.incomplete_from = self._open_position
        index.end_lsn = max(index.end_lsn, self._ended_lsn, 2)
        index.start_lsn = max(min(index.start_lsn, index.end_lsn) - 1, 1)
        return index

    def _begin(self, message: messages.Begin) -> None:
        self._open_position, self._is_block = self._position, False
        self._extend_start(message.final_lsn)

    def _begin_prepare(self, message: messages.BeginPrepare) -> None:
        self._open_position, self._is_block = self._position, False
        self._extend_start(message.prepare_lsn)
        if message.end_lsn <= self._ended_lsn:
            # The transaction was prepared before two_phase was enabled for the slot. It is sent when it is
            # committed (ReorderBufferFinishPrepared), so no client has received it before.
            self._sent_late[message.gid] = self._position

    def _commit(self, message: messages.Commit) -> None:
        self._open_position = None
        self._extend_end(message.end_lsn)

    def _prepare(self, message: messages.Prepare) -> None:
        self._open_position = None
        self._extend_end(message.end_lsn)

    def _stream_start(self, message: messages.StreamStart) -> None:
        self._open_position, self._is_block = self._position, True
        if message.first_stream_segment:
            self._streamed[message.xid] = self._position

    def _stream_stop(self, message: messages.StreamStop) -> None:
        self._open_position = None

    def _stream_commit(self, message: messages.StreamCommit) -> None:
        self._finish_streamed(message.xid, message.commit_lsn)
        self._extend_start(message.commit_lsn)
        self._extend_end(message.end_lsn)

    def _stream_prepare(self, message: messages.StreamPrepare) -> None:
        self._finish_streamed(message.xid, message.prepare_lsn)
        self._extend_start(message.prepare_lsn)
        self._extend_end(message.end_lsn)

    def _stream_abort(self, message: messages.StreamAbort) -> None:
        if message.subxid == message.xid:  # only some versions have an LSN: use the last end
            self._finish_streamed(message.xid, self._ended_lsn)

    def _commit_prepared(self, message: messages.CommitPrepared) -> None:
        self._finish_sent_late(message.gid, message.commit_lsn)
        self._extend_start(message.commit_lsn)
        self._extend_end(message.end_lsn)

    def _rollback_prepared(self, message: messages.RollbackPrepared) -> None:
        self._finish_sent_late(message.gid, message.rollback_end_lsn)
        self._extend_start(message.rollback_end_lsn)
        self._extend_end(message.rollback_end_lsn)

    def _logical_message(self, message: messages.LogicalMessage) -> None:
        if not message.flags & messages.MessageFlag.TRANSACTIONAL:
            self._extend_start(message.lsn)
            self._extend_end(message.lsn)

    def _relation(self, message: messages.Relation) -> None:
        self.index.relations[message.oid] = message

    def _finish_streamed(self, xid: int, lsn: int) -> None:
        if xid in self._streamed:
            self.index.end_lsns[self._streamed.pop(xid)] = lsn

    def _finish_sent_late(self, gid: str, lsn: int) -> None:
        if gid in self._sent_late:
            self.index.end_lsns[self._sent_late.pop(gid)] = lsn

    def _extend_start(self, lsn: int) -> None:
        self.index.start_lsn = min(self.index.start_lsn, lsn)

    def _extend_end(self, lsn: int) -> None:
        self._ended_lsn = max(self._ended_lsn, lsn)
