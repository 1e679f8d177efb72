"""The protocol explorer: one HTML file with the codec in JavaScript, the page's sources and its data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from codegen import example_streams, states
from codegen.javascript import MODULES, Layouts, script, to_json
from codegen.model import Spec
from codegen.resolve import View
from codegen.yamlfile import YamlFile

NAME = "explorer/index.html"
"""Path of the page below the output folder."""

SOURCES = Path(__file__).parent / "templates/explorer"

CORE = (
    "bytes",
    "stream",
    "tracker",
    "rules",
    "checker",
    "store",
    "files",
    "texts",
    "packets",
    "edit",
    "values",
    "cells",
    "index",
    "search",
)
"""Modules that run both in the page and in its web worker, which has no DOM."""

PAGE = ("elements", "state", "list", "lanes", "hex", "fields", "spec", "versions", "permalink", "page")
"""Modules that run only in the page."""


def sources() -> dict[str, str]:
    """Return the text of each source file of the page, by its name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.*"))}


def codec(modules: Mapping[str, str]) -> str:
    """Return the codec as one script; `modules` has the text of each module by file name."""
    return script([modules[f"{name}.js"] for name in MODULES])


def tables(spec: Spec, versions: Mapping[int, View], envelope: View, layouts: Layouts) -> str:
    """Return the explorer's data (layouts, states, examples) as JSON that is safe in an HTML script."""
    first = example_streams.example(spec, versions[min(versions)]).messages[1]
    data = layouts.tables | {
        "versions": {
            number: layouts.tables["versions"][number]
            | {"states": list(states.diagram(view).transitions), "example": _example(spec, view)}
            for number, view in versions.items()
        },
        "envelope": layouts.tables["envelope"]
        | {
            "example": [
                {"copydata" if sender == "server" else "sent": data.hex()}
                for sender, data in example_streams.envelopes(envelope, first)
            ],
        },
        "states": states.STATES,
        "types": {
            oid: label
            for name, one in spec.types.items()
            for oid, label in ((one.oid, name), (one.array_oid, f"{name}[]"))
            if oid
        },
        "files": {file.path.name: _file(file) for file in spec.files if "messages" in file.data},
    }
    return to_json(data).replace("</", "<\\/")


def _example(spec: Spec, view: View) -> dict[str, Any]:
    streaming, two_phase, messages = example_streams.example(spec, view)
    return {"streaming": streaming, "two_phase": two_phase, "messages": [one.hex() for one in messages]}


def _file(file: YamlFile) -> dict[str, str]:
    return {"source": file.data["source"], "text": file.text}
