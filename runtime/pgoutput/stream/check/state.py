"""State of a checked stream.

Invalid messages also update the state. For instance, if a transaction's Begin is missing, the next message
opens the transaction, so that one violation does not cause violations in all later messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from pgoutput import messages as m
from pgoutput.messages import ColumnFlag, Message, MessageFlag
from pgoutput.stream.check.options import CheckOptions

CHANGES: Final = (m.Insert, m.Update, m.Delete, m.Truncate, m.LogicalMessage)


class KnownRelation(msgspec.Struct, frozen=True):
    """A received Relation message, with facts derived from the message."""

    number: int
    """Number of the Relation message in the stream, from 0."""
    relation: m.Relation
    width: int
    """Number of columns of the relation."""
    keys: tuple[int, ...]
    """Indices of the columns in the replica identity."""
    others: tuple[int, ...]
    """Indices of the columns outside the replica identity."""
    partitioned: bool = False
    """Whether the next message was also a Relation message. The relation may then be a partitioned table and
    the next relation its partition. Changes of the partition may be sent with the OID of the partitioned
    table, but with the old values that the partition's replica identity requires."""


class StreamedTransaction(msgspec.Struct):
    """A transaction that was sent in stream blocks and has not ended."""

    xid: int
    relations: dict[int, KnownRelation] = {}
    """Relation messages sent in the transaction, by OID. The messages apply to other transactions only
    after the commit (get_schema_sent_in_streamed_txn)."""
    subxids: set[int] = set()
    """Xids of the transaction's subtransactions that occurred in earlier messages."""
    aborted: set[int] = set()
    """Xids of the transaction's subtransactions that were rolled back."""
    message_lsn: int = 0
    """LSN of the last logical message in the transaction; 0 if there is none."""


class OpenTransaction(msgspec.Struct):
    """The open transaction or stream block."""

    opener: m.Begin | m.BeginPrepare | m.StreamStart | None
    """Message that opened the transaction or stream block; None if that message is missing."""
    streamed: StreamedTransaction | None = None
    """Streamed transaction to which the stream block belongs; None if no stream block is open."""
    messages: int = 0
    """Number of messages received in the transaction or stream block after the opening message."""
    changes: int = 0
    """Number of changes received in the transaction or stream block."""
    message_lsn: int = 0
    """LSN of the last logical message in the transaction; 0 if there is none."""
    wal_start: int = 0
    """Field `wal_start` of the last change's envelope; 0 before the first change."""

    @property
    def has_only_relations(self) -> bool:
        """Whether the opening Begin is missing and only Relation and Type messages have been received."""
        return self.opener is None and self.streamed is None and not self.changes


class PreparedTransaction(msgspec.Struct):
    """A prepared transaction that is neither committed nor rolled back."""

    prepare: m.Prepare | m.StreamPrepare
    resent: bool = False
    """Whether the transaction was prepared on an earlier connection. The server may then send it again."""


