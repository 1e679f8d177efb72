"""Checks of the spec's gates (version ranges): their syntax, the versions they name, and their nesting."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from codegen.model import EVERY_VERSION, Entry, EnumValue, FlagBit, Gate, Spec
from codegen.rules.common import Problem, entries, label, walk
from codegen.yamlfile import Place, unknown


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
    """Check that version numbers increase, at least one is released, and released versions come first."""
    for number in spec.versions:
        if number < 1:
            yield ("versions", number), f"version {number} cannot be: the numbers of versions begin at 1"
    if not any(version.released for version in spec.versions.values()):
        yield ("versions",), "no version is released: the first one must be, with `released: true`"
    for (before, earlier), (number, version) in pairwise(spec.versions.items()):
        place = ("versions", number)
        if number <= before:
            yield place, f"version {number} comes after version {before}: sort the versions"
        if version.released and not earlier.released:
            yield place, f"version {number} is released, version {before} before it is not"


def nested(spec: Spec) -> Iterator[Problem]:
    """Check that each gate contains a version, and is within the gates of its message and condition."""
    for option, record in spec.options.items():
        for name, value in record.values.items():
            place: Place = ("options", option, "values", name, "versions")
            yield from _known(spec, place, f"{option}.{name}", value.versions)
    for name, context in spec.contexts.items():
        place = ("contexts", name, "versions")
        yield from _known(spec, place, name, context.versions)
    every = spec.gate(EVERY_VERSION)
    everywhere: dict[Place, bool] = {}
    for place, member in _values(spec):
        yield from _known(spec, (*place, "versions"), f"{place[1]}.{place[3]}", member.versions)
        always = every.within(spec.gate(member.versions))
        everywhere[place[:3]] = everywhere.get(place[:3], False) or always
    for place, found in everywhere.items():
        if not found:
            what = "an enum needs a value" if place[0] == "enums" else "flags need a bit"
            yield place, f"{place[1]}: {what} that all versions have: leave out `versions` of one"
    for protocol in spec.protocols.values():
        for name, message in protocol.messages.items():
            place = ("messages", name)
            yield from _known(spec, (*place, "versions"), name, message.versions)
            if protocol.name != "pgoutput" and message.versions != EVERY_VERSION:
                text = f"{name}: the messages of {protocol.name} have no versions"
                yield (*place, "versions"), text
            if message.option is not None and message.option not in spec.options:
                yield (*place, "option"), f"{name}: {unknown('option', message.option, spec.options)}"
            for below, entry in walk(message.fields, (*place, "fields")):
                if protocol.name != "pgoutput" and entry.versions is not None:
                    text = f"{name}.{label(entry)}: the messages of {protocol.name} have no versions"
                    yield (*below, "versions"), text
                yield from _entry(spec, below, f"{name}.{label(entry)}", entry, message.versions)
    for name, struct in spec.structs.items():
        for below, entry in walk(struct.fields, ("structs", name, "fields")):
            if entry.when is None:
                yield from _entry(spec, below, f"{name}.{label(entry)}", entry, EVERY_VERSION)


def _known(spec: Spec, place: Place, name: str, text: str) -> Iterator[Problem]:
    gate = Gate.parse(text)
    versions = f"the versions are {', '.join(map(str, spec.versions))}"
    if gate.last is not None and gate.last > max(spec.versions):
        yield place, f"{name}: there is no version {gate.last}: {versions}; write `{gate.first}+`, or add it"
    if not any(version in gate for version in spec.versions):
        add = f"add version {gate.first} to `versions`, " if gate.first > max(spec.versions) else ""
        text = f"no version is in the gate `{text}`: {versions}; {add}widen the gate, or remove this"
        yield place, f"{name}: {text}"


def _entry(spec: Spec, place: Place, name: str, entry: Entry, outer: str) -> Iterator[Problem]:
    at = (*place, "versions")
    yield from _known(spec, at, name, entry.versions or outer)
    gate, message = spec.gate(entry.versions or outer), spec.gate(outer)
    if not gate.within(message):
        yield at, f"{name}: the gate {gate} is wider than that of its message, {message}"
    elif entry.versions is not None and Gate.parse(outer).within(Gate.parse(entry.versions)):
        yield at, f"{name}: the gate {gate} is that of its message: leave it out"
    if entry.option is not None and entry.option not in spec.options:
        yield (*place, "option"), f"{name}: {unknown('option', entry.option, spec.options)}"
    for what, condition in _conditions(spec, entry):
        if not gate.within(spec.gate(condition)):
            yield at, f"{name}: the gate {gate} is wider than that of {what}, {spec.gate(condition)}"


def _conditions(spec: Spec, entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield name and gate of the context (such as `in_stream`) or option value in the entry's `when`.

    Unknown names are skipped.
    """
    if isinstance(entry.when, str):
        if entry.when in spec.contexts:
            yield f"the context {entry.when}", spec.contexts[entry.when].versions
        return
    for option, value in (entry.when or {}).items():
        if option in spec.options and value in spec.options[option].values:
            yield f"{option} = {value}", spec.options[option].values[value].versions
