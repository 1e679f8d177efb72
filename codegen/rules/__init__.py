"""What a spec must fulfil beyond its types. The first rule that is broken ends the run.

Each rule is a generator of problems: where it is, and what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol

from codegen.model import Entry, Gate, Spec
from codegen.yamlfile import Place, SpecError

Problem = tuple[Place, str]

ARROW_OF_WIRE = {
    "uint8": "int16", "uint16": "int32", "uint32": "int64", "uint64": "int64", "int32": "int32",
    "int64": "int64", "bool": "bool", "cstring": "string", "bytes": "binary", "rest": "binary",
}  # fmt: skip
"""The narrowest signed Arrow type that holds a wire type; a timestamp is an int64 with a unit."""

SPARK_OF_ARROW = {
    "bool": "BooleanType", "int16": "ShortType", "int32": "IntegerType", "int64": "LongType",
    "float": "FloatType", "double": "DoubleType", "string": "StringType", "binary": "BinaryType",
    "date32": "DateType", "timestamp[us]": "TimestampNTZType", "timestamp[us, tz=UTC]": "TimestampType",
    "decimal128(20, 0)": "DecimalType(20, 0)",
}  # fmt: skip
"""The types that tables may have: each Arrow type with the Spark type that equals it."""

_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_CAMEL = re.compile(r"[A-Z][A-Za-z0-9]*")
_INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int32", "int64")
_COUNTS = ("uint8", "uint16", "uint32")


class _Places(Protocol):
    def error(self, place: Place, text: str) -> SpecError: ...


def check(spec: Spec, places: _Places) -> None:
    """Raise the first problem of the spec.

    Raises:
        SpecError: a rule is broken.
    """
    for rule in _RULES:
        for place, text in rule(spec):
            raise places.error(place, text)


def _gates(spec: Spec) -> Iterator[Problem]:
    """Every gate can be read."""
    gated: list[tuple[Place, object]] = []
    gated += [(("versions", k), v) for k, v in spec.versions.items()]
    gated += [(("contexts", k), v) for k, v in spec.contexts.items()]
    gated += [(("types", k), v) for k, v in spec.types.items()]
    for option, record in spec.options.items():
        gated += [(("options", option, "values", k), v) for k, v in record.values.items()]
    for name, record_ in spec.tuples.items():
        gated += [(("tuples", name, "cells", k), v) for k, v in record_.cells.items()]
    for protocol in spec.protocols.values():
        gated += [(("messages", k), v) for k, v in protocol.messages.items()]
    gated += [(place, entry) for place, entry, _ in _entries(spec)]
    for place, record__ in gated:
        for key in ("versions", "server"):
            if (text := getattr(record__, key, None)) is not None:
                try:
                    Gate.parse(text)
                except ValueError as error:
                    yield (*place, key), str(error)


def _names(spec: Spec) -> Iterator[Problem]:
    """Names are fit for Python, PostgreSQL and Spark; a type's name means one thing."""
    camel = {"enums": spec.enums, "flags": spec.flags, "tuples": spec.tuples, "structs": spec.structs}
    for protocol in spec.protocols.values():
        for name in protocol.messages:
            if not _CAMEL.fullmatch(name):
                yield ("messages", name), f"`{name}`: a message is named in CamelCase"
    for section, records in camel.items():
        for name in records:
            if not _CAMEL.fullmatch(name):
                yield (section, name), f"`{name}`: names in `{section}` are in CamelCase"
            for other, others in camel.items():
                if other < section and name in others:
                    yield (section, name), f"`{name}` is already one of the {other}"
    for place, entry, _ in _entries(spec):
        if entry.name is not None and not _SNAKE.fullmatch(entry.name):
            yield (*place, "name"), f"`{entry.name}`: a field is named in snake_case"


def _versions(spec: Spec) -> Iterator[Problem]:
    """Versions are 1, 2, 3 … without a gap, the released ones first."""
    numbers = list(spec.versions)
    for position, number in enumerate(numbers, start=1):
        if number != position:
            yield ("versions", number), f"version {number} stands where version {position} belongs"
        if position > 1 and spec.versions[number].released and not spec.versions[numbers[position - 2]].released:
            yield ("versions", number), f"version {number} is released, version {position - 1} before it is not"


