"""Follow the transactions of a stream with a state machine, which returns an event for each message.

The tracker distinguishes messages by their roles in the spec, not by their names. The role of a message says
what the message does, such as `begin` or `commit`. The rules of the tracker follow apply_dispatch in
PostgreSQL's src/backend/replication/logical/worker.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from logicalrep._roles import CHANGES, CLOSERS, OPENERS, ROLES, classes, getters, is_transactional, meaning_of
from logicalrep.errors import StreamError
from logicalrep.messages import Message, Origin, XLogData

EventKind: TypeAlias = Literal[
    "began",
    "block_opened",
    "block_closed",
    "committed",
    "prepared",
    "rolled_back",
    "subtransaction_rolled_back",
    "changed",
    "origin",
    "described",
    "emitted",
    "ignored",
]
"""Effect of a message on the state of a stream.

- `began`: A transaction that is sent as a whole began.
- `block_opened`, `block_closed`: A stream block of a streamed transaction was opened or closed.
- `committed`, `rolled_back`: A transaction ended; it may have been a prepared transaction.
- `prepared`: The transaction was prepared.
- `subtransaction_rolled_back`: A subtransaction of a streamed transaction was rolled back.
- `changed`: A row change or a transactional logical message came in the open transaction.
- `origin`: The message contains the replication origin of the open transaction.
- `described`: A relation or type was described.
- `emitted`: A logical message that belongs to no transaction came.
- `ignored`: A subtransaction that was not streamed was rolled back: no effect (PostgreSQL bug 19616).
"""


class TrackedTransaction(msgspec.Struct):
    """A transaction between its first message and its commit or rollback."""

    xid: int
    opener: Message | None
    """The message that began the transaction; None if a lenient tracker did not receive that message."""
    origin: Origin | None = None
    """The message with the transaction's replication origin, or None."""


T = TypeVar("T", bound=TrackedTransaction)


class TransactionEvent(msgspec.Struct, Generic[T], frozen=True):
    """Effect of a message on the state of a stream."""

    kind: EventKind
    message: Message
    transaction: T | None
    """The transaction that the message belongs to. None outside transactions, and for the end of a prepared
    transaction whose gid is unknown."""


