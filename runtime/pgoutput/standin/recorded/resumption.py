"""Resume a recorded stream for a client that has received a part of it.

Transactions that ended before the LSN confirmed by the client are left out. The relation cache of a new
connection is empty, so Relation and Type messages of the omitted part are sent before their first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import Struct
from typing import Any, Final

import msgspec

from pgoutput import messages
from pgoutput.messages import Message, XLogData
from pgoutput.standin.recorded.index import CHANGE_TAGS, StreamIndex
from pgoutput.standin.recorded.recording import RecordedMessage, RecordedStream
from pgoutput.stream import StreamDecoder, encode_for

_UINT32: Final = Struct(">I")
_TRUNCATE: Final = ord("T")
_NEVER: Final = 1 << 64
"""Placeholder for an LSN that is not known: larger than any LSN."""


def resume(
    recorded: Iterable[RecordedMessage], stream: RecordedStream, index: StreamIndex, after_lsn: int
) -> Iterator[XLogData]:
    """Yield the envelopes to send on a new connection.

    Args:
        recorded: Messages of the stream with their sessions and LSNs.
        stream: The recorded stream.
        index: Index of the stream.
        after_lsn: LSN up to which the client has confirmed the stream. Transactions committed before this LSN
            are left out (SnapBuildXactNeedsSkip).
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
            if resumption.unsent_relations:
                for description in resumption.missing_descriptions(data):
                    yield XLogData(0, 0, 0, description)
        elif not resumption.is_sent(data, position):
            continue
        yield XLogData(lsn, lsn, 0, data)


class _Resumption:
    """Decides which messages of a recorded stream are sent on one connection.

    Attributes:
        skipping: Whether the current transaction or stream block is left out.
        unsent_relations: Relation messages that were left out on this connection and not sent since, by OID.
    """

    def __init__(self, stream: RecordedStream, index: StreamIndex, after_lsn: int) -> None:
        self.skipping = False
        self.unsent_relations: dict[int, messages.Relation] = {}
        self._stream = stream
        self._index = index
        self._after_lsn = after_lsn
        self._ended_lsn = 0
        self._decoder: StreamDecoder = stream.decoder()
        self._types: dict[int, messages.Type] = {}
        self._streamed: dict[int, bool] = {}
        """Whether each open streamed transaction is left out, by xid."""
        self._handlers: Mapping[type[Message], Callable[[Any], bool]] = {
            messages.Begin: self._begin,
            messages.BeginPrepare: self._begin_prepare,
            messages.Commit: self._end,
            messages.Prepare: self._end,
            messages.StreamStart: self._stream_start,
            messages.StreamStop: self._stream_stop,
            messages.StreamCommit: self._stream_end,
            messages.StreamPrepare: self._stream_end,
            messages.StreamAbort: self._stream_abort,
            messages.CommitPrepared: self._commit_prepared,
            messages.RollbackPrepared: self._rollback_prepared,
            messages.Relation: self._relation,
            messages.Type: self._type,
            messages.LogicalMessage: self._logical_message,
        }

    def start_session(self) -> None:
        """Start the recording's next session: forget open transactions, because the session repeats them."""
        self._decoder = self._stream.decoder()
        self._streamed.clear()
        self.skipping = False

    def is_sent(self, data: bytes, position: int) -> bool:
        """Return whether to send this message, which is not an Insert, Update, Delete or Truncate."""
        self._position = position
        message = self._decoder.decode(data)
        handler = self._handlers.get(type(message))
        return not self.skipping if handler is None else handler(message)

    def missing_descriptions(self, data: bytes) -> Iterator[bytes]:
        """Yield the encoded Type and Relation messages that must be sent before the change message `data`."""
        version = self._stream.options.proto_version
        in_stream = self._decoder.in_stream
        xid = _UINT32.unpack_from(data, 1)[0] if in_stream else None
        for oid in _relation_oids(data, 5 if in_stream else 1):
            relation = self.unsent_relations.pop(oid, None)
            if relation is None:
                continue
            type_oids = dict.fromkeys(column.type_oid for column in relation.columns)
            types = (self._types[oid] for oid in type_oids if oid in self._types)
            for description in (*types, relation):
                yield encode_for(msgspec.structs.replace(description, xid=xid), version)

    def _begin(self, message: messages.Begin) -> bool:
        return self._open(message.final_lsn)

    def _begin_prepare(self, message: messages.BeginPrepare) -> bool:
        return self._open(message.prepare_lsn)

    def _open(self, lsn: int) -> bool:
        self.skipping = self._index.end_lsns.get(self._position, lsn) < self._after_lsn
        return not self.skipping

    def _end(self, message: messages.Commit | messages.Prepare) -> bool:
        self._ended_lsn = max(self._ended_lsn, message.end_lsn)
        skipped, self.skipping = self.skipping, False
        return not skipped

    def _stream_start(self, message: messages.StreamStart) -> bool:
        if message.first_stream_segment:
            self._streamed[message.xid] = self._index.end_lsns.get(self._position, _NEVER) < self._after_lsn
        self.skipping = self._streamed.get(message.xid, False)
        return not self.skipping

    def _stream_stop(self, message: messages.StreamStop) -> bool:
        skipped, self.skipping = self.skipping, False
        return not skipped

    def _stream_end(self, message: messages.StreamCommit | messages.StreamPrepare) -> bool:
        self._ended_lsn = max(self._ended_lsn, message.end_lsn)
        return not self._streamed.pop(message.xid, False)

    def _stream_abort(self, message: messages.StreamAbort) -> bool:
        if message.subxid == message.xid:
            skipped = self._streamed.pop(message.xid, None)
        else:
            skipped = self._streamed.get(message.xid)
        # A server also sends Stream Abort for transactions that it has not streamed (PostgreSQL bug 19616).
        return self._ended_lsn >= self._after_lsn if skipped is None else not skipped

    def _commit_prepared(self, message: messages.CommitPrepared) -> bool:
        self._ended_lsn = max(self._ended_lsn, message.end_lsn)
        return message.commit_lsn >= self._after_lsn

    def _rollback_prepared(self, message: messages.RollbackPrepared) -> bool:
        self._ended_lsn = max(self._ended_lsn, message.rollback_end_lsn)
        return message.rollback_end_lsn > self._after_lsn

    def _relation(self, message: messages.Relation) -> bool:
        if self.skipping:
            self.unsent_relations[message.oid] = message
        else:
            self.unsent_relations.pop(message.oid, None)
        return not self.skipping

    def _type(self, message: messages.Type) -> bool:
        self._types[message.oid] = message
        return not self.skipping

    def _logical_message(self, message: messages.LogicalMessage) -> bool:
        if message.flags & messages.MessageFlag.TRANSACTIONAL:
            return not self.skipping
        return message.lsn > self._after_lsn


def _relation_oids(data: bytes, position: int) -> Iterator[int]:
    """Yield the relation OIDs in an encoded change message. `position` is the offset after tag and xid."""
    if data[0] != _TRUNCATE:
        yield _UINT32.unpack_from(data, position)[0]
        return
    (count,) = _UINT32.unpack_from(data, position)
    for offset in range(position + 5, position + 5 + 4 * count, 4):
        yield _UINT32.unpack_from(data, offset)[0]
