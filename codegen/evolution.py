"""Differences between specs and between versions.

Two versions are compared by their wire forms: the names, order and encodings of the fields of each message.
Documentation (`doc`) is not part of a wire form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from codegen.model import PROTOCOLS, Entry, Gate, Spec
from codegen.resolve import Field, MessageView, View, resolve
from codegen.rules.common import walk

WireForm = Mapping[str, Mapping[str, str]]
"""Description of each field's wire type, by message name and field name. Fields are in wire order.

The form of a released version also describes what is not on the wire. In a message's entry, the key `.role`
has the message's role, and `.means.xid` the meaning of its field xid. The entry `options` has the values of
stream options.
"""

OPTIONS = "options"
"""Key of the entry for stream options and cells in a released version's form. No message has this name."""

_ATTRIBUTES = ("role", "server", "option", "sender")


class Change(msgspec.Struct, frozen=True):
    """A difference between two wire forms, and the name of the rule that forbids it in a released version."""

    rule: str
    text: str
    message: str
    field: str = ""
    """Path of the field, such as `columns[].name`; empty for a whole message."""


def wire_form(view: View) -> WireForm:
    """Return the wire form of one version: a description of each field, by message name and field name."""
    return {message.name: dict(_message_form(message)) for message in view.messages}


def _released_form(spec: Spec, protocol: str, version: int | None) -> WireForm:
    view = resolve(spec, spec.protocols[protocol], version)
    wire = wire_form(view)
    form = {one.name: {**wire[one.name], **dict(_attributes(spec, protocol, one))} for one in view.messages}
    if version is None:
        return form
    values = {
        f"{option}.{name}": f"server {value.server}"
        for option, record in spec.options.items()
        for name, value in record.values.items()
        if version in Gate.parse(value.versions)
    }
    cells = {
        f"{name}.{cell}": f"server {one.server or 'any'}, option {one.option or 'none'}"
        for name, record in spec.tuples.items()
        for cell, one in record.cells.items()
        if any(name in (entry.type, entry.list_of) for entry in _sent(spec, protocol, version))
    }
    return form | {OPTIONS: values | cells}


def _sent(spec: Spec, protocol: str, version: int) -> Iterator[Entry]:
    for message in spec.protocols[protocol].messages.values():
        if version in Gate.parse(message.versions):
            yield from (entry for _, entry in walk(message.fields, ()))


def _attributes(spec: Spec, protocol: str, message: MessageView) -> Iterator[tuple[str, str]]:
    """Yield (key, value) of the attributes of a message and its fields that are not on the wire.

    The keys are `.role` and others, and `.means.xid` for the meaning of the field xid. Values are text.
    """
    written = spec.protocols[protocol].messages[message.name]
    for attribute in _ATTRIBUTES:
        yield f".{attribute}", str(getattr(written, attribute)).lower()
    yield ".any_version", str(message.any_version).lower()
    for field in message.fields:
        for one in field.fields if field.kind == "choice" else (field,):
            yield f".means.{one.name}", one.means or "none"


def _message_form(message: MessageView) -> Iterator[tuple[str, str]]:
    yield "tag", f"Byte1('{message.tag}')"
    for field in message.fields:
        yield from _field_form(field, "")


def _field_form(field: Field, path: str) -> Iterator[tuple[str, str]]:
    name = path + field.name
    if field.kind == "choice":
        suffix = ", or none of the choice" if field.optional else ", in a choice"
        for side in field.fields:
            for inner, text in _field_form(side, path):
                yield inner, text + suffix
        return
    yield name, _field_text(field) + (f", when {field.when}" if field.when else "")
    if field.kind == "list":
        for one in field.fields:
            yield from _field_form(one, f"{name}[]." if one.name else f"{name}[]")


def _field_text(field: Field) -> str:
    match field.kind:
        case "list":
            return "list"
        case "integer" | "count" | "length":
            return f"{field.notation}, {'signed' if field.signed else 'unsigned'}"
        case "enum" | "flags":
            values = _braced(f"{value} {label}" for value, label in field.values.items())
            return f"{field.notation} {values}"
        case "tuple":
            cells = _braced(f"{cell.tag} {cell.form} {cell.length_size}" for cell in field.cells)
            return f"{field.notation} {field.size} {cells}"
    return field.notation


def _braced(parts: Iterable[str]) -> str:
    return "{" + ", ".join(parts) + "}"


def changes(old: WireForm, new: WireForm) -> list[Change]:
    """Return the differences between the wire forms `old` and `new`."""
    return [*_changes(old, new)]