def _vocabulary(spec: Spec) -> Iterator[Problem]:
    """Scalars, enums, flags, options, contexts and built-in types are consistent in themselves."""
    for name, scalar in spec.scalars.items():
        if SPARK_OF_ARROW.get(scalar.arrow) != scalar.spark:
            yield ("scalars", name), f"{name}: Arrow {scalar.arrow} and Spark {scalar.spark} are not the same type"
        timestamp = scalar.wire == "int64" and scalar.arrow.startswith("timestamp")
        if scalar.arrow != ARROW_OF_WIRE[scalar.wire] and not timestamp:
            yield ("scalars", name, "arrow"), f"{name}: {scalar.wire} needs Arrow {ARROW_OF_WIRE[scalar.wire]}"
    for name, builtin in spec.types.items():
        if SPARK_OF_ARROW.get(builtin.arrow) != builtin.spark:
            yield ("types", name), f"{name}: Arrow {builtin.arrow} and Spark {builtin.spark} are not the same type"
    oids: dict[int, str] = {0: ""}
    for name, builtin in spec.types.items():
        for key in ("oid", "array_oid"):
            oid = getattr(builtin, key)
            if oid and oid in oids:
                yield ("types", name, key), f"{name}: {key} {oid} is already that of {oids[oid]}"
            oids[oid] = name
    for name, enum in spec.enums.items():
        yield from _tags(("enums", name, "values"), {k: v.value for k, v in enum.values.items()}, "value")
    for name, flags in spec.flags.items():
        seen = 0
        for bit, record in flags.bits.items():
            if not 0 < record.value < 256 or record.value & (record.value - 1) or record.value & seen:
                yield ("flags", name, "bits", bit), f"{name}.{bit}: {record.value} is not a bit of its own in 8 bits"
            seen |= record.value
    for name, context in spec.contexts.items():
        if name != "in_stream":
            yield ("contexts", name), f"unknown context `{name}`; the contexts are in_stream"
        for key in ("enter", "leave"):
            if not any(getattr(context, key) in p.messages for p in spec.protocols.values()):
                yield ("contexts", name, key), f"{name}: there is no message `{getattr(context, key)}`"
    for name, tuples in spec.tuples.items():
        if tuples.count not in _COUNTS:
            yield ("tuples", name, "count"), f"{name}: a count is one of {', '.join(_COUNTS)}, not `{tuples.count}`"
        cells = tuples.cells
        yield from _tags(("tuples", name, "cells"), {k: c.tag for k, c in cells.items()}, "tag")
        for form, cell in cells.items():
            if (form in ("text", "binary")) != (cell.length is not None):
                yield ("tuples", name, "cells", form), f"{name}.{form}: text and binary need a length, others have none"
            if cell.length is not None and cell.length not in _COUNTS:
                yield ("tuples", name, "cells", form, "length"), f"{name}.{form}: unknown length `{cell.length}`"


def _tags(place: Place, tags: dict[str, str], what: str) -> Iterator[Problem]:
    """Each is one ASCII character, and none occurs twice."""
    seen: dict[str, str] = {}
    for name, tag in tags.items():
        if len(tag) != 1 or not " " < tag < "\x7f":
            yield (*place, name, what), f"{name}: the {what} `{tag}` is not one ASCII character"
        elif tag in seen:
            yield (*place, name, what), f"{name}: duplicate {what} `{tag}`, already that of {seen[tag]}"
        seen[tag] = name


def _messages(spec: Spec) -> Iterator[Problem]:
    """Tags are unique and gates fit into each other."""
    everything = Gate(1)
    seen: dict[str, str] = {}
    for protocol in spec.protocols.values():
        yield from _tags(("messages",), {k: m.tag for k, m in protocol.messages.items()}, "tag")
        for name, message in protocol.messages.items():
            place = ("messages", name)
            if name in seen:
                yield place, f"{name} is also a message of {seen[name]}"
            seen[name] = protocol.name
            gate = Gate.parse(message.versions)
            yield from _known_gate(spec, (*place, "versions"), name, gate)
            if message.option is not None and message.option not in spec.options:
                yield (*place, "option"), f"{name}: unknown option `{message.option}`"
            for below, entry in _walk(message.fields, (*place, "fields")):
                yield from _entry_gate(spec, below, f"{name}.{_label(entry)}", entry, gate)
    for name, struct in spec.structs.items():
        for below, entry in _walk(struct.fields, ("structs", name, "fields")):
            yield from _entry_gate(spec, below, f"{name}.{_label(entry)}", entry, everything)


