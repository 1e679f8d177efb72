"""What `pgoutput._protocols` is made of: the wire order of messages as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Literal

import msgspec

Kind = Literal[
    "integer", "bool", "enum", "flags", "string", "bytes", "rest", "list", "tuple",
    "choice", "count", "length", "literal",
]  # fmt: skip


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One of the forms in which a column value is sent."""

    form: Literal["null", "unchanged", "text", "binary"]
    tag: str
    doc: str
    server: str
    option: str | None = None
    length_size: int = 0
    """Bytes of the length before the value; 0 where the form has no value."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field on the wire."""

    name: str
    """Its name in the message object; `columns.count` and the like are on the wire only."""
    kind: Kind
    type: str
    """Its type in the spec: `xid`, `ColumnFlag`, `TupleData`."""
    notation: str
    """Its type as PostgreSQL's documentation writes it: `Int32 (TransactionId)`."""
    doc: str
    since: int
    """The first protocol version that has it."""
    server: str
    """The server versions that send it."""
    source: str
    """The server's C function."""
    option: str | None = None
    """The option with which it is sent."""
    when: str | None = None
    """The condition under which it is there: `in_stream`, `streaming = parallel`."""
    size: int = 0
    """Bytes of a fixed-width field; of the count, for a tuple."""
    signed: bool = False
    literal: int | None = None
    """The only value it may have."""
    tag: str | None = None
    """The byte before a tuple."""
    of: str | None = None
    """What a count or length is of."""
    optional: bool = False
    """Whether none of a choice may be there."""
    values: Mapping[str, str] = {}
    """Names of an enum's values, or of a flag field's bits."""
    fields: tuple[Field, ...] = ()
    """The sides of a choice; the fields of a list's elements, one without a name for plain numbers."""
    cells: tuple[Cell, ...] = ()
    """The forms of a tuple's cells."""

    @property
    def mask(self) -> int:
        """All bits that a flag field may have."""
        return sum(int(bit) for bit in self.values)


def sides(fields: tuple[Field, ...]) -> Iterator[Field]:
    """The fields, with the sides of a choice in its place."""
    for field in fields:
        yield from field.fields if field.kind == "choice" else (field,)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message."""

    name: str
    title: str
    """Its name in PostgreSQL's documentation."""
    tag: str
    doc: str
    since: int
    server: str
    source: str
    sender: Literal["server", "client"]
    fields: tuple[Field, ...]
    option: str | None = None
    any_version: bool = False
    """Whether servers send it to clients of earlier versions too: the slot decides, not the client."""

    @property
    def members(self) -> tuple[Field, ...]:
        """The fields of the message object, in wire order."""
        return tuple(f for f in sides(self.fields) if f.kind not in ("count", "length", "literal"))


class Protocol(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All messages of one protocol version, or of the envelope (`version` is None)."""

    name: str
    version: int | None
    server: str
    doc: str
    messages: tuple[Message, ...]
    later: tuple[Message, ...] = ()
    """The messages that only later versions have; errors name them."""

    @cached_property
    def by_tag(self) -> Mapping[int, Message]:
        """The messages by first byte."""
        return {ord(message.tag): message for message in self.messages}

    @cached_property
    def by_name(self) -> Mapping[str, Message]:
        """The messages by name."""
        return {message.name: message for message in self.messages}

    @cached_property
    def foreign(self) -> tuple[Message, ...]:
        """The messages of later versions that reach clients of this one all the same."""
        return tuple(message for message in self.later if message.any_version)

    @property
    def label(self) -> str:
        """How errors name it."""
        return "the replication protocol" if self.version is None else f"protocol version {self.version}"
