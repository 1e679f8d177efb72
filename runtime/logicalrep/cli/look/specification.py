"""The command `logicalrep spec`: prints the layouts of the messages of a protocol version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from logicalrep import _protocols
from logicalrep._layout import Cell, Field, Message


def as_json(version: int) -> bytes:
    """Return the layouts of the messages and tuples of a protocol version as JSON; fields are in wire order.

    `fields` of a list has the fields of one list element. `one_of` of a field has the names of all
    alternative fields, of which a message has only one.
    """
    protocol = _protocols.VERSIONS[version]
    messages = [_message(message) for message in protocol.messages]
    tuples = [{"name": name, "cells": [_cell(c) for c in cells]} for name, cells in _tuples(version).items()]
    data = msgspec.json.encode({"protocol": version, "messages": messages, "tuples": tuples})
    return msgspec.json.format(data, indent=2) + b"\n"


def show(console: Console, version: int) -> None:
    """Print the layouts of the messages and tuples of a protocol version as readable text."""
    protocol = _protocols.VERSIONS[version]
    console.print(f"[bold]Protocol version {version}[/], servers {protocol.server}. {escape(protocol.doc)}")
    for message in protocol.messages:
        console.print(
            f"\n[bold cyan]{message.title}[/] [yellow]Byte1('{message.tag}')[/]  {escape(message.doc)}"
        )
        _show_fields(console, _fields(message.fields), 1)
    for name, cells in _tuples(version).items():
        console.print(f"\n[bold cyan]{name}[/]  a count, then for each column one of")
        for cell in cells:
            length = f", Int{cell.length_size * 8}, Byten" if cell.length_size else ""
            console.print(f"  [yellow]Byte1('{cell.tag}'){length}[/] {cell.form}  [dim]{escape(cell.doc)}")


def _show_fields(console: Console, fields: list[dict[str, Any]], depth: int) -> None:
    for field in fields:
        notes = f" [magenta]only {field['when']}[/]" if field["when"] else ""
        if "one_of" in field:
            least = "at most one" if field["optional"] else "one"
            notes += f" [magenta]{least} of {', '.join(field['one_of'])}[/]"
        wire, doc = escape(field["wire"]), escape(field["doc"])
        console.print(f"{'  ' * depth}[bold]{field['name']}[/] [yellow]{wire}[/]{notes}  [dim]{doc}")
        _show_fields(console, field.get("fields", []), depth + 1)


def _message(message: Message) -> dict[str, Any]:
    names = ("name", "title", "tag", "since", "server", "option", "source", "doc")
    return {name: getattr(message, name) for name in names} | {"fields": _fields(message.fields)}


def _fields(fields: tuple[Field, ...]) -> list[dict[str, Any]]:
    return [described for field in fields for described in _field(field)]


def _field(field: Field) -> Iterator[dict[str, Any]]:
    if field.kind == "choice":
        names = [side.name for side in field.fields]
        for side in field.fields:
            for described in _field(side):
                yield described | {"one_of": names, "optional": field.optional}
        return
    described = {
        "name": field.name,
        "wire": field.notation,
        "type": field.type,
        "since": field.since,
        "when": field.when,
        "server": field.server,
        "source": field.source,
        "doc": field.doc,
    }
    if field.values:
        described["values"] = dict(field.values)
    if field.element == "struct":
        described["fields"] = _fields(field.fields)
    yield described


def _tuples(version: int) -> dict[str, tuple[Cell, ...]]:
    members = [field for message in _protocols.VERSIONS[version].messages for field in message.members]
    fields = [one for field in members for one in (field, *field.fields)]
    return {field.type: field.cells for field in fields if field.kind == "tuple"}


def _cell(cell: Cell) -> dict[str, Any]:
    length = f"Int{cell.length_size * 8}" if cell.length_size else None
    return {"form": cell.form, "tag": cell.tag, "length": length, "server": cell.server, "doc": cell.doc}