def _known_gate(spec: Spec, place: Place, name: str, gate: Gate) -> Iterator[Problem]:
    for end in (gate.first, gate.last or gate.first):
        if end not in spec.versions:
            yield place, f"{name}: there is no version {end}; add it to `versions`"


def _entry_gate(spec: Spec, place: Place, name: str, entry: Entry, outer: Gate) -> Iterator[Problem]:
    gate = outer if entry.versions is None else Gate.parse(entry.versions)
    yield from _known_gate(spec, (*place, "versions"), name, gate)
    if not gate.within(outer):
        yield (*place, "versions"), f"{name}: the gate {gate} is wider than that of its message, {outer}"
    if entry.option is not None and entry.option not in spec.options:
        yield (*place, "option"), f"{name}: unknown option `{entry.option}`"
    if isinstance(entry.when, str):
        context = spec.contexts.get(entry.when)
        if context is None:
            yield (*place, "when"), f"{name}: unknown context `{entry.when}`"
        elif not gate.within(Gate.parse(context.versions)):
            yield place, f"{name}: the gate {gate} is wider than that of the context {entry.when}, {context.versions}"
    elif entry.when is not None:
        for option, value in entry.when.items():
            if option != "streaming" or len(entry.when) != 1:
                yield (*place, "when"), f"{name}: `when` takes a context or one value of streaming, not `{option}`"
            elif value not in spec.options[option].values:
                yield (*place, "when"), f"{name}: {option} has no value `{value}`"
            elif not gate.within(Gate.parse(spec.options[option].values[value].versions)):
                least = spec.options[option].values[value].versions
                yield place, f"{name}: the gate {gate} is wider than that of {option} = {value}, {least}"


_FORMS = {
    "name": "field", "count": "count", "length": "length", "one_of": "choice",
}  # fmt: skip


def _entry_forms(spec: Spec) -> Iterator[Problem]:
    """Each entry is one thing, has what it needs, and names types that exist."""
    for place, entry, owner in _entries(spec):
        label = f"{owner}.{_label(entry)}"
        forms = [key for key in _FORMS if getattr(entry, key) is not None]
        if len(forms) != 1:
            yield place, f"{label}: an entry has exactly one of {', '.join(_FORMS)}"
            continue
        if forms == ["one_of"]:
            if entry.type or entry.list_of or entry.tag or entry.literal is not None or entry.when:
                yield place, f"{label}: a choice has only `one_of`, `optional` and `versions`"
            if not entry.one_of:
                yield place, f"{label}: a choice of nothing"
            for i, option in enumerate(entry.one_of or ()):
                if option.name is None or option.tag is None or option.when or option.versions:
                    yield (*place, "one_of", i), f"{label}: each side of a choice has a name and a tag, and no gate"
            continue
        if entry.doc is None:
            yield place, f"{label}: `doc` is missing"
        if entry.optional:
            yield (*place, "optional"), f"{label}: only a choice can be optional"
        if (entry.type is None) == (entry.list_of is None):
            yield place, f"{label}: exactly one of `type` and `list_of` is wanted"
        elif entry.type is not None:
            yield from _entry_type(spec, place, label, entry)
        elif entry.list_of not in spec.scalars and entry.list_of not in spec.structs:
            yield (*place, "list_of"), f"{label}: unknown type `{entry.list_of}`"
        elif entry.list_of in spec.scalars and spec.scalars[entry.list_of].wire not in _INTEGERS:
            yield (*place, "list_of"), f"{label}: a list of `{entry.list_of}` is not possible, of integers or structs it is"


def _entry_type(spec: Spec, place: Place, label: str, entry: Entry) -> Iterator[Problem]:
    known = spec.scalars.keys() | spec.enums.keys() | spec.flags.keys() | spec.tuples.keys()
    if entry.type not in known:
        yield (*place, "type"), f"{label}: unknown type `{entry.type}`"
        return
    wire = spec.scalars[entry.type].wire if entry.type in spec.scalars else ""
    if (entry.tag is not None) != (entry.type in spec.tuples):
        yield place, f"{label}: a tuple needs a tag, and nothing else has one"
    if entry.tag is not None and (len(entry.tag) != 1 or not " " < entry.tag < "\x7f"):
        yield (*place, "tag"), f"{label}: the tag `{entry.tag}` is not one ASCII character"
    if (entry.count or entry.length) and wire not in _COUNTS:
        yield (*place, "type"), f"{label}: a count or length is one of {', '.join(_COUNTS)}, not `{entry.type}`"
    if entry.literal is not None and (wire != "uint8" or not 0 <= entry.literal < 256):
        yield (*place, "literal"), f"{label}: a literal is a number from 0 to 255 of type uint8"


