"""Kaitai Struct specifications (`.ksy`): the messages of one protocol version for Kaitai's compiler.

Kaitai's compiler makes parsers in many languages from a `.ksy`. What a parser cannot know from the bytes,
such as whether a stream block is open, is a parameter of the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from codegen.files import MARK
from codegen.model import Protocol, Spec
from codegen.resolve import Field, MessageView, View, resolve, snake

Node = dict[str, Any]
"""A mapping of a `.ksy`, in the order in which its keys are written."""

_REFUSED = "trailing_bytes"


class NotExportable(Exception):
    """The spec has something that the exporter cannot describe in a `.ksy`."""


def files(spec: Spec) -> dict[str, str]:
    """Return the texts of the `.ksy` files by name: one for each protocol version, and one for envelopes."""
    pgoutput, replication = (spec.protocols[name] for name in ("pgoutput", "replication"))
    views = {f"pgoutput_v{number}": _sent(spec, pgoutput, number) for number in spec.versions}
    views["pgoutput_envelope"] = resolve(spec, replication, None)
    return {f"{name}.ksy": _text(_root(name, view)) for name, view in views.items()}


def _sent(spec: Spec, protocol: Protocol, version: int) -> View:
    """Return the messages that a client of a protocol version can receive, as a `View` of the spec.

    These are the messages of the version, and messages with `any_version`: a later version has defined them,
    but servers send them to clients of earlier versions too.
    """
    view = resolve(spec, protocol, version)
    later = (resolve(spec, protocol, number) for number in spec.versions if number > version)
    extra = tuple(
        one for view in later for one in view.messages if one.any_version and one.since == view.version
    )
    return msgspec.structs.replace(view, messages=view.messages + extra)


def _text(root: Node) -> str:
    body = yaml.dump(root, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return f"# {MARK} spec/. Do not edit.\n{body}"


class _Dumper(yaml.SafeDumper):
    """Dumper that indents lists, and writes equal values twice instead of as aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _root(name: str, view: View) -> Node:
    version = "" if view.version is None else f", protocol version {view.version}"
    types: Node = {}
    enums: Node = {"message_type": {ord(one.tag): {"id": one.snake, "doc": one.doc} for one in view.messages}}
    for message in view.messages:
        fields = [*_sequence(message.fields)]
        owner: Node = {"doc": message.doc, "doc-ref": message.source}
        types[message.snake] = owner | _params(message.fields) | _members(fields)
        for field in message.members:
            _add_types(field, types, enums)
    cases = {f"message_type::{one.snake}": _call(one) for one in view.messages}
    sequence = [
        {"id": "tag", "type": "u1", "enum": "message_type", "valid": {"in-enum": True}},
        {"id": "body", "type": {"switch-on": "tag", "cases": cases}},
        {"id": _REFUSED, "size-eos": True, "valid": {"expr": "_.length == 0"}},
    ]
    return {
        "meta": {
            "id": name,
            "title": f"{view.protocol.title}{version}",
            "license": "PostgreSQL",
            "ks-version": "0.11",
            "endian": "be",
        },
        "doc": view.protocol.doc,
        **_params(tuple(field for message in view.messages for field in message.fields)),
        "seq": sequence,
        "types": types,
        "enums": enums,
    }


_PARAMS = {
    "in_stream": {"id": "in_stream", "type": "bool", "doc": "Whether a stream block is open."},
    "streaming": {"id": "streaming", "type": "str", "doc": "Value of the option streaming."},
}


def _names(fields: tuple[Field, ...]) -> list[str]:
    """Return the names of the parameters that the conditions of these fields use."""
    used = {field.when.split(" ")[0] for field in fields if field.when}
    if unknown := used - _PARAMS.keys():
        raise NotExportable(f"`when: {min(unknown)}`: only in_stream and streaming can be exported")
    return [name for name in _PARAMS if name in used]


def _params(fields: tuple[Field, ...]) -> Node:
    names = _names(fields)
    return {"params": [_PARAMS[name] for name in names]} if names else {}


def _call(message: MessageView) -> str:
    names = _names(message.fields)
    return f"{message.snake}({', '.join(names)})" if names else message.snake


def _condition(field: Field) -> str | None:
    if field.when is None:
        return None
    option, _, value = field.when.partition(" = ")
    return f'{option} == "{value}"' if value else option


def _members(fields: list[Node]) -> Node:
    """Return `seq` and `instances` of a type. An instance decodes an entry with the key `text` as text."""
    texts = {one["text"]: one for one in fields if "text" in one}
    instances = {
        name: {"value": f'{one["id"]}.to_s("UTF-8")'} | ({"if": one["if"]} if "if" in one else {})
        for name, one in texts.items()
    }
    sequence = [{key: value for key, value in one.items() if key != "text"} for one in fields]
    return {"seq": sequence} | ({"instances": instances} if instances else {})