class StreamState:
    """State of a stream before the next message.

    Attributes:
        options: Options that the client requested.
        number: Number of the current message, from 0.
        open: The open transaction or stream block, or None between transactions.
        relations: Relation messages in effect outside stream blocks, by OID.
        streamed: Streamed transactions that have not ended, by xid.
        top_xids: Xid of each subtransaction's top-level transaction, by xid of the subtransaction.
        prepared: Prepared transactions, by gid.
        gid_by_xid: Gids of the prepared transactions, by xid.
        finished_gids: Gids of committed or rolled-back prepared transactions, unless prepared again since.
        last_lsn: End LSN of the last transaction that ended, or LSN of a later non-transactional message.
        late_prepare: The previous message, if it is a Prepare or Stream Prepare with an LSN before
            `last_lsn`; otherwise None.
        pending_types: OIDs of the Type messages that wait for the Relation message that uses the types.
        last_relation: After a Relation message, a pair: the dictionary that contains the message (`relations`
            or that of a streamed transaction), and the relation's OID. None after any message other than
            Relation and Type.
        opener_without_lsn: Whether the previous message opened a transaction or stream block in an envelope
            with LSN 0. If so, an Origin must follow.
        ignored_oids: OIDs of relations with a reported violation. Changes of such a relation are not checked
            against the relation's description until its next Relation message.
        opener_missing: Whether a Stream Start is missing, so that the stream block's transaction is unknown.
    """

    def __init__(self, options: CheckOptions) -> None:
        self.prepared: dict[str, PreparedTransaction] = {}
        self.gid_by_xid: dict[int, str] = {}
        self.number = -1
        self._handlers: Mapping[type[Message], Callable[[Any], None]] = {
            m.Begin: self._begin,
            m.BeginPrepare: self._begin,
            m.Commit: self._commit,
            m.Prepare: self._prepare,
            m.StreamStart: self._stream_start,
            m.StreamStop: self._close,
            m.StreamCommit: self._stream_commit,
            m.StreamAbort: self._stream_abort,
            m.StreamPrepare: self._stream_prepare,
            m.CommitPrepared: self._finish_prepared,
            m.RollbackPrepared: self._finish_prepared,
            m.Relation: self._relation,
            m.Type: self._type,
            m.Insert: self._change,
            m.Update: self._change,
            m.Delete: self._change,
            m.Truncate: self._change,
            m.LogicalMessage: self._logical_message,
        }
        self.connect(options)

    def connect(self, options: CheckOptions) -> None:
        """Reset the state for a new connection, except prepared transactions."""
        self.options = options
        self.open: OpenTransaction | None = None
        self.relations: dict[int, KnownRelation] = {}
        self.streamed: dict[int, StreamedTransaction] = {}
        self.top_xids: dict[int, int] = {}
        self.finished_gids: set[str] = set()
        self.last_lsn: int = 0
        self.late_prepare: m.Prepare | m.StreamPrepare | None = None
        self.pending_types: list[int] = []
        self.last_relation: tuple[dict[int, KnownRelation], int] | None = None
        self.opener_without_lsn: bool = False
        self.ignored_oids: set[int] = set()
        self.opener_missing: bool = False
        for prepared in self.prepared.values():
            prepared.resent = True

    def apply(self, message: Message) -> None:
        """Update the state with a message, valid or not."""
        if self.open is not None:
            self.open.messages += 1
        if (self.last_relation or self.pending_types) and not isinstance(message, m.Relation | m.Type):
            self.last_relation, self.pending_types = None, []
        self.late_prepare = None
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)

    def apply_envelope(self, envelope: m.XLogData, message: Message) -> None:
        """Update the state with the envelope of a message. Call this method after `apply`."""
        opens = isinstance(message, m.Begin | m.BeginPrepare | m.StreamStart)
        self.opener_without_lsn = opens and not envelope.wal_start
        if self.open is not None and isinstance(message, CHANGES):
            self.open.wal_start = envelope.wal_start

    def relation_for(self, oid: int) -> KnownRelation | None:
        """Return the relation in effect for `oid`, or None if `oid` is unknown or in `ignored_oids`."""
        if oid in self.ignored_oids:
            return None
        streamed = None if self.open is None else self.open.streamed
        found = None if streamed is None else streamed.relations.get(oid)
        return found or self.relations.get(oid)

    def open_block(self, xid: int) -> None:
        """Open the stream block of a message with this xid, because the Stream Start is missing."""
        self.open = OpenTransaction(
            None, self.streamed.setdefault(self.top_xids.get(xid, xid), StreamedTransaction(xid))
        )
        self.opener_missing = True

    def _begin(self, message: m.Begin | m.BeginPrepare) -> None:
        self.open = OpenTransaction(message)

    def _close(self, message: Message) -> None:
        self.open = None

    def _commit(self, message: m.Commit) -> None:
        self.open = None
        self.last_lsn = message.end_lsn

    def _prepare(self, message: m.Prepare | m.StreamPrepare) -> None:
        self.open = None
        self._remove_prepared(message.gid)
        self.prepared[message.gid] = PreparedTransaction(message)
        self.gid_by_xid[message.xid] = message.gid
        self.finished_gids.discard(message.gid)
        if message.prepare_lsn < self.last_lsn:
            self.late_prepare = message
        else:
            self.last_lsn = message.end_lsn

    def _stream_start(self, message: m.StreamStart) -> None:
        if message.xid not in self.streamed:
            self.streamed[message.xid] = StreamedTransaction(message.xid)
            if not message.first_stream_segment:
                self.opener_missing = False
        self.open = OpenTransaction(message, self.streamed[message.xid])

    def _stream_commit(self, message: m.StreamCommit) -> None:
        streamed = self._remove_streamed(message.xid)
        self.last_lsn = message.end_lsn
        for oid, known in streamed.relations.items():
            if oid not in self.relations or self.relations[oid].number < known.number:
                self.relations[oid] = known

    def _stream_abort(self, message: m.StreamAbort) -> None:
        if message.abort_lsn:
            self.last_lsn = message.abort_lsn
        if message.subxid == message.xid:
            self._remove_streamed(message.xid)
        elif (streamed := self.streamed.get(message.xid)) is not None:
            self.open = None
            streamed.aborted.add(message.subxid)
            self.top_xids.setdefault(message.subxid, message.xid)
            streamed.subxids.add(message.subxid)
            streamed.relations = {}  # the server sends the relations again (pgoutput_stream_abort)

    def _stream_prepare(self, message: m.StreamPrepare) -> None:
        self._remove_streamed(message.xid)
        self._prepare(message)

    def _remove_streamed(self, xid: int) -> StreamedTransaction:
        self.open = None
        streamed = self.streamed.pop(xid, None)
        if streamed is None:
            self.opener_missing = False
            return StreamedTransaction(xid)
        for subxid in streamed.subxids:
            self.top_xids.pop(subxid, None)
        return streamed

    def _finish_prepared(self, message: m.CommitPrepared | m.RollbackPrepared) -> None:
        self.open = self.late_prepare = None
        self._remove_prepared(message.gid)
        self.finished_gids.add(message.gid)
        if isinstance(message, m.CommitPrepared):
            self.last_lsn = message.end_lsn
        else:
            self.last_lsn = message.rollback_end_lsn

    def _remove_prepared(self, gid: str) -> None:
        prepared = self.prepared.pop(gid, None)
        if prepared is not None:
            self.gid_by_xid.pop(prepared.prepare.xid, None)

    def _relation(self, message: m.Relation) -> None:
        if self.open is not None and self.open.streamed is not None:
            relations = self.open.streamed.relations
            self._add_subtransaction(message.xid)
        else:
            relations = self.relations
        keys: list[int] = []
        others: list[int] = []
        for i, column in enumerate(message.columns):
            (keys if column.flags & ColumnFlag.KEY else others).append(i)
        width = len(message.columns)
        relations[message.oid] = KnownRelation(self.number, message, width, tuple(keys), tuple(others))
        if self.last_relation is not None:
            relations_of_scope, oid = self.last_relation
            relations_of_scope[oid] = msgspec.structs.replace(relations_of_scope[oid], partitioned=True)
        self.last_relation = relations, message.oid
        self.ignored_oids.discard(message.oid)
        self.pending_types = []

    def _type(self, message: m.Type) -> None:
        self.pending_types.append(message.oid)
        self._add_subtransaction(message.xid)

    def _change(self, message: m.Insert | m.Update | m.Delete | m.Truncate) -> None:
        if self.open is None:
            self.open = OpenTransaction(None)
        self.open.changes += 1
        if message.xid is not None:
            self._add_subtransaction(message.xid)

    def _add_subtransaction(self, xid: int | None) -> None:
        streamed = None if self.open is None else self.open.streamed
        if streamed is not None and xid is not None and xid != streamed.xid and xid not in self.top_xids:
            self.top_xids[xid] = streamed.xid
            streamed.subxids.add(xid)

    def _logical_message(self, message: m.LogicalMessage) -> None:
        if not message.flags & MessageFlag.TRANSACTIONAL:
            self.last_lsn = message.lsn
            return
        if self.open is None:
            self.open = OpenTransaction(None)
        self.open.changes += 1
        (self.open.streamed or self.open).message_lsn = message.lsn
