"""What messages do in a stream (roles) and what their fields mean, as the spec defines both.

Code that asks for a role or a meaning here, instead of a message class or tag, also handles a message that a
later protocol version adds with a known role.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from pgoutput import _protocols, messages
from pgoutput._layout import Field
from pgoutput.messages import Message, TupleData

ROWS: Final = ("key", "old", "new")
"""The meanings of fields that hold tuples, in the order of the wire."""

CHANGES: Final = ("insert", "update", "delete", "truncate")
"""The roles of messages that change rows."""

OPENERS: Final = ("begin", "begin_prepare", "open_block")
"""The roles of messages that begin a transaction or a stream block."""

CLOSERS: Final = ("commit", "prepare", "close_block")
"""The roles of messages that end what a message with one of the roles `OPENERS` began."""

_LAYOUTS: Final = {_protocols.CLASSES[layout.name]: layout for layout in _protocols.ALL_VERSIONS.messages}

ROLES: Final[Mapping[type[Message], str]] = {kind: str(layout.role) for kind, layout in _LAYOUTS.items()}
"""The role of each message class."""

_NAMES: Final[Mapping[type[Message], Mapping[str, str]]] = {
    kind: {field.means: field.name for field in layout.members if field.means}
    for kind, layout in _LAYOUTS.items()
}

_ROW_FIELDS: Final[Mapping[type[Message], tuple[Field, ...]]] = {
    kind: tuple(field for field in layout.members if field.means in ROWS) for kind, layout in _LAYOUTS.items()
}


def classes(*roles: str) -> tuple[type[Message], ...]:
    """Return the message classes that have one of these roles, in the order of the spec."""
    return tuple(kind for kind, role in ROLES.items() if role in roles)


def tags(*roles: str) -> frozenset[int]:
    """Return the first bytes of the messages that have one of these roles."""
    return frozenset(ord(kind.wire_tag) for kind in classes(*roles))


def field_name(kind: type[Message], meaning: str) -> str | None:
    """Return the name of the field of a message class that has a meaning; None if no field has it."""
    return _NAMES[kind].get(meaning)


def meaning_of(message: Message, meaning: str) -> Any:
    """Return the value of the field with a meaning; None if the message has no such field."""
    name = _NAMES[type(message)].get(meaning)
    return None if name is None else getattr(message, name)


@cache
def fields(meaning: str) -> Mapping[str, Field]:
    """Return the fields that have a meaning in any message class, by field name."""
    members = (field for layout in _LAYOUTS.values() for field in layout.members)
    return {field.name: field for field in members if field.means == meaning}


def tags_of_field(name: str, meaning: str) -> frozenset[int]:
    """Return the first bytes of the messages in which the field `name` has a meaning."""
    return frozenset(ord(kind.wire_tag) for kind, names in _NAMES.items() if names.get(meaning) == name)


def tuples(message: Message) -> Iterator[tuple[str, TupleData]]:
    """Yield name and cells of each tuple of a change: `new`, or `new_rows[0]` for a tuple of a list."""
    for field in _ROW_FIELDS[type(message)]:
        value = getattr(message, field.name)
        if field.kind == "list":
            yield from ((f"{field.name}[{i}]", cells) for i, cells in enumerate(value))
        elif value is not None:
            yield field.name, value


def named_fields(
    role: str, version: int, meanings: Mapping[str, Any]
) -> tuple[type[Message], dict[str, Any]]:
    """Return the class of a protocol version's messages with a role, and the values of its fields by name.

    Args:
        role: The role. Of several messages with the role, the first without a list of rows is taken.
        version: The protocol version.
        meanings: Values by meaning of the field; None for a field that the message does not contain. A field
            that the version always sends, but whose meaning is not given, is zero or empty.
    """
    kind, empty = _empty_fields(role, version)
    return kind, empty | {_NAMES[kind][meaning]: value for meaning, value in meanings.items()}


@cache
def _empty_fields(role: str, version: int) -> tuple[type[Message], dict[str, Any]]:
    """Return a message class, and by name the zero or empty values of the fields that are always sent."""
    candidates = (one for one in _protocols.VERSIONS[version].messages if one.role == role)
    layout = next(one for one in candidates if not any(field.element == "tuple" for field in one.fields))
    fields = (one for one in layout.fields if one.when is None and one.kind in (*_EMPTY, "enum"))
    values = {one.name: _EMPTY[one.kind] if one.kind in _EMPTY else _first_member(one) for one in fields}
    return _protocols.CLASSES[layout.name], values


_EMPTY: Final[Mapping[str, Any]] = {
    "integer": 0,
    "flags": 0,
    "bool": False,
    "string": "",
    "bytes": b"",
    "rest": b"",
    "list": (),
    "tuple": (),
}
"""The zero or empty value of each kind of field, except enums."""


def _first_member(field: Field) -> Any:
    return getattr(messages, field.type)(next(iter(field.values)))


def build(role: str, version: int, **meanings: Any) -> Message:
    """Return a message of a protocol version with a role; fields whose meaning is not given are empty."""
    kind, values = named_fields(role, version, meanings)
    message: Message = kind(**values)
    return message
