"""What a checker remembers of a stream.

It follows also a stream that is illegal: a message that ends or changes what was never opened opens it,
so that one fault does not make all that follows illegal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from pgoutput import messages as m
from pgoutput.messages import ColumnFlag, Message, MessageFlag
from pgoutput.stream.check.options import CheckOptions

CHANGES: Final = (m.Insert, m.Update, m.Delete, m.Truncate, m.LogicalMessage)


class Known(msgspec.Struct, frozen=True):
    """A Relation message that holds."""

    number: int
    """Of the message, to tell which of two is newer."""
    relation: m.Relation
    width: int
    keys: tuple[int, ...]
    """Places of the columns that are part of the replica identity."""
    others: tuple[int, ...]
    """Places of those that are not."""
    partitioned: bool = False
    """Whether another Relation came right behind, as that of a partition does: rows may be sent as those of
    the partitioned table, with the old values that the partition's replica identity wants."""


class Streamed(msgspec.Struct):
    """A transaction that came in blocks and has not ended."""

    xid: int
    relations: dict[int, Known] = {}
    """Those that came in it: what it streams is not known elsewhere until it commits
    (get_schema_sent_in_streamed_txn)."""
    subxids: set[int] = set()
    aborted: set[int] = set()
    message_lsn: int = 0
    """Of the last logical message."""


class Open(msgspec.Struct):
    """What is open: a transaction that comes as a whole, or a block."""

    opener: m.Begin | m.BeginPrepare | m.StreamStart | None
    """None if it did not come."""
    work: Streamed | None = None
    """Whose block it is; None for whole transactions."""
    messages: int = 0
    changes: int = 0
    message_lsn: int = 0
    wal_start: int = 0
    """Of the last change's envelope."""

    @property
    def only_described(self) -> bool:
        """Whether nothing but a Relation or Type lets one think that something is open."""
        return self.opener is None and self.work is None and not self.changes


class Parked(msgspec.Struct):
    """A transaction that is prepared."""

    prepare: m.Prepare | m.StreamPrepare
    resent: bool = False
    """Whether the connection in which it was prepared is over, so that it may come once more."""


