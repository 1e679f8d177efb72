"""Explain encode errors: find the invalid field of a message with the layouts in `logicalrep._protocols`.

The codecs call `explain_encode` after they failed to encode a message. The layouts and the codecs refuse the
same messages.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TypeAlias

from logicalrep import messages
from logicalrep._layout import Field, Protocol, sides
from logicalrep.errors import EncodeError
from logicalrep.wire import UNCHANGED, escaped_bytes

_Problem: TypeAlias = tuple[str | None, str]
"""A reason why a message cannot be encoded: path of the invalid field (None for the whole message), and
text."""


def explain_encode(protocol: Protocol, message: object, classes: ModuleType = messages) -> EncodeError:
    """Return an EncodeError that says why a codec could not encode a message of the module `classes`.

    Raises:
        TypeError: The object is not a message of `classes`.
    """
    name = type(message).__name__
    if not isinstance(message, classes.Message):
        raise TypeError(f"expected a message of {classes.__name__}, found {_kind(message)}") from None
    layout = protocol.by_name.get(name)
    if layout is None or type(message) is not getattr(classes, name):
        text = f"{protocol.label} has no message {name}{_hint(protocol, name)}"
        return EncodeError(text, message=name, field=None)
    unexplained = f"{name}: the message is valid, but was not encoded: please report this bug of logicalrep"
    return find_problem(protocol, message) or EncodeError(unexplained, message=name, field=None)


def check_in_stream(protocol: Protocol, message: Any, in_stream: bool) -> None:
    """Raise EncodeError if a message cannot stand inside (`in_stream`) or outside of a stream block."""
    name = type(message).__name__
    for field in protocol.by_name[name].fields:
        if field.when != "in_stream" or field.of is not None or field.kind == "literal":
            continue
        if (getattr(message, field.name) is not None) != in_stream:
            text = "is missing: all" if in_stream else "must be None: only"
            text = f"{name}.{field.name}: {text} messages in stream blocks have it"
            raise EncodeError(text, message=name, field=field.name)


def find_problem(protocol: Protocol, message: Any) -> EncodeError | None:
    """Return an EncodeError for the first invalid field of a message; None if the message is valid.

    Args:
        protocol: The protocol; it must have the class of `message`.
        message: The message.
    """
    name = type(message).__name__
    for field, text in _problems(protocol, protocol.by_name[name].fields, message, ""):
        where = f"{name}.{field}" if field else name
        return EncodeError(f"{where}: {text}", message=name, field=field)
    return None


def _hint(protocol: Protocol, name: str) -> str:
    """Return the end of an error text: which codec encodes a message that this protocol does not have."""
    for later in protocol.later:
        if later.name == name:
            return f": it came with version {later.since}"
    if protocol.name == "replication":
        return ": it travels inside XLogData, and the codecs of the protocol versions write it"
    is_envelope = protocol.version is not None
    return ": logicalrep.envelope writes the messages of the replication protocol" if is_envelope else ""


def _problems(protocol: Protocol, fields: tuple[Field, ...], value: Any, path: str) -> Iterator[_Problem]:
    known = {side.name for side in sides(fields)}
    for name in value.__struct_fields__:
        if name not in known and getattr(value, name) is not None:
            yield path + name, f"{protocol.label} has no such field, so it must be None"
    groups: dict[str, list[Field]] = {}
    for field in fields:
        if field.kind == "choice":
            yield from _choice_problems(field, value, path)
        elif field.case is not None:
            yield from _case_problems(protocol, field, value, path)
        elif field.of is not None:
            yield from _size_problems(field, getattr(value, field.of), path)
        elif field.when is not None:
            groups.setdefault(field.when, []).append(field)
        elif field.kind != "literal":
            yield from _value_problems(protocol, field, getattr(value, field.name), path + field.name)
    for when, members in groups.items():
        present = [field for field in members if getattr(value, field.name) is not None]
        for field in members if present else ():
            if field in present:
                yield from _value_problems(protocol, field, getattr(value, field.name), path + field.name)
            else:
                yield (
                    path + field.name,
                    f"is missing: {present[0].name} is given, and they are sent together ({when})",
                )


def _case_problems(protocol: Protocol, field: Field, value: Any, path: str) -> Iterator[_Problem]:
    """Yield the problems of a field that depends on the value of an earlier field."""
    assert field.case is not None
    item = None if field.kind == "literal" else getattr(value, field.of or field.name)
    if getattr(value, field.case[0]) != field.case[1]:
        if item is not None:
            yield path + (field.of or field.name), f"is sent only if {field.when}, so it must be None"
    elif field.of is not None:
        yield from _size_problems(field, item, path)
    elif field.kind != "literal":
        yield from _value_problems(protocol, field, item, path + field.name)


def _choice_problems(field: Field, value: Any, path: str) -> Iterator[_Problem]:
    present = [side for side in field.fields if getattr(value, side.name) is not None]
    if len(present) > 1:
        yield path + present[1].name, f"cannot be sent together with {present[0].name}"
    elif not present and not field.optional:
        yield None, f"one of {' and '.join(side.name for side in field.fields)} is needed"
    for side in present:
        yield from _tuple_problems(side, getattr(value, side.name), path + side.name)


def _size_problems(field: Field, value: Any, path: str) -> Iterator[_Problem]:
    try:
        size = len(value)
    except TypeError:
        return  # the check of the counted field reports this
    if size >> field.size * 8:
        yield (
            f"{path}{field.of}",
            f"{size} do not fit into {field.notation}, the {field.kind} before it",
        )


def _value_problems(protocol: Protocol, field: Field, value: Any, path: str) -> Iterator[_Problem]:
    match field.kind:
        case "integer" | "flags":
            yield from _integer_problems(field, value, path)
        case "bool" if not isinstance(value, int) or value not in (0, 1):
            yield path, f"expected True or False, found {_shown(value)}"
        case "enum" if not isinstance(value, str) or value not in field.values:
            hint = field.hint(ord(value)) if isinstance(value, str) and len(value) == 1 else ""
            yield path, f"expected one of {', '.join(map(repr, field.values))}, found {_shown(value)}{hint}"
        case "string":
            yield from _text_problems(value, path, zero=False)
        case "bytes" | "rest" if not isinstance(value, bytes):
            yield path, f"expected bytes, found {_kind(value)}"
        case "fixed" if not isinstance(value, bytes) or len(value) != field.size:
            yield path, f"expected {field.size} bytes, found {_kind(value)}"
        case "counted":
            yield from _counted_problems(field, value, path)
        case "tuple":
            yield from _tuple_problems(field, value, path)
        case "list":
            yield from _list_problems(protocol, field, value, path)


def _integer_problems(field: Field, value: Any, path: str) -> Iterator[_Problem]:
    if not isinstance(value, int):
        yield path, f"expected an int, found {_kind(value)}"
        return
    bits = field.size * 8
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if field.signed else (0, (1 << bits) - 1)
    if not low <= value <= high:
        yield path, f"{_shown(value)} does not fit into {field.notation}, {low} to {high}"
    elif field.kind == "flags" and value & ~field.mask:
        yield path, f"expected bits of {field.mask:#04x}, found {value:#04x}{field.hint(value)}"


def _text_problems(value: Any, path: str, *, zero: bool) -> Iterator[_Problem]:
    if not isinstance(value, str):
        yield path, f"expected a str, found {_kind(value)}"
        return
    if not zero and "\0" in value:
        yield path, "a zero character cannot be sent in a zero-terminated string"
    try:
        escaped_bytes(value)
    except UnicodeEncodeError as error:
        yield path, f"the character {value[error.start]!r} stands for no byte"
    except ValueError as error:
        yield path, str(error)


def _tuple_problems(field: Field, value: Any, path: str) -> Iterator[_Problem]:
    if not isinstance(value, tuple | list):
        yield path, f"expected a tuple of cells, found {_kind(value)}"
        return
    if len(value) >> field.size * 8:
        yield (
            path,
            f"{len(value)} columns do not fit into Int{field.size * 8}, the count before them",
        )
    sizes = {cell.form: cell.length_size for cell in field.cells}
    for i, cell in enumerate(value):
        if isinstance(cell, str):
            yield from _text_problems(cell, f"{path}[{i}]", zero=True)
        if isinstance(cell, str | bytes):
            length = len(cell if isinstance(cell, bytes) else cell.encode(errors="surrogateescape"))
            size = sizes["binary" if isinstance(cell, bytes) else "text"]
            if length >> size * 8:
                text = f"{length} bytes do not fit into Int{size * 8}, the length before them"
                yield f"{path}[{i}]", text
        elif cell is not None and cell is not UNCHANGED and not isinstance(cell, bytes):
            yield f"{path}[{i}]", f"expected None, UNCHANGED, a str or bytes, found {_kind(cell)}"


def _list_problems(protocol: Protocol, field: Field, value: Any, path: str) -> Iterator[_Problem]:
    if not isinstance(value, tuple | list):
        yield path, f"expected a tuple, found {_kind(value)}"
        return
    for i, item in enumerate(value):
        if field.element != "struct":
            yield from _value_problems(protocol, field.fields[0], item, f"{path}[{i}]")
        elif type(item).__name__ != field.type:
            yield f"{path}[{i}]", f"expected a {field.type}, found {_kind(item)}"
        else:
            yield from _problems(protocol, field.fields, item, f"{path}[{i}].")
        if field.end and _first_bytes(field.fields[0], item).startswith(field.end):
            yield f"{path}[{i}]", "its first bytes would end the list"


def _first_bytes(field: Field, item: Any) -> bytes:
    """Return the first bytes of a valid list element: the encoding of its first field.

    Return no bytes if the field is neither an integer, a count, a length nor a string.

    Args:
        field: Layout of the first field, or of the element itself if elements have no fields.
        item: The list element.
    """
    if field.element is None and field.kind == "string":
        return escaped_bytes(getattr(item, field.name) if field.name else item) + b"\0"
    if field.kind in ("count", "length"):
        return len(getattr(item, field.of or "")).to_bytes(field.size)
    if field.kind == "integer":
        value: int = getattr(item, field.name) if field.name else item
        return value.to_bytes(field.size, signed=field.signed)
    return b""


def _counted_problems(field: Field, value: Any, path: str) -> Iterator[_Problem]:
    if value is None and field.null is not None:
        return
    if not isinstance(value, bytes):
        yield path, f"expected bytes, found {_kind(value)}"
    elif len(value) >> field.size * 8 - field.signed:
        yield path, f"{len(value)} bytes do not fit into the Int{field.size * 8} before them"


def _kind(value: object) -> str:
    return f"the {type(value).__name__} {_shown(value)}" if value is not None else "None"


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except Exception:  # an int of more than 4300 digits, or an object whose repr fails
        return "that cannot be shown"
