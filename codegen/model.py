"""Types of the entries in the spec's YAML files. `spec/README.md` documents the entries.

msgspec refuses unknown keys, missing keys and wrong types. The package `rules` checks everything else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import msgspec

from codegen.roles import Meaning, Role
from codegen.yamlfile import Place, SpecError, YamlFile


class Gate(msgspec.Struct, frozen=True):
    """A gate: a range of protocol or server versions, `first` to `last`; without end if `last` is None."""

    first: int
    last: int | None = None

    def __contains__(self, version: int) -> bool:
        return self.first <= version and (self.last is None or version <= self.last)

    def within(self, other: Gate) -> bool:
        """Return whether every version of this gate is also in the gate `other`."""
        if self.first < other.first:
            return False
        return other.last is None or (self.last is not None and self.last <= other.last)

    def __str__(self) -> str:
        if self.last is None:
            return f"{self.first}+"
        return str(self.first) if self.last == self.first else f"{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Return the gate written as `2+`, `2-3` or `2`.

        Raises:
            ValueError: The text has none of these forms, or the range ends before it begins.
        """
        match = re.fullmatch(r"([1-9][0-9]*)(?:(\+)|-([1-9][0-9]*))?", text)
        if match is None:
            raise ValueError(f'`{text}` is not a gate: write "2+", "2-3" or "2"')
        first, plus, last = match.groups()
        gate = cls(int(first), None if plus else int(last or first))
        if gate.last is not None and gate.last < gate.first:
            raise ValueError(
                f"the gate `{text}` has its larger version first: write the smaller version first"
            )
        return gate


PROTOCOLS = ("pgoutput", "replication")
"""The protocols of a spec with versions. Only the messages of `pgoutput` have protocol versions."""

EVERY_VERSION = "1+"
"""The gate of all protocol versions, also in a spec that begins with a later version than 1."""

GateText = Annotated[
    str,
    msgspec.Meta(
        description="Range of versions, as text: `5+`, `5-6` or `5`. Quote a single version.",
        # Only the JSON Schema has this pattern. The loader accepts other texts, and the rule `gates.readable`
        # refuses them with a better error text than msgspec's.
        extra_json_schema={"pattern": r"^[1-9][0-9]*([+]|-[1-9][0-9]*)?$"},
    ),
]
Wire = Literal[
    "uint8", "uint16", "uint32", "uint64", "int16", "int32", "int64", "bool", "cstring", "bytes", "rest"
]  # fmt: skip


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    doc: str


class Version(_Record, frozen=True, kw_only=True):
    """A protocol version. The messages of a released version no longer change."""

    server: GateText
    released: bool


class OptionValue(_Record, frozen=True, kw_only=True):
    """A value of a stream option, and the protocol and server versions that support the value."""

    versions: GateText
    server: GateText


class Option(_Record, frozen=True, kw_only=True):
    """A stream option, which a client sends in START_REPLICATION."""

    values: dict[str, OptionValue]
    any_version: bool = False


class Context(_Record, frozen=True, kw_only=True):
    """A state of the stream that one message begins and another ends, such as being in a stream block."""

    versions: GateText
    enter: str
    leave: str


class Scalar(_Record, frozen=True, kw_only=True):
    """A scalar type: its wire type, Arrow type and Spark type."""

    wire: Wire
    arrow: str
    spark: str
    c: str | None = None
    size: int | None = None
    length: Literal["uint8", "uint16", "uint32", "int16", "int32"] | None = None
    null: int | None = None


class EnumValue(_Record, frozen=True, kw_only=True):
    """A value of an enum; one character on the wire."""

    value: str
    versions: GateText = EVERY_VERSION


class Enum(_Record, frozen=True, kw_only=True):
    """An enum: a one-byte type with named values."""

    source: str
    values: dict[str, EnumValue]


class FlagBit(_Record, frozen=True, kw_only=True):
    """A named bit of a flag field."""

    value: int
    versions: GateText = EVERY_VERSION


class Flags(_Record, frozen=True, kw_only=True):
    """Flags: a one-byte type with named bits."""

    wire: Literal["uint8"]
    source: str
    bits: dict[str, FlagBit]


class Cell(_Record, frozen=True, kw_only=True):
    """A form in which a cell is sent (null, unchanged, text or binary), with its tag."""

    tag: str
    length: str | None = None
    server: GateText | None = None
    option: str | None = None