class State:
    """Where a stream stands.

    Attributes:
        options: What its client asked for.
        number: Number of the message that is looked at.
        open: The transaction or block that is open.
        relations: What is known of relations outside of blocks, by OID.
        streamed: The transactions that came in blocks and have not ended, by xid.
        owners: The transactions that their savepoints' xids belong to.
        parked: The prepared transactions, by gid.
        gids: Their gids, by xid.
        resolved: The gids whose transactions were committed or rolled back, and were not prepared again.
        last_lsn: The end of what has ended last.
        replayed: A transaction that was prepared with an LSN before `last_lsn`.
        types: The OIDs of the Type messages that have come and whose Relation has not.
        described: Where the Relation is that came right before, and its OID.
        silent: Whether the last opener's XLogData had no LSN, as before an Origin.
        excused: OIDs of relations of which a violation was told: changes of them are looked at again when
            their next Relation has come.
        lost: Whether an opener did not come, so that it is not known what a block belongs to.
    """

    def __init__(self, options: CheckOptions) -> None:
        self.parked: dict[str, Parked] = {}
        self.gids: dict[int, str] = {}
        self.number = -1
        self._effects: Mapping[type[Message], Callable[[Any], None]] = {
            m.Begin: self._begin,
            m.BeginPrepare: self._begin,
            m.Commit: self._commit,
            m.Prepare: self._prepare,
            m.StreamStart: self._stream_start,
            m.StreamStop: self._close,
            m.StreamCommit: self._stream_commit,
            m.StreamAbort: self._stream_abort,
            m.StreamPrepare: self._stream_prepare,
            m.CommitPrepared: self._resolve,
            m.RollbackPrepared: self._resolve,
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
        """Forget what a new connection begins without."""
        self.options = options
        self.open: Open | None = None
        self.relations: dict[int, Known] = {}
        self.streamed: dict[int, Streamed] = {}
        self.owners: dict[int, int] = {}
        self.resolved: set[str] = set()
        self.last_lsn = 0
        self.replayed: m.Prepare | m.StreamPrepare | None = None
        self.types: list[int] = []
        self.described: tuple[dict[int, Known], int] | None = None
        self.silent = False
        self.excused: set[int] = set()
        self.lost = False
        for parked in self.parked.values():
            parked.resent = True

    def take(self, message: Message) -> None:
        """Follow a message, legal or not."""
        if self.open is not None:
            self.open.messages += 1
        if (self.described or self.types) and not isinstance(message, m.Relation | m.Type):
            self.described, self.types = None, []
        self.replayed = None
        effect = self._effects.get(type(message))
        if effect is not None:
            effect(message)

    def take_envelope(self, envelope: m.XLogData, message: Message) -> None:
        """Follow the XLogData of a message; after `take`."""
        opens = isinstance(message, m.Begin | m.BeginPrepare | m.StreamStart)
        self.silent = opens and not envelope.wal_start
        if self.open is not None and isinstance(message, CHANGES):
            self.open.wal_start = envelope.wal_start

    def known(self, oid: int) -> Known | None:
        """What holds for a change here; None if nothing is known, or if that was told."""
        if oid in self.excused:
            return None
        work = None if self.open is None else self.open.work
        found = None if work is None else work.relations.get(oid)
        return found or self.relations.get(oid)

    def open_block(self, xid: int) -> None:
        """Take it that a block was opened by a message that did not come."""
        self.open = Open(None, self.streamed.setdefault(self.owners.get(xid, xid), Streamed(xid)))
        self.lost = True

    def _begin(self, message: m.Begin | m.BeginPrepare) -> None:
        self.open = Open(message)

    def _close(self, message: Message) -> None:
        self.open = None

    def _commit(self, message: m.Commit) -> None:
        self.open = None
        self.last_lsn = message.end_lsn

    def _prepare(self, message: m.Prepare | m.StreamPrepare) -> None:
        self.open = None
        self._unpark(message.gid)
        self.parked[message.gid] = Parked(message)
        self.gids[message.xid] = message.gid
        self.resolved.discard(message.gid)
        if message.prepare_lsn < self.last_lsn:
            self.replayed = message
        else:
            self.last_lsn = message.end_lsn

    def _stream_start(self, message: m.StreamStart) -> None:
        if message.xid not in self.streamed:
            self.streamed[message.xid] = Streamed(message.xid)
            if not message.first_segment:
                self.lost = False
        self.open = Open(message, self.streamed[message.xid])

    def _stream_commit(self, message: m.StreamCommit) -> None:
        work = self._end(message.xid)
        self.last_lsn = message.end_lsn
        for oid, known in work.relations.items():
            if oid not in self.relations or self.relations[oid].number < known.number:
                self.relations[oid] = known

    def _stream_abort(self, message: m.StreamAbort) -> None:
        if message.abort_lsn:
            self.last_lsn = message.abort_lsn
        if message.subxid == message.xid:
            self._end(message.xid)
        elif (work := self.streamed.get(message.xid)) is not None:
            self.open = None
            work.aborted.add(message.subxid)
            self.owners.setdefault(message.subxid, message.xid)
            work.subxids.add(message.subxid)
            work.relations = {}  # the server sends them again (pgoutput_stream_abort)

    def _stream_prepare(self, message: m.StreamPrepare) -> None:
        self._end(message.xid)
        self._prepare(message)

    def _end(self, xid: int) -> Streamed:
        self.open = None
        work = self.streamed.pop(xid, None)
        if work is None:
            self.lost = False
            return Streamed(xid)
        for subxid in work.subxids:
            self.owners.pop(subxid, None)
        return work

    def _resolve(self, message: m.CommitPrepared | m.RollbackPrepared) -> None:
        self.open = self.replayed = None
        self._unpark(message.gid)
        self.resolved.add(message.gid)
        if isinstance(message, m.CommitPrepared):
            self.last_lsn = message.end_lsn
        else:
            self.last_lsn = message.rollback_end_lsn

    def _unpark(self, gid: str) -> None:
        parked = self.parked.pop(gid, None)
        if parked is not None:
            self.gids.pop(parked.prepare.xid, None)

    def _relation(self, message: m.Relation) -> None:
        if self.open is not None and self.open.work is not None:
            relations = self.open.work.relations
            self._belongs(message.xid)
        else:
            relations = self.relations
        keys: list[int] = []
        others: list[int] = []
        for i, column in enumerate(message.columns):
            (keys if column.flags & ColumnFlag.KEY else others).append(i)
        width = len(message.columns)
        relations[message.oid] = Known(self.number, message, width, tuple(keys), tuple(others))
        if self.described is not None:
            where, oid = self.described
            where[oid] = msgspec.structs.replace(where[oid], partitioned=True)
        self.described = relations, message.oid
        self.excused.discard(message.oid)
        self.types = []

    def _type(self, message: m.Type) -> None:
        self.types.append(message.oid)
        self._belongs(message.xid)

    def _change(self, message: m.Insert | m.Update | m.Delete | m.Truncate) -> None:
        if self.open is None:
            self.open = Open(None)
        self.open.changes += 1
        if message.xid is not None:
            self._belongs(message.xid)

    def _belongs(self, xid: int | None) -> None:
        work = None if self.open is None else self.open.work
        if work is not None and xid is not None and xid != work.xid and xid not in self.owners:
            self.owners[xid] = work.xid
            work.subxids.add(xid)

    def _logical_message(self, message: m.LogicalMessage) -> None:
        if not message.flags & MessageFlag.TRANSACTIONAL:
            self.last_lsn = message.lsn
            return
        if self.open is None:
            self.open = Open(None)
        self.open.changes += 1
        (self.open.work or self.open).message_lsn = message.lsn
