"""Functions that several rules share: iteration over field lists, names in errors, and the check of tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from codegen.model import Entry, Spec
from codegen.yamlfile import Place

Problem = tuple[Place, str]
Rule = Callable[[Spec], Iterator[Problem]]

INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int16", "int32", "int64")
"""Wire types of integers."""

COUNTS = ("uint8", "uint16", "uint32")
"""Wire types that a count or length may have."""


def field_lists(spec: Spec) -> Iterator[tuple[Place, str, list[Entry]]]:
    """Yield the field list of each message and struct: its place, the owner's name, and its entries."""
    for protocol in spec.protocols.values():
        for name, message in protocol.messages.items():
            yield ("messages", name, "fields"), name, message.fields
    for name, struct in spec.structs.items():
        yield ("structs", name, "fields"), name, struct.fields


def walk(fields: list[Entry], place: Place) -> Iterator[tuple[Place, Entry]]:
    """Yield each entry of a field list with its path in the file; after a choice, also its alternatives."""
    for i, entry in enumerate(fields):
        yield (*place, i), entry
        yield from walk(entry.one_of or [], (*place, i, "one_of"))


def entries(spec: Spec) -> Iterator[tuple[Place, Entry, str]]:
    """Yield each entry of all field lists: its place, the entry, and its name for error messages."""
    for place, owner, fields in field_lists(spec):
        for below, entry in walk(fields, place):
            yield below, entry, f"{owner}.{label(entry)}"


def label(entry: Entry) -> str:
    """Return an entry's name for error messages."""
    if entry.one_of:
        return "|".join(str(side.name) for side in entry.one_of)
    if entry.name:
        return entry.name
    for key in ("count", "length", "end"):
        if target := getattr(entry, key):
            return f"{key} of {target}"
    return "?"


def wire(spec: Spec, entry: Entry) -> str:
    """Return the wire type (such as `uint32`) of an entry with a scalar type, else an empty text."""
    return spec.scalars[entry.type].wire if entry.type in spec.scalars else ""


def tags(place: Place, tags: dict[str, str], what: str) -> Iterator[Problem]:
    """Check that each value of `tags` is one ASCII character and occurs once. Errors call a value `what`."""
    seen: dict[str, str] = {}
    for name, tag in tags.items():
        if not is_tag(tag):
            yield (*place, name, what), f"{name}: the {what} `{tag}` is not one ASCII character"
        elif tag in seen:
            other = seen[tag]
            yield (
                (*place, name, what),
                f"{name}: duplicate {what} `{tag}`, already that of {other}: choose another",
            )
        seen[tag] = name


def is_tag(text: str) -> bool:
    """Return whether a text can be a tag: a visible ASCII character that needs no escape."""
    return len(text) == 1 and "!" <= text <= "~" and text not in "\"'\\"
