"""Messages to committed transactions: streamed blocks, rolled-back savepoints, prepared transactions.

A transaction that is not committed yet is kept in memory. What ends one is said in PostgreSQL's
src/backend/replication/logical/worker.c, apply_dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

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
        }

    def feed(self, message: messages.Message) -> Transaction | None:
        """Take the next message; give the transaction that it commits, if it does.

        Logical messages that are not transactional belong to no transaction and are left to the caller.

        Raises:
            StreamError: No server sends the message here. The message is not taken.
        """
        effect = self._effects.get(type(message))
        return None if effect is None else effect(message)

    @property
    def open(self) -> int:
        """How many transactions have begun and not ended, prepared ones included."""
        return len(self._streamed) + len(self._prepared) + (self._current is not None and not self._decoder.in_stream)

    def _begin(self, message: messages.Begin | messages.BeginPrepare) -> None:
        if self._current is not None:
            raise _error(message, f"transaction {self._current.xid} is still open")
        self._current = _Work(message.xid)

    def _commit(self, message: messages.Commit) -> Transaction:
        work = self._take_current(message)
        return _transaction(work, message)

    def _prepare(self, message: messages.Prepare) -> None:
        if message.gid in self._prepared:
            raise _error(message, f"a transaction is prepared as {message.gid!r} already")
        self._prepared[message.gid] = self._take_current(message)

    def _stream_start(self, message: messages.StreamStart) -> None:
        if self._current is not None:
            raise _error(message, f"transaction {self._current.xid} is still open")
        if message.first_segment:
            self._streamed[message.xid] = _Work(message.xid)
        self._current = _known(self._streamed, message.xid, message)

    def _stream_stop(self, message: messages.StreamStop) -> None:
        self._take_current(message)

    def _stream_commit(self, message: messages.StreamCommit) -> Transaction:
        return _transaction(_taken(self._streamed, message.xid, message), message)

    def _stream_abort(self, message: messages.StreamAbort) -> None:
        if message.subxid == message.xid:
            _taken(self._streamed, message.xid, message)
            return
        work = _known(self._streamed, message.xid, message)
        work.changes = [
            (xid, change)
            for xid, change in work.changes
            if xid != message.subxid or isinstance(change.message, messages.LogicalMessage)
        ]

    def _stream_prepare(self, message: messages.StreamPrepare) -> None:
        if message.gid in self._prepared:
            raise _error(message, f"a transaction is prepared as {message.gid!r} already")
        self._prepared[message.gid] = _taken(self._streamed, message.xid, message)

    def _commit_prepared(self, message: messages.CommitPrepared) -> Transaction:
        return _transaction(_taken(self._prepared, message.gid, message), message, message.gid)

    def _rollback_prepared(self, message: messages.RollbackPrepared) -> None:
        _taken(self._prepared, message.gid, message)

    def _origin(self, message: messages.Origin) -> None:
        self._inside(message).origin = message

    def _row_change(self, message: messages.Insert | messages.Update | messages.Delete) -> None:
        work = self._inside(message)
        work.changes.append((message.xid, Change(message, (self._relation(message.relation_oid, message),))))

    def _truncate(self, message: messages.Truncate) -> None:
        work = self._inside(message)
        relations = tuple(self._relation(oid, message) for oid in message.relation_oids)
        work.changes.append((message.xid, Change(message, relations)))

    def _logical_message(self, message: messages.LogicalMessage) -> None:
        if message.flags & messages.MessageFlag.TRANSACTIONAL:
            self._inside(message).changes.append((message.xid, Change(message, ())))

    def _relation(self, oid: int, message: messages.Message) -> messages.Relation:
        try:
            return self._decoder.relations[oid]
        except KeyError:
            raise _error(message, f"no Relation message has come for the OID {oid}") from None

    def _inside(self, message: messages.Message) -> _Work:
        if self._current is None:
            raise _error(message, "no transaction is open")
        return self._current

    def _take_current(self, message: messages.Message) -> _Work:
        work = self._inside(message)
        self._current = None
        return work


_Key = TypeVar("_Key", int, str)


def _known(works: Mapping[_Key, _Work], key: _Key, message: messages.Message) -> _Work:
    try:
        return works[key]
    except KeyError:
        raise _error(message, f"no transaction is open as {key!r}") from None


def _taken(works: dict[_Key, _Work], key: _Key, message: messages.Message) -> _Work:
    work = _known(works, key, message)
    del works[key]
    return work


def _transaction(work: _Work, end: End, gid: str | None = None) -> Transaction:
    changes = [change for _, change in work.changes]
    return Transaction(work.xid, end.commit_lsn, end.end_lsn, end.commit_time, changes, work.origin, gid)


def _error(message: messages.Message, text: str) -> StreamError:
    return StreamError(text, message=type(message).__name__)
