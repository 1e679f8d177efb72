"""Checks of a spec without versions, and of the keys and values that only such a spec may have."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.model import Entry, Spec
from codegen.rules.common import INTEGERS, Problem, entries, field_lists, label, wire
from codegen.yamlfile import Place, unknown

_SECTIONS = ("options", "contexts", "tuples", "types", "rules")
_MESSAGE_KEYS = ("role", "server", "option")
_ENTRY_KEYS = ("means", "because", "versions", "server", "option", "one_of", "tag")


def words(spec: Spec) -> Iterator[Problem]:
    """Check that a spec with versions uses no key or value that the compiled kernel does not support."""
    only = "only a spec without the section `versions` has"
    for name, scalar in spec.scalars.items():
        if scalar.wire == "int16":
            yield ("scalars", name, "wire"), f"{name}: {only} `wire: int16`"
        for key in ("size", "length", "null"):
            if getattr(scalar, key) is not None:
                yield ("scalars", name, key), f"{name}: {only} scalars with `{key}`"
    for protocol in spec.protocols.values():
        if protocol.length is not None:
            yield ("length",), f"{protocol.name}: {only} messages with a `length`"
        for name, message in protocol.messages.items():
            if message.tag is None:
                yield ("messages", name), f"{name}: `tag` is missing: {only} messages without tags"
    for place, entry, name in entries(spec):
        if entry.end is not None:
            yield (*place, "end"), f"{name}: {only} lists with an `end`; write a `count` before the list"
        if isinstance(entry.literal, str):
            yield (*place, "literal"), f"{name}: {only} literals of several bytes"


def sections(spec: Spec) -> Iterator[Problem]:
    """Check that a spec without versions has messages, and no section that needs versions."""
    if not spec.protocols:
        yield (), "no file has messages"
    for section in _SECTIONS:
        for name in getattr(spec, section):
            yield (section, name), f"a spec without the section `versions` has no `{section}`"


def keys(spec: Spec) -> Iterator[Problem]:
    """Check that messages and fields have no key that needs versions, and check messages without `tag`.

    A key that needs versions is `role`, for example. A message without `tag` must be the only message of its
    protocol.
    """
    text = "a spec without the section `versions` has no"
    for protocol in spec.protocols.values():
        untagged = [name for name, message in protocol.messages.items() if message.tag is None]
        if untagged and len(protocol.messages) > 1:
            alone = "a message without `tag` is the only one of its protocol"
            yield ("messages", untagged[0]), f"{untagged[0]}: {alone}: add `tag`"
        for name, message in protocol.messages.items():
            for key in _MESSAGE_KEYS:
                if getattr(message, key) is not None:
                    yield ("messages", name, key), f"{name}: {text} `{key}`"
    for place, entry, name in entries(spec):
        for key in _ENTRY_KEYS:
            if getattr(entry, key) is not None:
                yield (*place, key), f"{name}: {text} `{key}`"


def structs(spec: Spec) -> Iterator[Problem]:
    """Check that structs are not empty, have no conditions, and contain only structs defined above them."""
    above: list[str] = []
    for name, struct in spec.structs.items():
        if not struct.fields:
            yield ("structs", name, "fields"), f"{name}: a struct needs a field"
        for i, entry in enumerate(struct.fields):
            place, here = ("structs", name, "fields", i), f"{name}.{label(entry)}"
            if entry.when is not None:
                yield (*place, "when"), f"{here}: a field of a struct is always sent; it cannot have `when`"
            if wire(spec, entry) == "rest":
                yield (*place, "type"), f"{here}: a struct cannot hold the rest of the message"
            if entry.list_of in spec.structs and entry.list_of not in above:
                text = f"write the struct `{entry.list_of}` above `{name}`, which holds it"
                yield (*place, "list_of"), f"{here}: {text}"
        above.append(name)


def conditions(spec: Spec) -> Iterator[Problem]:
    """Check that each condition (`when`) compares an earlier integer field of the message with a number."""
    for place, owner, fields in field_lists(spec):
        integers: list[str | None] = []
        for i, entry in enumerate(fields):
            if entry.when is not None:
                yield from _condition((*place, i, "when"), f"{owner}.{label(entry)}", entry, integers)
            elif entry.literal is None and wire(spec, entry) in INTEGERS:
                integers.append(entry.name)


def _condition(place: Place, name: str, entry: Entry, integers: list[str | None]) -> Iterator[Problem]:
    if isinstance(entry.when, str) or len(entry.when or ()) != 1:
        yield place, f"{name}: `when` takes one field and its value: write {{kind: 5}}"
        return
    ((field, value),) = (entry.when or {}).items()
    known = [one for one in integers if one is not None]
    if field not in known:
        yield place, f"{name}: {unknown('earlier integer field', field, known)}"
    elif isinstance(value, str):
        yield place, f"{name}: `{field}` has a number, not `{value}`"