class TransactionTracker(Generic[T]):
    """Follows the transactions of a stream, message by message.

    Attributes:
        current: The open transaction, which a begin message or a stream block has opened, or None.
        streamed: The streamed transactions that have not ended, by xid.
        prepared: The prepared transactions that have not ended, by gid.

    Args:
        new: Function that returns the object for a transaction, from its xid and its first message (None if
            the message is missing).
        lenient: Whether to accept a message that a server would not send at this point of the stream, instead
            of raising StreamError. A transaction whose first message is missing then counts as begun.
    """

    def __init__(self, new: Callable[[int, Message | None], T], *, lenient: bool = False) -> None:
        self.current: T | None = None
        self.streamed: dict[int, T] = {}
        self.prepared: dict[str, T] = {}
        self._new = new
        self._lenient = lenient
        self._closer = ""
        """Role of the message that must close the open transaction or stream block."""
        self._handlers: Mapping[type[Message], Callable[[Any], TransactionEvent[T]]] = {
            kind: getattr(self, f"_{_HANDLERS.get(role, role)}") for kind, role in ROLES.items()
        }

    @property
    def in_block(self) -> bool:
        """Whether a stream block is open."""
        return self.current is not None and self._closer == "close_block"

    @property
    def in_flight(self) -> int:
        """Number of transactions that have begun and not ended; a prepared transaction counts as ended."""
        return len(self.streamed) + (self.current is not None and not self.in_block)

    def feed(self, message: Message) -> TransactionEvent[T]:
        """Update the state with the next message; return what the message did.

        Raises:
            StreamError: A server would not send the message after the previous ones. The state is unchanged.
            TypeError: The argument is not a message of the output plugin.
        """
        try:
            handler = self._handlers[type(message)]
        except KeyError:
            hint = "; decode its `data` with StreamDecoder first" if isinstance(message, XLogData) else ""
            name = type(message).__name__
            raise TypeError(f"expected a pgoutput message, found {name}{hint}") from None
        return handler(message)

    def reconnect(self) -> None:
        """Forget open and streamed transactions, which a server sends again on a new connection."""
        self.current = None
        self.streamed.clear()

    # Transactions sent as a whole

    def _begin(self, message: Message) -> TransactionEvent[T]:
        if self.current is not None:
            self._require_none_open(message)
        kind = type(message)
        self.current, self._closer = self._new(_XIDS[kind](message), message), _CLOSERS[kind]
        return TransactionEvent("began", message, self.current)

    def _commit(self, message: Message) -> TransactionEvent[T]:
        return TransactionEvent("committed", message, self._close(message))

    def _prepare(self, message: Message) -> TransactionEvent[T]:
        self._require_unused_gid(message)
        return self._prepared(message, self._close(message))

    # Streamed transactions

    def _open_block(self, message: Message) -> TransactionEvent[T]:
        xid = meaning_of(message, "xid")
        is_first = meaning_of(message, "first_block")
        if is_first and xid in self.streamed:
            self._refuse(message, f"transaction {xid} has had its first block already")
        if not is_first:
            self._require_streamed(message, xid)
        self._require_none_open(message)
        if xid not in self.streamed:
            self.streamed[xid] = self._new(xid, message)
        self.current, self._closer = self.streamed[xid], _CLOSERS[type(message)]
        return TransactionEvent("block_opened", message, self.current)

    def _close_block(self, message: Message) -> TransactionEvent[T]:
        return TransactionEvent("block_closed", message, self._close(message))

    def _commit_streamed(self, message: Message) -> TransactionEvent[T]:
        return TransactionEvent("committed", message, self._end_streamed(message))

    def _prepare_streamed(self, message: Message) -> TransactionEvent[T]:
        self._require_unused_gid(message)
        return self._prepared(message, self._end_streamed(message))

    def _abort_streamed(self, message: Message) -> TransactionEvent[T]:
        xid, subxid = meaning_of(message, "xid"), meaning_of(message, "subxid")
        if subxid == xid:
            return TransactionEvent("rolled_back", message, self._end_streamed(message))
        if xid not in self.streamed:
            # PostgreSQL 18.0 to 18.4 send this Stream Abort for a rolled-back subtransaction that was not
            # streamed (ReorderBufferCheckAndTruncateAbortedTXN; bug 19616). The message has no effect.
            return TransactionEvent("ignored", message, None)
        self._require_none_open(message)
        self.current = None
        return TransactionEvent("subtransaction_rolled_back", message, self.streamed[xid])

    def _end_streamed(self, message: Message) -> T:
        xid = meaning_of(message, "xid")
        self._require_streamed(message, xid)
        self._require_none_open(message)
        self.current = None
        return self.streamed.pop(xid, None) or self._new(xid, None)

    # Prepared transactions

    def _prepared(self, message: Message, transaction: T) -> TransactionEvent[T]:
        self.prepared[meaning_of(message, "gid")] = transaction
        return TransactionEvent("prepared", message, transaction)

    def _commit_prepared(self, message: Message) -> TransactionEvent[T]:
        return TransactionEvent("committed", message, self._end_prepared(message))

    def _rollback_prepared(self, message: Message) -> TransactionEvent[T]:
        # The gid may be unknown: servers also roll back transactions that were prepared before the slot
        # was consistent (apply_handle_rollback_prepared).
        return TransactionEvent("rolled_back", message, self._end_prepared(message))

    def _end_prepared(self, message: Message) -> T | None:
        self._require_none_open(message)
        self.current = None
        return self.prepared.pop(meaning_of(message, "gid"), None)

    # Messages inside and outside transactions

    def _change(self, message: Message) -> TransactionEvent[T]:
        return TransactionEvent("changed", message, self.require_open(message))

    def _payload(self, message: Message) -> TransactionEvent[T]:
        if not is_transactional(message):
            return TransactionEvent("emitted", message, None)
        return self._change(message)

    def _origin(self, message: Any) -> TransactionEvent[T]:
        transaction = self.require_open(message)
        if transaction is not None:
            transaction.origin = message
        return TransactionEvent("origin", message, transaction)

    def _describe(self, message: Message) -> TransactionEvent[T]:
        return TransactionEvent("described", message, self.current)

    # Close the open transaction, and raise errors for messages that a server would not send

    def _close(self, message: Message) -> T:
        transaction, closer = self.current or self.require_open(message), ROLES[type(message)]
        if transaction is None or closer != self._closer:
            required = " or ".join(kind.__name__ for kind, role in _CLOSERS.items() if role == closer)
            actual = "no message" if transaction is None else type(transaction.opener).__name__
            xid = None if transaction is None else transaction.xid
            self._refuse(message, f"must follow {required}, but {actual} opened transaction {xid}")
        self.current = None
        if transaction is None:
            return self._new(meaning_of(message, "xid") or 0, None)
        return transaction

    def require_open(self, message: Message) -> T | None:
        """Return the open transaction. A tracker with `lenient` set returns None if no transaction is open.

        Raises:
            StreamError: No transaction is open, so a server would not send `message`. A tracker with
                `lenient` set does not raise this error.
        """
        if self.current is None:
            self._refuse(message, "no transaction is open")
        return self.current

    def _require_none_open(self, message: Message) -> None:
        if self.current is not None:
            self._refuse(message, f"transaction {self.current.xid} is still open")

    def _require_streamed(self, message: Message, xid: int) -> None:
        if xid not in self.streamed:
            self._refuse(message, f"transaction {xid} has not had its first block")

    def _require_unused_gid(self, message: Message) -> None:
        gid = meaning_of(message, "gid")
        if gid in self.prepared:
            self._refuse(message, f"a transaction is prepared as {gid!r} already")

    def _refuse(self, message: Message, text: str) -> None:
        if not self._lenient:
            raise StreamError.at(message, text)


_HANDLERS: Final[Mapping[str, str]] = {
    "begin_prepare": "begin",
    "relation": "describe",
    "type": "describe",
} | dict.fromkeys(CHANGES, "change")
"""Maps a role to the name of its method, without `_`. Methods for other roles have the name of the role."""

_XIDS: Final = getters("xid")

_CLOSERS: Final = {
    kind: closer for opener, closer in zip(OPENERS, CLOSERS, strict=True) for kind in classes(opener)
}
"""Role of the message that closes the transaction or stream block, by class of the opening message."""
