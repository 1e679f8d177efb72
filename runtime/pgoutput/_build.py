"""Build messages for a protocol version: fields that a later version adds get a neutral value (0, empty).

Code that builds messages sets the fields that it knows. The layouts of a protocol version tell which other
fields the version requires.
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
    """Return a message with a role, as a protocol version defines it.

    A field without a value gets a neutral value: 0, empty, or the first value of an enum; a field that is
    optional in the version is None.

    Args:
        role: Role of the message in the spec, such as `commit`.
        proto_version: Protocol version for which the message will be encoded.
        values: Values by meaning (`end_lsn`), or by name for fields without a meaning. Values are ignored if
            the version has no such field.

    Raises:
        LookupError: The protocol version has no message with this role.
    """
    return builder(role, proto_version)(**values)


@cache
def builder(role: str, proto_version: int) -> Callable[..., Message]:
    """Return a function that builds the messages with a role, as `build` does, from keyword arguments.

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
    """Class of the messages: the first with the role that has no list of rows."""
    neutral: Mapping[str, Any]
    """Neutral values of the fields that every message has, by name."""
    names: Mapping[str, str]
    """Names of all fields, by meaning; by name for fields without a meaning."""


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
    """Return a message with the fields that a protocol version requires.

    A field that the version requires gets a neutral value if it is None. A field that the version has dropped
    becomes None.
    """
    fit = _fit_of(type(message), proto_version)
    return message if fit is None else _apply(message, fit)


class _Fit(NamedTuple):
    """Difference between messages that are built without a protocol version, and those of a version."""

    required: dict[str, Any]
    """Neutral values of the fields that this version requires and other versions do not have, by name."""
    dropped: tuple[str, ...]
    """Names of the fields that the version has dropped."""
    lists: dict[str, _Fit]
    """Difference between the elements of list fields, by name of the field."""


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
    """Return the `_Fit` of a message class or of the class of a list's elements; None without a difference.

    Args:
        kind: The class.
        version: The protocol version.
        everywhere: The fields of all protocol versions.
        fields: The fields of the protocol version.
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
    """Return the neutral values of the fields that every message has, by name."""
    always = (field for field in fields if field.when is None and field.kind not in _WITHOUT_ATTRIBUTE)
    return {field.name: _neutral_value(field) for field in always}


def _neutral_value(field: Field) -> Any:
    if field.kind == "enum":
        return getattr(messages, field.type)(next(iter(field.values)))
    return _NEUTRAL.get(field.kind, 0)


_WITHOUT_ATTRIBUTE: Final = ("count", "length", "literal", "choice")
_NEUTRAL: Final = {"bool": False, "string": "", "bytes": b"", "rest": b"", "list": (), "tuple": ()}
