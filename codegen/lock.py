"""The lock `spec/released.json`, and the rules for released versions.

The lock holds the wire form of each released version, as it was released.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from codegen.evolution import OPTIONS, Change, WireForm, changes, released
from codegen.model import EVERY_VERSION, PROTOCOLS, Entry, Gate, Spec
from codegen.rules.common import entries, field_lists, walk
from codegen.yamlfile import Place, SpecError, unknown

LOCK = "released.json"

_Lock = dict[str, dict[str, dict[str, str]]]

_REMEDIES = {
    "released-message-removed": "restore it; to drop it from version {new} on, write `versions: {gate}`",
    "released-message-renamed": "restore the name",
    "released-message-added": "write `versions: {new}+`",
    "released-meaning-changed": "restore it; a later version can have another message or field instead",
    "released-option-changed": "restore its `versions`, `server` and `option`",
    "released-tag-changed": "restore the tag",
    "released-field-removed": "restore it; to drop it from version {new} on, write `versions: {gate}`",
    "released-field-renamed": "restore the name",
    "released-field-added": "write `versions: {new}+`",
    "released-field-changed": "restore it; a later version can have another field instead",
    "released-field-moved": "restore the order",
}
"""What to do about a change, by name of the rule that forbids the change. `{new}` is the version after the
last released version, and `{gate}` is the range of the versions up to the last released version."""


def check(locked: Mapping[str, WireForm], spec: Spec) -> None:
    """Check that a spec still has the released wire forms `locked`.

    Raises:
        SpecError: The first forbidden change, with the versions that it changes.
    """
    now = released(spec)
    found: dict[Change, list[str]] = {}
    for label, form in locked.items():
        if label not in now:
            place = ("versions", int(label[1:]), "released")
            text = f"released-version-removed: {label} is released, and now gone or no longer released"
            remedy = f"restore it, or if nobody needs it, run `python -m codegen remove {label}`"
            raise spec.error(place, f"{text}: {remedy}")
        for change in changes(form, now[label]):
            if label not in PROTOCOLS or change.rule != "released-message-added":
                found.setdefault(change, []).append(label)
    for change, labels in found.items():
        last = max((n for n, version in spec.versions.items() if version.released), default=0)
        at, rule = _place(spec, change, found), change.rule
        if value := _added_value(spec, at, change):
            at, rule = value, "released-field-added"
        remedy = _REMEDIES[rule].format(new=last + 1, gate=f"1-{last}")
        which = f"{', '.join(labels)} {'is' if len(labels) == 1 else 'are'} released"
        raise spec.error(at, f"{change.rule}: {which}: {change.text}: {remedy}")


def _added_value(spec: Spec, place: Place, change: Change) -> Place | None:
    """Return the place of the value or bit added to the enum or flags at `place`; None for other changes."""
    section, name = place[0], place[1]
    if section not in ("enums", "flags") or change.rule != "released-field-changed":
        return None
    below, known = ("values", spec.enums) if section == "enums" else ("bits", spec.flags)
    was, now = (set(text.split(", ")) for text in re.findall("{(.*)}.* is .*{(.*)}", change.text)[0])
    names = getattr(known[str(name)], below)
    new = [one for one in names if any(value.endswith(f" {one}") for value in now - was)]
    return (section, name, below, new[0]) if len(new) == 1 and was < now else None


def _place(spec: Spec, change: Change, found: Mapping[Change, Iterable[str]]) -> Place:
    """Return the place of a change in the spec: its field, or the type if all fields of the type changed.

    `found` has all changes since the release, each with the labels (such as `v2`) of the versions it affects.
    """
    if change.message == OPTIONS:
        option, _, value = change.field.partition(".")
        section, below = ("tuples", "cells") if option in spec.tuples else ("options", "values")
        return (section, option, below, value)
    message = ("messages", change.message)
    if change.rule == "released-meaning-changed":
        _, *means, last = change.field.split(".")
        if last == "any_version":
            written = next(one.messages for one in spec.protocols.values() if change.message in one.messages)
            return ("options", str(written[change.message].option), last)
        if means:
            return (*_entry(spec, (*message, "fields"), last)[0], "means")
        return (*message, last)
    if change.field in ("", "tag"):
        return (*message, "tag") if change.field else message
    place, entry = _entry(spec, (*message, "fields"), change.field)
    name = (entry.type or entry.list_of or "") if entry else ""
    for section in ("scalars", "enums", "flags", "tuples"):
        if name in getattr(spec, section) and change.rule == "released-field-changed":
            changed = {_entry(spec, ("messages", one.message, "fields"), one.field)[0] for one in found}
            labels = {label for one in found.values() for label in one}
            users = [
                where
                for where, other, _ in entries(spec)
                if name in (other.type, other.list_of) and _has(spec, labels, where, other)
            ]
            same = all(where in changed for where in users)
            if same and (len(users) > 1 or section != "scalars"):
                return (section, name)
    return place


def _has(spec: Spec, labels: Collection[str], place: Place, entry: Entry) -> bool:
    """Return whether one of the versions with these labels has the field at `place`."""
    if place[0] == "structs":
        users = ((where, other) for where, other, _ in entries(spec) if other.list_of == place[1])
        return any(_has(spec, labels, where, other) for where, other in users)
    versioned, unversioned = (spec.protocols[one].messages for one in PROTOCOLS)
    if place[1] in unversioned:
        return PROTOCOLS[1] in labels
    gates = [Gate.parse(entry.versions or EVERY_VERSION), Gate.parse(versioned[str(place[1])].versions)]
    return any(all(number in gate for gate in gates) for number in spec.versions if f"v{number}" in labels)


def _entry(spec: Spec, place: Place, path: str) -> tuple[Place, Entry | None]:
    """Return place and entry of the field with a path such as `columns[].name` in the list at `place`.

    If the list has no such field, return the place of the list, and None.
    """
    name, _, inner = path.partition("[].")
    name, _, size = name.removesuffix("[]").partition(".")
    for below, entry in walk(_field_list(spec, place), place):
        if name in ((entry.count, entry.length) if size else (entry.name,)):
            if inner and entry.list_of in spec.structs:
                return _entry(spec, ("structs", entry.list_of, "fields"), inner)
            return below, entry
    return place, None


def _field_list(spec: Spec, place: Place) -> list[Entry]:
    return next((fields for where, _, fields in field_lists(spec) if where == place), [])


def read_lock(directory: Path, begin: bool = False) -> Mapping[str, WireForm]:
    """Return the wire forms of the released versions, by label (`v4`), from the file `released.json`.

    If the file is missing and `begin` is true, return no wire forms.

    Raises:
        SpecError: The file is missing and `begin` is false, or its content is invalid.
    """
    path = directory / LOCK
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Lock)
    except FileNotFoundError:
        if begin:
            return {}
        text = "there is no lock: restore it, or for a new spec run `python -m codegen --release`"
        raise SpecError(f"{path}:1: {text}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{path}:1: the lock file is invalid ({error}): restore it, for example with `git restore`"
        ) from None


def without(directory: Path, locked: Mapping[str, WireForm], spec: Spec, label: str) -> dict[str, WireForm]:
    """Return `locked` without the version `label`, such as `v1`, which is no longer in the spec.

    Raises:
        SpecError: The version is still in the spec, or is not in the lock.
    """
    known = [one for one in locked if one not in PROTOCOLS]
    if label not in known:
        raise SpecError(f"{directory / LOCK}:1: {unknown('version', label, known)}")
    if (number := int(label[1:])) in spec.versions:
        text = f"version {number} is still in `versions`: remove it here first, then run this command again"
        raise spec.error(("versions", number), text)
    return {one: form for one, form in locked.items() if one != label}


def check_locked(locked: Mapping[str, WireForm], spec: Spec) -> None:
    """Check that the lock has the wire form of each released version.

    Raises:
        SpecError: A released version is not in the lock.
    """
    for number, version in spec.versions.items():
        if version.released and (label := f"v{number}") not in locked:
            raise spec.error(
                ("versions", number, "released"),
                f"{label} is released here, but {LOCK} has no layout of it: if PostgreSQL has released "
                f"{label}, run `python -m codegen --release`, after which the layout cannot change; "
                f"if not, write `released: false`; if the layout is lost, restore {LOCK}",
            )


def lock_text(spec: Spec) -> str:
    """Return the content of `released.json` for a spec."""
    return json.dumps(released(spec), indent=1) + "\n"
