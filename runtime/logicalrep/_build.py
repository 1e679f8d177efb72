"""Build messages for a protocol version: fields without a given value get a neutral value (0, empty).

Callers give the fields that they know. The layouts of the protocol version tell which other fields a message
requires, such as fields that a later version has added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from logicalrep import messages
from logicalrep._layout import Field, sides
from logicalrep._offsets import layout_of
from logicalrep._roles import classes
from logicalrep._walk import applies
from logicalrep.messages import Message, Streaming

T = TypeVar("T", bound=msgspec.Struct)


def build(role: str, proto_version: int, **values: Any) -> Message:
    """Return a new message with the role `role`, and with the fields of a protocol version.

    A field without a value gets a neutral value: 0, empty, or the first value of an enum; a field that is
    optional in the version is None.

    Args:
        role: Role of the message in the spec, such as `commit`.
        proto_version: Protocol version for which the message will be encoded.
        values: Field values by what the field means (`end_lsn`), or by field name for fields without a
            meaning. A value is ignored if the version has no field for it.

    Raises:
        LookupError: The protocol version has no message with this role.
    """
    return builder(role, proto_version)(**values)


@cache
def builder(role: str, proto_version: int, *, batch: bool = False) -> Callable[..., Message]:
    """Return a function that builds messages with the role `role`.

    The function takes field values as keyword arguments: by what the field means (`end_lsn`), or by field
    name for fields without a meaning. It ignores a value if the version has no field for it.

    Args:
        role: Role of the messages in the spec, such as `insert`.
        proto_version: Protocol version for which the messages will be encoded.
        batch: Whether to build messages that have a list of rows instead of one row.

    Raises:
        LookupError: The protocol version has no such message.
    """
    kind, neutral, names = blueprint(role, proto_version, batch=batch)

    def make(**values: Any) -> Message:
        given = {names[meaning]: value for meaning, value in values.items() if meaning in names}
        return kind(**{**neutral, **given})

    return make


class Blueprint(NamedTuple):
    """The class, neutral field values (0, empty) and field names of the messages with one role."""

    kind: type[Message]
    """Class of the messages: the first class in the spec that has the role. With `batch`, only classes with a
    list of rows are considered, otherwise only classes without such a list."""
    neutral: Mapping[str, Any]
    """Neutral value (0, empty) of each field that all of the messages have, by field name."""
    names: Mapping[str, str]
    """Names of all fields, by meaning; a field without a meaning has its own name as key."""


@cache
def blueprint(role: str, proto_version: int, *, batch: bool = False) -> Blueprint:
    """Return the class, neutral field values (0, empty) and field names of the messages with the role `role`.

    Args:
        role: Role of the messages in the spec, such as `insert`.
        proto_version: Protocol version for which the messages will be encoded.
        batch: Whether to return a class with a list of rows instead of one with one row.

    Raises:
        LookupError: The protocol version has no such message.
    """
    for kind in classes(role):
        layout = layout_of(kind, proto_version)
        if layout is not None and batch == any(field.element == "tuple" for field in layout.fields):
            names = {field.means or field.name: field.name for field in layout.members}
            return Blueprint(kind, _neutral_values(layout.fields), names)
    rows = " and a list of rows" if batch else ""
    raise LookupError(f"protocol version {proto_version} has no message with the role {role}{rows}")


def drawn_messages(role: str, proto_version: int, random: Random) -> list[Message]:
    """Return a message with random fields of each class that has the role `role`, such as `payload`.

    Flags with a meaning have all their bits. Classes that the protocol version does not have are left out.
    """
    layouts = {kind: layout_of(kind, proto_version) for kind in classes(role)}
    return [
        kind(**_drawn_values(layout.fields, random)) for kind, layout in layouts.items() if layout is not None
    ]


@cache
def has_batches(proto_version: int) -> bool:
    """Return whether a protocol version has a message that inserts several rows."""
    try:
        return bool(blueprint("insert", proto_version, batch=True))
    except LookupError:
        return False


def fitted(message: Message, proto_version: int) -> Message:
    """Return a message with its fields adapted to a protocol version.

    A field that is None although the version requires it gets a neutral value (0, empty). A field that the
    version does not have becomes None.
    """
    layout = layout_of(type(message), proto_version)
    return message if layout is None else _fitted(message, layout.fields)


def placed(message: Message, proto_version: int, *, in_stream: bool, streaming: Streaming) -> Message:
    """Return a message with the fields that a protocol version sends inside or outside a stream block.

    A field becomes None if the version does not have it, or if its condition (`when`) is false. A field that
    is None although the version requires it, or its condition is true, gets a neutral value (0, empty).

    Args:
        message: The message; the protocol version must have its class.
        proto_version: Protocol version for which the message will be encoded.
        in_stream: Whether the message is in a stream block.
        streaming: Value of the option `streaming`.
    """
    layout = layout_of(type(message), proto_version)
    assert layout is not None
    changes: dict[str, Any] = {}
    for field in layout.fields:
        if field.when is None or field.kind in _WITHOUT_ATTRIBUTE:
            continue
        if not applies(field, in_stream, streaming):
            changes[field.name] = None
        elif getattr(message, field.name) is None:
            changes[field.name] = _neutral_value(field)
    return msgspec.structs.replace(fitted(message, proto_version), **changes)


def _fitted(item: T, fields: tuple[Field, ...]) -> T:
    """Return a message, or an element of a list field, with the fields `fields`.

    A field that is None although `fields` requires it gets a neutral value (0, empty). A field that is not in
    `fields` becomes None. Elements of list fields are adapted in the same way.
    """
    neutral = _neutral_values(fields)
    by_name = {field.name: field for field in sides(fields)}
    changes: dict[str, Any] = {}
    for name in item.__struct_fields__:
        field, value = by_name.get(name), getattr(item, name)
        if field is None or value is None:
            changes[name] = neutral.get(name)
        elif field.element == "struct":
            changes[name] = tuple(_fitted(one, field.fields) for one in value)
    return msgspec.structs.replace(item, **changes)


def _neutral_values(fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return the neutral value (0, empty) of each field that is sent without a condition, by field name."""
    always = (field for field in fields if field.when is None and field.kind not in _WITHOUT_ATTRIBUTE)
    return {field.name: _neutral_value(field) for field in always}


