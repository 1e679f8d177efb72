"""Assemble messages into committed transactions.

Handles stream blocks, rolled-back savepoints and prepared transactions. Uncommitted transactions are kept in
memory. The rules follow apply_dispatch in PostgreSQL's src/backend/replication/logical/worker.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from pgoutput import messages
from pgoutput.errors import StreamError
from pgoutput.stream.decoder import StreamDecoder

ChangeMessage: TypeAlias = (
    messages.Insert | messages.Update | messages.Delete | messages.Truncate | messages.LogicalMessage
)
"""Message of a change: Insert, Update, Delete, Truncate or LogicalMessage."""
End: TypeAlias = messages.Commit | messages.StreamCommit | messages.CommitPrepared
"""Message that commits a transaction: Commit, Stream Commit or Commit Prepared."""


class Change(msgspec.Struct, frozen=True):
    """A change message with the Relation messages that describe the changed relations."""

    message: ChangeMessage
    relations: tuple[messages.Relation, ...]
    """Relation messages of the changed relations: one for an Insert, Update or Delete, one per
    truncated relation (in message order) for a Truncate, none for a LogicalMessage."""


class Transaction(msgspec.Struct, frozen=True):
    """A committed transaction."""

    xid: int
    """Transaction ID."""
    commit_lsn: int
    """LSN of the start of the commit record."""
    end_lsn: int
    """LSN of the end of the commit record."""
    commit_time: int
    """Commit time in microseconds since 2000-01-01 00:00 UTC."""
    changes: list[Change]
    """Changes in execution order, without changes of rolled-back savepoints. Logical messages of rolled-back
    savepoints remain, because a logical message does not contain the savepoint's xid."""
    origin: messages.Origin | None = None
    """Origin message, or None if the transaction was first made on this server."""
    gid: str | None = None
    """Global identifier if the transaction was prepared, otherwise None."""


class _OpenTransaction(msgspec.Struct):
    """A transaction that is not committed yet, with the changes received so far."""

    xid: int
    changes: list[tuple[int | None, Change]] = []
    """Pairs of subtransaction xid and change. The xid is None for changes outside stream blocks."""
    origin: messages.Origin | None = None


