"""Build messages for a protocol version: fields without a given value get a neutral value (0, empty).

Callers give the fields that they know. The layouts of the protocol version tell which other fields a message
requires, such as fields that a later version has added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from pgoutput import _protocols, messages
from pgoutput._layout import Field, sides
from pgoutput._offsets import layout_of
from pgoutput._roles import classes
from pgoutput.messages import Message

T = TypeVar("T", bound=msgspec.Struct)


def build(role: str, proto_version: int, **values: Any) -> Message:
    """Return a new message that has a role, with the fields of a protocol version.

    A field without a value gets a neutral value: 0, empty, or the first value of an enum; a field that is
    optional in the version is None.

    Args:
        role: Role of the message in the spec, such as `commit`.
        proto_version: Protocol version for which the message will be encoded.
        values: Field values by meaning (`end_lsn`), or by field name for fields without a meaning. A value is
            ignored if the version has no field for it.

    Raises:
        LookupError: The protocol version has no message with this role.
    """
    return builder(role, proto_version)(**values)


@cache
def builder(role: str, proto_version: int) -> Callable[..., Message]:
    """Return a function that builds messages as `build` does, from the keyword arguments `values`.

    Raises:
        LookupError: The protocol version has no message with this role.
    """
    kind, neutral, names = blueprint(role, proto_version)
    defaults = [neutral.get(name) for name in kind.__struct_fields__]
    slots = {meaning: kind.__struct_fields__.index(name) for meaning, name in names.items()}
    fit = _fit_of(kind, proto_version)

    def make(**values: Any) -> Message:
        arguments = defaults.copy()
        for name, value in values.items():
            if name in slots:
                arguments[slots[name]] = value
        message = kind(*arguments)
        return message if fit is None else _apply(message, fit)

    return make


class Blueprint(NamedTuple):
    """How the messages with a role are built in a protocol version."""

    kind: type[Message]
    """Class of the messages: the first with the role, in the order of the spec, without a list of rows."""
    neutral: Mapping[str, Any]
    """Neutral value (0, empty) of each field that all of the messages have, by field name."""
    names: Mapping[str, str]
    """Names of all fields, by meaning; a field without a meaning has its own name as key."""


@cache
def blueprint(role: str, proto_version: int) -> Blueprint:
    """Return how the messages with a role are built in a protocol version.

    Raises:
        LookupError: The protocol version has no message with this role.
    """
    for kind in classes(role):
        layout = layout_of(kind, proto_version)
        if layout is not None and not any(field.element == "tuple" for field in layout.fields):
            names = {field.means or field.name: field.name for field in layout.members}
            return Blueprint(kind, _neutral_values(layout.fields), names)
    raise LookupError(f"protocol version {proto_version} has no message with the role {role}")


def fitted(message: Message, proto_version: int) -> Message:
    """Return a message with its fields adapted to a protocol version.

    A field that is None although the version requires it gets a neutral value (0, empty). A field that the
    version has dropped becomes None.
    """
    fit = _fit_of(type(message), proto_version)
    return message if fit is None else _apply(message, fit)


class _Fit(NamedTuple):
    """What `fitted` changes in messages of one class (or in elements of a list) for one protocol version."""

    required: dict[str, Any]
    """Neutral values (0, empty) of the fields that this version requires and other versions lack, by name."""
    dropped: tuple[str, ...]
    """Names of the fields that the version has dropped."""
    lists: dict[str, _Fit]
    """What to change in the elements of a list field, by name of the list field."""


def _apply(item: T, fit: _Fit) -> T:
    changes = {name: value for name, value in fit.required.items() if getattr(item, name) is None}
    changes |= dict.fromkeys(fit.dropped)
    for name, inner in fit.lists.items():
        changes[name] = tuple(_apply(one, inner) for one in getattr(item, name) or ())
    return msgspec.structs.replace(item, **changes)


@cache
def _fit_of(kind: type[Message], version: int) -> _Fit | None:
    layout = layout_of(kind, version)
    if layout is None:
        return None
    return _fit(kind, version, _protocols.ALL_VERSIONS.by_name[layout.name].fields, layout.fields)


def _fit(
    kind: type[msgspec.Struct], version: int, everywhere: tuple[Field, ...], fields: tuple[Field, ...]
) -> _Fit | None:
    """Return what `fitted` changes in objects of a class for a protocol version; None if nothing.

    Args:
        kind: A message class, or the class of a list's elements.
        version: The protocol version.
        everywhere: The fields of the class in all protocol versions.
        fields: The fields of the class in `version`.
    """
    optional = {field.name for field in msgspec.structs.fields(kind) if not field.required}
    required = {name: value for name, value in _neutral_values(fields).items() if name in optional}
    names = {field.name for field in sides(fields)}
    dropped = tuple(one.name for one in sides(everywhere) if one.since <= version and one.name not in names)
    elements = {field.name: field.fields for field in everywhere}
    lists = {}
    for field in fields:
        element = getattr(messages, field.type, None) if field.kind == "list" else None
        if isinstance(element, type) and issubclass(element, msgspec.Struct):
            inner = _fit(element, version, elements[field.name], field.fields)
            if inner is not None:
                lists[field.name] = inner
    return _Fit(required, dropped, lists) if required or dropped or lists else None


def _neutral_values(fields: tuple[Field, ...]) -> dict[str, Any]:
    """Return the neutral value (0, empty) of each field that is sent without a condition, by field name."""
    always = (field for field in fields if field.when is None and field.kind not in _WITHOUT_ATTRIBUTE)
    return {field.name: _neutral_value(field) for field in always}


def _neutral_value(field: Field) -> Any:
    if field.kind == "enum":
        return getattr(messages, field.type)(next(iter(field.values)))
    return _NEUTRAL.get(field.kind, 0)


_WITHOUT_ATTRIBUTE: Final = ("count", "length", "literal", "choice")
_NEUTRAL: Final = {"bool": False, "string": "", "bytes": b"", "rest": b"", "list": (), "tuple": ()}
