"""Views of the spec (not of a recording): the messages and fields of one protocol version.

A view has inherited gates (version ranges) filled in and type names replaced by their definitions, so that
`layout` and the templates do not need the spec. The message classes are generated from a view with
`version=None`, which has the messages and fields of all versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from codegen.model import EVERY_VERSION, Entry, EnumValue, FlagBit, Gate, Message, Protocol, Scalar, Spec
from codegen.roles import Role

SIZES = {
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "int16": 2, "int32": 4, "int64": 8, "bool": 1,
}  # fmt: skip


class Cell(msgspec.Struct, frozen=True):
    """A form in which a cell is sent (null, unchanged, text or binary), with its tag."""

    form: str
    tag: str
    doc: str
    server: str
    option: str | None
    length_size: int


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field on the wire. `fields` has the alternatives of a choice, or the fields of a list's elements."""

    name: str
    kind: str
    type: str
    notation: str
    doc: str
    since: int
    server: str
    source: str
    option: str | None = None
    when: str | None = None
    size: int = 0
    signed: bool = False
    literal: int | bytes | None = None
    tag: str | None = None
    null: int | None = None
    end: bytes = b""
    case: tuple[str, int] | None = None
    means: str | None = None
    of: str | None = None
    optional: bool = False
    side: bool = False
    values: dict[str, str] = {}
    later: dict[str, int] = {}
    fields: tuple[Field, ...] = ()
    cells: tuple[Cell, ...] = ()
    arrow: str = ""
    type_doc: str = ""
    required: bool = True

    @property
    def always(self) -> bool:
        """Whether this version always sends the field, but another version does not; False if all do."""
        return self.in_object and not self.required and self.when is None and not self.side

    @property
    def element(self) -> str:
        """What a list holds: `number`, `struct`, `tuple`, `string` or `counted`; empty if not a list."""
        if self.kind != "list":
            return ""
        item = self.fields[0]
        if item.name:
            return "struct"
        return item.kind if item.kind in ("tuple", "string", "counted") else "number"

    @property
    def in_object(self) -> bool:
        """Whether message objects have the field. Counts, lengths and literals are on the wire only."""
        return self.kind not in ("count", "length", "literal", "choice")


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message as one protocol version defines it."""

    name: str
    title: str
    tag: str
    """First byte of the message; empty if the messages of the protocol have no tags."""
    role: Role | None
    doc: str
    since: int
    gate: str
    server: str
    source: str
    sender: str
    option: str | None
    any_version: bool
    fields: tuple[Field, ...]

    @property
    def snake(self) -> str:
        """Name in snake_case, as in the names of generated functions."""
        return snake(self.name)

    @property
    def members(self) -> tuple[Field, ...]:
        """Fields of the message object in wire order, with all alternatives of each choice."""
        sides = [s for f in self.fields for s in (f.fields if f.kind == "choice" else (f,))]
        return tuple(f for f in sides if f.in_object)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A protocol's messages in one version, or in all versions together if `version` is None."""

    protocol: Protocol
    version: int | None
    messages: tuple[MessageView, ...]


