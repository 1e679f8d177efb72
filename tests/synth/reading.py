"""Streams as what they say: values as text, and without what depends on when a client connects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from pgoutput.messages import Cell, Message, Relation, TupleData, Type, XLogData
from pgoutput.stream import Change, StreamDecoder, Transaction, Transactions
from pgoutput.values import base_types, to_text


class Reader:
    """Reads the stream of a client that asked for these options."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._decoder = self._new_decoder()
        self._transactions = Transactions(self._decoder)
        self._types: dict[int, Type] = {}

    def read(self, data: bytes) -> Message:
        """The message with its values as text."""
        message: Any = self._decoder.decode(data)
        relation = self._decoder.relations.get(getattr(message, "relation_oid", 0))
        return message if relation is None else self._as_text(message, relation)

    def transactions(self, stream: Iterable[XLogData]) -> Iterator[Transaction]:
        """What is committed, with values as text, whether it was streamed or not.

        Left out is what depends on that: empty transactions, origins (they are not told where a block begins
        with a message), and messages (streamed ones outlive the rollback of their savepoint).
        """
        for one in stream:
            done = self._transactions.feed(self._decoder.decode(one.data))
            changes = [self._plain(change) for change in done.changes if change.relations] if done else []
            if done is not None and changes:
                yield msgspec.structs.replace(done, changes=changes, origin=None)

    def reconnected(self, stream: Iterable[XLogData]) -> Iterator[Transaction]:
        """What is committed in the stream of another connection; what is prepared was told of in this one."""
        self._types |= self._decoder.types
        self._decoder = self._new_decoder()
        self._transactions.reconnect(self._decoder)
        return self.transactions(stream)

    def _new_decoder(self) -> StreamDecoder:
        return StreamDecoder(
            self._options["proto_version"], streaming=self._options.get("streaming", "off"), two_phase=True
        )

    def _plain(self, change: Change) -> Change:
        message: Any = change.message
        if hasattr(message, "relation_oid"):
            message = self._as_text(message, change.relations[0])
        relations = tuple(msgspec.structs.replace(one, xid=None) for one in change.relations)
        return Change(msgspec.structs.replace(message, xid=None), relations)

    def _as_text(self, message: Any, relation: Relation) -> Message:
        columns = base_types(relation, self._types | self._decoder.types).columns

        def text(cell: Cell, type_oid: int) -> Cell:
            return to_text([cell], type_oid)[0] if isinstance(cell, bytes) else cell

        def texts(cells: TupleData) -> TupleData:
            return tuple(text(cell, column.type_oid) for cell, column in zip(cells, columns, strict=True))

        given = {name: getattr(message, name, None) for name in ("new", "key", "old")}
        made: Message = msgspec.structs.replace(
            message, **{name: texts(cells) for name, cells in given.items() if cells is not None}
        )
        return made
