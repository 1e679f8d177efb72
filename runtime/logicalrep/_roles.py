"""Roles of messages in a stream and meanings of their fields, as the spec defines them.

A role is what a message does in a stream, such as `commit`. A meaning is what a field tells about the
transaction, row or relation of its message, such as `end_lsn`.

Code that asks for a role or a meaning here, instead of a message class or tag, also handles a message that a
later protocol version adds with a known role.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Final

import msgspec

from logicalrep import _protocols
from logicalrep.messages import Message, MessageFlag, TupleData

ROWS: Final = ("key", "old", "new")
"""The meanings of fields that hold tuples, in wire order."""

CHANGES: Final = ("insert", "update", "delete", "truncate")
"""The roles of messages that change rows."""

OPENERS: Final = ("begin", "begin_prepare", "open_block")
"""The roles of messages that begin a transaction or a stream block."""

COMMITS: Final = ("commit", "commit_streamed", "commit_prepared")
"""The roles of messages that commit a transaction."""

ENDS: Final = (*COMMITS, "prepare", "prepare_streamed", "rollback_prepared")
"""The roles of messages that contain an end LSN, after which a client can continue. A rollback of a streamed
transaction has no end LSN."""

CLOSERS: Final = ("commit", "prepare", "close_block")
"""The roles of messages that end a transaction or stream block, in the order of `OPENERS`."""

_LAYOUTS: Final = {_protocols.CLASSES[layout.name]: layout for layout in _protocols.ALL_VERSIONS.messages}

ROLES: Final[Mapping[type[Message], str]] = {kind: str(layout.role) for kind, layout in _LAYOUTS.items()}
"""The role of each message class."""

OPTIONS: Final[Mapping[type[Message], str | None]] = {
    kind: layout.option for kind, layout in _LAYOUTS.items()
}
"""The stream option that makes servers send the messages of each class; None if no option is needed."""

_NAMES: Final[Mapping[type[Message], Mapping[str, str]]] = {
    kind: {field.means: field.name for field in layout.members if field.means}
    for kind, layout in _LAYOUTS.items()
}

ROW_FIELDS: Final[Mapping[type[Message], tuple[tuple[str, bool], ...]]] = {
    kind: tuple((field.name, field.kind == "list") for field in layout.members if field.means in ROWS)
    for kind, layout in _LAYOUTS.items()
}
"""For each message class, (name, whether it is a list of tuples) of each field that holds rows."""


def classes(*roles: str) -> tuple[type[Message], ...]:
    """Return the message classes that have one of these roles, such as `commit`, in the order of the spec."""
    return tuple(kind for kind, role in ROLES.items() if role in roles)


def tags(*roles: str) -> frozenset[int]:
    """Return the first bytes (tags) of the messages that have one of these roles, such as `commit`."""
    return frozenset(ord(kind.wire_tag) for kind in classes(*roles))


def field_name(kind: type[Message], meaning: str) -> str | None:
    """Return the name of the field that means `meaning`, such as `end_lsn`; None if `kind` has none."""
    return _NAMES[kind].get(meaning)


def has_role(message: Message | None, *roles: str) -> bool:
    """Return whether a message has one of these roles, such as `commit`; False for None."""
    return message is not None and ROLES[type(message)] in roles


def meaning_of(message: Message, meaning: str) -> Any:
    """Return the value of the field that means `meaning`, such as `end_lsn`; None if there is none."""
    return _GETTERS[type(message)][meaning](message)


def with_meanings(message: Message, **values: Any) -> Message:
    """Return a copy of a message with new field values.

    `values` has the values by what their fields mean, such as `end_lsn`. A value is ignored if the message
    has no such field.
    """
    names = _NAMES[type(message)]
    return msgspec.structs.replace(
        message, **{names[meaning]: value for meaning, value in values.items() if meaning in names}
    )


def getters(meaning: str) -> Mapping[type[Message], Callable[[Message], Any]]:
    """Return for each message class a function that reads the field that means `meaning`, such as `end_lsn`.

    The function returns None if the class has no such field.
    """
    return {kind: of_kind[meaning] for kind, of_kind in _GETTERS.items()}


_MEANINGS: Final = {meaning for names in _NAMES.values() for meaning in names}
_GETTERS: Final[Mapping[type[Message], Mapping[str, Callable[[Message], Any]]]] = {
    kind: {one: attrgetter(names[one]) if one in names else lambda _: None for one in _MEANINGS}
    for kind, names in _NAMES.items()
}


def is_transactional(message: Message) -> bool:
    """Return whether a logical message is transactional; True if the message has no flags."""
    flags = meaning_of(message, "transactional")
    return flags is None or bool(flags & MessageFlag.TRANSACTIONAL)


class End(msgspec.Struct, frozen=True, gc=False):
    """The end of a transaction as a message gives it; a field that the message lacks is None."""

    lsn: Any = None
    """LSN at the start of the WAL record that ends the transaction."""
    end_lsn: Any = None
    """LSN at the end of the WAL record that ends the transaction."""
    time: Any = None
    """Time of the end, in microseconds since 2000-01-01 00:00 UTC."""
    xid: Any = None
    gid: Any = None
    """Global identifier of a prepared transaction."""


def read_end(message: Message) -> End:
    """Return the fields of a message, such as Commit or Begin, that describe the end of its transaction."""
    return _END_READERS[type(message)](message)


def _end_reader(names: Mapping[str, str]) -> Callable[[Any], End]:
    fields = [names.get(meaning) for meaning in End.__struct_fields__]
    present = [field for field in fields if field is not None]
    if len(present) > 1 and fields[: len(present)] == present:
        values = attrgetter(*present)  # faster than a call of getattr for each field
        return lambda message: End(*values(message))
    return lambda message: End(*[None if field is None else getattr(message, field) for field in fields])


_END_READERS: Final = {kind: _end_reader(names) for kind, names in _NAMES.items()}


@cache
def tags_by_field(meaning: str) -> Mapping[str, set[int]]:
    """Return, by field name, the first bytes of the messages whose field of this name has the given meaning.

    A meaning is what a field tells, such as `relation`.
    """
    found: dict[str, set[int]] = {}
    for kind, names in _NAMES.items():
        if meaning in names:
            found.setdefault(names[meaning], set()).add(ord(kind.wire_tag))
    return found


def tuples(message: Message) -> list[tuple[str, TupleData]]:
    """Return (name, cells) of each tuple of a change; the name is `new`, or `new_rows[0]` in a list."""
    found: list[tuple[str, TupleData]] = []
    for name, is_list in ROW_FIELDS[type(message)]:
        value = getattr(message, name)
        if is_list:
            found += [(f"{name}[{i}]", cells) for i, cells in enumerate(value)]
        elif value is not None:
            found.append((name, value))
    return found
