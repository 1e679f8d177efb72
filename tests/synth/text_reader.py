"""Read streams and convert all values to text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from logicalrep.messages import Cell, Message, Relation, TupleData, Type, XLogData
from logicalrep.stream import Change, StreamDecoder, Transaction, Transactions
from logicalrep.values import base_types, to_text


class TextReader:
    """Decodes a stream that is sent with the given stream options; returns values in text format."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._decoder = self._new_decoder()
        self._transactions = Transactions(self._decoder)
        self._types: dict[int, Type] = {}

    def read(self, data: bytes) -> Message:
        """Decode a message and convert its values to text format."""
        message: Any = self._decoder.decode(data)
        relation = self._decoder.relations.get(getattr(message, "relation_oid", 0))
        return message if relation is None else self._as_text(message, relation)

    def transactions(self, stream: Iterable[XLogData]) -> Iterator[Transaction]:
        """Yield the committed transactions with values in text format, equal with and without streaming.

        Omitted are empty transactions, origins (a stream block that starts with a logical message does not
        send them), and logical messages (streamed ones survive the rollback of their savepoint).
        """
        for one in stream:
            done = self._transactions.feed(self._decoder.decode(one.data))
            changes = (
                [self._change_as_text(change) for change in done.changes if change.relations] if done else []
            )
            if done is not None and changes:
                yield msgspec.structs.replace(done, changes=changes, origin=None)

    def transactions_after_reconnect(self, stream: Iterable[XLogData]) -> Iterator[Transaction]:
        """Yield the committed transactions of a new connection. Previously prepared transactions are kept."""
        self._types |= self._decoder.types
        self._decoder = self._new_decoder()
        self._transactions.reconnect(self._decoder)
        return self.transactions(stream)

    def _new_decoder(self) -> StreamDecoder:
        return StreamDecoder(
            self._options["proto_version"], streaming=self._options.get("streaming", "off"), two_phase=True
        )

    def _change_as_text(self, change: Change) -> Change:
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
        converted: Message = msgspec.structs.replace(
            message, **{name: texts(cells) for name, cells in given.items() if cells is not None}
        )
        return converted