def _changes(old: WireForm, new: WireForm) -> Iterator[Change]:
    names = {name: _new_name(form, old, new) for name, form in old.items() if name not in new}
    for name, other in names.items():
        if other is None:
            yield Change("released-message-removed", f"{name} is gone", name)
        else:
            yield Change("released-message-renamed", f"{name} is now called {other}", other)
    for name, fields in new.items():
        if name == OPTIONS:
            yield from _option_changes(old.get(name, fields), fields)
        elif name in old:
            yield from _message_changes(name, old[name], fields)
        elif name not in names.values():
            inside = ", ".join(f for f in fields if f[0] != "." and f != "tag" and "[]" not in f)
            inside = inside or "no fields"
            yield Change("released-message-added", f"{name} is new: {fields['tag']}, then {inside}", name)


def _new_name(form: Mapping[str, str], old: WireForm, new: WireForm) -> str | None:
    return next((name for name, other in new.items() if name not in old and other == form), None)


def _message_changes(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for key, text in old.items():
        if key.startswith(".") and new.get(key, text) != text:
            _, *means, last = key.split(".")
            where = f"`{means[0]}` of {name}.{last}" if means else f"`{last}` of {name}"
            yield Change("released-meaning-changed", f"{where} was {text}, is {new[key]}", name, key)
    old, new = ({key: text for key, text in form.items() if key[0] != "."} for form in (old, new))
    if renamed := _renamed_field(old, new):
        before, after = renamed
        yield Change("released-field-renamed", f"{name}.{before} is now called {after}", name, after)
        return
    for field, text in old.items():
        if field not in new:
            yield Change("released-field-removed", f"{name}.{field} is gone (was {text})", name, field)
        elif new[field] != text:
            rule = "released-tag-changed" if field == "tag" else "released-field-changed"
            yield Change(rule, f"{name}.{field} was {text}, is {new[field]}", name, field)
    for field, text in new.items():
        if field not in old:
            yield Change("released-field-added", f"{name}.{field} is new: {text}", name, field)
    kept = [field for field in new if field in old]
    order = [field for field in old if field in new]
    if kept != order:
        moved = next(field for field, other in zip(kept, order, strict=True) if field != other)
        text = f"the fields of {name} are in another order: {', '.join(kept)}"
        yield Change("released-field-moved", text, name, moved)


def _option_changes(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    """Yield the changes of option values and of forms of cells; options that `old` does not have are skipped.

    A new value of an option in `old` is a change. `old` and `new` have the servers and the option that each
    value or form needs, by keys such as `streaming.parallel` and `TupleData.binary`.
    """
    options = {key.partition(".")[0] for key in old}
    for key in sorted({*old, *(key for key in new if key.partition(".")[0] in options)}):
        before, after = old.get(key, "not allowed"), new.get(key, "not allowed")
        if before != after:
            yield Change("released-option-changed", f"`{key}` was {before}, is {after}", OPTIONS, key)


def _renamed_field(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, str] | None:
    """Return a field's old and new name if the renaming is the message's only change; else None."""
    if [*old.values()] != [*new.values()]:
        return None
    pairs = {(before, after) for before, after in zip(old, new, strict=True) if before != after}
    if len(pairs) > 1:  # renaming a list also changes the paths of its count and elements
        pairs = {(re.split(r"[.[]", before)[0], re.split(r"[.[]", after)[0]) for before, after in pairs}
    before, after = next(iter(pairs), ("", ""))
    return (before, after) if len(pairs) == 1 and before != after else None


def released(spec: Spec) -> dict[str, WireForm]:
    """Return the wire forms by label: `v4` and so on for released versions, `replication` for envelopes."""
    unreleased = {f"v{number}" for number, version in spec.versions.items() if not version.released}
    return {label: form for label, form in _forms(spec, _released_form).items() if label not in unreleased}


def _forms(spec: Spec, form: Callable[[Spec, str, int | None], WireForm]) -> dict[str, WireForm]:
    versioned, unversioned = PROTOCOLS
    forms = {f"v{number}": form(spec, versioned, number) for number in spec.versions}
    return forms | {unversioned: form(spec, unversioned, None)}


def _resolved_form(spec: Spec, protocol: str, version: int | None) -> WireForm:
    return wire_form(resolve(spec, spec.protocols[protocol], version))


def compare(old: Spec, new: Spec) -> list[str]:
    """Return a text for each change in any version from the spec `old` to the spec `new`."""
    before, after = (_forms(spec, _resolved_form) for spec in (old, new))
    words = [f"{label} is gone" for label in before if label not in after]
    previous: WireForm = {}
    for label, form in after.items():
        if label not in before:
            words.append(f"{label} is new")
        base = before.get(label, previous)
        words += [f"{label}: {change.text}" for change in changes(base, form)]
        previous = form
    return words