class Transactions:
    """Assembles the messages of a stream into committed transactions.

    Args:
        decoder: Decoder of the messages. Its `relations` describe the changed relations.
    """

    def __init__(self, decoder: StreamDecoder) -> None:
        self._decoder = decoder
        self._current: _OpenTransaction | None = None
        self._opening_type: type[messages.Message] | None = None
        self._streamed: dict[int, _OpenTransaction] = {}
        self._prepared: dict[str, _OpenTransaction] = {}
        self._handlers: Mapping[type[messages.Message], Callable[[Any], Transaction | None]] = {
            messages.Begin: self._begin,
            messages.BeginPrepare: self._begin,
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
            messages.Insert: self._row_change,
            messages.Update: self._row_change,
            messages.Delete: self._row_change,
            messages.Truncate: self._truncate,
            messages.LogicalMessage: self._logical_message,
            messages.Relation: self._ignore,
            messages.Type: self._ignore,
        }

    def feed(self, message: messages.Message) -> Transaction | None:
        """Process the next message and return the transaction that it commits, or None.

        Non-transactional logical messages are ignored; handle them in the caller.

        Raises:
            StreamError: A server would not send the message at this point. The message is not processed.
            TypeError: The argument is not a pgoutput message, for example an XLogData envelope.
        """
        handler = self._handlers.get(type(message))
        if handler is None:
            is_envelope = isinstance(message, messages.XLogData)
            hint = "; decode its `data` with StreamDecoder first" if is_envelope else ""
            raise TypeError(f"a pgoutput message is expected, not {type(message).__name__}{hint}")
        return handler(message)

    def reconnect(self, decoder: StreamDecoder) -> None:
        """Continue with the messages of a new connection.

        Open transactions are discarded, because the server sends them again. Prepared transactions are kept.

        Args:
            decoder: Decoder of the new connection's messages.
        """
        self._decoder = decoder
        self._current = self._opening_type = None
        self._streamed.clear()

    @property
    def open(self) -> int:
        """Number of transactions neither committed nor rolled back, including prepared transactions."""
        begun = self._current is not None and self._opening_type is not messages.StreamStart
        return len(self._streamed) + len(self._prepared) + begun

    def _begin(self, message: messages.Begin | messages.BeginPrepare) -> None:
        self._open(_OpenTransaction(message.xid), message)

    def _commit(self, message: messages.Commit) -> Transaction:
        return _build_transaction(self._close(message, messages.Begin), message)

    def _prepare(self, message: messages.Prepare) -> None:
        self._require_unused_gid(message)
        self._prepared[message.gid] = self._close(message, messages.BeginPrepare)

    def _stream_start(self, message: messages.StreamStart) -> None:
        if not message.first_stream_segment:
            self._open(self._streamed_transaction(message), message)
        elif message.xid in self._streamed:
            raise StreamError.at(message, f"transaction {message.xid} has had its first block already")
        else:
            transaction = _OpenTransaction(message.xid)
            self._open(transaction, message)
            self._streamed[message.xid] = transaction

    def _stream_stop(self, message: messages.StreamStop) -> None:
        self._close(message, messages.StreamStart)

    def _stream_commit(self, message: messages.StreamCommit) -> Transaction:
        transaction = self._streamed_transaction(message)
        self._require_none_open(message)
        del self._streamed[message.xid]
        return _build_transaction(transaction, message)

    def _stream_abort(self, message: messages.StreamAbort) -> None:
        if message.xid not in self._streamed and message.subxid != message.xid:
            # PostgreSQL 18.0 to 18.4 send Stream Abort for subtransactions not streamed before (bug 19616).
            return
        transaction = self._streamed_transaction(message)
        self._require_none_open(message)
        if message.subxid == message.xid:
            del self._streamed[message.xid]
            return
        transaction.changes = [
            (xid, change)
            for xid, change in transaction.changes
            if xid != message.subxid or isinstance(change.message, messages.LogicalMessage)
        ]

    def _stream_prepare(self, message: messages.StreamPrepare) -> None:
        transaction = self._streamed_transaction(message)
        self._require_none_open(message)
        self._require_unused_gid(message)
        del self._streamed[message.xid]
        self._prepared[message.gid] = transaction

    def _commit_prepared(self, message: messages.CommitPrepared) -> Transaction:
        self._require_none_open(message)
        if message.gid not in self._prepared:
            text = f"no transaction is prepared as {message.gid!r}; its Prepare is not in this stream"
            raise StreamError.at(message, text)
        return _build_transaction(self._prepared.pop(message.gid), message, message.gid)

    def _rollback_prepared(self, message: messages.RollbackPrepared) -> None:
        self._require_none_open(message)
        # The gid may be unknown: servers also roll back transactions that were prepared before the slot
        # was consistent (apply_handle_rollback_prepared).
        self._prepared.pop(message.gid, None)

    def _origin(self, message: messages.Origin) -> None:
        self._require_open(message).origin = message

    def _row_change(self, message: messages.Insert | messages.Update | messages.Delete) -> None:
        transaction = self._require_open(message)
        relation = self._relation(message.relation_oid, message)
        _check_widths(message, relation)
        transaction.changes.append((message.xid, Change(message, (relation,))))

    def _truncate(self, message: messages.Truncate) -> None:
        transaction = self._require_open(message)
        relations = tuple(self._relation(oid, message) for oid in message.relation_oids)
        transaction.changes.append((message.xid, Change(message, relations)))

    def _ignore(self, message: messages.Relation | messages.Type) -> None:
        """Ignore a Relation or Type message, because the decoder already keeps its description."""

    def _logical_message(self, message: messages.LogicalMessage) -> None:
        if message.flags & messages.MessageFlag.TRANSACTIONAL:
            self._require_open(message).changes.append((message.xid, Change(message, ())))

    def _relation(self, oid: int, message: messages.Message) -> messages.Relation:
        try:
            return self._decoder.relations[oid]
        except KeyError:
            raise StreamError.at(message, f"no Relation message has come for the OID {oid}") from None

    def _require_open(self, message: messages.Message) -> _OpenTransaction:
        if self._current is None:
            raise StreamError.at(message, "no transaction is open")
        return self._current

    def _require_none_open(self, message: messages.Message) -> None:
        if self._current is not None:
            raise StreamError.at(message, f"transaction {self._current.xid} is still open")

    def _open(self, transaction: _OpenTransaction, message: messages.Message) -> None:
        self._require_none_open(message)
        self._current = transaction
        self._opening_type = type(message)

    def _close(self, message: messages.Message, opened_by: type[messages.Message]) -> _OpenTransaction:
        transaction = self._require_open(message)
        if self._opening_type is not opened_by:
            required, actual = opened_by.__name__, self._opening_type and self._opening_type.__name__
            text = f"must follow {required}, but {actual} opened transaction {transaction.xid}"
            raise StreamError.at(message, text)
        self._current = self._opening_type = None
        return transaction

    def _streamed_transaction(
        self,
        message: messages.StreamStart | messages.StreamCommit | messages.StreamAbort | messages.StreamPrepare,
    ) -> _OpenTransaction:
        if message.xid not in self._streamed:
            raise StreamError.at(message, f"transaction {message.xid} has not had its first block")
        return self._streamed[message.xid]

    def _require_unused_gid(self, message: messages.Prepare | messages.StreamPrepare) -> None:
        if message.gid in self._prepared:
            raise StreamError.at(message, f"a transaction is prepared as {message.gid!r} already")


def _check_widths(
    message: messages.Insert | messages.Update | messages.Delete, relation: messages.Relation
) -> None:
    for field in ("key", "old", "new"):
        cells: messages.TupleData | None = getattr(message, field, None)
        if cells is not None and len(cells) != len(relation.columns):
            name = f"{relation.namespace or 'pg_catalog'}.{relation.name}"
            text = f"{field} has {len(cells)} columns, but {name} has {len(relation.columns)}"
            raise StreamError.at(message, text)


def _build_transaction(transaction: _OpenTransaction, end: End, gid: str | None = None) -> Transaction:
    changes = [change for _, change in transaction.changes]
    return Transaction(
        transaction.xid, end.commit_lsn, end.end_lsn, end.commit_time, changes, transaction.origin, gid
    )
