"""Checks of the spec's field lists: kind, type and condition of entries, their order, and choices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from codegen.model import Entry, Spec
from codegen.resolve import SIZES
from codegen.rules.common import COUNTS, INTEGERS, Problem, entries, field_lists, is_tag, label, walk, wire
from codegen.yamlfile import Place, nearest, unknown

_FORMS = ("name", "count", "length", "end", "one_of")
_NOT_IN_CHOICE = ("type", "list_of", "tag", "literal", "when", "option", "source", "server", "doc")
_NOT_IN_SIDE = ("when", "versions", "optional", "list_of", "one_of")


def _given(entry: Entry, keys: tuple[str, ...]) -> list[str]:
    return [key for key in keys if getattr(entry, key) not in (None, False)]


def forms(spec: Spec) -> Iterator[Problem]:
    """Check that each entry is a field, a count, a length or a choice, and has only the keys of that kind."""
    for place, entry, name in entries(spec):
        found = _given(entry, _FORMS)
        if len(found) != 1:
            yield place, f"{name}: an entry has exactly one of {', '.join(_FORMS)}"
        elif found == ["one_of"]:
            if extra := _given(entry, _NOT_IN_CHOICE):
                text = "a choice has only `one_of`, `optional` and `versions`"
                yield (*place, extra[0]), f"{name}: {text}, not `{extra[0]}`"
        elif entry.doc is None:
            yield place, f"{name}: `doc` is missing"
        elif entry.optional:
            yield (*place, "optional"), f"{name}: only a choice (`one_of`) can be optional"
        elif (entry.count or entry.length) and entry.type is None:
            yield place, f"{name}: `type` is missing: write one of {', '.join(COUNTS)}"
        elif len(_given(entry, ("type", "list_of"))) != 1:
            yield place, f"{name}: expected exactly one of `type` and `list_of`"
        elif (entry.count or entry.length) and (extra := _given(entry, ("list_of", "tag", "literal"))):
            yield (*place, extra[0]), f"{name}: a count or length has no `{extra[0]}`"
        elif entry.end and (entry.type is None or entry.literal is None):
            yield place, f"{name}: an end is a constant: write `type` and `literal`"
        elif entry.list_of is not None and (extra := _given(entry, ("tag", "literal"))):
            yield (*place, extra[0]), f"{name}: a list cannot have `{extra[0]}`"


def types(spec: Spec) -> Iterator[Problem]:
    """Check that the type of each entry exists and is allowed for its use, for example as a count."""
    known = [*spec.scalars, *spec.enums, *spec.flags, *spec.tuples]
    for place, entry, name in entries(spec):
        if entry.type is not None:
            if entry.type not in known:
                yield (*place, "type"), f"{name}: {_unknown_type(entry.type, known, spec)}"
            else:
                yield from _type(spec, place, name, entry)
        elif entry.list_of in spec.scalars:
            if not _can_repeat(spec, entry.list_of):
                text = f"a list of `{entry.list_of}` cannot be read; lists are of {_elements(spec)}"
                yield (*place, "list_of"), f"{name}: {text}"
        elif entry.list_of is not None and entry.list_of not in (spec.structs | spec.tuples):
            integers = [name for name in spec.scalars if _can_repeat(spec, name)]
            text = unknown("type", entry.list_of, [*integers, *spec.structs, *spec.tuples])
            text = f"lists are of {_elements(spec)}: {text}"
            yield (*place, "list_of"), f"{name}: {text}"


def _elements(spec: Spec) -> str:
    """Return the types that the elements of a list can have, in words for error texts."""
    return (
        "integers, strings, bytes with `length` or structs" if spec.plain else "integers, structs or tuples"
    )


def _can_repeat(spec: Spec, name: str) -> bool:
    """Return whether a list can have elements of this scalar type: their size must be known."""
    scalar = spec.scalars[name]
    return scalar.wire in INTEGERS or (spec.plain and (scalar.wire == "cstring" or scalar.length is not None))


def _unknown_type(name: str, known: Iterable[str], spec: Spec) -> str:
    if name in spec.structs:
        return f"`{name}` is a struct: write `list_of: {name}`, and before the field a count"
    text = unknown("type", name, known)
    return text if text.endswith("?") else f"{text}; define a new type in `scalars`, `enums` or `flags`"


def _type(spec: Spec, place: Place, name: str, entry: Entry) -> Iterator[Problem]:
    its_wire = wire(spec, entry)
    if entry.tag is None and entry.type in spec.tuples:
        yield place, f"{name}: a tuple needs a `tag` before it"
    if entry.tag is not None and entry.type not in spec.tuples:
        yield (*place, "tag"), f"{name}: only a tuple has a `tag` before it, `{entry.type}` has none"
    if entry.tag is not None and not is_tag(entry.tag):
        yield (*place, "tag"), f"{name}: the tag `{entry.tag}` is not one ASCII character"
    if (entry.count or entry.length) and its_wire not in COUNTS:
        text = f"a count or length is one of {', '.join(COUNTS)}, not `{entry.type}`"
        yield (*place, "type"), f"{name}: {text}"
    if entry.literal is not None and not spec.plain and (its_wire, entry.literal) not in _LITERALS:
        yield (*place, "literal"), f"{name}: a literal is a number from 0 to 255 of type uint8"
    elif entry.literal is not None and (text := _literal(spec, entry)):
        yield (*place, "literal"), f"{name}: {text}"


_LITERALS = {("uint8", value) for value in range(256)}
"""Wire type and value of each constant that a spec with versions can have."""


def _literal(spec: Spec, entry: Entry) -> str:
    """Return what is wrong with the constant under the key `literal` of an entry; empty if nothing is."""
    its_wire = wire(spec, entry)
    if its_wire in INTEGERS:
        bits = SIZES[its_wire] * 8
        low, high = (-(1 << bits - 1), 1 << bits - 1) if its_wire[0] == "i" else (0, 1 << bits)
        valid = isinstance(entry.literal, int) and low <= entry.literal < high
        return "" if valid else f"a literal of type {entry.type} is a number from {low} to {high - 1}"
    size = spec.scalars[entry.type].size if entry.type in spec.scalars else None
    if size is None:
        return "a literal is an integer, or bytes with a `size`"
    digits = "" if isinstance(entry.literal, int) else str(entry.literal)
    if not re.fullmatch(f"([0-9a-fA-F]{{2}} ?){{{size}}}", digits):
        return f"a literal of type {entry.type} is {size} bytes, as text of hexadecimal digits"
    return ""


def conditions(spec: Spec) -> Iterator[Problem]:
    """Check that each condition (`when`) names a context or a value of the option `streaming`.

    A context is a state of the stream, such as `in_stream`: a stream block is open.
    """
    streaming = spec.options["streaming"].values
    for place, entry, name in entries(spec):
        at = (*place, "when")
        if entry.when is not None and entry.literal is not None:
            yield at, f"{name}: a literal is always sent; it cannot have `when`"
        if isinstance(entry.when, str):
            if entry.when not in spec.contexts:
                yield at, f"{name}: {unknown('context', entry.when, spec.contexts)}"
        elif entry.when is not None:
            if list(entry.when) != ["streaming"]:
                given = ", ".join(entry.when)
                text = f"`when` takes a context or one value of streaming, not `{given}`"
                yield at, f"{name}: {text}"
            elif (value := str(entry.when["streaming"])) not in streaming:
                text = unknown("value", value, streaming)
                yield at, f"{name}: `streaming`: {text}"


def order(spec: Spec) -> Iterator[Problem]:
    """Check that each list is after its count, each `bytes` field after its length, and `rest` at the end.

    A field of type `rest` has all remaining bytes of the message.
    """
    for place, owner, fields in field_lists(spec):
        seen: set[str] = set()
        pending: dict[tuple[str, str], int] = {}
        yield from _sizes(spec, place, owner, fields)
        for i, entry in enumerate(fields):
            here = (*place, i)
            name = f"{owner}.{label(entry)}"
            if i and wire(spec, fields[i - 1]) == "rest" and not _apart(fields[i - 1], entry):
                text = "nothing can follow a field that takes the rest of the message"
                yield here, f"{name}: {text}"
            sides = [((*here, "one_of", j), side) for j, side in enumerate(entry.one_of or ())]
            for below, one in [(here, entry), *sides]:
                if one.name is not None and one.name in seen:
                    yield (*below, "name"), f"{owner}.{one.name}: duplicate field"
                seen.add(one.name or "")
            for kind, target in (("count", entry.count), ("length", entry.length)):
                if target is not None and (kind, target) in pending:
                    yield here, f"{owner}: a second {kind} of `{target}`"
                if target is not None:
                    pending[kind, target] = i
            if entry.end is not None and (not i or fields[i - 1].name != entry.end):
                yield (*here, "end"), f"{name}: an end comes directly after its list"
            elif entry.end is not None and fields[i - 1].list_of is None:
                yield (*here, "end"), f"{name}: only a list has an end"
            elif entry.end is not None and fields[i - 1].when != entry.when:
                yield here, f"{name}: its list has another condition: give both the same `when`"
            if entry.name is None or not (needs := _needs(spec, fields, i)):
                continue
            if (needs, entry.name) not in pending:
                what = f"{{{needs}: {entry.name}, type: uint32, doc: …}}"
                yield here, f"{name}: no {needs} comes before it: write {what}"
                continue
            size = fields[pending.pop((needs, entry.name))]
            if (size.versions, size.when) != (entry.versions, entry.when):
                yield here, f"{name}: its {needs} has another gate or condition"


def _apart(one: Entry, other: Entry) -> bool:
    """Return whether no message has both entries, because they need different values of one field."""
    return (
        isinstance(one.when, dict)
        and isinstance(other.when, dict)
        and (one.when.keys() == other.when.keys() and one.when != other.when)
    )


def _sizes(spec: Spec, place: Place, owner: str, fields: list[Entry]) -> Iterator[Problem]:
    """Check that each count and length names a field that needs it."""
    sized = [(_needs(spec, fields, i), entry.name or "") for i, entry in enumerate(fields)]
    for i, entry in enumerate(fields):
        for kind, target, what in (
            ("count", entry.count, "list"),
            ("length", entry.length, "field of bytes"),
        ):
            if target is not None and (kind, target) not in sized:
                remedy = nearest(target, (name for needs, name in sized if needs == kind))
                text = f"a {kind} of `{target}`, but no such {what} follows{remedy or ': add it'}"
                yield (*place, i), f"{owner}: {text}"


def _needs(spec: Spec, fields: list[Entry], i: int) -> str:
    """Return whether field `i` needs a `count` or `length` before it; empty if neither."""
    entry = fields[i]
    if entry.list_of is not None:
        return "" if i + 1 < len(fields) and fields[i + 1].end is not None else "count"
    is_open = wire(spec, entry) == "bytes" and not (scalar := spec.scalars[entry.type or ""]).size
    return "length" if is_open and not scalar.length else ""


def choices(spec: Spec) -> Iterator[Problem]:
    """Check that tags show which alternative of a choice is sent, and whether an optional choice is sent."""
    for place, owner, fields in field_lists(spec):
        for i, entry in enumerate(fields):
            if entry.one_of is None:
                continue
            name = f"{owner}.{label(entry)}"
            if len(entry.one_of) < 2:
                yield (*place, i), f"{name}: a choice needs two sides at least"
            seen: set[str | None] = set()
            for j, side in enumerate(entry.one_of):
                here = (*place, i, "one_of", j)
                if side.name is None or side.tag is None or _given(side, _NOT_IN_SIDE):
                    yield here, f"{name}: a side of a choice is a tuple with name and tag, no more"
                if side.tag in seen:
                    yield (*here, "tag"), f"{name}: duplicate tag `{side.tag}`"
                seen.add(side.tag)
            if entry.optional and not _absence_is_visible(fields, i, seen):
                text = "behind an optional choice, a tuple with another tag must follow"
                yield (*place, i), f"{name}: {text}"


def _absence_is_visible(fields: list[Entry], i: int, tags: set[str | None]) -> bool:
    if i + 1 == len(fields):
        return False
    after = fields[i + 1]
    return (
        after.tag is not None
        and after.tag not in tags
        and after.when is None
        and after.versions in (None, fields[i].versions)
    )


def structs(spec: Spec) -> Iterator[Problem]:
    """Check that a struct has no lists, tuples or conditions, and at least one field in all versions."""
    for name, struct in spec.structs.items():
        place = ("structs", name, "fields")
        for i, entry in enumerate(struct.fields):
            if entry.name is None or _given(entry, ("list_of", "tag", "when", "literal")):
                yield (*place, i), f"{name}.{label(entry)}: a struct holds plain fields only"
            elif wire(spec, entry) in ("bytes", "rest"):
                text = f"a struct cannot hold `{entry.type}`"
                yield (*place, i, "type"), f"{name}.{entry.name}: {text}"
        if all(entry.versions is not None for entry in struct.fields):
            yield place, f"{name}: a struct needs a field that all versions have"


def columns(spec: Spec) -> Iterator[Problem]:
    """Check that fields with the same name have the same type: the Arrow schema has one column for them."""
    for protocol in spec.protocols.values():
        found: dict[str, list[tuple[Place, str, str]]] = {}
        for name, message in protocol.messages.items():
            for place, entry in walk(message.fields, ("messages", name, "fields")):
                if entry.name is not None and entry.literal is None:
                    what = entry.type or f"list of {entry.list_of}"
                    found.setdefault(entry.name, []).append((place, name, what))
        for field, uses in found.items():
            # The most frequent type is right, the first one if there is a tie; all others are reported.
            counts = Counter(what for _, _, what in uses)
            usual = max(counts, key=lambda what: counts[what])
            where = next(name for _, name, what in uses if what == usual)
            for place, name, what in uses:
                if what != usual:
                    text = f"is {what} here and {usual} in {where}: one name, one type: rename the field"
                    yield place, f"{name}.{field}: {text}"
