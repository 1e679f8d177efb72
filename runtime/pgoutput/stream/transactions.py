"""Messages to committed transactions: streamed blocks, rolled-back savepoints, prepared transactions.

A transaction that is not committed yet is kept in memory. What ends one is said in PostgreSQL's
src/backend/replication/logical/worker.c, apply_dispatch.
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
End: TypeAlias = messages.Commit | messages.StreamCommit | messages.CommitPrepared


class Change(msgspec.Struct, frozen=True):
    """A change, and how the relations that it touches looked when it was made."""

    message: ChangeMessage
    relations: tuple[messages.Relation, ...]
    """One; those of a Truncate, in its order; none for a logical message."""


class Transaction(msgspec.Struct, frozen=True):
    """A committed transaction. LSNs and time are as in the messages."""

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_time: int
    changes: list[Change]
    """In the order in which they were made, without those of rolled-back savepoints. A logical message of
    a rolled-back savepoint stays: it does not carry the savepoint's xid."""
    origin: messages.Origin | None = None
    gid: str | None = None
    """The global identifier, if the transaction was prepared."""


class _Work(msgspec.Struct):
    """A transaction that has not ended: changes with the xid of the subtransaction, if it is streamed."""

    xid: int
    changes: list[tuple[int | None, Change]] = []
    origin: messages.Origin | None = None