class Tuple(_Record, frozen=True, kw_only=True):
    """The wire form of a tuple: the number of cells, then the cells."""

    source: str
    count: str
    cells: dict[str, Cell]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An entry of a message's field list: a field, count, length or choice, depending on the keys it has."""

    doc: str | None = None
    name: str | None = None
    type: str | None = None
    list_of: str | None = None
    count: str | None = None
    length: str | None = None
    end: str | None = None
    literal: int | str | None = None
    tag: str | None = None
    means: Literal[Meaning, "none"] | None = None
    because: str | None = None
    one_of: list[Entry] | None = None
    optional: bool = False
    versions: GateText | None = None
    server: GateText | None = None
    option: str | None = None
    when: str | dict[str, str | int] | None = None
    source: str | None = None


class Structure(_Record, frozen=True, kw_only=True):
    """A struct that repeats inside a message, such as a column of a Relation."""

    source: str
    fields: list[Entry]


class Message(_Record, frozen=True, kw_only=True):
    """A message: its tag, its role and its fields."""

    tag: str | None = None
    title: str
    source: str
    fields: list[Entry]
    role: Role | None = None
    versions: GateText = EVERY_VERSION
    server: GateText | None = None
    option: str | None = None
    sender: Literal["server", "client"] = "server"


class BuiltinType(_Record, frozen=True, kw_only=True):
    """A built-in data type of PostgreSQL: OIDs, functions, text and binary format, types of columns."""

    oid: int
    array_oid: int
    server: GateText
    text: str
    binary: str
    output: str
    send: str
    modifier: Literal["none", "length", "bits", "precision", "numeric", "interval"]
    arrow: str
    spark: str
    iceberg: Literal["uuid"] | None = None
    """Iceberg type, if it differs from the one that `ICEBERG_OF_ARROW` has for the Arrow type; else None."""
    like: str | None = None


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A way to violate a rule: the condition, the meaning (`field`) of the invalid field, and the reason."""

    text: str
    when: str | None = None
    at: str = "tag"


class Rule(_Record, frozen=True, kw_only=True):
    """A rule that the stream of every server obeys: to which messages it applies, and what violates it."""

    source: str
    roles: list[Role] = []
    envelope: bool = False
    in_blocks: bool = False
    needs: str | None = None
    command_line: str | None = None
    each: Literal["relations"] | None = None
    unless: str | None = None
    like: str | None = None
    cases: list[Case] = []


_Gated = TypeVar("_Gated", EnumValue, FlagBit, Message)


class Protocol(msgspec.Struct, frozen=True):
    """A protocol: messages that share one set of tags."""

    name: str
    title: str
    doc: str
    source: str
    messages: dict[str, Message]
    length: Literal["int32"] | None = None
    """Wire type of the length after a message's tag, or None. The length counts itself and what follows."""


class Spec(msgspec.Struct, frozen=True):
    """The whole spec: the protocols, and the versions, options and types that they share."""

    protocols: dict[str, Protocol]
    versions: dict[int, Version]
    options: dict[str, Option]
    contexts: dict[str, Context]
    scalars: dict[str, Scalar]
    enums: dict[str, Enum]
    flags: dict[str, Flags]
    tuples: dict[str, Tuple]
    structs: dict[str, Structure]
    types: dict[str, BuiltinType]
    rules: dict[str, Rule]
    files: tuple[YamlFile, ...]
    """The files of the spec, for the line numbers in errors and for the protocol explorer."""
    plain: bool = False
    """Whether the spec has no section `versions`. Its protocols can have any names, and never change."""
    locked: frozenset[str] = frozenset()
    """All names in the lock `released.json`."""

    def error(self, place: Place, text: str) -> SpecError:
        """Return an error with file and line of `place`, or of the nearest enclosing place in the files."""
        for end in (2, 1):
            for file in self.files:
                if end <= len(place) and place[:end] in file:
                    return file.error(place, text)
        return self.files[0].error(place, text)

    def by_age(self, records: Mapping[str, _Gated]) -> dict[str, _Gated]:
        """Return messages, values or bits, those that are new since the last release at the end."""
        return dict(
            sorted(
                records.items(),
                key=lambda one: (one[0] not in self.locked, Gate.parse(one[1].versions).first),
            )
        )

    def gate(self, text: str) -> Gate:
        """Return the gate written as `text`, limited to the spec's versions; it must contain one of them.

        In a spec with the versions 2 to 4, `1+` is `2+`, and `1-2` is `2`.
        """
        gate = Gate.parse(text)
        inside = [version for version in self.versions if version in gate]
        return Gate(inside[0], None if gate.last is None else inside[-1])

    def server(self, value: OptionValue) -> Gate:
        """Return the range of server versions that support an option's value in some protocol version."""
        gate, since = Gate.parse(value.server), self.versions[self.gate(value.versions).first]
        return Gate(max(gate.first, Gate.parse(since.server).first), gate.last)
