"""Track the state of a stream for a writer of segments: transactions and relations, but not changes.

Messages that open or end transactions, and messages that describe relations, are decoded; changes are only
counted. The handling of transactions follows apply_dispatch in PostgreSQL's
src/backend/replication/logical/worker.c.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from logicalrep import messages
from logicalrep._build import build
from logicalrep._roles import CHANGES, ROLES, End, meaning_of, read_end, tags
from logicalrep.jsonlines import to_json
from logicalrep.messages import Message
from logicalrep.recording.resent_commits import ResentCommitCheck
from logicalrep.recording.segment_format import (
    PreparedTransaction,
    SchemaVersion,
    Source,
    TransactionEnd,
    TransactionPart,
)
from logicalrep.stream import (
    StreamDecoder,
    TrackedTransaction,
    TransactionEvent,
    TransactionTracker,
    encode_for,
)

CHANGE_TAGS: Final = tags(*CHANGES)
"""First bytes of the messages that are changes: Insert, Update, Delete and Truncate."""

DDL_PREFIX: Final = "logicalrep.ddl"
"""Prefix of the logical messages that describe statements of DDL (`logicalrep install-ddl-events`)."""

_ABORT_TAGS: Final = tags("abort_streamed")
_TRUNCATE_TAGS: Final = tags("truncate")


class OpenTransaction(TrackedTransaction):
    """A transaction that has begun and not ended; keyframes of later segments repeat its first message."""

    begin: int = 0
    """Position of the transaction's first message."""
    segments: list[int] = msgspec.field(default_factory=list)
    """Numbers of the segments that have messages of the transaction."""
    rolled_back: array[int] = msgspec.field(default_factory=lambda: array("I"))
    """Xids of the subtransactions that were rolled back while the transaction was streamed."""
    since: float = msgspec.field(default_factory=time.monotonic)
    """When the transaction began to arrive, by time.monotonic()."""


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
        statements: Contents of the logical messages in the current segment that describe DDL statements.
        ends: Transaction ends in the current segment that its metadata must list.
        prepared: Transactions that are prepared now, by gid.
        truncates: By OID of a table, the xid of the session's last transaction that ended with a Truncate of
            the table. Only other Truncates may follow it. Streamed and prepared transactions do not count.
        partitions: LSN of the last description in the current segment, by the OIDs of a partition and of the
            root as whose changes its changes are sent. The server describes the root, then the partition
            (maybe_send_schema in pgoutput.c).
        alone: OIDs of the relations that were described without a root.

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
        self.truncates: dict[int, int] = {}
        self.partitions: dict[tuple[int, int], int] = {}
        self.alone: set[int] = set()
        self._described: tuple[int, tuple[int, ...]] = (-1, ())
        """Position of the last Relation or Type message, and OIDs of the relations that were described since
        the last message of another kind."""
        self._truncated: tuple[OpenTransaction | None, int, tuple[int, ...]] = (None, 0, ())
        """Describes the last Truncate: its transaction, the number of changes up to and including it, and the
        OIDs of the tables that are named by it or by the Truncates immediately before it."""
        self._resent = resent or ResentCommitCheck()
        self._version = source.proto_version
        self._parallel = source.streaming == "parallel"
        self._decoder = StreamDecoder(
            source.proto_version, streaming=source.streaming, two_phase=source.slot_two_phase
        )
        self._relations: dict[int, messages.Relation] = {}
        self._tracker = TransactionTracker(
            lambda xid, message: OpenTransaction(xid, message, begin=self._position)
        )
        self._position = position
        self._stored_others = 0
        """Number of stored messages that are not changes; subtracted from the position to count changes."""
        self._counted = position
        """Position minus `_stored_others` up to which the current transaction's changes are counted."""
        self._effects: Mapping[str, Callable[[TransactionEvent[OpenTransaction]], Message | None]] = {
            "begin": self._begin,
            "begin_prepare": self._begin_prepare,
            "commit": self._commit,
            "prepare": self._prepare,
            "open_block": self._enter,
            "close_block": self._close_block,
            "commit_streamed": self._commit_streamed,
            "prepare_streamed": self._prepare_streamed,
            "abort_streamed": self._abort_streamed,
            "commit_prepared": self._commit_prepared,
            "rollback_prepared": self._rollback_prepared,
            "origin": self._origin,
            "relation": self._relation,
            "type": self._type,
            "payload": self._payload,
            "truncate": self._truncate,
        }
        for message in map(self._decoder.decode, described):
            if isinstance(message, messages.Relation):
                self._relations[message.oid] = message

    @property
    def in_flight(self) -> int:
        """Number of transactions that have begun and not ended; a prepared transaction has ended."""
        return self._tracker.in_flight

    @property
    def oldest_since(self) -> float | None:
        """When the oldest open transaction began to arrive, by time.monotonic(); None if none is open."""
        tracker = self._tracker
        begun = [*tracker.streamed.values(), *([tracker.current] if tracker.current is not None else [])]
        return min((one.since for one in begun), default=None)

    @property
    def inside(self) -> bool:
        """Whether the stream is between Begin and Commit of a transaction, or inside a stream block."""
        return self._tracker.current is not None

    def start_segment(self, number: int) -> list[bytes]:
        """Start a segment; return its keyframe, so that the segment can be read without earlier ones."""
        self._segment = number
        self._parts: dict[int, TransactionPart] = {}
        self.transactions: int = 0
        self.last_commit_time: int | None = None
        self.relations: list[SchemaVersion] = []
        self.partitions = {}
        self.statements: list[bytes] = []
        self.ends: list[TransactionEnd] = []
        keyframe = [encode_for(message, self._version) for message in self._keyframe()]
        if (current := self._tracker.current) is not None and not self.skipping:
            self._add_to_segment(current)
        return keyframe

    def parts(self, position: int) -> tuple[TransactionPart, ...]:
        """Return the `TransactionPart`s of the current segment, which ends before `position`."""
        self._position = position
        if (current := self._tracker.current) is not None:
            self._count(current)
        return tuple(self._parts.values())

    def feed(self, data: bytes, position: int, lsn: int) -> bytes | None:
        """Update the state with a Truncate, or a message that is not a change; return the message to store.

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
        if lsn and not (data and data[0] in _TRUNCATE_TAGS):
            self._last_lsn = lsn
        tracker = self._tracker
        if data and data[0] in _ABORT_TAGS and not tracker.streamed:
            return None  # a Stream Abort without streamed transaction (bug 19616; see TransactionTracker)
        message = self._decoder.decode(data)
        role = ROLES[type(message)]
        if role == "abort_streamed" and meaning_of(message, "xid") not in tracker.streamed:
            return None
        event = tracker.feed(message)
        effect = self._effects.get(role)
        stored = message if effect is None else effect(event)
        if stored is None:
            return None
        if role != "truncate":
            self._stored_others += 1
        return data if stored is message else encode_for(stored, self._version)

    def takes_whole(self, first_lsn: int) -> bool:
        """Return whether `feed_whole` may be called with transactions whose lowest commit LSN is `first_lsn`.

        It may if the stream is outside of transactions and stream blocks, and no earlier session stored one
        of the transactions.
        """
        return self._tracker.current is None and first_lsn >= self._stored_lsn

    def feed_whole(self, transactions: int, end_lsn: int, commit_time: int, lsn: int) -> None:
        """Update the state with transactions of a Begin, changes and a Commit, all of which are stored.

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
            fields: dict[str, Any] = {
                "lsn": prepared.prepare_lsn,
                "end_lsn": prepared.end_lsn,
                "time": prepared.prepare_time,
                "xid": prepared.xid,
                "gid": prepared.gid,
            }
            yield build("begin_prepare", self._version, **fields)
            yield build("prepare", self._version, **fields)
        current = self._tracker.current
        for transaction in self._tracker.streamed.values():
            if transaction is not current:
                yield from _opening(transaction)
                yield build("close_block", self._version)
        if current is not None and not self.skipping:
            yield from _opening(current)

    # Handlers of messages: transactions that are not streamed

    def _begin(self, event: TransactionEvent[OpenTransaction]) -> Message | None:
        end = read_end(event.message)
        is_copy = not meaning_of(event.message, "xid")  # xid 0: rows that the recorder has copied
        stored = end.lsn < self._stored_lsn and not is_copy
        if stored:
            self._resent.check(end.lsn, end.time)
        else:
            self._settle()
        return self._open_whole(event, stored)

    def _begin_prepare(self, event: TransactionEvent[OpenTransaction]) -> Message | None:
        return self._open_whole(event, self._is_prepared(read_end(event.message)))

    def _open_whole(self, event: TransactionEvent[OpenTransaction], stored: bool) -> Message | None:
        self.skipping = stored
        message = self._enter(event)
        return None if stored else message

    def _commit(self, event: TransactionEvent[OpenTransaction]) -> Message | None:
        transaction = self._leave(event)
        if self._was_skipped():
            return None
        truncated, count, oids = self._truncated
        if truncated is transaction and count == self._counted:
            self.truncates |= dict.fromkeys(oids, transaction.xid)
        end = read_end(event.message)
        if len(transaction.segments) == 1:
            del self._parts[transaction.begin]  # the transaction is wholly inside the segment
        else:
            self._end(event.message, transaction, end)
        self._count_commit(end)
        return event.message

    def _prepare(self, event: TransactionEvent[OpenTransaction]) -> Message | None:
        transaction = self._leave(event)
        if self._was_skipped():
            return None
        self._add_prepared(event.message, transaction)
        return event.message

    def _was_skipped(self) -> bool:
        skipped, self.skipping = self.skipping, False
        return skipped

    # Handlers of messages: streamed transactions

    def _close_block(self, event: TransactionEvent[OpenTransaction]) -> Message:
        self._leave(event)
        return event.message

    def _commit_streamed(self, event: TransactionEvent[OpenTransaction]) -> Message:
        end, transaction = read_end(event.message), _transaction(event)
        if end.lsn < self._stored_lsn:
            self._resent.check(end.lsn, end.time, has_changes=self._has_changes(transaction))
            return self._abort_instead(transaction, end)
        self._settle()
        self._end(event.message, transaction, end)
        self._count_commit(end)
        return event.message

    def _has_changes(self, transaction: OpenTransaction) -> bool:
        """Return whether a streamed transaction has changes; True if that is not known for certain."""
        part = self._parts.get(transaction.begin)
        return len(transaction.segments) > 1 or part is None or part.changes > 0

    def _settle(self) -> None:
        if not self._resent.settled:
            self._resent.settle()

    def _prepare_streamed(self, event: TransactionEvent[OpenTransaction]) -> Message:
        end, transaction = read_end(event.message), _transaction(event)
        if self._is_prepared(end):
            return self._abort_instead(transaction, end)
        self._add_prepared(event.message, transaction)
        return event.message

    def _abort_streamed(self, event: TransactionEvent[OpenTransaction]) -> Message:
        transaction = _transaction(event)
        if event.kind == "rolled_back":
            self._end(event.message, transaction, read_end(event.message))
        else:
            self._add_to_segment(transaction)
            transaction.rolled_back.append(meaning_of(event.message, "subxid"))
        return event.message

    def _abort_instead(self, transaction: OpenTransaction, end: End) -> Message:
        """Return a Stream Abort to store in place of a commit or prepare that an earlier session stored.

        Readers then discard the changes of the transaction's stream blocks, which this session stored again.
        """
        tail = {"lsn": end.lsn, "time": end.time} if self._parallel else {}
        xid = transaction.xid
        abort = build("abort_streamed", self._version, xid=xid, subxid=xid, **tail)
        self._end(abort, transaction, end)
        return abort

    # Handlers of messages: prepared transactions

    def _is_prepared(self, end: End) -> bool:
        """Return whether an earlier session stored the prepare whose gid and LSN are in `end`.

        The prepare LSN alone does not show this: a transaction that was prepared before two_phase was enabled
        for the slot is sent only when it commits, with its old prepare LSN (ReorderBufferFinishPrepared).
        """
        stored = self.prepared.get(end.gid)
        return stored is not None and stored.prepare_lsn == end.lsn

    def _add_prepared(self, message: Message, transaction: OpenTransaction) -> None:
        end = read_end(message)
        self._end(message, transaction, end, end.gid)
        self.end_lsn = max(self.end_lsn, end.end_lsn)
        self.prepared[end.gid] = PreparedTransaction(
            gid=end.gid,
            xid=transaction.xid,
            begin=transaction.begin,
            prepare_lsn=end.lsn,
            end_lsn=end.end_lsn,
            prepare_time=end.time,
            segments=tuple(transaction.segments),
            rolled_back=tuple(transaction.rolled_back),
        )

    def _commit_prepared(self, event: TransactionEvent[OpenTransaction]) -> Message | None:
        end = read_end(event.message)
        stored = self.prepared.get(end.gid)
        if stored is not None and end.end_lsn <= self._stored_lsn:  # sent again, with its Prepare
            rollback = build(
                "rollback_prepared",
                self._version,
                prepare_end_lsn=stored.end_lsn,
                end_lsn=end.end_lsn,
                prepare_time=stored.prepare_time,
                time=end.time,
                xid=stored.xid,
                gid=end.gid,
            )
            return rollback if self._finish_prepared(rollback) else None
        if not self._finish_prepared(event.message):
            return None
        self._count_commit(end)
        return event.message

    def _rollback_prepared(self, event: TransactionEvent[OpenTransaction]) -> Message | None:
        return event.message if self._finish_prepared(event.message) else None

    def _finish_prepared(self, message: Message) -> bool:
        """Register the end of a prepared transaction; return False if an earlier session stored this end."""
        end = read_end(message)
        if end.end_lsn <= self._stored_lsn and end.gid not in self.prepared:
            return False
        self.end_lsn = max(self.end_lsn, end.end_lsn)
        prepared = self.prepared.pop(end.gid, None)
        self.ends.append(
            TransactionEnd(
                position=self._position,
                type=type(message).__name__,
                xid=end.xid,
                begin=None if prepared is None else prepared.begin,
                lsn=end.end_lsn if end.lsn is None else end.lsn,
                time=end.time,
                segments=() if prepared is None else prepared.segments,
                rolled_back=() if prepared is None else prepared.rolled_back,
                gid=end.gid,
            )
        )
        return True

    # Handlers of messages that neither begin nor end a transaction

    def _origin(self, event: TransactionEvent[OpenTransaction]) -> Message | None:
        return None if self.skipping else event.message

    def _type(self, event: TransactionEvent[OpenTransaction]) -> Message:
        position, oids = self._described
        if position == self._position - 1:
            self._described = self._position, oids
        return event.message

    def _relation(self, event: TransactionEvent[OpenTransaction]) -> Message:
        message: Any = event.message
        position, before = self._described
        before = before if position == self._position - 1 else ()
        self._described = self._position, (*before, message.oid)
        if not before:
            self.alone.add(message.oid)
        elif not self.skipping:  # changes that are not stored may come between the two
            self.partitions[message.oid, before[-1]] = self._last_lsn
        if self._relations.get(message.oid) != (relation := msgspec.structs.replace(message, xid=None)):
            self._relations[message.oid] = relation
            oids = dict.fromkeys(column.type_oid for column in message.columns)
            types = [self._decoder.types[oid] for oid in oids if oid in self._decoder.types]
            types = [msgspec.structs.replace(type_, xid=None) for type_ in types]
            version = SchemaVersion(
                self._position, self._last_lsn, to_json(relation), tuple(map(to_json, types))
            )
            self.relations.append(version)
        return event.message

    def _truncate(self, event: TransactionEvent[OpenTransaction]) -> Message | None:
        if self.skipping:
            return None
        message: Any = event.message
        position, described = self._described
        if position == self._position - 1:  # the tables that it names, one after the other
            self.alone.update(described)
            for root, oid in pairwise(described):
                self.partitions.pop((oid, root), None)
        transaction, count, oids = self._truncated
        changes = self._position - self._stored_others
        follows = transaction is event.transaction and count == changes
        self._truncated = (
            event.transaction,
            changes + 1,
            (*(oids if follows else ()), *message.relation_oids),
        )
        return event.message

    def _payload(self, event: TransactionEvent[OpenTransaction]) -> Message | None:
        if event.kind == "changed":
            if self.skipping:
                return None
            if isinstance(event.message, messages.LogicalMessage) and event.message.prefix == DDL_PREFIX:
                self.statements.append(event.message.content)
            return event.message
        lsn = meaning_of(event.message, "lsn")
        if lsn is None:
            return event.message
        if lsn <= self._stored_lsn:
            return None
        # The LSN is the end of the message's WAL record (logicalmsg_decode). If the server sends the message
        # again, a later session leaves it out; a commit that begins at this LSN is still stored.
        self.end_lsn = max(self.end_lsn, lsn)
        return event.message

    # Called by handlers: begin and end parts of transactions, and count their changes

    def _enter(self, event: TransactionEvent[OpenTransaction]) -> Message:
        self._counted = self._position - self._stored_others
        if not self.skipping:
            self._add_to_segment(_transaction(event))
        return event.message

    def _leave(self, event: TransactionEvent[OpenTransaction]) -> OpenTransaction:
        transaction = _transaction(event)
        self._count(transaction)
        return transaction

    def _add_to_segment(self, transaction: OpenTransaction) -> None:
        if transaction.segments[-1:] != [self._segment]:
            transaction.segments.append(self._segment)
            self._parts[transaction.begin] = TransactionPart(transaction.begin, transaction.xid, 0)

    def _count(self, transaction: OpenTransaction) -> None:
        """Add those changes of a transaction that are not counted yet to the count in its `TransactionPart`.

        Nothing is added while the transaction's changes are skipped.
        """
        changes = self._position - self._stored_others
        if not self.skipping:
            part = self._parts[transaction.begin]
            self._parts[transaction.begin] = TransactionPart(
                transaction.begin, transaction.xid, part.changes + changes - self._counted
            )
        self._counted = changes

    def _end(self, message: Message, transaction: OpenTransaction, end: End, gid: str | None = None) -> None:
        self.ends.append(
            TransactionEnd(
                self._position,
                type(message).__name__,
                transaction.xid,
                transaction.begin,
                end.lsn,
                end.time,
                tuple(transaction.segments),
                tuple(transaction.rolled_back),
                gid,
            )
        )

    def _count_commit(self, end: End) -> None:
        self.transactions += 1
        self.last_commit_time = end.time
        self.end_lsn = max(self.end_lsn, end.end_lsn)


def _transaction(event: TransactionEvent[OpenTransaction]) -> OpenTransaction:
    """Return the transaction of an event, which must have one."""
    assert event.transaction is not None
    return event.transaction


def _opening(transaction: OpenTransaction) -> Iterator[Message]:
    assert transaction.opener is not None
    yield transaction.opener
    if transaction.origin is not None:
        yield transaction.origin
