"""What a writer of segments must know of the stream, without reading the changes themselves.

Messages that open and end transactions, and those that describe relations, are decoded here; changes only
pass by. What ends a transaction is said in PostgreSQL's src/backend/replication/logical/worker.c,
apply_dispatch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from pgoutput import messages
from pgoutput.errors import StreamError
from pgoutput.jsonlines import to_json
from pgoutput.messages import Message
from pgoutput.recording.model import End, Epoch, Part, Prepared, Source
from pgoutput.recording.resent import Resent
from pgoutput.stream import StreamDecoder, encode_for

CHANGES: Final = frozenset(
    ord(message.wire_tag)
    for message in (messages.Insert, messages.Update, messages.Delete, messages.Truncate)
)
"""First bytes of the messages that pass without being decoded."""

_STREAM_ABORT: Final = messages.StreamAbort.wire_tag


class Work(msgspec.Struct):
    """A transaction that has not ended."""

    xid: int
    begin: int
    opener: Message
    """The message that opens it, in a later segment too."""
    origin: messages.Origin | None = None
    segments: list[int] = []
    rolled_back: array[int] = msgspec.field(default_factory=lambda: array("I"))


class StreamState:
    """Follows the stream of one session.

    Attributes:
        end_lsn: What ended up to here has passed, in this session or before.
        skipping: Whether changes are to be dropped, since their transaction was stored before.
        transactions: How many were committed in this segment.
        last_commit_time: When the last of them was, in microseconds since 2000.
        relations: The epochs that began in this segment.
        ends: What ended in this segment and has to be listed.
        prepared: The transactions that are prepared now, by gid.

    Args:
        source: Where the stream comes from.
        position: The position of the first message.
        end_lsn: What ended up to here was stored before the session.
        prepared: The transactions that were prepared then.
        described: The Type and Relation messages that held then.
        resent: Checks what the server sends again.
    """

    def __init__(
        self,
        source: Source,
        position: int,
        end_lsn: int,
        prepared: tuple[Prepared, ...] = (),
        described: tuple[bytes, ...] = (),
        resent: Resent | None = None,
    ) -> None:
        self.end_lsn = self._stored_lsn = self._last_lsn = end_lsn
        self.prepared = {one.gid: one for one in prepared}
        self.skipping = False
        self._resent = resent or Resent()
        self._version = source.proto_version
        self._parallel = source.streaming == "parallel"
        self._decoder = StreamDecoder(
            source.proto_version, streaming=source.streaming, two_phase=source.slot_two_phase
        )
        self._relations: dict[int, messages.Relation] = {}
        self._current: Work | None = None
        self._streamed: dict[int, Work] = {}
        self._position = position
        self._others = 0
        """Messages stored that are no changes: the changes stored are the position less these."""
        self._counted = position
        self._effects: Mapping[type[Message], Callable[[Any], Message | None]] = {
            messages.Begin: self._begin,
            messages.BeginPrepare: self._begin_prepare,
            messages.Commit: self._commit,
            messages.Prepare: self._prepare,
            messages.StreamStart: self._stream_start,
            messages.StreamStop: self._stream_stop,
            messages.StreamCommit: self._stream_commit,
            messages.StreamAbort: self._stream_abort,
            messages.StreamPrepare: self._stream_prepare,
            messages.CommitPrepared: self._commit_prepared,
            messages.RollbackPrepared: self._rollback_prepared,
            messages.Origin: self._origin,
            messages.Relation: self._relation,
            messages.LogicalMessage: self._logical_message,
        }
        for message in map(self._decoder.decode, described):
            if isinstance(message, messages.Relation):
                self._relations[message.oid] = message

    @property
    def in_flight(self) -> int:
        """How many transactions have begun and not ended; prepared ones have."""
        return len(self._streamed) + (self._current is not None and self._current.xid not in self._streamed)

    @property
    def inside(self) -> bool:
        """Whether a transaction or a block of one is open, so that more of it must follow."""
        return self._current is not None

    def start_segment(self, number: int) -> list[bytes]:
        """Begin a segment; give its keyframe: what is still in force, so that it can be read alone."""
        self._segment = number
        self._parts: dict[int, Part] = {}
        self.transactions = 0
        self.last_commit_time: int | None = None
        self.relations: list[Epoch] = []
        self.ends: list[End] = []
        keyframe = [encode_for(message, self._version) for message in self._in_force()]
        if self._current is not None and not self.skipping:
            self._touch(self._current)
        return keyframe

    def parts(self, position: int) -> tuple[Part, ...]:
        """The parts of transactions in this segment, which ends at `position`."""
        self._position = position
        if self._current is not None:
            self._count(self._current)
        return tuple(self._parts.values())

    def feed(self, data: bytes, position: int, lsn: int) -> bytes | None:
        """Take a message that is no change; give what is to be stored, None if nothing.

        Args:
            data: The message.
            position: Where it will stand.
            lsn: The LSN of its envelope.

        Raises:
            DecodeError: It is not a message of this stream, or no server sends it here.
        """
        self._position = position
        if lsn:
            self._last_lsn = lsn
        if data[:1] == _STREAM_ABORT and not self._streamed:
            return None  # as below, and it comes in streams of protocol version 1 as well
        message = self._decoder.decode(data)
        effect = self._effects.get(type(message))
        kept = message if effect is None else effect(message)
        if kept is None:
            return None
        self._others += 1
        return data if kept is message else encode_for(kept, self._version)

    def takes_whole(self, first_lsn: int) -> bool:
        """Whether transactions that come whole, and end from `first_lsn` on, can be told by `feed_whole`."""
        return self._current is None and first_lsn >= self._stored_lsn

    def feed_whole(self, transactions: int, end_lsn: int, commit_time: int, lsn: int) -> None:
        """Take transactions that are a Begin, changes, and a Commit each; all of it is to be stored.

        Args:
            transactions: How many.
            end_lsn: Of the last one.
            commit_time: Likewise.
            lsn: The last LSN of an envelope of theirs, but for those of changes; 0 if there was none.
        """
        self._settle()
        self._last_lsn = lsn or self._last_lsn
        self._others += 2 * transactions
        self.transactions += transactions
        self.last_commit_time = commit_time
        self.end_lsn = max(self.end_lsn, end_lsn)

    def _in_force(self) -> Iterator[Message]:
        for described in (*self._decoder.types.values(), *self._relations.values()):
            yield msgspec.structs.replace(described, xid=None)
        for one in self.prepared.values():
            place = (one.prepare_lsn, one.end_lsn, one.prepare_time, one.xid, one.gid)
            yield messages.BeginPrepare(*place)
            yield messages.Prepare(*place)
        for work in self._streamed.values():
            if work is not self._current:
                yield from _opening(work)
                yield messages.StreamStop()
        if self._current is not None and not self.skipping:
            yield from _opening(self._current)

    # Transactions that come as a whole

    def _begin(self, message: messages.Begin) -> Message | None:
        stored = message.final_lsn < self._stored_lsn
        if stored:
            self._resent.see(message.final_lsn, message.commit_time)
        else:
            self._settle()
        return self._open_whole(message, stored)

    def _begin_prepare(self, message: messages.BeginPrepare) -> Message | None:
        return self._open_whole(message, self._is_prepared(message))

    def _open_whole(self, message: messages.Begin | messages.BeginPrepare, stored: bool) -> Message | None:
        self._outside(message)
        self.skipping = stored
        self._enter(Work(message.xid, self._position, message))
        return None if stored else message

    def _commit(self, message: messages.Commit) -> Message | None:
        work = self._leave(message)
        if self._was_skipped():
            return None
        if len(work.segments) == 1:
            del self._parts[work.begin]  # it is wholly inside
        else:
            self._end(message, work, message.commit_lsn, message.commit_time)
        self._committed(message)
        return message

    def _prepare(self, message: messages.Prepare) -> Message | None:
        work = self._leave(message)
        if self._was_skipped():
            return None
        self._park(message, work)
        return message

    def _was_skipped(self) -> bool:
        skipped, self.skipping = self.skipping, False
        return skipped

    # Transactions that come in blocks

    def _stream_start(self, message: messages.StreamStart) -> Message:
        self._outside(message)
        if message.first_segment:
            self._streamed[message.xid] = Work(message.xid, self._position, message)
        self._enter(self._work(message))
        return message

    def _stream_stop(self, message: messages.StreamStop) -> Message:
        self._leave(message)
        return message

    def _stream_commit(self, message: messages.StreamCommit) -> Message:
        if message.commit_lsn < self._stored_lsn:
            self._resent.see(
                message.commit_lsn, message.commit_time, has_changes=self._has_changes(message.xid)
            )
            return self._void(message, message.commit_lsn, message.commit_time)
        self._settle()
        work = self._finish(message)
        self._end(message, work, message.commit_lsn, message.commit_time)
        self._committed(message)
        return message

    def _has_changes(self, xid: int) -> bool:
        """Whether a streamed transaction has changes, as far as this segment tells."""
        work = self._streamed.get(xid)
        part = None if work is None else self._parts.get(work.begin)
        return work is not None and (len(work.segments) > 1 or part is None or part.changes > 0)

    def _settle(self) -> None:
        if not self._resent.settled:
            self._resent.settle()

    def _stream_prepare(self, message: messages.StreamPrepare) -> Message:
        if self._is_prepared(message):
            return self._void(message, message.prepare_lsn, message.prepare_time)
        self._park(message, self._finish(message))
        return message

    def _stream_abort(self, message: messages.StreamAbort) -> Message | None:
        if message.xid not in self._streamed:
            # PostgreSQL 18 up to 18.4 sends it for a subtransaction that was rolled back and not streamed
            # (ReorderBufferCheckAndTruncateAbortedTXN; bug 19616). It says nothing about anything.
            return None
        work = self._work(message)
        if message.subxid == message.xid:
            self._end(message, self._finish(message), message.abort_lsn, message.abort_time)
        else:
            self._outside(message)
            self._touch(work)
            work.rolled_back.append(message.subxid)
        return message

    def _void(
        self, message: messages.StreamCommit | messages.StreamPrepare, lsn: int, time: int
    ) -> messages.StreamAbort:
        """An abort instead of the end of a transaction that was stored before."""
        tail = (lsn, time) if self._parallel else (None, None)
        abort = messages.StreamAbort(message.xid, message.xid, *tail)
        self._end(abort, self._finish(message), lsn, time)
        return abort

    # Prepared transactions

    def _is_prepared(self, message: messages.BeginPrepare | messages.StreamPrepare) -> bool:
        """Whether this Prepare was stored before.

        Its LSN does not tell: what was prepared before the slot sent such is sent when it is committed, and
        has its old LSN (ReorderBufferFinishPrepared).
        """
        stored = self.prepared.get(message.gid)
        return stored is not None and stored.prepare_lsn == message.prepare_lsn

    def _park(self, message: messages.Prepare | messages.StreamPrepare, work: Work) -> None:
        self._end(message, work, message.prepare_lsn, message.prepare_time, message.gid)
        self.end_lsn = max(self.end_lsn, message.end_lsn)
        self.prepared[message.gid] = Prepared(
            gid=message.gid,
            xid=message.xid,
            begin=work.begin,
            prepare_lsn=message.prepare_lsn,
            end_lsn=message.end_lsn,
            prepare_time=message.prepare_time,
            segments=tuple(work.segments),
            rolled_back=tuple(work.rolled_back),
        )

    def _commit_prepared(self, message: messages.CommitPrepared) -> Message | None:
        stored = self.prepared.get(message.gid)
        if stored is not None and message.end_lsn <= self._stored_lsn:  # its Prepare came again as well
            times = stored.prepare_time, message.commit_time
            lsns = stored.end_lsn, message.end_lsn
            return self._rollback_prepared(messages.RollbackPrepared(*lsns, *times, message.xid, message.gid))
        place = message.commit_lsn, message.commit_time, message.end_lsn
        if not self._finish_prepared(message, *place):
            return None
        self._committed(message)
        return message

    def _rollback_prepared(self, message: messages.RollbackPrepared) -> Message | None:
        end_lsn = message.rollback_end_lsn
        place = end_lsn, message.rollback_time, end_lsn
        return message if self._finish_prepared(message, *place) else None

    def _finish_prepared(
        self, message: messages.CommitPrepared | messages.RollbackPrepared, lsn: int, time: int, end_lsn: int
    ) -> bool:
        """Whether it is news."""
        self._outside(message)
        if end_lsn <= self._stored_lsn and message.gid not in self.prepared:
            return False
        self.end_lsn = max(self.end_lsn, end_lsn)
        one = self.prepared.pop(message.gid, None)
        have = (None, (), ()) if one is None else (one.begin, one.segments, one.rolled_back)
        kind = type(message).__name__
        self.ends.append(End(self._position, kind, message.xid, have[0], lsn, time, *have[1:], message.gid))
        return True

    # What else is in a stream

    def _origin(self, message: messages.Origin) -> Message | None:
        self._inside(message).origin = message
        return None if self.skipping else message

    def _relation(self, message: messages.Relation) -> Message:
        if self._relations.get(message.oid) != (relation := msgspec.structs.replace(message, xid=None)):
            self._relations[message.oid] = relation
            oids = dict.fromkeys(column.type_oid for column in message.columns)
            types = [self._decoder.types[oid] for oid in oids if oid in self._decoder.types]
            types = [msgspec.structs.replace(one, xid=None) for one in types]
            epoch = Epoch(self._position, self._last_lsn, to_json(relation), tuple(map(to_json, types)))
            self.relations.append(epoch)
        return message

    def _logical_message(self, message: messages.LogicalMessage) -> Message | None:
        if message.flags & messages.MessageFlag.TRANSACTIONAL:
            return None if self.skipping else message
        if message.lsn < self._stored_lsn:
            return None
        # Its LSN is where its record begins: often the end of the commit before. One byte more tells it from
        # that one, and is before its end. It stands in the WAL where it comes in the stream, so what comes
        # later ends later.
        self.end_lsn = max(self.end_lsn, message.lsn + 1)
        return message

    # Opening, counting, closing

    def _enter(self, work: Work) -> None:
        self._current = work
        self._counted = self._position - self._others
        if not self.skipping:
            self._touch(work)

    def _leave(self, message: Message) -> Work:
        work = self._inside(message)
        self._count(work)
        self._current = None
        return work

    def _touch(self, work: Work) -> None:
        if work.segments[-1:] != [self._segment]:
            work.segments.append(self._segment)
            self._parts[work.begin] = Part(work.begin, work.xid, 0)

    def _count(self, work: Work) -> None:
        changes = self._position - self._others
        if not self.skipping:
            part = self._parts[work.begin]
            self._parts[work.begin] = Part(work.begin, work.xid, part.changes + changes - self._counted)
        self._counted = changes

    def _finish(self, message: messages.StreamCommit | messages.StreamAbort | messages.StreamPrepare) -> Work:
        self._outside(message)
        work = self._work(message)
        del self._streamed[message.xid]
        return work

    def _end(
        self, message: Any, work: Work, lsn: int | None, time: int | None, gid: str | None = None
    ) -> None:
        self.ends.append(
            End(
                self._position,
                type(message).__name__,
                work.xid,
                work.begin,
                lsn,
                time,
                tuple(work.segments),
                tuple(work.rolled_back),
                gid,
            )
        )

    def _committed(self, message: messages.Commit | messages.StreamCommit | messages.CommitPrepared) -> None:
        self.transactions += 1
        self.last_commit_time = message.commit_time
        self.end_lsn = max(self.end_lsn, message.end_lsn)

    def _work(
        self,
        message: messages.StreamStart | messages.StreamCommit | messages.StreamAbort | messages.StreamPrepare,
    ) -> Work:
        if message.xid not in self._streamed:
            raise StreamError.at(message, f"transaction {message.xid} has not had its first block")
        return self._streamed[message.xid]

    def _inside(self, message: Message) -> Work:
        if self._current is None:
            raise StreamError.at(message, "no transaction is open")
        return self._current

    def _outside(self, message: Message) -> None:
        if self._current is not None:
            raise StreamError.at(message, f"transaction {self._current.xid} is still open")


def _opening(work: Work) -> Iterator[Message]:
    yield work.opener
    if work.origin is not None:
        yield work.origin
