"""Assemble messages into committed transactions.

Handles stream blocks, rolled-back savepoints and prepared transactions. Uncommitted transactions are kept in
memory. The rules follow apply_dispatch in PostgreSQL's src/backend/replication/logical/worker.c.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from logicalrep import messages
from logicalrep._changes import change_error, wrong_width
from logicalrep._roles import CHANGES, ROW_FIELDS, classes, field_name, meaning_of, read_end
from logicalrep.errors import StreamError
from logicalrep.stream.decoder import StreamDecoder
from logicalrep.stream.tracker import TrackedTransaction, TransactionTracker


class Change(msgspec.Struct, frozen=True):
    """A change message, with the Relation message of each relation whose rows the change concerns."""

    message: messages.ChangeMessage
    relations: tuple[messages.Relation, ...]
    """Relation messages in effect for the message: one for an Insert, Update or Delete, one per
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


class _ChangeFields(NamedTuple):
    """Names of the fields of a message class that changes rows; None for a field that the class lacks."""

    relation: str | None
    relations: str | None
    subxid: str | None
    tuples: tuple[tuple[str, bool], ...]
    """Pairs for the fields that hold rows: name, and whether the field is a list of tuples."""


_CHANGES: Final = {
    kind: _ChangeFields(
        relation=field_name(kind, "relation"),
        relations=field_name(kind, "relations"),
        subxid=field_name(kind, "subxid"),
        tuples=ROW_FIELDS[kind],
    )
    for kind in classes(*CHANGES)
}


class Transactions:
    """Assembles the messages of a stream into committed transactions.

    Args:
        decoder: Decoder of the messages, whose `relations` describe the relations of the changes.
    """

    def __init__(self, decoder: StreamDecoder) -> None:
        self._decoder = decoder
        self._tracker = TransactionTracker(_OpenTransaction)

    def feed(self, message: messages.Message) -> Transaction | None:
        """Process the next message and return the transaction that it commits, or None.

        Non-transactional logical messages are ignored; handle them in the caller.

        Raises:
            StreamError: A server would not send the message after the previous ones. The message is not
                processed.
            TypeError: The argument is not a pgoutput message, for example an XLogData envelope.
        """
        if (fields := _CHANGES.get(type(message))) is not None:
            self._add_change(message, fields)
            return None
        event = self._tracker.feed(message)
        if event.kind == "committed":
            if event.transaction is None:
                gid = meaning_of(message, "gid")
                text = f"no transaction is prepared as {gid!r}: the stream has no Prepare with this gid"
                raise StreamError.at(message, text)
            return _build_transaction(event.transaction, message)
        if event.transaction is not None:
            if event.kind == "changed":
                change: Any = message
                event.transaction.changes.append((meaning_of(message, "subxid"), Change(change, ())))
            elif event.kind == "subtransaction_rolled_back":
                subxid, changes = meaning_of(message, "subxid"), event.transaction.changes
                event.transaction.changes = [one for one in changes if one[0] != subxid]
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
        return self._tracker.in_flight + len(self._tracker.prepared)

    def _add_change(self, message: Any, fields: _ChangeFields) -> None:
        relation, relations, subxid, tuples = fields
        transaction = self._tracker.current or self._tracker.require_open(message)
        assert transaction is not None  # otherwise require_open has raised an error
        known = self._decoder.relations
        described: tuple[messages.Relation, ...] = ()
        try:
            if relation is not None:
                described = (known[getattr(message, relation)],)
            elif relations is not None:
                described = tuple([known[oid] for oid in getattr(message, relations)])
        except KeyError as error:
            raise change_error(message, error.args[0], None) from None
        for field, is_list in tuples:
            cells = getattr(message, field)
            suspect = cells is not None and (is_list or len(cells) != len(described[0].columns))
            if suspect and wrong_width(message, described[0]):
                raise change_error(message, described[0].oid, described[0])
        xid = None if subxid is None else getattr(message, subxid)
        transaction.changes.append((xid, Change(message, described)))


def _build_transaction(transaction: _OpenTransaction, message: messages.Message) -> Transaction:
    end = read_end(message)
    changes = [change for _, change in transaction.changes]
    return Transaction(transaction.xid, end.lsn, end.end_lsn, end.time, changes, transaction.origin, end.gid)
