"""Differences between specs and between versions, and the rules for released versions.

Two versions are compared by their wire forms: the names, order and encodings of the fields of each message.
Documentation (`doc`) is not part of a wire form. `spec/released.json` holds the wire form of each released
version, as it was released.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from codegen.model import PROTOCOLS, Spec
from codegen.resolve import Field, MessageView, View, resolve
from codegen.yamlfile import SpecError, unknown

LOCK = "released.json"

WireForm = Mapping[str, Mapping[str, str]]
"""Description of each field's wire type, by message name and field name. Fields are in wire order."""


_Lock = dict[str, dict[str, dict[str, str]]]


class Change(msgspec.Struct, frozen=True):
    """A difference between two wire forms, and the name of the rule that forbids it in a released version."""

    rule: str
    text: str


def wire_form(view: View) -> WireForm:
    """Return the wire form of one version: a description of each field, by message name and field name."""
    return {message.name: dict(_message_form(message)) for message in view.messages}


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
    for name in old:
        if name not in new:
            yield Change("released-message-removed", f"{name} is gone")
    for name, fields in new.items():
        if name not in old:
            inside = ", ".join(f for f in fields if f != "tag" and "[]" not in f) or "no fields"
            yield Change("released-message-added", f"{name} is new: {fields['tag']}, then {inside}")
        else:
            yield from _message_changes(name, old[name], fields)


def _message_changes(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for field, text in old.items():
        if field not in new:
            yield Change("released-field-removed", f"{name}.{field} is gone (was {text})")
        elif new[field] != text:
            rule = "released-tag-changed" if field == "tag" else "released-field-changed"
            yield Change(rule, f"{name}.{field} was {text}, is {new[field]}")
    for field, text in new.items():
        if field not in old:
            yield Change("released-field-added", f"{name}.{field} is new: {text}")
    kept = [field for field in new if field in old]
    if kept != [field for field in old if field in new]:
        text = f"the fields of {name} are in another order: {', '.join(kept)}"
        yield Change("released-field-moved", text)


def released(spec: Spec) -> dict[str, WireForm]:
    """Return the wire forms by label: `v4` and so on for released versions, `replication` for envelopes."""
    unreleased = {f"v{number}" for number, version in spec.versions.items() if not version.released}
    return {label: form for label, form in _forms(spec).items() if label not in unreleased}


def _forms(spec: Spec) -> dict[str, WireForm]:
    versioned, unversioned = (spec.protocols[name] for name in PROTOCOLS)
    forms = {f"v{number}": wire_form(resolve(spec, versioned, number)) for number in spec.versions}
    return forms | {unversioned.name: wire_form(resolve(spec, unversioned, None))}


def compare(old: Spec, new: Spec) -> tuple[list[str], list[str]]:
    """Return two lists of texts: all changes from `old` to `new`, and those that released versions forbid."""
    before, after = _forms(old), _forms(new)
    words = [f"{label} is gone" for label in before if label not in after]
    previous: WireForm = {}
    for label, form in after.items():
        if label not in before:
            words.append(f"{label} is new")
        base = before.get(label, previous)
        words += [f"{label}: {change.text}" for change in changes(base, form)]
        previous = form
    return words, broken(released(old), new)


def broken(locked: Mapping[str, WireForm], spec: Spec) -> list[str]:
    """Return a text for each forbidden difference between `spec` and the released wire forms, `locked`."""
    now = released(spec)
    return [text for label, form in locked.items() for text in _broken(label, form, now)]


def _broken(label: str, locked: WireForm, now: Mapping[str, WireForm]) -> Iterator[str]:
    if label not in now:
        text = f"{label} is released, and now gone or no longer released"
        remedy = f"restore it, or if nobody needs it, run `python -m codegen remove {label}`"
        yield f"released-version-removed: {text}: {remedy}"
        return
    for change in changes(locked, now[label]):
        if label not in PROTOCOLS or change.rule != "released-message-added":
            yield f"{change.rule}: {label} is released: {change.text}"


def read_lock(directory: Path) -> Mapping[str, WireForm]:
    """Return the wire forms of the released versions, by label (`v4`), from the file `released.json`.

    Raises:
        SpecError: The file is missing, or its content is invalid.
    """
    path = directory / LOCK
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Lock)
    except FileNotFoundError:
        text = "there is no lock; restore it, or begin a new one that holds {}"
        raise SpecError(f"{path}:1: {text}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}:1: not a lock, restore it: {error}") from None


def without(directory: Path, locked: Mapping[str, WireForm], spec: Spec, label: str) -> dict[str, WireForm]:
    """Return the released wire forms without those of a version, such as `v1`, that is no longer in the spec.

    Raises:
        SpecError: The spec still has the version, or the lock does not.
    """
    known = [one for one in locked if one not in PROTOCOLS]
    if label not in known:
        raise SpecError(f"{directory / LOCK}:1: {unknown('version', label, known)}")
    if (number := int(label[1:])) in spec.versions:
        text = f"version {number} is still in `versions`: remove it here first, then run this command again"
        raise next(file for file in spec.files if "versions" in file.data).error(("versions", number), text)
    return {one: form for one, form in locked.items() if one != label}


def not_locked(directory: Path, label: str) -> str:
    """Return the error text for a released protocol version whose layout is missing in `released.json`."""
    return (
        f"{directory / LOCK}:1: {label} is released in the spec, but has no layout here: "
        f"if PostgreSQL has released {label}, run `python -m codegen --release`, after which the layout "
        "cannot change; if not, write `released: false`; if the layout is lost, restore this file"
    )


def lock_text(spec: Spec) -> str:
    """Return the content of `released.json` for a spec."""
    return json.dumps(released(spec), indent=1) + "\n"
