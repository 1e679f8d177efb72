"""JSON Schema of the spec's YAML files: editors use the schema to complete keys and to mark mistakes.

The schema is made from the classes in `model`. The loader checks keys and types by the same classes, and the
package `rules` checks everything else.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from codegen import files
from codegen.load import SECTIONS

NAME = "spec.schema.json"
"""Name of the schema's file in the folder of the generated files."""


def text() -> str:
    """Return the JSON Schema as the text of its file."""
    _, records = msgspec.json.schema_components([*SECTIONS.values()], ref_template="#/$defs/{name}")
    sections = {
        section: {
            "description": f"The section `{section}`: names, and for each: {_summary(record)}",
            "type": "object",
            "additionalProperties": {"$ref": f"#/$defs/{record.__name__}"},
        }
        for section, record in SECTIONS.items()
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": f"{files.MARK} codegen/model.py. Do not edit.",
        "title": "Spec of messages",
        "description": "spec/README.md explains the keys.",
        "type": "object",
        "properties": {
            **{key: {"type": "string"} for key in ("protocol", "title", "source", "doc")},
            "length": {"enum": ["int32"]},
            **sections,
        },
        "additionalProperties": False,
        "$defs": {name: _without_null(record) for name, record in records.items()},
    }
    return json.dumps(schema, indent=1) + "\n"


def _summary(record: type[Any]) -> str:
    return (record.__doc__ or "").split("\n\n")[0]


def _without_null(schema: Any) -> Any:
    """Return the schema without null as a valid type: YAML files leave a key out instead."""
    if isinstance(schema, list):
        return [_without_null(one) for one in schema if one != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    result = {key: _without_null(value) for key, value in schema.items() if (key, value) != ("default", None)}
    sole = result["anyOf"] if len(result.get("anyOf", ())) == 1 else []
    result |= sole[0] if sole else {}
    return {key: value for key, value in result.items() if not (sole and key == "anyOf")}
