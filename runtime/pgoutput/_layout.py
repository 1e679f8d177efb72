"""Classes that describe the wire format of messages as data; `pgoutput._protocols` has their instances."""

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
    """A form in which a column value is sent: null, unchanged, text or binary."""

    form: Literal["null", "unchanged", "text", "binary"]
    tag: str
    doc: str
    server: str
    option: str | None = None
    length_size: int = 0
    """Size of the length field before the value, in bytes; 0 if the form has no value."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a message on the wire."""

    name: str
    """Name of the message object's attribute; counts and lengths (`columns.count`) exist on the wire only."""
    kind: Kind
    type: str
    """Type in the spec: `xid`, `ColumnFlag`, `TupleData`."""
    notation: str
    """Type as PostgreSQL's documentation writes it: `Int32 (TransactionId)`."""
    doc: str
    since: int
    """First protocol version that has the field."""
    server: str
    """Server versions that send the field: `14+`."""
    source: str
    """C function of the server that writes the field."""
    option: str | None = None
    """Option that makes the server send the field, or None."""
    when: str | None = None
    """Condition under which the field is present (`in_stream`, `streaming = parallel`); None for always."""
    size: int = 0
    """Size of a fixed-width field, or of a tuple's column count, in bytes."""
    signed: bool = False
    literal: int | None = None
    """The only valid value of a literal."""
    tag: str | None = None
    """Tag byte before a tuple."""
    of: str | None = None
    """Name of the field whose count or length this field is."""
    optional: bool = False
    """Whether a choice may have no alternative present."""
    values: Mapping[str, str] = {}
    """Names of an enum's values or a flag field's bits, by value."""
    fields: tuple[Field, ...] = ()
    """Alternatives of a choice; fields of a list's elements (one without a name if they are numbers)."""
    cells: tuple[Cell, ...] = ()
    """Forms of a tuple's cells."""

    @property
    def mask(self) -> int:
        """All valid bits of a flag field."""
        return sum(int(bit) for bit in self.values)


def sides(fields: tuple[Field, ...]) -> Iterator[Field]:
    """Yield the fields with each choice replaced by its alternatives."""
    for field in fields:
        yield from field.fields if field.kind == "choice" else (field,)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a protocol."""

    name: str
    title: str
    """Name in PostgreSQL's documentation."""
    tag: str
    doc: str
    since: int
    server: str
    source: str
    sender: Literal["server", "client"]
    fields: tuple[Field, ...]
    option: str | None = None
    any_version: bool = False
    """Whether servers send the message to clients of earlier protocol versions too, if the slot is set so."""

    @property
    def members(self) -> tuple[Field, ...]:
        """Fields of the message object, in wire order."""
        return tuple(f for f in sides(self.fields) if f.kind not in ("count", "length", "literal"))


class Protocol(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The messages of a protocol version, or of the streaming replication protocol (`version` is None)."""

    name: str
    version: int | None
    server: str
    doc: str
    messages: tuple[Message, ...]
    later: tuple[Message, ...] = ()
    """Messages that exist only in later versions; error messages name them."""

    @cached_property
    def by_tag(self) -> Mapping[int, Message]:
        """Messages by tag byte."""
        return {ord(message.tag): message for message in self.messages}

    @cached_property
    def by_name(self) -> Mapping[str, Message]:
        """Messages by name."""
        return {message.name: message for message in self.messages}

    @cached_property
    def foreign(self) -> tuple[Message, ...]:
        """Messages of later versions that servers send to clients of this version too."""
        return tuple(message for message in self.later if message.any_version)

    @property
    def label(self) -> str:
        """Name of the protocol in error messages."""
        return "the replication protocol" if self.version is None else f"protocol version {self.version}"