def _neutral_value(field: Field) -> Any:
    if field.kind == "enum":
        return getattr(messages, field.type)(next(iter(field.values)))
    if field.kind == "flags":
        return getattr(messages, field.type)(0)
    return _NEUTRAL.get(field.kind, 0)


def _drawn_values(fields: tuple[Field, ...], random: Random) -> dict[str, Any]:
    always = (field for field in fields if field.when is None and field.kind not in _WITHOUT_ATTRIBUTE)
    return {field.name: _drawn_value(field, random) for field in always}


def _drawn_value(field: Field, random: Random) -> Any:
    """Return a random value of a field; a tuple gets its neutral value."""
    size = random.randrange(4)
    match field.kind:
        case "integer":
            bits = 8 * field.size
            low = -(1 << bits - 1) if field.signed else 0
            return random.choice((0, 1, low, low + (1 << bits) - 1, low + random.getrandbits(bits)))
        case "enum":
            return getattr(messages, field.type)(random.choice([*field.values]))
        case "flags":
            kind = getattr(messages, field.type)
            return kind(sum(int(bit) for bit in field.values if field.means or random.random() < 0.5))
        case "bool":
            return random.random() < 0.5
        case "string":
            return "".join(random.choices("azAZ09 _'\"\\\n\u00e4\u20ac\U0001f418", k=size))
        case "bytes" | "rest":
            return random.randbytes(size)
        case "list" if field.element == "struct":
            kind = getattr(messages, field.type)
            return tuple(kind(**_drawn_values(field.fields, random)) for _ in range(size))
        case "list" if field.element == "number":
            return tuple(_drawn_value(field.fields[0], random) for _ in range(size))
    return _neutral_value(field)


_WITHOUT_ATTRIBUTE: Final = ("count", "length", "literal", "choice")
_NEUTRAL: Final = {"bool": False, "string": "", "bytes": b"", "rest": b"", "list": (), "tuple": ()}
