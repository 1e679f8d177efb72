"""The command `pgoutput decode --table`: one readable line per message, with cells by column name."""

from __future__ import annotations

from typing import Any, Final

from rich.text import Text

from pgoutput._stored_stream import DecodedRecord
from pgoutput._text import qualified_name
from pgoutput.cli.printing import printable
from pgoutput.jsonlines import to_json
from pgoutput.messages import Cell, Message, Relation, TupleData
from pgoutput.stream import StreamDecoder
from pgoutput.wire import UNCHANGED

_MAX_CHARACTERS: Final = 60
"""Maximum number of printed characters of a value; the rest is cut."""


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
    fields = to_json(message)
    relation = decoder.relations.get(fields.get("relation_oid", -1))
    if relation is None:
        return [f"{key}={_shortened(value)}" for key, value in fields.items() if key != "type"]
    texts = [qualified_name(relation.namespace, relation.name)]
    if fields.get("xid") is not None:
        texts.append(f"xid={fields['xid']}")
    for name in ("key", "old", "new"):
        cells: TupleData | None = getattr(message, name, None)
        if cells is not None:
            texts.append(f"{name}: " + " ".join(_cells(relation, cells)))
    return texts


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
