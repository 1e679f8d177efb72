"""The protocol explorer: one HTML file, made of the sources in `templates/explorer` and of tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from codegen import example_streams, states
from codegen.model import Entry, Gate, Spec
from codegen.resolve import Field, MessageView, View
from codegen.yamlfile import Place, YamlFile

NAME = "explorer/index.html"
"""Path of the page below the output folder."""

SOURCES = Path(__file__).parent / "templates/explorer"

CORE = (
    *("bytes", "layouts", "walk", "stream", "tracker", "rules", "checker"),
    *("store", "files", "packets", "edit", "index"),
)
"""Modules that run in the page and in its worker, without a document."""

PAGE = ("elements", "state", "list", "lanes", "hex", "fields", "spec", "versions", "permalink", "page")
"""Modules of the page."""


def sources() -> dict[str, str]:
    """Return the text of each source file of the page, by its name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.*"))}


def tables(spec: Spec, versions: Mapping[int, View], envelope: View) -> str:
    """Return the tables of the page as JSON that can stand in a script."""
    places = _Places(spec)
    first = example_streams.example(spec, versions[min(versions)]).messages[1]
    data = {
        "versions": {
            number: {
                "server": spec.versions[number].server,
                "doc": spec.versions[number].doc,
                "messages": [places.message(message, number) for message in view.messages],
                "states": list(states.diagram(view).transitions),
                "example": _example(spec, view),
            }
            for number, view in versions.items()
        },
        "envelope": {
            "messages": [places.message(message, None) for message in envelope.messages],
            "example": [
                {"copydata" if sender == "server" else "sent": data.hex()}
                for sender, data in example_streams.envelopes(envelope, first)
            ],
        },
        "states": states.STATES,
        "streaming": {
            name: spec.gate(value.versions).first for name, value in spec.options["streaming"].values.items()
        },
        "files": {file.path.name: _file(file) for file in spec.files if "messages" in file.data},
    }
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")


def _example(spec: Spec, view: View) -> dict[str, Any]:
    streaming, two_phase, messages = example_streams.example(spec, view)
    return {"streaming": streaming, "two_phase": two_phase, "messages": [one.hex() for one in messages]}


def _file(file: YamlFile) -> dict[str, str]:
    return {"source": file.data["source"], "text": file.text}


class _Places:
    """Makes the layouts of the page, in which each field has its lines in the spec."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._files = {
            (section, name): file
            for file in spec.files
            for section, entries in file.data.items()
            if isinstance(entries, dict)
            for name in entries
        }

    def message(self, message: MessageView, version: int | None) -> dict[str, Any]:
        """Return the layout of a message in a version."""
        place = ("messages", message.name)
        protocols = self._spec.protocols.values()
        entries = next(one.messages[message.name].fields for one in protocols if message.name in one.messages)
        return {
            **_given(message, "name title tag role doc since server source option sender any_version"),
            "file": self._files[place].path.name,
            "line": self._line(place),
            "fields": self._fields(message.fields, entries, (*place, "fields"), version),
        }

    def _line(self, place: Place) -> int:
        section, name = place[:2]
        return self._files[section, name].line(place)

    def _fields(
        self, fields: Sequence[Field], entries: Sequence[Entry], place: Place, version: int | None
    ) -> list[dict[str, Any]]:
        present = [
            (i, entry)
            for i, entry in enumerate(entries)
            if version is None or entry.versions is None or version in Gate.parse(entry.versions)
        ]
        pairs = zip(fields, present, strict=True)
        return [self._field(field, entry, (*place, i), version) for field, (i, entry) in pairs]

    def _field(self, field: Field, entry: Entry, place: Place, version: int | None) -> dict[str, Any]:
        keys = (
            "name kind type notation doc source size signed literal when tag means of optional values later"
        )
        layout = {**_given(field, keys), "line": self._line(place)}
        if field.kind == "choice":
            layout["fields"] = self._fields(field.fields, entry.one_of or (), (*place, "one_of"), version)
        elif field.element == "struct":
            struct = self._spec.structs[field.type]
            layout["fields"] = self._fields(
                field.fields, struct.fields, ("structs", field.type, "fields"), version
            )
        elif field.kind == "list":
            layout["fields"] = [self._field(field.fields[0], entry, place, version)]
        elif field.kind == "tuple":
            tuples = ("tuples", field.type)
            layout["source"] = self._spec.tuples[field.type].source
            layout["countLine"] = self._line((*tuples, "count"))
            layout["cells"] = [
                {
                    **_given(cell, "form tag doc length_size"),
                    "line": self._line((*tuples, "cells", cell.form)),
                }
                for cell in field.cells
            ]
        return layout


def _given(record: msgspec.Struct, names: str) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in names.split()}
    return {name: value for name, value in values.items() if value or (value == 0 and name == "literal")}
