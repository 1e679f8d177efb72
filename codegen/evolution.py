"""How specs and versions differ, in words; and what a released version may no longer change.

A version is compared by its wire form: what each field is on the wire and what it is called. Docs are not
part of it. `spec/released.json` holds the wire form of every released version, as it was released.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from codegen.model import Spec
from codegen.resolve import Field, MessageView, View, resolve

LOCK = "released.json"

WireForm = Mapping[str, Mapping[str, str]]
"""Messages, their fields in wire order, and what each field is."""


class Change(msgspec.Struct, frozen=True):
    """A difference, and the rule that forbids it in a released version."""

    rule: str
    text: str


def wire_form(view: View) -> WireForm:
    """The wire form of a version."""
    return {message.name: dict(_message_form(message)) for message in view.messages}


def _message_form(message: MessageView) -> Iterator[tuple[str, str]]:
    yield "tag", f"Byte1('{message.tag}')"
    for field in message.fields:
        yield from _field_form(field, "")


def _field_form(field: Field, path: str) -> Iterator[tuple[str, str]]:
    name = path + field.name
    if field.kind == "choice":
        for side in field.fields:
            for inner, text in _field_form(side, path):
                yield inner, text + (", or none of the choice" if field.optional else ", in a choice")
        return
    sign = f", {'signed' if field.signed else 'unsigned'}" if field.kind in ("integer", "count", "length") else ""
    text = f"{field.notation}{sign}" if field.kind != "list" else "list"
    if field.values:
        text += " {" + ", ".join(f"{value} {label}" for value, label in field.values.items()) + "}"
    if field.cells:
        text += " {" + ", ".join(f"{cell.tag} {cell.form} {cell.length_size}" for cell in field.cells) + "}"
    yield name, text + (f", when {field.when}" if field.when else "")
    if field.kind == "list":
        for inner in field.fields:
            yield from _field_form(inner, f"{name}[]." if inner.name else f"{name}[]")


def changes(old: WireForm, new: WireForm) -> list[Change]:
    """What is different in `new`, message by message."""
    return [*_changes(old, new)]


def _changes(old: WireForm, new: WireForm) -> Iterator[Change]:
    for name in old:
        if name not in new:
            yield Change("released-message-removed", f"{name} is gone")
    for name, fields in new.items():
        if name not in old:
            inside = ", ".join(field for field in fields if field != "tag") or "no fields"
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
        yield Change("released-field-moved", f"the fields of {name} are in another order: {', '.join(kept)}")


def released(spec: Spec) -> dict[str, WireForm]:
    """The wire forms of all released versions, and of the protocols that have no versions."""
    protocol = spec.protocols["pgoutput"]
    forms = {f"v{number}": wire_form(resolve(spec, protocol, number)) for number, v in spec.versions.items() if v.released}
    forms |= {name: wire_form(resolve(spec, p, None)) for name, p in spec.protocols.items() if p is not protocol}
    return forms


def compare(old: Spec, new: Spec) -> tuple[list[str], list[str]]:
    """What changed between two specs, in words, and which of it breaks a rule."""
    words: list[str] = []
    broken: list[str] = []
    before, after = _versions(old), _versions(new)
    for label in before.keys() - after.keys():
        words.append(f"{label} is gone")
    for label, form in after.items():
        if label not in before:
            words.append(f"{label} is new")
            base = before.get(f"v{int(label[1:]) - 1}", {}) if label[1:].isdigit() else {}
            words += [f"{label}: {change.text}" for change in changes(base, form)] if base else []
        else:
            words += [f"{label}: {change.text}" for change in changes(before[label], form)]
    for label, form in released(old).items():
        broken += _broken(label, form, after)
    return words, broken


def _versions(spec: Spec) -> dict[str, WireForm]:
    protocol = spec.protocols["pgoutput"]
    forms = {f"v{number}": wire_form(resolve(spec, protocol, number)) for number in spec.versions}
    return forms | {k: v for k, v in released(spec).items() if k not in forms}


def _broken(label: str, locked: WireForm, now: Mapping[str, WireForm]) -> Iterator[str]:
    if label not in now:
        yield f"released-version-removed: {label} is released, and gone"
        return
    for change in changes(locked, now[label]):
        if label.startswith("v") or change.rule != "released-message-added":
            yield f"{change.rule}: {label} is released: {change.text}"


def check_lock(spec: Spec, directory: Path) -> list[str]:
    """The rules that the spec breaks against its lock."""
    path = directory / LOCK
    if not path.exists():
        return []
    now = _versions(spec)
    return [text for label, form in json.loads(path.read_text()).items() for text in _broken(label, form, now)]


def lock_text(spec: Spec) -> str:
    """What the lock should hold."""
    return json.dumps(released(spec), indent=1) + "\n"