def _entry_order(spec: Spec) -> Iterator[Problem]:
    """A count comes before its list, a length before its bytes; each of them once; a rest comes last."""
    for place, owner, fields in _field_lists(spec):
        seen: set[str] = set()
        pending: dict[tuple[str, str], int] = {}
        for i, entry in enumerate(fields):
            here = (*place, i)
            if i and _wire(spec, fields[i - 1]) == "rest":
                yield here, f"{owner}.{_label(entry)}: nothing can follow a field that takes the rest of the message"
            for name in [e.name for e in entry.one_of or [entry] if e.name is not None]:
                if name in seen:
                    yield here, f"{owner}.{name}: duplicate field"
                seen.add(name)
            for kind in ("count", "length"):
                if (target := getattr(entry, kind)) is not None:
                    pending[kind, target] = i
            needs = ("count" if entry.list_of else "length") if entry.list_of or _wire(spec, entry) == "bytes" else ""
            if needs:
                if (needs, entry.name) not in pending:
                    yield here, f"{owner}.{entry.name}: no {needs} comes before it"
                elif entry.versions != fields[pending[needs, str(entry.name)]].versions:
                    yield here, f"{owner}.{entry.name}: its {needs} has another gate"
                else:
                    del pending[needs, entry.name]
        for (kind, target), i in pending.items():
            what = "list" if kind == "count" else "field of bytes"
            yield (*place, i), f"{owner}: a {kind} of `{target}`, but no such {what} follows"


def _structs(spec: Spec) -> Iterator[Problem]:
    """A struct holds plain fields only, so that each version reads it alike and a list of it is never empty bytes."""
    for name, struct in spec.structs.items():
        if not struct.fields:
            yield ("structs", name, "fields"), f"{name}: a struct without fields"
        for i, entry in enumerate(struct.fields):
            if entry.name is None or entry.list_of or entry.tag or entry.when or entry.literal is not None:
                yield ("structs", name, "fields", i), f"{name}.{_label(entry)}: a struct holds plain fields only"
            elif _wire(spec, entry) in ("bytes", "rest"):
                yield ("structs", name, "fields", i), f"{name}.{entry.name}: a struct cannot hold `{entry.type}`"


def _columns(spec: Spec) -> Iterator[Problem]:
    """Messages of one protocol share a table, so a field name has one type throughout."""
    for protocol in spec.protocols.values():
        seen: dict[str, tuple[str, str]] = {}
        for name, message in protocol.messages.items():
            for place, entry in _walk(message.fields, ("messages", name, "fields")):
                if entry.name is None or entry.literal is not None:
                    continue
                what = entry.type or f"list of {entry.list_of}"
                if entry.name == "type":
                    yield place, f"{name}.type: the name `type` is that of the message type"
                if seen.setdefault(entry.name, (what, name))[0] != what:
                    other, where = seen[entry.name]
                    yield place, f"{name}.{entry.name}: is {what} here and {other} in {where}: one name, one type"


_RULES: tuple[Callable[[Spec], Iterator[Problem]], ...] = (
    _gates, _names, _versions, _vocabulary, _messages, _entry_forms, _entry_order, _structs, _columns,
)  # fmt: skip


def _label(entry: Entry) -> str:
    if entry.one_of:
        return "|".join(str(side.name) for side in entry.one_of)
    return entry.name or f"{'count' if entry.count else 'length'} of {entry.count or entry.length}"


def _wire(spec: Spec, entry: Entry) -> str:
    return spec.scalars[entry.type].wire if entry.type in spec.scalars else ""


def _walk(fields: list[Entry], place: Place) -> Iterator[tuple[Place, Entry]]:
    for i, entry in enumerate(fields):
        yield (*place, i), entry
        yield from _walk(entry.one_of or [], (*place, i, "one_of"))


def _field_lists(spec: Spec) -> Iterator[tuple[Place, str, list[Entry]]]:
    for protocol in spec.protocols.values():
        for name, message in protocol.messages.items():
            yield ("messages", name, "fields"), name, message.fields
    for name, struct in spec.structs.items():
        yield ("structs", name, "fields"), name, struct.fields


def _entries(spec: Spec) -> Iterator[tuple[Place, Entry, str]]:
    for place, owner, fields in _field_lists(spec):
        for below, entry in _walk(fields, place):
            yield below, entry, owner


