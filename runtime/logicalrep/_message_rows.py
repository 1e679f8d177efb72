"""Convert messages to rows of the schemas in `logicalrep.schemas`, and rows to messages.

A row is a dict with the name of the message in `type`, its fields, and `_rescued_data`. A value that its
column cannot represent (an LSN of 2**63 or more, a time outside the years 1 to 9999, text that is not UTF-8)
is NULL in its column. The dict `_rescued_data` has this value under the name of the field, as text: an LSN as
0/16B3748, any other value as JSON in the form of `logicalrep.jsonlines`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from logicalrep import _protocols, messages
from logicalrep._layout import Field
from logicalrep._protocols import CELLS
from logicalrep.errors import EncodeError
from logicalrep.jsonlines import flags_from_int, value_from_json, value_to_json
from logicalrep.messages import Cell, Message
from logicalrep.wire import TIMES, UNCHANGED, Unchanged, from_datetime, is_utf8, to_datetime

TYPE: Final = "type"
"""Name of the column with the name of the message."""

RESCUED: Final = "_rescued_data"
"""Name of the column with the values that other columns cannot represent."""

_FIELDS: Final[Mapping[str, tuple[Field, ...]]] = {
    message.name: message.members
    for protocol in (_protocols.ALL_VERSIONS, _protocols.ENVELOPE)
    for message in protocol.messages
}

_INT64: Final = -(1 << 63), (1 << 63) - 1


def value_range(field: Field) -> tuple[int, int]:
    """Return the lowest and the highest value of an integer field that its column can represent.

    The lowest value of an unsigned field is 0. So an unsigned value of 2**63 or more is out of range even if
    the caller has it in an int64, where it is negative.
    """
    if field.type == "timestamp":
        return TIMES[0], TIMES[-1]
    return _INT64 if field.signed else (0, _INT64[1])


def to_row(message: Message) -> dict[str, Any]:
    """Return a message as a row, with times as datetimes in UTC, and cells as dicts."""
    name = type(message).__name__
    row: dict[str, Any] = {TYPE: name}
    rescued: dict[str, str] = {}
    for field in _FIELDS[name]:
        value = getattr(message, field.name)
        row[field.name] = column_value(field, value)
        if row[field.name] is None and value is not None:
            rescued[field.name] = rescued_text(field, value)
    row[RESCUED] = rescued or None
    return row


def column_value(field: Field, value: Any) -> Any:
    """Return the value of a field as its column represents it; None if the column cannot represent it."""
    return None if value is None else _TO_COLUMN[field.kind](field, value)


def rescued_text(field: Field, value: Any) -> str:
    """Return the text in `_rescued_data` of a value that its column cannot represent."""
    shown = value_to_json(field, value)
    return shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()


def from_row(row: Mapping[str, Any]) -> Message:
    """Convert a row, as `to_row` returns it, back to the message. `_rescued_data` may be a list of pairs.

    Raises:
        EncodeError: The row is not a message.
    """
    name = row.get(TYPE)
    if not isinstance(name, str) or name not in _FIELDS:
        text = "expected the name of a message" if name is None else "there is no such message"
        raise EncodeError(f"{TYPE} is {name!r}: {text}", field=TYPE)
    rescued = dict(row.get(RESCUED) or ())
    values: dict[str, Any] = {}
    for field in _FIELDS[name]:
        if field.name in rescued:
            values[field.name] = _from_rescued(name, field, rescued[field.name])
        elif (value := row.get(field.name)) is not None:
            values[field.name] = _from_column(name, field, value)
    message: Message = _build(name, values)
    return message


def _build(name: str, values: Mapping[str, Any]) -> Any:
    message_class = _protocols.CLASSES[name]
    try:
        return message_class(**values)
    except TypeError:
        required = (one.name for one in msgspec.structs.fields(message_class) if one.required)
        missing = next(one for one in required if one not in values)
    raise EncodeError(f"{name}.{missing}: expected a value, found NULL", message=name, field=missing)


def _from_column(name: str, field: Field, value: Any) -> Any:
    try:
        return _FROM_COLUMN[field.kind](field, value)
    except (AttributeError, KeyError, TypeError, ValueError):
        text = f"{name}.{field.name}: expected a value as in logicalrep.schemas, found {value!r}"
        raise EncodeError(text, message=name, field=field.name) from None


def _from_rescued(name: str, field: Field, text: str) -> Any:
    try:
        value = text if field.type == "lsn" else msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        shown = f"{name}.{field.name}: {RESCUED} has {text!r}, which is not JSON: {error}"
        raise EncodeError(shown, message=name, field=field.name) from None
    return value_from_json(field, value, name, field.name)


def _as_is(field: Field, value: Any) -> Any:
    return value


def _integer(field: Field, value: int) -> Any:
    low, high = value_range(field)
    if not low <= value <= high:
        return None
    return to_datetime(value) if field.type == "timestamp" else int(value)


def _list(field: Field, value: Any) -> list[Any] | None:
    """Return the value of a list field for its column; None if the column cannot represent an element."""
    if field.element == "struct":
        items = [
            {one.name: column_value(one, getattr(item, one.name)) for one in field.fields} for item in value
        ]
        return None if any(None in item.values() for item in items) else items
    items = [column_value(field.fields[0], item) for item in value]
    return None if None in items else items


def _from_list(field: Field, value: Any) -> tuple[Any, ...]:
    if field.element != "struct":
        return tuple(_FROM_COLUMN[field.fields[0].kind](field.fields[0], item) for item in value)
    return tuple(
        _build(field.type, {one.name: _FROM_COLUMN[one.kind](one, item[one.name]) for one in field.fields})
        for item in value
    )


_FORMS: Final[Mapping[type, str]] = {
    str: CELLS["text"].tag,
    bytes: CELLS["binary"].tag,
    type(None): CELLS["null"].tag,
    Unchanged: CELLS["unchanged"].tag,
}
"""Maps the class of a cell's value to the tag of the cell."""