def _sequence(fields: tuple[Field, ...]) -> Iterator[Node]:
    """Yield the entries of `seq` for the fields of a message or struct, in wire order."""
    pending: Field | None = None
    for field in fields:
        condition = _condition(field)
        if field.kind == "choice":
            tags = [ord(side.tag or "") for side in field.fields]
            if field.optional:
                pending = field
            else:
                yield _tag(field, tags)
                yield from _sides(field, _tag_name(field))
        elif field.kind == "tuple" and pending is not None:
            # The same byte is the choice's tag or, if the choice is not sent, the tag of this tuple.
            first = _tag_name(pending)
            sides = [ord(side.tag or "") for side in pending.fields]
            yield _tag(pending, [*sides, ord(field.tag or "")])
            yield from _sides(pending, first)
            yield {
                "id": f"tag_{field.name}",
                "contents": field.tag,
                "if": f"{first} != {ord(field.tag or '')}",
            }
            yield {"id": field.name, "type": snake(field.type), "doc": field.doc}
            pending = None
        else:
            for node in _plain(field):
                yield node | ({"if": condition} if condition else {})


def _tag_name(choice: Field) -> str:
    return "tag_" + "_or_".join(side.name for side in choice.fields)


def _tag(choice: Field, tags: list[int]) -> Node:
    return {"id": _tag_name(choice), "type": "u1", "valid": {"any-of": tags}}


def _sides(choice: Field, tag: str) -> Iterator[Node]:
    for side in choice.fields:
        sent = f"{tag} == {ord(side.tag or '')}"
        yield {"id": side.name, "type": snake(side.type), "if": sent, "doc": side.doc}


_INTEGERS = {
    (size, signed): f"{'s' if signed else 'u'}{size}" for size in (1, 2, 4, 8) for signed in (False, True)
}


def _plain(field: Field) -> list[Node]:
    """Return the entries of `seq` for a field that is not a choice."""
    node: Node = {"id": field.name}
    about: Node = {"doc": field.doc}
    match field.kind:
        case "integer":
            return [node | {"type": _INTEGERS[field.size, field.signed]} | about]
        case "bool":
            padding = {"id": f"padding_{field.name}", "type": "b7", "valid": 0}
            return [padding, node | {"type": "b1"} | about]
        case "enum":
            enum = {"type": "u1", "enum": snake(field.type), "valid": {"in-enum": True}}
            return [node | enum | about]
        case "flags":
            return [node | {"type": snake(field.type)} | about]
        case "literal":
            return [node | {"contents": [field.literal]} | about]
        case "count":
            return [{"id": f"num_{field.of}", "type": _INTEGERS[field.size, False]} | about]
        case "length":
            return [{"id": f"len_{field.of}", "type": _INTEGERS[field.size, False]} | about]
        case "string":
            return [{"id": f"{field.name}_bytes", "text": field.name, "terminator": 0} | about]
        case "bytes":
            return [node | {"size": f"len_{field.name}"} | about]
        case "rest":
            return [node | {"size-eos": True} | about]
        case "tuple":
            tag = [{"id": f"tag_{field.name}", "contents": field.tag}] if field.tag else []
            return [*tag, node | {"type": snake(field.type)} | about]
        case "list":
            item = field.fields[0]
            element = _INTEGERS[item.size, item.signed] if field.element == "number" else snake(field.type)
            many = {"type": element, "repeat": "expr", "repeat-expr": f"num_{field.name}"}
            return [node | many | about]
    raise NotExportable(f"`{field.name}`: the exporter knows no field of the kind {field.kind}")


def _add_types(field: Field, types: Node, enums: Node) -> None:
    """Add the types and enums that a field of a message or struct uses."""
    name = snake(field.type)
    if field.kind == "enum":
        members = {ord(value): {"id": label.lower()} for value, label in field.values.items()}
        enums[name] = members
    elif field.kind == "flags":
        types[name] = {"doc": field.type_doc, "seq": [*_bits(field)]}
    elif field.kind == "tuple":
        _add_tuple(field, types, enums)
    elif field.kind == "list":
        if field.element == "struct":
            types[name] = _members([*_sequence(field.fields)])
        for inner in field.fields:
            _add_types(inner, types, enums)


def _bits(field: Field) -> Iterator[Node]:
    """Yield an entry for each bit of flags, from the highest. Bits that are not defined must be 0."""
    for bit in range(7, -1, -1):
        label = field.values.get(str(1 << bit))
        if label is None:
            yield {"id": f"unused_{1 << bit}", "type": "b1", "valid": False}
        else:
            yield {"id": label.lower(), "type": "b1"}


def _add_tuple(field: Field, types: Node, enums: Node) -> None:
    name = snake(field.type)
    form, cell = f"{name}_form", f"{name}_cell"
    types[name] = {
        "doc": field.type_doc,
        "seq": [
            {"id": "num_cells", "type": _INTEGERS[field.size, False]},
            {"id": "cells", "type": cell, "repeat": "expr", "repeat-expr": "num_cells"},
        ],
    }
    enums[form] = {ord(one.tag): {"id": one.form, "doc": one.doc} for one in field.cells}
    sizes = {
        f"{form}::{one.form}": _INTEGERS[one.length_size, False] for one in field.cells if one.length_size
    }
    sent = " or ".join(f"form == {one}" for one in sizes)
    types[cell] = {
        "seq": [
            {"id": "form", "type": "u1", "enum": form, "valid": {"in-enum": True}},
            {"id": "len_value", "type": {"switch-on": "form", "cases": sizes}, "if": sent},
            {"id": "value", "size": "len_value", "if": sent},
        ],
    }
