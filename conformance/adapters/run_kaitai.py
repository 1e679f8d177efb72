"""Run the parsers that Kaitai's compiler makes of the files of `python -m codegen export kaitai`."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from kaitaistruct import KaitaiStream
from loop import Decode, serve

from logicalrep import _protocols, messages
from logicalrep._layout import Field
from logicalrep.jsonlines import to_json
from logicalrep.wire import UNCHANGED

ROOT = Path(__file__).parents[2]
LAYOUTS = {
    message.name.lower(): message
    for protocol in (_protocols.ALL_VERSIONS, _protocols.ENVELOPE)
    for message in protocol.messages
}
"""Layouts by the name of the message in lower case: Kaitai writes `XlogData` for `XLogData`."""
CELLS = {"null": lambda _: None, "unchanged": lambda _: UNCHANGED, "binary": bytes}


def new_decoder(request: dict[str, Any]) -> Decode:
    """Return a function that decodes a message with the parser of the request's version."""
    name = "Envelope" if request["version"] is None else f"V{request['version']}"
    parser = getattr(importlib.import_module(f"logicalrep_{name.lower()}"), f"Logicalrep{name}")
    context = {"in_stream": False, "streaming": request["options"]["streaming"]}
    known = [one for one in inspect.signature(parser).parameters if one in context]

    def decode(data: bytes) -> dict[str, Any]:
        parsed = parser(*(context[one] for one in known), KaitaiStream(BytesIO(data)))
        layout = LAYOUTS[type(parsed.body).__name__.lower()]
        if layout.role in ("open_block", "close_block"):
            context["in_stream"] = layout.role == "open_block"
        return to_json(built(layout.name, layout.members, parsed.body))

    return decode


def built(name: str, fields: tuple[Field, ...], parsed: Any) -> Any:
    """Return a message or struct as an object of logicalrep, which can be written as JSON."""
    values = {field.name: value(field, parsed) for field in fields}
    return _protocols.CLASSES[name](**{key: one for key, one in values.items() if one is not None})


def value(field: Field, parsed: Any) -> Any:
    """Return the value of a field; None if the parser has not read the field."""
    if field.kind == "string":
        raw = getattr(parsed, f"{field.name}_bytes", None)
        return None if raw is None else text(raw)
    found = getattr(parsed, field.name, None)
    if found is None:
        return None
    if field.kind == "enum":
        return getattr(messages, field.type)(chr(found))
    if field.kind == "flags":
        kind = getattr(messages, field.type)
        return kind(sum(kind[name] for name in field.values.values() if getattr(found, name.lower(), False)))
    if field.kind == "tuple":
        return cells(found)
    if field.element == "struct":
        return tuple(built(field.type, field.fields, one) for one in found)
    if field.element == "tuple":
        return tuple(map(cells, found))
    return tuple(found) if field.kind == "list" else found


def cells(found: Any) -> tuple[Any, ...]:
    """Return the cells of a tuple."""
    return tuple(CELLS.get(cell.form.name, text)(getattr(cell, "value", b"")) for cell in found.cells)


def text(raw: bytes) -> str:
    """Return text, which is not always UTF-8."""
    return raw.decode("utf-8", "surrogateescape")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        export = [sys.executable, "-m", "codegen", "export", "kaitai", "--out", folder]
        own = {key: one for key, one in os.environ.items() if key != "PYTHONPATH"}
        subprocess.run(export, cwd=ROOT, env=own, stdout=subprocess.DEVNULL, check=True)
        subprocess.run(["node", Path(__file__).with_name("compile_kaitai.js"), folder], check=True)
        sys.path.insert(0, folder)
        serve(new_decoder, lambda request: None)
