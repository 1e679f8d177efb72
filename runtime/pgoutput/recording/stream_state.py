"""Track the state of a stream for a writer of segments: transactions and relations, but not changes.

Messages that open or end transactions, and messages that describe relations, are decoded; changes are only
counted. The handling of transactions follows apply_dispatch in PostgreSQL's
src/backend/replication/logical/worker.c.
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
from pgoutput.recording.resent_commits import ResentCommitCheck
from pgoutput.recording.segment_format import (
    PreparedTransaction,
    SchemaVersion,
    Source,
    TransactionEnd,
    TransactionPart,
)
from pgoutput.stream import StreamDecoder, encode_for

CHANGE_TAGS: Final = frozenset(
    ord(message.wire_tag)
    for message in (messages.Insert, messages.Update, messages.Delete, messages.Truncate)
)
"""First bytes of the messages that are changes: Insert, Update, Delete and Truncate."""

_STREAM_ABORT: Final = messages.StreamAbort.wire_tag


class OpenTransaction(msgspec.Struct):
    """A transaction that has begun and not ended."""

    xid: int
    begin: int
    """Position of the transaction's first message."""
    opener: Message
    """The message that opened the transaction, repeated in the keyframes of later segments."""
    origin: messages.Origin | None = None
    segments: list[int] = []
    """Numbers of the segments that have messages of the transaction."""
    rolled_back: array[int] = msgspec.field(default_factory=lambda: array("I"))
    """Xids of the subtransactions that were rolled back while the transaction was streamed."""


