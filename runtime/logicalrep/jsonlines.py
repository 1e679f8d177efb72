"""Lossless conversion of messages to JSON objects and back.

- An LSN is a string as PostgreSQL writes it, `16/B374D848`.
- A timestamp is an ISO 8601 string, or an integer (microseconds since 2000-01-01 UTC) if the year is not
  between 1 and 9999.
- A cell is `null` for NULL, a string for text, `{"binary": hex}` for binary format, and `{"unchanged": true}`
  for an unchanged TOASTed value.
- Bytes that are not a cell are `{"binary": hex}` too. Text that is not valid UTF-8 is `{"text_hex": hex}`.
- Fields that are None are omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from logicalrep import _protocols, messages
from logicalrep._layout import Field
from logicalrep._problems import find_problem
from logicalrep.errors import EncodeError
from logicalrep.messages import Message
from logicalrep.versions import LATEST_RELEASED
from logicalrep.wire import UNCHANGED, format_lsn, from_datetime, is_utf8, parse_lsn, to_datetime

__all__ = ["from_json", "to_json"]

_FIELDS: Final = {
    message.name: message.members
    for protocol in (_protocols.ALL_VERSIONS, _protocols.ENVELOPE)
    for message in protocol.messages
}
_NEWEST_FIRST: Final = sorted(_protocols.VERSIONS, key=lambda version: (version > LATEST_RELEASED, -version))
_PROTOCOLS: Final = {
    name: [
        (protocol, {field.name for field in protocol.by_name[name].members})
        for protocol in (*map(_protocols.VERSIONS.__getitem__, _NEWEST_FIRST), _protocols.ENVELOPE)
        if name in protocol.by_name
    ]
    for name in _FIELDS
}
"""Maps the name of each message to the protocols that have it, with the names of its fields there.

The order is: released versions (newest first), unreleased versions, envelopes. If a message has a problem in
all of them, the reported problem is that of the first protocol with all fields of the message."""


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as a dict for any JSON encoder; its first key `type` has the message's name."""
    name = type(message).__name__
    return {"type": name} | _to_object(_FIELDS[name], message)


def from_json(data: Any) -> Message:
    """Convert a JSON object, as `to_json` returns it, back to the message.

    Args:
        data: The JSON object, as a dict from any JSON decoder.

    Raises:
        EncodeError: The object is not a message; the text names the field.
    """
    name = data.get("type") if isinstance(data, dict) else None
    fields = _FIELDS.get(name) if isinstance(name, str) else None
    if not isinstance(name, str) or fields is None:
        text = f"no message has the type {name!r}" if name else "expected an object with a type"
        raise EncodeError(text, message=str(name), field="type")
    values = {key: value for key, value in data.items() if key != "type"}
    message: Message = _from_object(name, fields, values, name, "")
    problems: dict[bool, EncodeError] = {}
    for protocol, names in _PROTOCOLS[name]:
        problem = find_problem(protocol, message)
        if problem is None:
            return message
        problems.setdefault(values.keys() <= names, problem)
    raise problems.get(True) or problems[False]


def _to_object(fields: tuple[Field, ...], value: Any) -> dict[str, Any]:
    values = ((field, getattr(value, field.name)) for field in fields)
    return {field.name: value_to_json(field, item) for field, item in values if item is not None}


def value_to_json(field: Field, value: Any) -> Any:
    """Convert the value of a field, which must not be None, to a value for any JSON encoder."""
    if field.kind == "tuple":
        return [_to_cell(cell) for cell in value]
    if field.element == "struct":
        return [_to_object(field.fields, item) for item in value]
    if field.element == "tuple":
        return [value_to_json(field.fields[0], cells) for cells in value]
    if field.kind == "list":
        return list(value)
    if field.type == "lsn":
        return format_lsn(value)
    if field.type == "timestamp":
        return _to_time(value)
    return _to_cell(value) if isinstance(value, str | bytes) else value


