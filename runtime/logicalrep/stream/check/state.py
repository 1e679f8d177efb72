"""State of a checked stream.

Invalid messages also update the state. For instance, if a transaction's Begin is missing, the next message
opens the transaction, so that one violation does not cause violations in all later messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from logicalrep import messages as m
from logicalrep._roles import CHANGES as CHANGE_ROLES, OPENERS, ROLES, classes, meaning_of, read_end
from logicalrep.messages import ColumnFlag, Message
from logicalrep.stream.check.options import CheckOptions
from logicalrep.stream.tracker import TrackedTransaction, TransactionTracker

CHANGES: Final = classes(*CHANGE_ROLES, "payload")


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


class CheckedTransaction(TrackedTransaction):
    """A transaction that has begun and not ended; a prepared one ends when it is committed or rolled back."""

    relations: dict[int, KnownRelation] = msgspec.field(default_factory=dict)
    """Relation messages sent in the streamed transaction, by OID. The messages apply to other transactions
    only after the commit of this transaction (get_schema_sent_in_streamed_txn)."""
    subxids: set[int] = msgspec.field(default_factory=set)
    """Xids of the transaction's subtransactions that occurred in earlier messages."""
    aborted: set[int] = msgspec.field(default_factory=set)
    """Xids of the transaction's subtransactions that were rolled back."""
    message_lsn: int = 0
    """LSN of the last logical message in the transaction; 0 if there is none."""
    prepare: Any = None
    """The message that prepared the transaction; None if it is not prepared."""
    resent: bool = False
    """Whether the transaction was prepared on an earlier connection. The server may then send it again."""


class OpenBlock(msgspec.Struct):
    """The open transaction or stream block."""

    opener: m.Begin | m.BeginPrepare | m.StreamStart | None
    """Message that opened the transaction or stream block; None if that message is missing."""
    streamed: CheckedTransaction | None = None
    """Streamed transaction to which the stream block belongs; None if no stream block is open."""
    messages: int = 0
    """Number of messages received in the transaction or stream block after the opening message."""
    changes: int = 0
    """Number of changes received in the transaction or stream block."""
    message_lsn: int = 0
    """LSN of the last logical message in the transaction; 0 if there is none."""
    wal_start: int = 0
    """Field `wal_start` of the last change's envelope; 0 before the first change."""

    def __str__(self) -> str:
        if self.streamed is not None:
            return f"a stream block of transaction {self.streamed.xid}"
        return "a transaction" if self.opener is None else f"transaction {meaning_of(self.opener, 'xid')}"


