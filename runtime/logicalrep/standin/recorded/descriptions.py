"""Track which Type and Relation messages of a recorded stream a client lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from logicalrep._roles import CHANGES, ROLES, classes, field_name, meaning_of
from logicalrep.messages import Message, Relation, Type

_IN_BLOCKS: Final = {
    kind: field_name(kind, "subxid") or field_name(kind, "xid")
    for kind in classes(*CHANGES, "relation", "type", "payload")
}
"""Name of the xid field that a message has only in stream blocks, by message class."""


def outside_block(message: Any) -> Any:
    """Return a message without the xid that only messages in stream blocks have."""
    name = _IN_BLOCKS.get(type(message))
    return message if name is None else msgspec.structs.replace(message, **{name: None})


class Descriptions:
    """The latest Type and Relation messages of a recorded stream, and those that a client lacks.

    A Relation message in a stream block describes the relation for other transactions only after the block's
    transaction is committed, because that transaction may be rolled back or applied by another process
    (cleanup_rel_sync_cache).

    Attributes:
        relations: The latest Relation message of each relation in the recording, without xid, by OID.
        unsent: Messages of `relations` that the client lacks for changes outside of stream blocks, by OID.
    """

    def __init__(self) -> None:
        self.relations: dict[int, Relation] = {}
        self.unsent: dict[int, Relation] = {}
        self._sent: dict[int, Relation] = {}
        self._sent_in_blocks: dict[int, dict[int, Relation]] = {}
        self._block: dict[int, Relation] | None = None
        self._types: dict[int, Type] = {}

    def read(self, message: Message) -> None:
        """Remember a message of the recording if it is a Type or Relation message."""
        if isinstance(message, Type):
            self._types[message.oid] = outside_block(message)
        elif isinstance(message, Relation):
            self.relations[message.oid] = outside_block(message)
            self._compare(message.oid)

    def sent(self, message: Message) -> None:
        """Remember that the client has received a message."""
        match ROLES[type(message)]:
            case "open_block":
                self._block = self._sent_in_blocks.setdefault(meaning_of(message, "xid"), {})
            case "close_block":
                self._block = None
            case "relation":
                relation = outside_block(message)
                self._note({relation.oid: relation})
            case "commit_streamed":
                self._note(self._sent_in_blocks.pop(meaning_of(message, "xid"), {}))
            case "abort_streamed":
                self._sent_in_blocks.pop(meaning_of(message, "xid"), None)

    def forget_sent(self) -> None:
        """Forget all messages that the client has received, as for a new connection."""
        self._sent.clear()
        self._sent_in_blocks.clear()
        self._block = None
        self.unsent = dict(self.relations)

    def missing(self, change: Message) -> Iterator[Message]:
        """Yield the Type and Relation messages that the client lacks for a change outside of stream blocks.

        The recording may have the Relation message in a transaction that is sent later than the change, or
        not at all. Stream blocks contain the Relation messages that they need.
        """
        if not self.unsent or ROLES[type(change)] not in CHANGES:
            return
        for oid in meaning_of(change, "relations") or (meaning_of(change, "relation"),):
            if (relation := self.unsent.get(oid)) is not None:
                types = (self._types.get(column.type_oid) for column in relation.columns)
                yield from (*filter(None, types), relation)

    def _note(self, relations: dict[int, Relation]) -> None:
        """Remember that the client has received the Relation messages `relations` (by OID)."""
        if self._block is not None:
            self._block.update(relations)
            return
        self._sent.update(relations)
        for oid in relations:
            self._compare(oid)

    def _compare(self, oid: int) -> None:
        relation = self.relations.get(oid)
        if relation is None or self._sent.get(oid) == relation:
            self.unsent.pop(oid, None)
        else:
            self.unsent[oid] = relation