class Transactions:
    """Puts the messages of a stream together into committed transactions.

    Args:
        decoder: The decoder that reads the messages; its relations are looked up.
    """

    def __init__(self, decoder: StreamDecoder) -> None:
        self._decoder = decoder
        self._current: _Work | None = None
        self._opened_by: type[messages.Message] | None = None
        self._streamed: dict[int, _Work] = {}
        self._prepared: dict[str, _Work] = {}
        self._effects: Mapping[type[messages.Message], Callable[[Any], Transaction | None]] = {
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
            messages.Relation: self._description,
            messages.Type: self._description,
        }

    def feed(self, message: messages.Message) -> Transaction | None:
        """Take the next message; give the transaction that it commits, if it does.

        Logical messages that are not transactional belong to no transaction and are left to the caller.

        Raises:
            StreamError: No server sends the message here. The message is not taken.
            TypeError: It is not a message of pgoutput: for example an XLogData, which only carries one.
        """
        effect = self._effects.get(type(message))
        if effect is None:
            hint = (
                ": feed what StreamDecoder makes of its `data`"
                if isinstance(message, messages.XLogData)
                else ""
            )
            raise TypeError(f"a message of pgoutput is expected, not {type(message).__name__}{hint}")
        return effect(message)

    def reconnect(self, decoder: StreamDecoder) -> None:
        """Go on with the messages of a new connection.

        What was open is void, since the server sends it again; what was prepared stays.

        Args:
            decoder: The decoder that reads them.
        """
        self._decoder = decoder
        self._current = self._opened_by = None
        self._streamed.clear()

    @property
    def open(self) -> int:
        """How many transactions have begun and not ended, prepared ones included."""
        begun = self._current is not None and self._opened_by is not messages.StreamStart
        return len(self._streamed) + len(self._prepared) + begun

    def _begin(self, message: messages.Begin | messages.BeginPrepare) -> None:
        self._open(_Work(message.xid), message)

    def _commit(self, message: messages.Commit) -> Transaction:
        return _transaction(self._close(message, messages.Begin), message)

    def _prepare(self, message: messages.Prepare) -> None:
        self._gid_is_free(message)
        self._prepared[message.gid] = self._close(message, messages.BeginPrepare)

    def _stream_start(self, message: messages.StreamStart) -> None:
        if not message.first_segment:
            self._open(self._streamed_work(message), message)
        elif message.xid in self._streamed:
            raise StreamError.at(message, f"transaction {message.xid} has had its first block already")
        else:
            work = _Work(message.xid)
            self._open(work, message)
            self._streamed[message.xid] = work

    def _stream_stop(self, message: messages.StreamStop) -> None:
        self._close(message, messages.StreamStart)

    def _stream_commit(self, message: messages.StreamCommit) -> Transaction:
        work = self._streamed_work(message)
        self._outside(message)
        del self._streamed[message.xid]
        return _transaction(work, message)

    def _stream_abort(self, message: messages.StreamAbort) -> None:
        if message.xid not in self._streamed and message.subxid != message.xid:
            return  # PostgreSQL 18 up to 18.4 sends it for savepoints that were not streamed (bug 19616)
        work = self._streamed_work(message)
        self._outside(message)
        if message.subxid == message.xid:
            del self._streamed[message.xid]
            return
        work.changes = [
            (xid, change)
            for xid, change in work.changes
            if xid != message.subxid or isinstance(change.message, messages.LogicalMessage)
        ]

    def _stream_prepare(self, message: messages.StreamPrepare) -> None:
        work = self._streamed_work(message)
        self._outside(message)
        self._gid_is_free(message)
        del self._streamed[message.xid]
        self._prepared[message.gid] = work

    def _commit_prepared(self, message: messages.CommitPrepared) -> Transaction:
        self._outside(message)
        if message.gid not in self._prepared:
            text = f"no transaction is prepared as {message.gid!r}; its Prepare is not in this stream"
            raise StreamError.at(message, text)
        return _transaction(self._prepared.pop(message.gid), message, message.gid)

    def _rollback_prepared(self, message: messages.RollbackPrepared) -> None:
        self._outside(message)
        # Servers send it without a Prepare if that came before the slot was ready for it: so it is no
        # error if the gid is not known (apply_handle_rollback_prepared).
        self._prepared.pop(message.gid, None)

    def _origin(self, message: messages.Origin) -> None:
        self._inside(message).origin = message

    def _row_change(self, message: messages.Insert | messages.Update | messages.Delete) -> None:
        work = self._inside(message)
        relation = self._relation(message.relation_oid, message)
        _widths_fit(message, relation)
        work.changes.append((message.xid, Change(message, (relation,))))

    def _truncate(self, message: messages.Truncate) -> None:
        work = self._inside(message)
        relations = tuple(self._relation(oid, message) for oid in message.relation_oids)
        work.changes.append((message.xid, Change(message, relations)))

    def _description(self, message: messages.Relation | messages.Type) -> None:
        """Ignore the message: the decoder remembers it."""

    def _logical_message(self, message: messages.LogicalMessage) -> None:
        if message.flags & messages.MessageFlag.TRANSACTIONAL:
            self._inside(message).changes.append((message.xid, Change(message, ())))

    def _relation(self, oid: int, message: messages.Message) -> messages.Relation:
        try:
            return self._decoder.relations[oid]
        except KeyError:
            raise StreamError.at(message, f"no Relation message has come for the OID {oid}") from None

    def _inside(self, message: messages.Message) -> _Work:
        if self._current is None:
            raise StreamError.at(message, "no transaction is open")
        return self._current

    def _outside(self, message: messages.Message) -> None:
        if self._current is not None:
            raise StreamError.at(message, f"transaction {self._current.xid} is still open")

    def _open(self, work: _Work, message: messages.Message) -> None:
        self._outside(message)
        self._current = work
        self._opened_by = type(message)

    def _close(self, message: messages.Message, opened_by: type[messages.Message]) -> _Work:
        work = self._inside(message)
        if self._opened_by is not opened_by:
            wanted, there = opened_by.__name__, self._opened_by and self._opened_by.__name__
            raise StreamError.at(message, f"it ends what {wanted} opens, but {there} has opened {work.xid}")
        self._current = self._opened_by = None
        return work

    def _streamed_work(
        self,
        message: messages.StreamStart | messages.StreamCommit | messages.StreamAbort | messages.StreamPrepare,
    ) -> _Work:
        if message.xid not in self._streamed:
            raise StreamError.at(message, f"transaction {message.xid} has not had its first block")
        return self._streamed[message.xid]

    def _gid_is_free(self, message: messages.Prepare | messages.StreamPrepare) -> None:
        if message.gid in self._prepared:
            raise StreamError.at(message, f"a transaction is prepared as {message.gid!r} already")


def _widths_fit(
    message: messages.Insert | messages.Update | messages.Delete, relation: messages.Relation
) -> None:
    for field in ("key", "old", "new"):
        cells: messages.TupleData | None = getattr(message, field, None)
        if cells is not None and len(cells) != len(relation.columns):
            name = f"{relation.namespace or 'pg_catalog'}.{relation.name}"
            text = f"{field} has {len(cells)} columns, but {name} has {len(relation.columns)}"
            raise StreamError.at(message, text)


def _transaction(work: _Work, end: End, gid: str | None = None) -> Transaction:
    changes = [change for _, change in work.changes]
    return Transaction(work.xid, end.commit_lsn, end.end_lsn, end.commit_time, changes, work.origin, gid)