def snake(name: str) -> str:
    """Return a CamelCase name in snake_case: `StreamStart` → `stream_start`, `XLogData` → `xlog_data`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def resolve(spec: Spec, protocol: Protocol, version: int | None) -> View:
    """Return the `View` of a protocol: its messages in one version, or in all if `version` is None."""
    messages = [
        _message(spec, name, message, version)
        for name, message in protocol.messages.items()
        if version is None or version in Gate.parse(message.versions)
    ]
    return View(protocol=protocol, version=version, messages=tuple(messages))


def _message(spec: Spec, name: str, message: Message, version: int | None) -> MessageView:
    gate = spec.gate(message.versions)
    since = gate.first
    server = message.server or spec.versions[since].server
    view = MessageView(
        name=name,
        title=message.title,
        tag=message.tag or "",
        role=message.role,
        doc=message.doc,
        since=since,
        gate=str(gate),
        server=server,
        source=message.source,
        sender=message.sender,
        option=message.option,
        any_version=message.option is not None and spec.options[message.option].any_version,
        fields=(),
    )
    return msgspec.structs.replace(view, fields=_fields(spec, message.fields, view, version))


def _fields(
    spec: Spec, entries: list[Entry], owner: MessageView | Field, version: int | None
) -> tuple[Field, ...]:
    ends = {entry.end: _end(spec, entry) for entry in entries if entry.end}
    fields = (
        _field(spec, entry, owner, version)
        for entry in entries
        if version is None or entry.versions is None or version in Gate.parse(entry.versions)
    )
    return tuple(msgspec.structs.replace(field, end=ends.get(field.name, b"")) for field in fields)


def _end(spec: Spec, entry: Entry) -> bytes:
    """Return the bytes that mark the end of a list; `entry` has the key `end` and follows the list."""
    scalar = spec.scalars[entry.type or ""]
    assert isinstance(entry.literal, int)
    return entry.literal.to_bytes(SIZES[scalar.wire], "big", signed=scalar.wire.startswith("int"))


def _field(spec: Spec, entry: Entry, owner: MessageView | Field, version: int | None) -> Field:
    since = owner.since if entry.versions is None else spec.gate(entry.versions).first
    server = entry.server or (owner.server if since == owner.since else spec.versions[since].server)
    option = entry.option or owner.option
    when, case = _when(entry.when), None
    if entry.when is not None and not isinstance(entry.when, str):
        ((name, value),) = entry.when.items()
        option, case = (name, None) if isinstance(value, str) else (option, (name, value))
    field = Field(
        name=entry.name or "",
        kind="",
        type=entry.type or entry.list_of or "",
        notation="",
        doc=entry.doc or "",
        since=since,
        server=server,
        source=entry.source or owner.source,
        option=option,
        when=when,
        tag=entry.tag,
        means=None if entry.means == "none" else entry.means,
        optional=entry.optional,
        case=case,
        required=when is None and _everywhere(spec, entry, owner),
    )
    if entry.one_of:
        sides = [
            msgspec.structs.replace(_field(spec, side, field, version), required=False, side=True)
            for side in entry.one_of
        ]
        return msgspec.structs.replace(
            field,
            name="|".join(s.name for s in sides),
            kind="choice",
            type="choice",
            fields=tuple(sides),
        )
    if entry.list_of is not None:
        return _list_field(spec, entry.list_of, field, version)
    if field.type in spec.tuples:
        return _tuple_field(spec, field)
    return _plain_field(spec, entry, field, version)


def _everywhere(spec: Spec, entry: Entry, owner: MessageView | Field) -> bool:
    """Return whether all versions of the message or struct have the field."""
    outer = owner.gate if isinstance(owner, MessageView) else EVERY_VERSION
    return entry.versions is None or spec.gate(outer).within(spec.gate(entry.versions))


def _plain_field(spec: Spec, entry: Entry, field: Field, version: int | None) -> Field:
    replace = msgspec.structs.replace
    if field.type in spec.enums:
        values, later = _values(spec, spec.enums[field.type].values, version)
        return replace(
            field,
            kind="enum",
            notation="Int8",
            size=1,
            values=values,
            later=later,
            arrow="string",
            type_doc=spec.enums[field.type].doc,
        )
    if field.type in spec.flags:
        values, later = _values(spec, spec.flags[field.type].bits, version)
        return replace(
            field,
            kind="flags",
            notation="Int8",
            size=1,
            values=values,
            later=later,
            arrow="int16",
            type_doc=spec.flags[field.type].doc,
        )
    scalar = spec.scalars[field.type]
    size = scalar.size or SIZES.get(scalar.length or scalar.wire, 0)
    field = replace(
        field,
        size=size,
        signed=(scalar.length or scalar.wire).startswith("int"),
        null=scalar.null,
        arrow=scalar.arrow,
        notation=scalar_notation(scalar),
        type_doc=scalar.doc,
    )
    if entry.literal is not None:
        value = bytes.fromhex(entry.literal) if isinstance(entry.literal, str) else entry.literal
        name = f"{entry.end}.end" if entry.end else field.name
        return replace(
            field, kind="literal", name=name, literal=value, notation=f"{field.notation}({entry.literal})"
        )
    if entry.count is not None:
        return replace(field, kind="count", name=f"{entry.count}.count", of=entry.count)
    if entry.length is not None:
        return replace(field, kind="length", name=f"{entry.length}.length", of=entry.length)
    kinds = {"cstring": "string", "bytes": "bytes", "rest": "rest", "bool": "bool"}
    kind = "fixed" if scalar.size else "counted" if scalar.length else kinds.get(scalar.wire, "integer")
    return replace(field, kind=kind)


def _values(
    spec: Spec, members: Mapping[str, EnumValue] | Mapping[str, FlagBit], version: int | None
) -> tuple[dict[str, str], dict[str, int]]:
    """Return two mappings for the values of an enum or the bits of flags: names, and later versions.

    Their keys are the values or bits as text. The first mapping has the names in `version`. The second has
    the values or bits that a later version adds, with that version. If `version` is None, the first mapping
    has all names and the second is empty.
    """
    gates = {name: spec.gate(member.versions) for name, member in members.items()}
    values = {
        str(member.value): name
        for name, member in members.items()
        if version is None or version in gates[name]
    }
    later = {
        str(member.value): gates[name].first
        for name, member in members.items()
        if version is not None and version < gates[name].first
    }
    return values, later


def scalar_notation(scalar: Scalar) -> str:
    """Return a scalar type as PostgreSQL's documentation writes it: `Int64 (XLogRecPtr)`, `String`."""
    if scalar.size:
        return f"Byte{scalar.size}"
    if scalar.length:
        return f"Int{SIZES[scalar.length] * 8}, Byten"
    if scalar.wire not in SIZES:
        return "String" if scalar.wire == "cstring" else "Byten"
    return f"Int{SIZES[scalar.wire] * 8}" + (f" ({scalar.c})" if scalar.c else "")


def _list_field(spec: Spec, element: str, field: Field, version: int | None) -> Field:
    replace = msgspec.structs.replace
    if element in spec.structs:
        struct = spec.structs[element]
        owner = replace(field, source=struct.source, when=None)
        fields = _fields(spec, struct.fields, owner, version)
        return replace(field, kind="list", notation=f"{element}[]", fields=fields)
    item = replace(field, name="", when=None)
    if element in spec.tuples:
        item = _tuple_field(spec, item)
    else:
        item = _plain_field(spec, Entry(type=element), item, version)
    return replace(field, kind="list", notation=f"{item.notation}[]", fields=(item,))


def _tuple_field(spec: Spec, field: Field) -> Field:
    tuples = spec.tuples[field.type]
    cells = tuple(
        Cell(
            form=form,
            tag=cell.tag,
            doc=cell.doc,
            server=cell.server or "10+",
            option=cell.option,
            length_size=SIZES[cell.length] if cell.length else 0,
        )
        for form, cell in tuples.cells.items()
    )
    return msgspec.structs.replace(
        field,
        kind="tuple",
        notation=f"Byte1('{field.tag}'), {field.type}" if field.tag else field.type,
        size=SIZES[tuples.count],
        cells=cells,
        type_doc=tuples.doc,
    )


def _when(when: str | dict[str, str | int] | None) -> str | None:
    if when is None or isinstance(when, str):
        return when
    return " and ".join(f"{option} = {value}" for option, value in when.items())