class CheckedStream:
    """State of a stream before the message that is being checked.

    Attributes:
        options: Options that the client requested.
        number: Number of the message that is being checked, from 0; -1 before the first.
        size: Size of that message, in bytes.
        open: The open transaction or stream block, or None between transactions.
        relations: Relation messages in effect outside stream blocks, by OID.
        streamed: Streamed transactions that have not ended, by xid.
        top_xids: Xid of each subtransaction's top-level transaction, by xid of the subtransaction.
        prepared: Prepared transactions, by gid.
        gid_by_xid: Gids of the prepared transactions, by xid.
        finished_gids: Gids of prepared transactions that have ended, unless the gid was used again.
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
        self._tracker = TransactionTracker(CheckedTransaction, lenient=True)
        self.streamed: dict[int, CheckedTransaction] = self._tracker.streamed
        self.prepared: dict[str, CheckedTransaction] = self._tracker.prepared
        self.gid_by_xid: dict[int, str] = {}
        self.number = -1
        self.size = 0
        self._handlers: Mapping[str, Callable[[Any, CheckedTransaction | None], None]] = {
            "began": self._open,
            "block_opened": self._open,
            "block_closed": self._close,
            "committed": self._commit,
            "prepared": self._prepare,
            "rolled_back": self._roll_back,
            "subtransaction_rolled_back": self._roll_back_subtransaction,
            "ignored": self._roll_back_subtransaction,
            "changed": self._change,
            "emitted": self._emit,
            "described": self._describe,
        }
        self.connect(options)

    def connect(self, options: CheckOptions) -> None:
        """Reset the state for a new connection, except prepared transactions."""
        self.options = options
        self.open: OpenBlock | None = None
        self.relations: dict[int, KnownRelation] = {}
        self._tracker.reconnect()
        self.top_xids: dict[int, int] = {}
        self.finished_gids: set[str] = set()
        self.last_lsn: int = 0
        self.late_prepare: Message | None = None
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
        role = ROLES[type(message)]
        if (self.last_relation or self.pending_types) and role not in ("relation", "type"):
            self.last_relation, self.pending_types = None, []
        self.late_prepare = None
        if role in CHANGE_ROLES:  # changes do not alter the tracker's state
            self._change(message, None)
            return
        self._forget_replaced(role, message)
        event = self._tracker.feed(message)
        kind, transaction = event.kind, event.transaction
        if handler := self._handlers.get(kind):
            handler(message, transaction)

    def apply_envelope(self, envelope: m.XLogData, message: Message) -> None:
        """Update the state with the envelope of a message. Call this method after `apply`."""
        opens = ROLES[type(message)] in OPENERS
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

    @property
    def message_lsn(self) -> int:
        """LSN of the last logical message in the open transaction; 0 if there is none."""
        return 0 if self.open is None else (self.open.streamed or self.open).message_lsn

    def prepare_of(self, gid: str) -> Message | None:
        """Return the message that prepared the transaction with a gid; None if the gid is unknown."""
        prepared = self.prepared.get(gid)
        return None if prepared is None else prepared.prepare

    def open_block(self, xid: int) -> None:
        """Open a stream block for a message that has an xid, although no Stream Start came before it."""
        transaction = self.streamed.setdefault(self.top_xids.get(xid, xid), CheckedTransaction(xid, None))
        self.open = OpenBlock(None, transaction)
        self.opener_missing = True

    def _open(self, message: Any, transaction: CheckedTransaction | None) -> None:
        is_block = ROLES[type(message)] == "open_block"
        self.open = OpenBlock(message, transaction if is_block else None)

    def _close(self, message: Message, transaction: CheckedTransaction | None) -> None:
        self.open = None

    def _commit(self, message: Message, transaction: CheckedTransaction | None) -> None:
        self.open = None
        role = ROLES[type(message)]
        if role == "commit_prepared":
            self._finish_prepared(message, transaction)
        elif role == "commit_streamed" and transaction is not None:
            self._forget_subtransactions(transaction)
            for oid, known in transaction.relations.items():
                if oid not in self.relations or self.relations[oid].number < known.number:
                    self.relations[oid] = known
        self.last_lsn = meaning_of(message, "end_lsn")

    def _prepare(self, message: Message, transaction: CheckedTransaction | None) -> None:
        assert transaction is not None
        self.open = None
        self._forget_subtransactions(transaction)
        end = read_end(message)
        transaction.prepare, transaction.resent = message, False
        self.gid_by_xid[end.xid] = end.gid
        self.finished_gids.discard(end.gid)
        if end.lsn < self.last_lsn:
            self.late_prepare = message
        else:
            self.last_lsn = end.end_lsn

    def _roll_back(self, message: Message, transaction: CheckedTransaction | None) -> None:
        self.open = None
        end = read_end(message)
        if ROLES[type(message)] == "rollback_prepared":
            self._finish_prepared(message, transaction)
            self.last_lsn = end.end_lsn
            return
        if end.lsn:
            self.last_lsn = end.lsn
        if transaction is not None:
            self._forget_subtransactions(transaction)

    def _roll_back_subtransaction(self, message: Message, transaction: CheckedTransaction | None) -> None:
        if lsn := meaning_of(message, "lsn"):
            self.last_lsn = lsn
        if transaction is not None:
            subxid = meaning_of(message, "subxid")
            self.open = None
            transaction.aborted.add(subxid)
            self.top_xids.setdefault(subxid, transaction.xid)
            transaction.subxids.add(subxid)
            transaction.relations = {}  # the server sends the relations again (pgoutput_stream_abort)

    def _forget_replaced(self, role: str, message: Message) -> None:
        """Update `opener_missing` and `gid_by_xid` before the tracker receives `message`.

        - `opener_missing` becomes false if the message, other than a first Stream Start, belongs to a
          streamed transaction that the tracker does not know. The missing Stream Start may be the one of this
          transaction.
        - If the message is a Prepare or Stream Prepare with the gid of an earlier prepared transaction, the
          entry of the earlier transaction is removed from `gid_by_xid`.

        Args:
            role: Role of the message in the spec, such as `open_block`.
            message: The next message. The tracker has not received it yet.
        """
        if role in _STREAMED and meaning_of(message, "xid") not in self.streamed:
            self.opener_missing &= role == "open_block" and meaning_of(message, "first_block")
        if role in _PREPARES and (replaced := self.prepared.get(meaning_of(message, "gid"))) is not None:
            self.gid_by_xid.pop(meaning_of(replaced.prepare, "xid"), None)

    def _forget_subtransactions(self, transaction: CheckedTransaction) -> None:
        for subxid in transaction.subxids:
            self.top_xids.pop(subxid, None)

    def _finish_prepared(self, message: Message, transaction: CheckedTransaction | None) -> None:
        if transaction is not None:
            self.gid_by_xid.pop(meaning_of(transaction.prepare, "xid"), None)
        self.finished_gids.add(meaning_of(message, "gid"))

    def _describe(self, message: Any, transaction: CheckedTransaction | None) -> None:
        if ROLES[type(message)] == "relation":
            self._relation(message)
        else:
            self.pending_types.append(message.oid)
            self._add_subtransaction(meaning_of(message, "subxid"))

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

    def _change(self, message: Message, transaction: CheckedTransaction | None) -> None:
        if self.open is None:
            self.open = OpenBlock(None)
        self.open.changes += 1
        if ROLES[type(message)] == "payload":
            (self.open.streamed or self.open).message_lsn = meaning_of(message, "lsn") or 0
        elif self.open.streamed is not None:
            self._add_subtransaction(meaning_of(message, "subxid"))

    def _emit(self, message: Message, transaction: CheckedTransaction | None) -> None:
        self.last_lsn = meaning_of(message, "lsn") or self.last_lsn

    def _add_subtransaction(self, xid: int | None) -> None:
        streamed = None if self.open is None else self.open.streamed
        if streamed is not None and xid is not None and xid != streamed.xid and xid not in self.top_xids:
            self.top_xids[xid] = streamed.xid
            streamed.subxids.add(xid)


_PREPARES: Final = ("prepare", "prepare_streamed")
_STREAMED: Final = ("open_block", "commit_streamed", "prepare_streamed", "abort_streamed")
