"""Assemble messages into committed transactions.

Handles stream blocks, rolled-back savepoints and prepared transactions. Uncommitted transactions are kept in
memory. The rules follow apply_dispatch in PostgreSQL's src/backend/replication/logical/worker.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pgoutput import messages
from pgoutput._roles import CHANGES, ROLES, meaning_of, tuple_fields
from pgoutput.errors import StreamError
from pgoutput.stream.decoder import StreamDecoder
from pgoutput.stream.tracker import TrackedTransaction, TransactionTracker


class Change(msgspec.Struct, frozen=True):
    """A change message with the Relation messages that describe the changed relations."""

    message: messages.ChangeMessage
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


class _OpenTransaction(TrackedTransaction):
    """A transaction that is not committed yet, with the changes received so far."""

    changes: list[tuple[int | None, Change]] = msgspec.field(default_factory=list)
    """Pairs of subtransaction xid and change. The xid is None for changes outside stream blocks, and for
    logical messages, which do not contain their subtransaction's xid."""


class Transactions:
    """Assembles the messages of a stream into committed transactions.

    Args:
        decoder: Decoder of the messages. Its `relations` describe the changed relations.
    """

    def __init__(self, decoder: StreamDecoder) -> None:
        self._decoder = decoder
        self._tracker = TransactionTracker(_OpenTransaction)

    def feed(self, message: messages.Message) -> Transaction | None:
        """Process the next message and return the transaction that it commits, or None.

        Non-transactional logical messages are ignored; handle them in the caller.

        Raises:
            StreamError: A server would not send the message at this point. The message is not processed.
            TypeError: The argument is not a pgoutput message, for example an XLogData envelope.
        """
        if ROLES.get(type(message)) in _CHANGES_AND_PAYLOAD:
            self._add_change(message)
            return None
        if ROLES.get(type(message)) == "commit_prepared":
            self._require_prepared(message)
        kind, _, transaction = self._tracker.feed(message)
        if transaction is not None:
            if kind == "committed":
                return _build_transaction(transaction, message)
            if kind == "subtransaction_rolled_back":
                subxid = meaning_of(message, "subxid")
                transaction.changes = [one for one in transaction.changes if one[0] != subxid]
        return None

    def reconnect(self, decoder: StreamDecoder) -> None:
        """Continue with the messages of a new connection.

        Open transactions are discarded, because the server sends them again. Prepared transactions are kept.

        Args:
            decoder: Decoder of the new connection's messages.
        """
        self._decoder = decoder
        self._tracker.reconnect()

    @property
    def open(self) -> int:
        """Number of transactions neither committed nor rolled back, including prepared transactions."""
        tracker = self._tracker
        begun = tracker.current is not None and not tracker.in_block
        return len(tracker.streamed) + len(tracker.prepared) + begun

    def _add_change(self, message: Any) -> None:
        kind, _, transaction = self._tracker.feed(message)
        if kind == "emitted" or transaction is None:
            return
        oids = meaning_of(message, "relations")
        if oids is None:
            oid = meaning_of(message, "relation")
            oids = () if oid is None else (oid,)
        relations = tuple(self._relation(oid, message) for oid in oids)
        for field, is_list in tuple_fields(type(message)):
            _check_widths(message, field, is_list, relations[0])
        transaction.changes.append((meaning_of(message, "subxid"), Change(message, relations)))

    def _relation(self, oid: int, message: messages.Message) -> messages.Relation:
        try:
            return self._decoder.relations[oid]
        except KeyError:
            raise StreamError.at(message, f"no Relation message has come for the OID {oid}") from None

    def _require_prepared(self, message: messages.Message) -> None:
        gid = meaning_of(message, "gid")
        if self._tracker.current is None and gid not in self._tracker.prepared:
            text = f"no transaction is prepared as {gid!r}; its Prepare is not in this stream"
            raise StreamError.at(message, text)


_CHANGES_AND_PAYLOAD: Final = (*CHANGES, "payload")


def _check_widths(message: messages.Message, field: str, is_list: bool, relation: messages.Relation) -> None:
    """Check that each tuple in a field of a message has as many cells as the relation has columns."""
    value = getattr(message, field)
    tuples: Sequence[messages.TupleData] = () if value is None else value if is_list else (value,)
    for cells in tuples:
        if len(cells) != len(relation.columns):
            name = f"{relation.namespace or 'pg_catalog'}.{relation.name}"
            text = f"{field} has {len(cells)} columns, but {name} has {len(relation.columns)}"
            raise StreamError.at(message, text)


def _build_transaction(transaction: _OpenTransaction, end: messages.Message) -> Transaction:
    return Transaction(
        xid=transaction.xid,
        commit_lsn=meaning_of(end, "lsn"),
        end_lsn=meaning_of(end, "end_lsn"),
        commit_time=meaning_of(end, "time"),
        changes=[change for _, change in transaction.changes],
        origin=transaction.origin,
        gid=meaning_of(end, "gid"),
    )