def _cells(field: Field, value: Any) -> list[dict[str, Any]]:
    return [_cell(cell) for cell in value]


def _cell(cell: Cell) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": _FORMS[type(cell)], "text": None, "binary": None}
    if isinstance(cell, str):
        if is_utf8(cell):
            shown["text"] = cell
        else:
            shown["binary"] = cell.encode("utf-8", "surrogateescape")
    elif isinstance(cell, bytes):
        shown["binary"] = cell
    return shown


def _from_cells(field: Field, value: Any) -> tuple[Cell, ...]:
    return tuple(_CELLS[cell["kind"]](cell) for cell in value)


def _text(cell: Mapping[str, Any]) -> Any:
    return cell["binary"].decode("utf-8", "surrogateescape") if cell["text"] is None else cell["text"]


_CELLS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    CELLS["text"].tag: _text,
    CELLS["binary"].tag: lambda cell: cell["binary"],
    CELLS["null"].tag: lambda cell: None,
    CELLS["unchanged"].tag: lambda cell: UNCHANGED,
}

_TO_COLUMN: Final[Mapping[str, Callable[[Field, Any], Any]]] = {
    "integer": _integer,
    "flags": lambda field, value: int(value),
    "bool": _as_is,
    "enum": lambda field, value: value.value,
    "string": lambda field, value: str(value) if is_utf8(value) else None,
    "bytes": _as_is,
    "rest": _as_is,
    "list": _list,
    "tuple": _cells,
}
_FROM_COLUMN: Final[Mapping[str, Callable[[Field, Any], Any]]] = {
    "integer": lambda field, value: from_datetime(value) if isinstance(value, datetime) else int(value),
    "flags": flags_from_int,
    "bool": _as_is,
    "enum": lambda field, value: getattr(messages, field.type)(value),
    "string": _as_is,
    "bytes": lambda field, value: bytes(value),
    "rest": lambda field, value: bytes(value),
    "list": _from_list,
    "tuple": _from_cells,
}