class StreamState:
    """State of the stream of one session, and the contents of the current segment's metadata.

    Attributes:
        end_lsn: Transactions with an end LSN up to this one are stored, in this session or before it.
        skipping: Whether the current transaction's changes must not be stored, because an earlier session
            stored the transaction.
        transactions: Number of transactions that committed in the current segment.
        last_commit_time: Time of the current segment's last commit, in microseconds since 2000-01-01 00:00
            UTC; None without commits.
        relations: Schema versions that began in the current segment.
        ends: Transaction ends in the current segment that its metadata must list.
        prepared: Transactions that are prepared now, by gid.

    Args:
        source: Source of the stream.
        position: Position of the session's first message.
        end_lsn: Transactions with an end LSN up to this one were stored before the session.
        prepared: Transactions that are prepared at the start of the session.
        described: Type and Relation messages that are valid at `position`, if another writer wrote the
            session up to there.
        resent: Checks the transactions that the server sends again; None for no check.
    """

    def __init__(
        self,
        source: Source,
        position: int,
        end_lsn: int,
        prepared: tuple[PreparedTransaction, ...] = (),
        described: tuple[bytes, ...] = (),
        resent: ResentCommitCheck | None = None,
    ) -> None:
        self.end_lsn: int = end_lsn
        self._stored_lsn = self._last_lsn = end_lsn
        self.prepared: dict[str, PreparedTransaction] = {one.gid: one for one in prepared}
        self.skipping: bool = False
        self._resent = resent or ResentCommitCheck()
        self._version = source.proto_version
        self._parallel = source.streaming == "parallel"
        self._decoder = StreamDecoder(
            source.proto_version, streaming=source.streaming, two_phase=source.slot_two_phase
        )
        self._relations: dict[int, messages.Relation] = {}
        self._current: OpenTransaction | None = None
        self._streamed: dict[int, OpenTransaction] = {}
        self._position = position
        self._stored_others = 0
        """Number of stored messages that are not changes; subtracted from the position to count changes."""
        self._counted = position
        """Position minus `_stored_others` when the current transaction's changes were counted last."""
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
        """Number of transactions that have begun and not ended; a prepared transaction has ended."""
        return len(self._streamed) + (self._current is not None and self._current.xid not in self._streamed)

    @property
    def inside(self) -> bool:
        """Whether the stream is between Begin and Commit of a transaction, or inside a stream block."""
        return self._current is not None

    def start_segment(self, number: int) -> list[bytes]:
        """Start a segment; return its keyframe, so that the segment can be read without earlier ones."""
        self._segment = number
        self._parts: dict[int, TransactionPart] = {}
        self.transactions: int = 0
        self.last_commit_time: int | None = None
        self.relations: list[SchemaVersion] = []
        self.ends: list[TransactionEnd] = []
        keyframe = [encode_for(message, self._version) for message in self._keyframe()]
        if self._current is not None and not self.skipping:
            self._add_to_segment(self._current)
        return keyframe

    def parts(self, position: int) -> tuple[TransactionPart, ...]:
        """Return the `TransactionPart`s of the current segment, which ends before `position`."""
        self._position = position
        if self._current is not None:
            self._count(self._current)
        return tuple(self._parts.values())

    def feed(self, data: bytes, position: int, lsn: int) -> bytes | None:
        """Update the state with a message that is not a change; return the message to store, if any.

        Args:
            data: The message.
            position: Position that the message gets if it is stored.
            lsn: `wal_start` of the message's XLogData; 0 if there is none.

        Returns:
            Bytes of the message to store: `data` itself or a replacement. None to store nothing.

        Raises:
            DecodeError: The message is invalid or out of place.
        """
        self._position = position
        if lsn:
            self._last_lsn = lsn
        if data[:1] == _STREAM_ABORT and not self._streamed:
            return None  # as in _stream_abort; servers send it in protocol version 1 too
        message = self._decoder.decode(data)
        effect = self._effects.get(type(message))
        stored = message if effect is None else effect(message)
        if stored is None:
            return None
        self._stored_others += 1
        return data if stored is message else encode_for(stored, self._version)

    def takes_whole(self, first_lsn: int) -> bool:
        """Return whether `feed_whole` accepts transactions whose lowest commit LSN is `first_lsn`."""
        return self._current is None and first_lsn >= self._stored_lsn

    def feed_whole(self, transactions: int, end_lsn: int, commit_time: int, lsn: int) -> None:
        """Update the state with whole transactions, each a Begin, changes and a Commit, that are all stored.

        Args:
            transactions: Number of transactions.
            end_lsn: End LSN of the last transaction.
            commit_time: Commit time of the last transaction, in microseconds since 2000-01-01 00:00 UTC.
            lsn: Last nonzero `wal_start` of the Begin and Commit messages; 0 if all are 0.
        """
        self._settle()
        self._last_lsn = lsn or self._last_lsn
        self._stored_others += 2 * transactions
        self.transactions += transactions
        self.last_commit_time = commit_time
        self.end_lsn = max(self.end_lsn, end_lsn)

    def _keyframe(self) -> Iterator[Message]:
        """Yield the messages that restore the relations and the open and prepared transactions."""
        for described in (*self._decoder.types.values(), *self._relations.values()):
            yield msgspec.structs.replace(described, xid=None)
        for prepared in self.prepared.values():
            fields = (
                prepared.prepare_lsn,
                prepared.end_lsn,
                prepared.prepare_time,
                prepared.xid,
                prepared.gid,
            )
            yield messages.BeginPrepare(*fields)
            yield messages.Prepare(*fields)
        for transaction in self._streamed.values():
            if transaction is not self._current:
                yield from _opening(transaction)
                yield messages.StreamStop()
        if self._current is not None and not self.skipping:
            yield from _opening(self._current)

    # Transactions that are not streamed

    def _begin(self, message: messages.Begin) -> Message | None:
        stored = message.final_lsn < self._stored_lsn
        if stored:
            self._resent.check(message.final_lsn, message.commit_time)
        else:
            self._settle()
        return self._open_whole(message, stored)

    def _begin_prepare(self, message: messages.BeginPrepare) -> Message | None:
        return self._open_whole(message, self._is_prepared(message))

    def _open_whole(self, message: messages.Begin | messages.BeginPrepare, stored: bool) -> Message | None:
        self._require_none_open(message)
        self.skipping = stored
        self._enter(OpenTransaction(message.xid, self._position, message))
        return None if stored else message

    def _commit(self, message: messages.Commit) -> Message | None:
        transaction = self._leave(message)
        if self._was_skipped():
            return None
        if len(transaction.segments) == 1:
            del self._parts[transaction.begin]  # wholly inside the segment
        else:
            self._end(message, transaction, message.commit_lsn, message.commit_time)
        self._count_commit(message)
        return message

    def _prepare(self, message: messages.Prepare) -> Message | None:
        transaction = self._leave(message)
        if self._was_skipped():
            return None
        self._add_prepared(message, transaction)
        return message

    def _was_skipped(self) -> bool:
        skipped, self.skipping = self.skipping, False
        return skipped

    # Streamed transactions

    def _stream_start(self, message: messages.StreamStart) -> Message:
        self._require_none_open(message)
        if message.first_stream_segment:
            self._streamed[message.xid] = OpenTransaction(message.xid, self._position, message)
        self._enter(self._streamed_transaction(message))
        return message

    def _stream_stop(self, message: messages.StreamStop) -> Message:
        self._leave(message)
        return message

    def _stream_commit(self, message: messages.StreamCommit) -> Message:
        if message.commit_lsn < self._stored_lsn:
            self._resent.check(
                message.commit_lsn, message.commit_time, has_changes=self._has_changes(message.xid)
            )
            return self._abort_instead(message, message.commit_lsn, message.commit_time)
        self._settle()
        transaction = self._finish(message)
        self._end(message, transaction, message.commit_lsn, message.commit_time)
        self._count_commit(message)
        return message

    def _has_changes(self, xid: int) -> bool:
        """Return whether a streamed transaction has changes; True if that is not known for certain."""
        transaction = self._streamed.get(xid)
        part = None if transaction is None else self._parts.get(transaction.begin)
        return transaction is not None and (len(transaction.segments) > 1 or part is None or part.changes > 0)

    def _settle(self) -> None:
        if not self._resent.settled:
            self._resent.settle()

    def _stream_prepare(self, message: messages.StreamPrepare) -> Message:
        if self._is_prepared(message):
            return self._abort_instead(message, message.prepare_lsn, message.prepare_time)
        self._add_prepared(message, self._finish(message))
        return message

    def _stream_abort(self, message: messages.StreamAbort) -> Message | None:
        if message.xid not in self._streamed:
            # PostgreSQL 18 up to 18.4 sends it for a subtransaction that was rolled back and not streamed
            # (ReorderBufferCheckAndTruncateAbortedTXN; bug 19616). It has no effect.
            return None
        transaction = self._streamed_transaction(message)
        if message.subxid == message.xid:
            self._end(message, self._finish(message), message.abort_lsn, message.abort_time)
        else:
            self._require_none_open(message)
            self._add_to_segment(transaction)
            transaction.rolled_back.append(message.subxid)
        return message

    def _abort_instead(
        self, message: messages.StreamCommit | messages.StreamPrepare, lsn: int, time: int
    ) -> messages.StreamAbort:
        """Return a Stream Abort to store in place of a Stream Commit or Prepare that is stored already."""
        tail = (lsn, time) if self._parallel else (None, None)
        abort = messages.StreamAbort(message.xid, message.xid, *tail)
        self._end(abort, self._finish(message), lsn, time)
        return abort

    # Prepared transactions

    def _is_prepared(self, message: messages.BeginPrepare | messages.StreamPrepare) -> bool:
        """Return whether an earlier session stored the prepared transaction of `message`.

        The prepare LSN alone is no proof: a transaction that was prepared before two_phase was enabled
        for the slot is sent only when it commits, with its old prepare LSN (ReorderBufferFinishPrepared).
        """
        stored = self.prepared.get(message.gid)
        return stored is not None and stored.prepare_lsn == message.prepare_lsn

    def _add_prepared(
        self, message: messages.Prepare | messages.StreamPrepare, transaction: OpenTransaction
    ) -> None:
        self._end(message, transaction, message.prepare_lsn, message.prepare_time, message.gid)
        self.end_lsn = max(self.end_lsn, message.end_lsn)
        self.prepared[message.gid] = PreparedTransaction(
            gid=message.gid,
            xid=message.xid,
            begin=transaction.begin,
            prepare_lsn=message.prepare_lsn,
            end_lsn=message.end_lsn,
            prepare_time=message.prepare_time,
            segments=tuple(transaction.segments),
            rolled_back=tuple(transaction.rolled_back),
        )

    def _commit_prepared(self, message: messages.CommitPrepared) -> Message | None:
        stored = self.prepared.get(message.gid)
        if stored is not None and message.end_lsn <= self._stored_lsn:  # sent again, with its Prepare
            times = stored.prepare_time, message.commit_time
            lsns = stored.end_lsn, message.end_lsn
            return self._rollback_prepared(messages.RollbackPrepared(*lsns, *times, message.xid, message.gid))
        if not self._finish_prepared(message, message.commit_lsn, message.commit_time, message.end_lsn):
            return None
        self._count_commit(message)
        return message

    def _rollback_prepared(self, message: messages.RollbackPrepared) -> Message | None:
        end_lsn = message.rollback_end_lsn
        is_new = self._finish_prepared(message, end_lsn, message.rollback_time, end_lsn)
        return message if is_new else None

    def _finish_prepared(
        self, message: messages.CommitPrepared | messages.RollbackPrepared, lsn: int, time: int, end_lsn: int
    ) -> bool:
        """Register the end of a prepared transaction; return False if an earlier session stored this end."""
        self._require_none_open(message)
        if end_lsn <= self._stored_lsn and message.gid not in self.prepared:
            return False
        self.end_lsn = max(self.end_lsn, end_lsn)
        prepared = self.prepared.pop(message.gid, None)
        self.ends.append(
            TransactionEnd(
                position=self._position,
                type=type(message).__name__,
                xid=message.xid,
                begin=None if prepared is None else prepared.begin,
                lsn=lsn,
                time=time,
                segments=() if prepared is None else prepared.segments,
                rolled_back=() if prepared is None else prepared.rolled_back,
                gid=message.gid,
            )
        )
        return True

    # Other messages

    def _origin(self, message: messages.Origin) -> Message | None:
        self._require_open(message).origin = message
        return None if self.skipping else message

    def _relation(self, message: messages.Relation) -> Message:
        if self._relations.get(message.oid) != (relation := msgspec.structs.replace(message, xid=None)):
            self._relations[message.oid] = relation
            oids = dict.fromkeys(column.type_oid for column in message.columns)
            types = [self._decoder.types[oid] for oid in oids if oid in self._decoder.types]
            types = [msgspec.structs.replace(type_, xid=None) for type_ in types]
            version = SchemaVersion(
                self._position, self._last_lsn, to_json(relation), tuple(map(to_json, types))
            )
            self.relations.append(version)
        return message

    def _logical_message(self, message: messages.LogicalMessage) -> Message | None:
        if message.flags & messages.MessageFlag.TRANSACTIONAL:
            return None if self.skipping else message
        if message.lsn < self._stored_lsn:
            return None
        # The message's LSN is the start of its WAL record, often the end LSN of the commit before; the
        # record's end is not sent. LSN + 1 differs from that commit's end and is before the record's end. A
        # message that is not transactional is sent in WAL order, so what ends later has a larger LSN.
        self.end_lsn = max(self.end_lsn, message.lsn + 1)
        return message

    # Opening and closing transactions, counting changes

    def _enter(self, transaction: OpenTransaction) -> None:
        self._current = transaction
        self._counted = self._position - self._stored_others
        if not self.skipping:
            self._add_to_segment(transaction)

    def _leave(self, message: Message) -> OpenTransaction:
        transaction = self._require_open(message)
        self._count(transaction)
        self._current = None
        return transaction

    def _add_to_segment(self, transaction: OpenTransaction) -> None:
        if transaction.segments[-1:] != [self._segment]:
            transaction.segments.append(self._segment)
            self._parts[transaction.begin] = TransactionPart(transaction.begin, transaction.xid, 0)

    def _count(self, transaction: OpenTransaction) -> None:
        """Count the changes since the last call; add the number to the transaction's `TransactionPart`."""
        changes = self._position - self._stored_others
        if not self.skipping:
            part = self._parts[transaction.begin]
            self._parts[transaction.begin] = TransactionPart(
                transaction.begin, transaction.xid, part.changes + changes - self._counted
            )
        self._counted = changes

    def _finish(
        self, message: messages.StreamCommit | messages.StreamAbort | messages.StreamPrepare
    ) -> OpenTransaction:
        self._require_none_open(message)
        transaction = self._streamed_transaction(message)
        del self._streamed[message.xid]
        return transaction

    def _end(
        self,
        message: Any,
        transaction: OpenTransaction,
        lsn: int | None,
        time: int | None,
        gid: str | None = None,
    ) -> None:
        self.ends.append(
            TransactionEnd(
                self._position,
                type(message).__name__,
                transaction.xid,
                transaction.begin,
                lsn,
                time,
                tuple(transaction.segments),
                tuple(transaction.rolled_back),
                gid,
            )
        )

    def _count_commit(
        self, message: messages.Commit | messages.StreamCommit | messages.CommitPrepared
    ) -> None:
        self.transactions += 1
        self.last_commit_time = message.commit_time
        self.end_lsn = max(self.end_lsn, message.end_lsn)

    def _streamed_transaction(
        self,
        message: messages.StreamStart | messages.StreamCommit | messages.StreamAbort | messages.StreamPrepare,
    ) -> OpenTransaction:
        if message.xid not in self._streamed:
            raise StreamError.at(message, f"transaction {message.xid} has not had its first block")
        return self._streamed[message.xid]

    def _require_open(self, message: Message) -> OpenTransaction:
        if self._current is None:
            raise StreamError.at(message, "no transaction is open")
        return self._current

    def _require_none_open(self, message: Message) -> None:
        if self._current is not None:
            raise StreamError.at(message, f"transaction {self._current.xid} is still open")


def _opening(transaction: OpenTransaction) -> Iterator[Message]:
    yield transaction.opener
    if transaction.origin is not None:
        yield transaction.origin
