"""JSON Schema of kits, requests and answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from logicalrep import _protocols, messages
from logicalrep._layout import Field, Message
from logicalrep.vectors.model import Answer, Json, Manifest, Request, Vector

_REF: Final = "#/$defs/{name}"
_HEX: Final[Json] = {"type": "string", "pattern": "^([0-9a-f]{2})*$"}


def _object(properties: Json, required: Iterable[str]) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _ref(name: str) -> Json:
    return {"$ref": _REF.format(name=name)}


_VALUES: Final[Json] = {
    "Lsn": {"type": "string", "pattern": "^[0-9A-F]{1,8}/[0-9A-F]{1,8}$"},
    "Time": {
        "description": "ISO 8601, or microseconds since 2000 UTC if the year is not between 1 and 9999.",
        "anyOf": [{"type": "string"}, {"type": "integer"}],
    },
    "Bytes": _object({"binary": _HEX}, ["binary"]),
    "Text": {
        "description": "A string, or the bytes of a text that is not valid UTF-8.",
        "anyOf": [{"type": "string"}, _object({"text_hex": _HEX}, ["text_hex"])],
    },
    "Cell": {
        "description": "NULL, a value in text or binary format, or an unchanged TOASTed value.",
        "anyOf": [
            {"type": "null"},
            _ref("Text"),
            _ref("Bytes"),
            _object({"unchanged": {"const": True}}, ["unchanged"]),
        ],
    },
}
"""JSON Schemas of the values of fields, by name in `$defs`."""


def schema() -> Json:
    """Return the JSON Schema of vectors, requests, answers, manifests and messages, by name in `$defs`."""
    _, components = msgspec.json.schema_components((Vector, Request, Answer, Manifest), ref_template=_REF)
    layouts = [*_protocols.ALL_VERSIONS.messages, *_protocols.ENVELOPE.messages]
    components["Vector"]["properties"]["expected"]["items"] = {"anyOf": [_ref(one.name) for one in layouts]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Test vectors for decoders of PostgreSQL's logical replication protocol",
        "description": "A line of *.jsonl is a Vector, manifest.json is a Manifest.",
        "$ref": "#/$defs/Vector",
        "$defs": components | _VALUES | {one.name: _message(one) for one in layouts},
    }


def _message(layout: Message) -> Json:
    properties: Json = {"type": {"const": layout.name}}
    properties |= {field.name: _value(field) for field in layout.members}
    return {"description": layout.doc} | _object(properties, ["type", *_required(layout.name)])


def _required(name: str) -> list[str]:
    """Return the fields that the message or struct `name` has in every version, in stream blocks or not."""
    return [one.name for one in msgspec.structs.fields(getattr(messages, name)) if one.required]


def _value(field: Field) -> Json:
    return {"description": field.doc} | _type(field)


def _type(field: Field) -> Json:
    match field.kind:
        case "tuple":
            return {"type": "array", "items": _ref("Cell")}
        case "list" if field.element == "struct":
            properties = {one.name: _value(one) for one in field.fields}
            return {"type": "array", "items": _object(properties, _required(field.type))}
        case "list":
            return {"type": "array", "items": _type(field.fields[0])}
        case "string":
            return _ref("Text")
        case "bytes" | "rest":
            return _ref("Bytes")
        case "bool":
            return {"type": "boolean"}
        case "enum":
            return {"enum": list(field.values)}
    if field.type in ("lsn", "timestamp"):
        return _ref({"lsn": "Lsn", "timestamp": "Time"}[field.type])
    return _integer(field)


def _integer(field: Field) -> Json:
    bits = field.size * 8
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if field.signed else (0, (1 << bits) - 1)
    return {"type": "integer", "minimum": low, "maximum": field.mask if field.kind == "flags" else high}
