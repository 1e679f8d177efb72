"""A recorded stream as a new connection gets it, that has some of it already.

What ended before is left out. Relations and types are sent again before their first use, since the cache of
a connection begins empty: those that were only in what is left out are made up for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import Struct
from typing import Any, Final

import msgspec

from pgoutput import messages
from pgoutput.messages import Message, XLogData
from pgoutput.standin.recorded.plan import CHANGES, Plan
from pgoutput.standin.recorded.recordings import Received, ServedRecording
from pgoutput.stream import StreamDecoder, encode_for

_UINT32: Final = Struct(">I")
_TRUNCATE: Final = ord("T")
_EVER: Final = 1 << 64


def resume(
    received: Iterable[Received], recording: ServedRecording, plan: Plan, after_lsn: int
) -> Iterator[XLogData]:
    """What is sent of a recording.

    Args:
        received: Its messages.
        recording: What it is.
        plan: Where its transactions end.
        after_lsn: What was committed before is left out (SnapBuildXactNeedsSkip).
    """
    resumption = _Resumption(recording, plan, after_lsn)
    current = None
    for position, (session, lsn, data) in enumerate(received):
        if position >= plan.stop:
            return
        if session != current:
            resumption.reconnect()
            current = session
        if data[0] in CHANGES:
            if resumption.dropping:
                continue
            if resumption.stale:
                for described in resumption.described(data):
                    yield XLogData(0, 0, 0, described)
        elif not resumption.keeps(data, position):
            continue
        yield XLogData(lsn, lsn, 0, data)


class _Resumption:
    """What a connection was sent, and what it was not.

    Attributes:
        dropping: Whether changes are left out.
        stale: The relations that were described, but not to this connection.
    """

    def __init__(self, recording: ServedRecording, plan: Plan, after_lsn: int) -> None:
        self.dropping = False
        self.stale: dict[int, messages.Relation] = {}
        self._recording = recording
        self._plan = plan
        self._after_lsn = after_lsn
        self._ended_lsn = 0
        self._decoder: StreamDecoder = recording.decoder()
        self._types: dict[int, messages.Type] = {}
        self._streamed: dict[int, bool] = {}
        """Whether a transaction that is streamed is left out."""
        self._effects: Mapping[type[Message], Callable[[Any], bool]] = {
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

    def reconnect(self) -> None:
        """A session of the recording begins; what had not ended is void."""
        self._decoder = self._recording.decoder()
        self._streamed.clear()
        self.dropping = False

    def keeps(self, data: bytes, position: int) -> bool:
        """Whether a message that is no change is sent."""
        self._position = position
        message = self._decoder.decode(data)
        effect = self._effects.get(type(message))
        return not self.dropping if effect is None else effect(message)

    def described(self, data: bytes) -> Iterator[bytes]:
        """The descriptions that a change needs before it, and that this connection lacks."""
        version = self._recording.asked.proto_version
        in_stream = self._decoder.in_stream
        xid = _UINT32.unpack_from(data, 1)[0] if in_stream else None
        for oid in _relation_oids(data, 5 if in_stream else 1):
            relation = self.stale.pop(oid, None)
            if relation is None:
                continue
            types = dict.fromkeys(column.type_oid for column in relation.columns)
            for one in (*(self._types[oid] for oid in types if oid in self._types), relation):
                yield encode_for(msgspec.structs.replace(one, xid=xid), version)

    def _begin(self, message: messages.Begin) -> bool:
        return self._open(message.final_lsn)

    def _begin_prepare(self, message: messages.BeginPrepare) -> bool:
        return self._open(message.prepare_lsn)

    def _open(self, lsn: int) -> bool:
        self.dropping = self._plan.fates.get(self._position, lsn) < self._after_lsn
        return not self.dropping

    def _end(self, message: messages.Commit | messages.Prepare) -> bool:
        self._ended_lsn = max(self._ended_lsn, message.end_lsn)
        dropped, self.dropping = self.dropping, False
        return not dropped

    def _stream_start(self, message: messages.StreamStart) -> bool:
        if message.first_segment:
            self._streamed[message.xid] = self._plan.fates.get(self._position, _EVER) < self._after_lsn
        self.dropping = self._streamed.get(message.xid, False)
        return not self.dropping

    def _stream_stop(self, message: messages.StreamStop) -> bool:
        dropped, self.dropping = self.dropping, False
        return not dropped

    def _stream_end(self, message: messages.StreamCommit | messages.StreamPrepare) -> bool:
        self._ended_lsn = max(self._ended_lsn, message.end_lsn)
        return not self._streamed.pop(message.xid, False)

    def _stream_abort(self, message: messages.StreamAbort) -> bool:
        if message.subxid == message.xid:
            dropped = self._streamed.pop(message.xid, None)
        else:
            dropped = self._streamed.get(message.xid)
        # Servers also abort what they have not streamed (bug 19616).
        return self._ended_lsn >= self._after_lsn if dropped is None else not dropped

    def _commit_prepared(self, message: messages.CommitPrepared) -> bool:
        self._ended_lsn = max(self._ended_lsn, message.end_lsn)
        return message.commit_lsn >= self._after_lsn

    def _rollback_prepared(self, message: messages.RollbackPrepared) -> bool:
        self._ended_lsn = max(self._ended_lsn, message.rollback_end_lsn)
        return message.rollback_end_lsn > self._after_lsn

    def _relation(self, message: messages.Relation) -> bool:
        if self.dropping:
            self.stale[message.oid] = message
        else:
            self.stale.pop(message.oid, None)
        return not self.dropping

    def _type(self, message: messages.Type) -> bool:
        self._types[message.oid] = message
        return not self.dropping

    def _logical_message(self, message: messages.LogicalMessage) -> bool:
        if message.flags & messages.MessageFlag.TRANSACTIONAL:
            return not self.dropping
        return message.lsn > self._after_lsn


def _relation_oids(data: bytes, position: int) -> Iterator[int]:
    """The OIDs that a change names; those of a Truncate follow their number and its options."""
    if data[0] != _TRUNCATE:
        yield _UINT32.unpack_from(data, position)[0]
        return
    (count,) = _UINT32.unpack_from(data, position)
    for place in range(position + 5, position + 5 + 4 * count, 4):
        yield _UINT32.unpack_from(data, place)[0]
