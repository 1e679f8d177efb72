"""The command `logicalrep decode`: prints messages as JSON, or as lines with cells by column name."""

from __future__ import annotations

from typing import Any, Final

from rich.text import Text

from logicalrep._roles import ROLES, ROW_FIELDS, field_name, meaning_of, tuples
from logicalrep._stored_stream import DecodedRecord
from logicalrep._text import qualified_name
from logicalrep.cli.common.printing import printable
from logicalrep.jsonlines import to_json
from logicalrep.messages import Cell, Message, Relation, TupleData
from logicalrep.stream import StreamDecoder
from logicalrep.wire import UNCHANGED

_MAX_CHARACTERS: Final = 60
"""Maximum number of printed characters of a value; the rest is cut."""


def as_json(decoded: DecodedRecord) -> dict[str, Any]:
    """Return a message or envelope as a JSON object; `data` of an XLogData is the contained message."""
    if decoded.envelope is None:
        assert decoded.message is not None
        return to_json(decoded.message)
    fields = to_json(decoded.envelope)
    if decoded.message is not None:
        fields["data"] = to_json(decoded.message)
    return fields


def line(decoded: DecodedRecord, decoder: StreamDecoder) -> Text:
    """Return a readable line: number, name and fields of a message, or of an envelope without message."""
    message = decoded.message or decoded.envelope
    assert message is not None
    name = type(message).__name__
    text = Text(f"{'' if decoded.record.number is None else decoded.record.number:7}  ", style="dim")
    text.append(f"{name:18}", style="bold cyan" if decoded.message else "cyan")
    text.append(printable(" ".join(_fields(message, decoder))), style="default")
    return text


def _fields(message: Message, decoder: StreamDecoder) -> list[str]:
    """Return a message's fields as texts; for a change, the relation comes first, and the rows come last."""
    fields = to_json(message)
    del fields["type"]
    kind = type(message)
    oid = meaning_of(message, "relation") if kind in ROLES else None  # an envelope has no role
    relation = None if oid is None else decoder.relations.get(oid)
    if relation is None:
        return [f"{name}={_shortened(value)}" for name, value in fields.items()]
    shown = {field_name(kind, "relation"), *(name for name, _ in ROW_FIELDS[kind])}
    return [
        qualified_name(relation.namespace, relation.name),
        *(f"{name}={_shortened(value)}" for name, value in fields.items() if name not in shown),
        *(f"{name}: {' '.join(_cells(relation, cells))}" for name, cells in tuples(message)),
    ]


def _cells(relation: Relation, cells: TupleData) -> list[str]:
    names = [column.name for column in relation.columns]
    names += [f"column {i}" for i in range(len(names), len(cells))]
    return [f"{name}={_cell(cell)}" for name, cell in zip(names, cells, strict=False)]


def _cell(cell: Cell) -> str:
    if cell is None:
        return "NULL"
    if cell is UNCHANGED:
        return "UNCHANGED"
    return _shortened(cell.hex() if isinstance(cell, bytes) else repr(cell))


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}… ({len(text)} characters)"