def _to_cell(cell: Any) -> Any:
    if isinstance(cell, bytes):
        return {"binary": cell.hex()}
    if cell is UNCHANGED:
        return {"unchanged": True}
    if isinstance(cell, str):
        if not is_utf8(cell):
            return {"text_hex": cell.encode("utf-8", "surrogateescape").hex()}
        return str(cell)
    return cell


def _to_time(value: int) -> str | int:
    try:
        return to_datetime(value).isoformat()
    except OverflowError:
        return value


def _from_object(name: str, fields: tuple[Field, ...], data: Mapping[str, Any], root: str, path: str) -> Any:
    known = {field.name: field for field in fields}
    if not isinstance(data, dict):
        raise _error(root, path.rstrip("."), f"expected an object, found {data!r}")
    for key in data:
        if key not in known:
            raise _error(root, path + key, f"{name} has no such field; it has {', '.join(known) or 'none'}")
    values = {key: value_from_json(known[key], value, root, path + key) for key, value in data.items()}
    message_class = _protocols.CLASSES[name]
    for member in msgspec.structs.fields(message_class) if len(values) < len(known) else ():
        if member.required and member.name not in values:
            raise _error(root, path + member.name, "is missing")
    return message_class(**values)


def value_from_json(field: Field, value: Any, root: str, path: str) -> Any:
    """Convert a JSON value, as `value_to_json` returns it, back to the value of the field.

    Args:
        field: The field.
        value: The JSON value.
        root: Name of the message, for errors.
        path: Path of the field in the message, for errors.

    Raises:
        EncodeError: The JSON value is not a value of the field.
    """
    try:
        if field.kind == "tuple":
            return tuple(_from_cells(_array(value), root, path))
        if field.element == "struct":
            items = enumerate(_array(value))
            return tuple(
                _from_object(field.type, field.fields, item, root, f"{path}[{i}].") for i, item in items
            )
        if field.element == "tuple":
            items = enumerate(_array(value))
            return tuple(value_from_json(field.fields[0], item, root, f"{path}[{i}]") for i, item in items)
        if field.kind == "list":
            return tuple(_array(value))
        if field.kind == "enum":
            return getattr(messages, field.type)(value)
        if field.kind == "flags":
            return flags_from_int(field, value)
        if field.type == "lsn" and isinstance(value, str):
            return parse_lsn(value)
        if field.type == "timestamp" and isinstance(value, str):
            return _from_time(value)
        return _from_cell(value) if isinstance(value, dict) else value
    except ValueError as error:
        raise _error(root, path, str(error)) from None


def flags_from_int(field: Field, value: Any) -> Any:
    """Return an int as flags; a value that the field cannot have is returned unchanged."""
    valid = isinstance(value, int) and not value & ~field.mask
    return getattr(messages, field.type)(value) if valid else value


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected an array, found {value!r}")
    return value


_UNCHANGED: Final = {True: UNCHANGED}
_CELLS: Mapping[str, Callable[[Any], Any]] = {
    "binary": bytes.fromhex,
    "text_hex": lambda text: bytes.fromhex(text).decode("utf-8", "surrogateescape"),
    "unchanged": lambda value: _UNCHANGED[value],
}


def _from_cells(values: list[Any], root: str, path: str) -> Iterator[Any]:
    for i, value in enumerate(values):
        try:
            yield _from_cell(value)
        except ValueError as error:
            raise _error(root, f"{path}[{i}]", str(error)) from None


def _from_cell(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    key = next(iter(value), "")
    if len(value) != 1 or key not in _CELLS:
        raise ValueError(f"expected an object with one of the keys {', '.join(_CELLS)}; found {value!r}")
    try:
        return _CELLS[key](value[key])
    except (LookupError, TypeError, ValueError):
        expected = "true" if key == "unchanged" else "hex"
        raise ValueError(f"{key}: expected {expected}, found {value[key]!r}") from None


def _from_time(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _error(root: str, field: str | None, text: str) -> EncodeError:
    return EncodeError(f"{root}{'.' + field if field else ''}: {text}", message=root, field=field)
