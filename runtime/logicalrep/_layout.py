"""Classes that describe the wire format of messages as data; `logicalrep._protocols` has their instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Literal

import msgspec

Kind = Literal[
    "integer", "bool", "enum", "flags", "string", "bytes", "rest", "list", "tuple",
    "choice", "count", "length", "literal", "fixed", "counted",
]  # fmt: skip


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Wire layout of one form of a cell: null, unchanged, text or binary."""

    form: Literal["null", "unchanged", "text", "binary"]
    tag: str
    doc: str
    server: str
    option: str | None = None
    length_size: int = 0
    """Size of the length field before the value, in bytes; 0 if a cell of this form has no value."""

    @property
    def code(self) -> int:
        """ASCII code of the tag."""
        return ord(self.tag)


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """Layout of one field of a message on the wire."""

    name: str
    """Name of the message object's attribute for the field. Counts and lengths (`columns.count`) have no
    attribute: they exist on the wire only."""
    kind: Kind
    type: str
    """Type of the field in the spec, such as `xid`, `ColumnFlag` or `TupleData`."""
    notation: str
    """Type of the field as PostgreSQL's documentation writes it, such as `Int32 (TransactionId)`."""
    doc: str
    since: int
    """First protocol version that has the field."""
    server: str
    """Server versions that send the field, such as `14+`."""
    source: str
    """Name of the server's C function that writes the field."""
    option: str | None = None
    """Stream option that makes the server send the field; None if the field needs no option."""
    when: str | None = None
    """Condition under which the field is present: `in_stream` or `streaming = parallel`; None if the field is
    always present."""
    size: int = 0
    """Size of a fixed-width field, of a tuple's column count, or of the length before the bytes of a field of
    kind `counted`, in bytes; otherwise 0."""
    signed: bool = False
    literal: int | None = None
    """The only valid value of a field of kind `literal`; None for other kinds."""
    contents: bytes | None = None
    """The only valid bytes of a field of kind `literal` that is not an integer; None for other fields."""
    null: int | None = None
    """Length that means None, for a field of kind `counted`; None if the field has no such length."""
    end: bytes = b""
    """Bytes that follow the last element of a list without a count; empty if a count precedes the list."""
    case: tuple[str, int] | None = None
    """Name and value of the field on which `when` depends; None if `when` depends on no field."""
    tag: str | None = None
    """Tag byte that precedes a tuple on the wire, as a character; None if no tag precedes the field."""
    means: str | None = None
    """What the field tells about the transaction, row or relation, such as `xid` or `end_lsn`; None if the
    runtime does not use the field."""
    of: str | None = None
    """If this field is a count or length: name of the field that is counted or measured; otherwise None."""
    optional: bool = False
    """Whether all alternatives of a choice may be absent."""
    values: Mapping[str, str] = {}
    """Names of the values of an enum, by value, or of the bits of a flags field, by bit."""
    later: Mapping[str, int] = {}
    """First protocol version of each enum value or flag bit that this version lacks, by value or bit."""
    fields: tuple[Field, ...] = ()
    """Alternatives of a choice, or fields of each element of a list (one field without a name if the elements
    are numbers or tuples)."""
    cells: tuple[Cell, ...] = ()
    """Forms that the cells of a tuple can have."""

    @property
    def element(self) -> Literal["number", "struct", "tuple", "string", "counted"] | None:
        """What the elements of a list are; None if the field is not a list."""
        if self.kind != "list":
            return None
        item = self.fields[0]
        if item.name:
            return "struct"
        return item.kind if item.kind in ("tuple", "string", "counted") else "number"

    @property
    def holds_tuples(self) -> bool:
        """Whether the field is a tuple or a list of tuples."""
        return self.kind == "tuple" or self.element == "tuple"

    @property
    def mask(self) -> int:
        """Number in which all valid bits of a flags field are set."""
        return sum(int(bit) for bit in self.values)

    def hint(self, value: int) -> str:
        """Return text to append to an error: the later version that adds an enum value or bit; else empty."""
        for key, version in self.later.items():
            if self.kind == "enum" and value == ord(key):
                return f": it came with version {version}"
            if self.kind == "flags" and value & int(key):
                return f": {int(key):#04x} came with version {version}"
        return ""


def sides(fields: tuple[Field, ...]) -> Iterator[Field]:
    """Yield the fields; a field of kind `choice` is replaced by its alternatives."""
    for field in fields:
        yield from field.fields if field.kind == "choice" else (field,)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Layout of one message of a protocol."""

    name: str
    title: str
    """Name of the message in PostgreSQL's documentation."""
    tag: str
    doc: str
    since: int
    server: str
    source: str
    sender: Literal["server", "client"]
    fields: tuple[Field, ...]
    role: str | None = None
    """What the message does in a stream, such as `begin` or `insert`; None for an envelope."""
    option: str | None = None
    any_version: bool = False
    """Whether servers also send the message to clients of earlier protocol versions, if `option` is set in
    the slot."""

    @property
    def members(self) -> tuple[Field, ...]:
        """Fields that are attributes of the message object, in wire order."""
        return tuple(f for f in sides(self.fields) if f.kind not in ("count", "length", "literal"))


class Protocol(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Message layouts of a protocol version, or of the streaming replication protocol (`version` None)."""

    name: str
    version: int | None
    server: str
    doc: str
    messages: tuple[Message, ...]
    later: tuple[Message, ...] = ()
    """Messages that exist only in later protocol versions. Error messages say which version has them."""
    length_size: int = 0
    """Size of the length after the tag, in bytes. The length counts itself and what follows it. 0 if messages
    have no length."""

    @cached_property
    def by_tag(self) -> Mapping[int, Message]:
        """Layouts of the messages, by tag byte."""
        return {ord(message.tag): message for message in self.messages if message.tag}

    @cached_property
    def by_name(self) -> Mapping[str, Message]:
        """Layouts of the messages, by name."""
        return {message.name: message for message in self.messages}

    @cached_property
    def foreign(self) -> tuple[Message, ...]:
        """Messages of later versions that servers also send to clients of this version (`any_version`)."""
        return tuple(message for message in self.later if message.any_version)

    @property
    def label(self) -> str:
        """Name of the protocol for use in error messages."""
        return f"the {self.name} protocol" if self.version is None else f"protocol version {self.version}"
