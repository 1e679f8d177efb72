"""Checks of the spec's gates (version ranges): their syntax, the versions they name, and their nesting."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.model import Entry, EnumValue, FlagBit, Gate, Spec
from codegen.rules.common import Problem, entries, label, walk
from codegen.yamlfile import Place, unknown

_EVERYTHING = Gate(1)


def readable(spec: Spec) -> Iterator[Problem]:
    """Check that every gate can be parsed."""
    for place, record in _gated(spec):
        for key in ("versions", "server"):
            if (text := getattr(record, key, None)) is not None:
                try:
                    Gate.parse(text)
                except ValueError as error:
                    yield (*place, key), str(error)


def _gated(spec: Spec) -> Iterator[tuple[Place, object]]:
    for number, version in spec.versions.items():
        yield ("versions", number), version
    for option, record in spec.options.items():
        for name, value in record.values.items():
            yield ("options", option, "values", name), value
    for name, context in spec.contexts.items():
        yield ("contexts", name), context
    yield from _values(spec)
    for name, tuples in spec.tuples.items():
        for form, cell in tuples.cells.items():
            yield ("tuples", name, "cells", form), cell
    for protocol in spec.protocols.values():
        for name, message in protocol.messages.items():
            yield ("messages", name), message
    for place, entry, _ in entries(spec):
        yield place, entry
    for name, builtin in spec.types.items():
        yield ("types", name), builtin


def _values(spec: Spec) -> Iterator[tuple[Place, EnumValue | FlagBit]]:
    for name, enum in spec.enums.items():
        for member, value in enum.values.items():
            yield ("enums", name, "values", member), value
    for name, flags in spec.flags.items():
        for member, bit in flags.bits.items():
            yield ("flags", name, "bits", member), bit


def versions_in_order(spec: Spec) -> Iterator[Problem]:
    """Check that versions are numbered 1, 2, 3 …, and that the released ones, at least one, come first."""
    before = True
    for position, (number, version) in enumerate(spec.versions.items(), start=1):
        place = ("versions", number)
        if number != position:
            yield place, f"version {number} stands where version {position} belongs"
        if version.released and not before:
            yield place, f"version {number} is released, version {number - 1} before it is not"
        before = version.released
    if not any(version.released for version in spec.versions.values()):
        yield ("versions", 1), "no version is released; version 1 must be"


def nested(spec: Spec) -> Iterator[Problem]:
    """Check that each gate names existing versions and is within the gates of its message and condition."""
    for option, record in spec.options.items():
        for name, value in record.values.items():
            place: Place = ("options", option, "values", name, "versions")
            yield from _known(spec, place, f"{option}.{name}", Gate.parse(value.versions))
    for name, context in spec.contexts.items():
        place = ("contexts", name, "versions")
        yield from _known(spec, place, name, Gate.parse(context.versions))
    everywhere: dict[Place, bool] = {}
    for place, member in _values(spec):
        gate = Gate.parse(member.versions)
        yield from _known(spec, (*place, "versions"), f"{place[1]}.{place[3]}", gate)
        everywhere[place[:3]] = everywhere.get(place[:3], False) or gate == _EVERYTHING
    for place, found in everywhere.items():
        if not found:
            what = "an enum needs a value" if place[0] == "enums" else "flags need a bit"
            yield place, f"{place[1]}: {what} that all versions have: leave out `versions` of one"
    for protocol in spec.protocols.values():
        for name, message in protocol.messages.items():
            place = ("messages", name)
            gate = Gate.parse(message.versions)
            yield from _known(spec, (*place, "versions"), name, gate)
            if protocol.name != "pgoutput" and gate != _EVERYTHING:
                text = f"{name}: the messages of {protocol.name} have no versions"
                yield (*place, "versions"), text
            if message.option is not None and message.option not in spec.options:
                yield (*place, "option"), f"{name}: {unknown('option', message.option, spec.options)}"
            for below, entry in walk(message.fields, (*place, "fields")):
                if protocol.name != "pgoutput" and entry.versions is not None:
                    text = f"{name}.{label(entry)}: the messages of {protocol.name} have no versions"
                    yield (*below, "versions"), text
                yield from _entry(spec, below, f"{name}.{label(entry)}", entry, gate)
    for name, struct in spec.structs.items():
        for below, entry in walk(struct.fields, ("structs", name, "fields")):
            yield from _entry(spec, below, f"{name}.{label(entry)}", entry, _EVERYTHING)


def _known(spec: Spec, place: Place, name: str, gate: Gate) -> Iterator[Problem]:
    for end in (gate.first, gate.last or gate.first):
        if end not in spec.versions:
            known = ", ".join(map(str, spec.versions))
            text = f"there is no version {end}; add it to `versions`, or take one of {known}"
            yield place, f"{name}: {text}"


def _entry(spec: Spec, place: Place, name: str, entry: Entry, outer: Gate) -> Iterator[Problem]:
    gate = outer if entry.versions is None else Gate.parse(entry.versions)
    at = (*place, "versions")
    yield from _known(spec, at, name, gate)
    if not gate.within(outer):
        yield at, f"{name}: the gate {gate} is wider than that of its message, {outer}"
    elif entry.versions is not None and outer.within(gate):
        yield at, f"{name}: the gate {gate} is that of its message: leave it out"
    if entry.option is not None and entry.option not in spec.options:
        yield (*place, "option"), f"{name}: {unknown('option', entry.option, spec.options)}"
    for what, allowed in _conditions(spec, entry):
        if not gate.within(allowed):
            yield at, f"{name}: the gate {gate} is wider than that of {what}, {allowed}"


def _conditions(spec: Spec, entry: Entry) -> Iterator[tuple[str, Gate]]:
    """Yield name and gate of the context or option value in the entry's `when`. Unknown names are skipped."""
    if isinstance(entry.when, str):
        if entry.when in spec.contexts:
            yield f"the context {entry.when}", Gate.parse(spec.contexts[entry.when].versions)
        return
    for option, value in (entry.when or {}).items():
        if option in spec.options and value in spec.options[option].values:
            yield f"{option} = {value}", Gate.parse(spec.options[option].values[value].versions)
