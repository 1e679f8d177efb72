"""Checks of the spec's names: style, uniqueness, reserved names, summaries, and tags of messages."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator, Mapping

from codegen.model import Enum, Flags, Message, Spec, Structure
from codegen.resolve import snake
from codegen.rules.common import Problem, entries, tags
from codegen.yamlfile import Place

_STYLES = {
    "snake_case": re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*"),
    "CamelCase": re.compile(r"([A-Z]+[a-z0-9]+)+[A-Z]*"),
    "kebab-case": re.compile(r"[a-z]+(-[a-z]+)*"),
    "CAPITALS": re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*"),
}

_SUMMARY = 102
"""Maximum length of the first line of a generated docstring, in characters."""

_NOT_FOR_TYPES = (
    "cell", "class_var", "decoders", "encoders", "item", "layout", "literal", "message", "messages", "parts",
    "streaming", "text", "type_alias", "unchanged", "versions",
)  # fmt: skip
"""Names that types and messages cannot have (in snake_case), because generated modules use them."""

_NOT_FOR_FIELDS = {
    "type": "is the name of the message in tables",
    "wire_tag": "is the tag in message classes",
    "capture": "is the file in tables of captured messages",
    "position": "is the place in that file",
}


def styles(spec: Spec) -> Iterator[Problem]:
    """Check styles of names: CamelCase for types and messages, snake_case for fields, CAPITALS for values."""
    for place, style, what in _named(spec):
        if not _STYLES[style].fullmatch(str(place[-1])):
            yield place, f"`{place[-1]}`: {what} is named in {style}"
    for place, entry, _ in entries(spec):
        name = entry.name
        if name is None:
            continue
        if not _STYLES["snake_case"].fullmatch(name):
            yield (*place, "name"), f"`{name}`: a field is named in snake_case"
        if keyword.iskeyword(name) or (hasattr(builtins, name) and name != "type"):
            yield (*place, "name"), f"`{name}`: a field cannot be named like a Python keyword or builtin"
        if name in _NOT_FOR_FIELDS:
            yield (*place, "name"), f"a field cannot be named `{name}`: that {_NOT_FOR_FIELDS[name]}"


def _named(spec: Spec) -> Iterator[tuple[Place, str, str]]:
    sections: dict[str, tuple[Mapping[str, object], str, str]] = {
        "options": (spec.options, "snake_case", "an option"),
        "scalars": (spec.scalars, "snake_case", "a scalar"),
        "enums": (spec.enums, "CamelCase", "an enum"),
        "flags": (spec.flags, "CamelCase", "a set of flags"),
        "tuples": (spec.tuples, "CamelCase", "a tuple"),
        "structs": (spec.structs, "CamelCase", "a struct"),
        "rules": (spec.rules, "kebab-case", "a rule"),
    }
    for section, (records, style, what) in sections.items():
        for name in records:
            yield (section, name), style, what
    for protocol in spec.protocols.values():
        for name in protocol.messages:
            yield ("messages", name), "CamelCase", "a message"
    for name, enum in spec.enums.items():
        for member in enum.values:
            yield ("enums", name, "values", member), "CAPITALS", "a value"
    for name, flags in spec.flags.items():
        for bit in flags.bits:
            yield ("flags", name, "bits", bit), "CAPITALS", "a bit"


def unique(spec: Spec) -> Iterator[Problem]:
    """Check that names of types and messages are unique in snake_case, and that none is reserved."""
    seen: dict[str, Place] = {}
    for place, _, what in _named(spec):
        if len(place) > 2 or place[0] in ("options", "rules"):
            continue
        name = place[1]
        key = snake(str(name))
        if key in seen:
            where, other = seen[key]
            yield place, f"`{name}`: {where} has `{other}` already, which is the same in snake_case"
        if key in _NOT_FOR_TYPES:
            yield place, f"`{name}`: {what} cannot have this name, which generated code needs"
        seen[key] = place


def summaries(spec: Spec) -> Iterator[Problem]:
    """Check that the first sentence of each `doc` that becomes a docstring fits on a line."""
    documented: list[tuple[str, Mapping[str, Enum | Flags | Structure | Message]]] = [
        ("enums", spec.enums),
        ("flags", spec.flags),
        ("structs", spec.structs),
        *(("messages", protocol.messages) for protocol in spec.protocols.values()),
    ]
    for section, records in documented:
        for name, record in records.items():
            first = re.split(r"(?<=\.)\s", record.doc, maxsplit=1)[0]
            if len(first) > _SUMMARY:
                text = f"has {len(first)} characters; at most {_SUMMARY} fit on a line"
                yield (section, name, "doc"), f"{name}: the first sentence of `doc` {text}"


def message_tags(spec: Spec) -> Iterator[Problem]:
    """Check that a message tag is one character and that no two messages of a protocol have the same tag."""
    for protocol in spec.protocols.values():
        by_age = spec.by_age(protocol.messages)
        messages = {name: one.tag for name, one in by_age.items() if one.tag is not None}
        yield from tags(("messages",), messages, "tag")
