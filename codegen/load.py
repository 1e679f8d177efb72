"""Read the spec files into one `Spec`, or raise an error with file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from codegen import model, rules
from codegen.evolution import WireForm
from codegen.lock import read_lock
from codegen.rules.common import is_tag
from codegen.yamlfile import Place, SpecError, YamlFile, unknown

SECTIONS: dict[str, type[Any]] = {
    "versions": model.Version,
    "options": model.Option,
    "contexts": model.Context,
    "scalars": model.Scalar,
    "enums": model.Enum,
    "flags": model.Flags,
    "tuples": model.Tuple,
    "structs": model.Structure,
    "messages": model.Message,
    "types": model.BuiltinType,
    "rules": model.Rule,
}
_KINDS = {
    "str": "text", "int": "a number", "bool": "true or false", "array": "a list", "object": "a mapping",
}  # fmt: skip
"""Words for types in errors, by the name that msgspec gives to the type."""
_KEYS = "__struct_fields__"
_HEAD = ("protocol", "title", "doc", "source")
_NO_VERSIONS: dict[int, model.Version] = {1: model.Version(doc="", server="10+", released=True)}
"""Versions of a spec without the section `versions`: its messages never change."""


_MODULES = ("messages", "arrow", "spark")
"""Modules that are generated for every spec without versions; no protocol can have their names."""


def load(directory: Path) -> model.Spec:
    """Return the spec, read from all `*.yaml` files of a directory and checked.

    Raises:
        SpecError: The spec contains a mistake, or the directory has no `*.yaml` file.
    """
    paths = sorted(directory.glob("*.yaml"))
    if not paths:
        raise SpecError(f"{directory}: no spec found: expected a folder with *.yaml files")
    sections: dict[str, dict[Any, Any]] = {section: {} for section in SECTIONS}
    protocols: dict[str, model.Protocol] = {}
    files: list[YamlFile] = []
    heads: dict[str, YamlFile] = {}
    for path in paths:
        file = YamlFile(path)
        records = _records(file)
        for section, entries in records.items():
            for name in entries:
                if name in sections[section]:
                    other = next(one for one in files if name in one.data.get(section, ()))
                    raise file.error(
                        (section, name), f"{section}: duplicate `{name}`, already in {other.path}"
                    )
            sections[section] |= entries
        files.append(file)
        if records["messages"]:
            protocol = _protocol(file, records["messages"])
            if protocol.name in protocols:
                raise file.error(("protocol",), f"duplicate protocol `{protocol.name}`")
            heads[protocol.name] = file
            protocols[protocol.name] = protocol
        elif "protocol" in file.data:
            raise file.error(("protocol",), "the protocol has no messages: add the section `messages`")
    del sections["messages"]
    plain = not sections["versions"] and not protocols.keys() & {*model.PROTOCOLS}
    sections["versions"] = _NO_VERSIONS if plain else sections["versions"]
    for name, file in heads.items():
        if not plain and name not in model.PROTOCOLS:
            raise file.error(("protocol",), unknown("protocol", name, model.PROTOCOLS))
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in _MODULES:
            raise file.error(
                ("protocol",), f"the protocol `{name}` cannot be a module: write another name in snake_case"
            )
    locked = read_lock(directory, begin=True) if not plain else {}
    names = frozenset(re.findall(r"\w+", str(locked)))
    spec = model.Spec(protocols=protocols, files=tuple(files), plain=plain, locked=names, **sections)
    _check_gates_of_new_messages(spec, locked)
    rules.check(spec)
    return spec


def _check_gates_of_new_messages(spec: model.Spec, locked: Mapping[str, WireForm]) -> None:
    """Refuse a message that no released version has and that has no `versions`, before fields are checked."""
    labels = [label for label in locked if label not in model.PROTOCOLS]
    known = {name for label in labels for name in locked[label]}
    for name in spec.protocols["pgoutput"].messages if labels and "pgoutput" in spec.protocols else ():
        place = ("messages", name)
        if name not in known and not any((*place, "versions") in file for file in spec.files):
            which = f"{', '.join(labels)} {'is' if len(labels) == 1 else 'are'} released"
            remedy = f"write `versions: {int(labels[-1][1:]) + 1}+`"
            raise spec.error(place, f"released-message-added: {which}: {name} is new: {remedy}")


def _protocol(file: YamlFile, messages: dict[str, model.Message]) -> model.Protocol:
    head = [file.data.get(key) for key in _HEAD]
    for key, value in zip(_HEAD, head, strict=True):
        if not isinstance(value, str):
            raise file.error((key,), f"a file with messages needs `{key}`, as text")
    name, title, doc, source = head
    length = file.data.get("length")
    if length not in (None, "int32"):
        raise file.error(("length",), unknown("length", length, ["int32"]))
    return model.Protocol(name=name, title=title, doc=doc, source=source, messages=messages, length=length)


def _records(file: YamlFile) -> dict[str, dict[Any, Any]]:
    """Return the entries of one file, by section and name, as instances of the classes in `model`."""
    result: dict[str, dict[Any, Any]] = {section: {} for section in SECTIONS}
    for section, entries in file.data.items():
        if section in (*_HEAD, "length"):
            continue
        if section not in SECTIONS:
            deeper = ""
            if isinstance(entries, dict) and "doc" in entries:
                deeper = (
                    "; if it is a record of the section above, write two more spaces before each of its lines"
                )
            raise file.error((section,), unknown("section", section, SECTIONS) + deeper)
        if not isinstance(entries, dict):
            raise file.error((section,), f"the section `{section}` must be a mapping of names")
        for name, data in entries.items():
            place = (section, name)
            if isinstance(name, int) != (section == "versions"):
                raise file.error(
                    place,
                    f"{section}: `{name}` cannot be a name here: write a version as a number, and another "
                    "name as text, in quotes if it consists of digits",
                )
            result[section][name] = _convert(data, SECTIONS[section], file, place)
    return result


def _convert(data: Any, record: type[Any], file: YamlFile, place: Place) -> Any:
    try:
        return msgspec.convert(data, record)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        below = _below(path.strip("`"), data, lambda part: _fails(part, record))
        if match := re.search(r"unknown field `(.*)`", what):
            keys = next(getattr(kind, _KEYS) for kind in _kinds(record, below) if hasattr(kind, _KEYS))
            below, what = (*below, match[1]), unknown("key", match[1], keys)
            if isinstance(inner := _at(data, below), dict) and "doc" in inner:
                what = (
                    f"`{match[1]}` is a record of its own, but stands inside {place[-1]}: remove two spaces "
                    f"before each of its lines, if it belongs beside `{place[-1]}`"
                )
        elif match := re.search(r"missing required field `(.*)`", what):
            what = f"`{match[1]}` is missing"
        elif what.startswith("Invalid enum value"):
            choices = next(get_args(kind) for kind in _kinds(record, below) if get_origin(kind) is Literal)
            key = f"{below[-2]}[{below[-1]}]" if isinstance(below[-1], int) else below[-1]
            roles = "; a message that changes no row: `payload`" if key == "role" else ""
            what = f"`{key}`: {unknown('value', _at(data, below), choices)}{roles}"
        elif match := re.fullmatch(r"Expected `(.*)`, got `(.*)`", what):
            what = _wrong_type(file, (*place, *below), _at(data, below), *match.groups())
        if others := [one for one in SECTIONS if one != "rules" and not _fails(data, SECTIONS[one])]:
            what += f"; it has the keys of `{others[0]}`: write it in that section"
        name = ".".join(str(step) for step in place[1:])
        raise file.error((*place, *below), f"{name}: {what}") from None


def _wrong_type(file: YamlFile, place: Place, value: Any, wanted: str, got: str) -> str:
    key = place[-1]
    name = f"entry {key + 1} of `{place[-2]}`" if isinstance(key, int) and len(place) > 2 else f"`{key}`"
    if key in ("versions", "server") and isinstance(value, int):
        ranges = f'"{value}+" for {value} and later, or "{value}" for {value} only'
        return f"{name} takes a range, as text: quote it, {ranges}"
    kinds = [_KINDS[one] for one in wanted.split(" | ") if one != "null"]
    quoted = file.numbers.get(place, str(value).lower())
    quote = f': quote it, "{quoted}"' if "str" in wanted and isinstance(value, int) else ""
    if quote and key in ("tag", "value") and len(quoted) > 1:
        character = chr(value) if 0 < value < 127 and is_tag(chr(value)) else "q"
        quote = f', but a character: write {key}: "{character}"'
    return f"{name} takes {' or '.join(kinds)}, not {_KINDS[got]}{quote}"


def _kinds(record: Any, place: Place) -> list[Any]:
    """Return the types allowed for the value at the path `place` (keys and indices) inside a `record`."""
    kinds = [record]
    for step in place:
        kinds = [inner for kind in kinds for inner in _plain(_below_type(kind, step))]
    return kinds


def _below_type(kind: Any, step: str | int) -> Any:
    if get_origin(kind) in (list, dict):
        return get_args(kind)[-1]
    return get_type_hints(kind).get(str(step)) if isinstance(kind, type) else None


def _plain(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else (kind,)


def _fails(data: Any, record: type[Any]) -> bool:
    try:
        msgspec.convert(data, record)
    except msgspec.ValidationError:
        return True
    return False


def _below(path: str, data: Any, fails: Callable[[Any], bool]) -> Place:
    """Return the place in `data` of the value that msgspec's error is about, from the error's `path`.

    msgspec writes `[...]` instead of a mapping's key. To find the key, this function calls `fails` with
    copies of `data` in which the mapping has only one entry. `fails` returns
    whether a copy has an error.
    """
    place: Place = ()
    for step in re.findall(r"\.(\w+)|\[(\d+)\]|(\[\.\.\.\])", path):
        key, index, _ = step
        if key or index:
            place = (*place, key or int(index))
            continue
        parent = _at(data, place)
        for name in parent:
            if fails(_keep_entry(data, place, name)):
                place = (*place, name)
                break
    return place


def _at(data: Any, place: Place) -> Any:
    for step in place:
        data = data[step]
    return data


def _keep_entry(data: Any, place: Place, name: str) -> Any:
    """Return a copy of `data` in which the mapping at `place` has only the entry `name`."""
    if not place:
        return {name: data[name]}
    copy = data.copy()
    copy[place[0]] = _keep_entry(data[place[0]], place[1:], name)
    return copy
