"""Names, tags, values and OIDs that tests invent, chosen free of what the spec already has.

A contributor's new version can have the names of the README's example, or of any test. So YAML, code and
error texts of tests pass through `free`, which replaces what the spec has by something that it does not have.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from codegen.load import load
from codegen.model import Entry
from codegen.resolve import resolve, snake

ROOT: Final = Path(__file__).parents[2]

README: Final = (ROOT / "spec/README.md").read_text(encoding="utf-8")
EXAMPLE: Final = README[README.index("## A new version, step by step") :]
EXAMPLE_VERSION: Final = 5
"""The number of the protocol version that the README's example adds."""

_SPEC: Final = load(ROOT / "spec")
_PLUGIN: Final = _SPEC.protocols["pgoutput"]
_TAG_CHARACTERS: Final = string.ascii_letters + string.digits + "!?"
_BITS: Final = [str(1 << bit) for bit in range(8)]

_NAMES: Final = [
    "InsertBatch",
    "Counters",
    "CounterState",
    "Everything",
    "WideData",
    "Mood",
    "Mark",
    "Pair",
    "Tail",
    "Ping",
    "Source",
    "OtherData",
    "ANY",
    "ONLY",
    "HIDDEN",
    "HASH",
    "GOOD",
    "BAD",
    "BIG",
    "ticket",
    "row_number",
    "text_label",
    "flush_lsn",
    "counters",
    "new_rows",
    "last_value",
    "collation_name",
    "insert_comment",
    "identity_kind",
    "mood_of_pair",
    "left_oid",
    "added",
    "parts",
    "topic",
    "modifier",
    "other_identity",
]
"""Names that tests give to messages, types, values and fields. None is a word of the spec language or of the
package's API, so that `free` can replace them in YAML, code and texts."""

_FIELDS_IN_YAML: Final = [
    "int64",
    "byte",
    "mood",
    "data",
    "done",
    "pos",
    "marks",
    "n_marks",
    "hurry",
    "other_marks",
    "moments",
    "left",
    "right",
    "pairs",
    "wide",
    "wider",
    "widest",
    "tail",
    "node",
    "mark",
    "best",
    "parents",
]
"""Names of scalars and fields that occur in YAML only."""


def _choose(wanted: str, taken: Iterable[str], candidates: Iterable[str]) -> str:
    """Return `wanted` if it is free, and the first free candidate if not."""
    taken = set(taken)
    return next(one for one in (wanted, *candidates) if one not in taken)


def _field_names(entries: Iterable[Entry]) -> Iterator[str]:
    for entry in entries:
        yield from _field_names(entry.one_of or ())
        yield from filter(None, (entry.name, entry.count, entry.length))


def _taken() -> set[str]:
    """Return the names of the spec, except those of fields that versions before the example's have too."""
    messages = [
        (name, one) for protocol in _SPEC.protocols.values() for name, one in protocol.messages.items()
    ]
    types = (_SPEC.scalars, _SPEC.enums, _SPEC.flags, _SPEC.tuples, _SPEC.structs, _SPEC.types)
    records = {name for name, _ in messages} | {name for names in types for name in names}
    values = {name for one in _SPEC.enums.values() for name in one.values}
    bits = {name for one in _SPEC.flags.values() for name in one.bits}
    lists = [one.fields for one in _PLUGIN.messages.values()] + [one.fields for one in _SPEC.structs.values()]
    fields = {name for one in lists for name in _field_names(one)}
    older = [resolve(_SPEC, _PLUGIN, version) for version in _SPEC.versions if version < EXAMPLE_VERSION]
    members = [field for view in older for message in view.messages for field in message.fields]
    shared = {field.name for one in members for field in (one, *one.fields)}
    titles = {message.title for _, message in messages}
    return records | {snake(name) for name in records} | values | bits | titles | (fields - shared)


_TAKEN: Final = _taken()
_TAKEN_TAGS: Final = {str(message.tag) for message in _PLUGIN.messages.values()}


def _other_names(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each name, in the spelling of a name and of a title, and a free one in its place."""
    for name in names:
        prefix = "X_" if name.isupper() else "Other" if name[0].isupper() else "other_"
        title = re.sub("(?<=[a-z])(?=[A-Z])", " ", name)
        taken = [one for one in (name, title, snake(name)) if one in _TAKEN]
        others = (f"{prefix * count}{name}" for count in range(1, 9))
        used = {*_TAKEN, *_NAMES, *_FIELDS_IN_YAML}
        other = next(one for one in others if not {one, snake(one)} & used) if taken else name
        yield name, other
        if title != name:
            yield title, re.sub("(?<=[a-z])(?=[A-Z])", " ", other)


def _free_tags(tags: str) -> dict[str, str]:
    chosen: dict[str, str] = {}
    others = [one for one in _TAG_CHARACTERS if one not in tags]
    for tag in tags:
        chosen[tag] = _choose(tag, {*_TAKEN_TAGS, *chosen.values()}, others)
    return chosen


def _free_values() -> dict[str, tuple[str, str]]:
    """Return the invented values of enums and flags, and free ones in their place, by name."""
    wanted = {"ReplicaIdentity": {"ANY": "a", "HASH": "Z", "OTHER": "y"}, "TruncateOption": {"ONLY": "4"}}
    wanted |= {"ColumnFlag": {"HIDDEN": "128", "SPARE": "2"}}
    chosen = {}
    for type_, values in wanted.items():
        of_enum = _SPEC.enums[type_].values.values() if type_ in _SPEC.enums else ()
        of_flags = _SPEC.flags[type_].bits.values() if type_ in _SPEC.flags else ()
        taken = {one.value for one in of_enum} | {str(one.value) for one in of_flags}
        for name, value in values.items():
            candidates = string.ascii_letters if of_enum else reversed(_BITS)
            chosen[name] = value, _choose(value, taken, candidates)
            taken.add(chosen[name][1])
    return chosen


def _free_oids() -> dict[str, str]:
    taken = {str(oid) for one in _SPEC.types.values() for oid in (one.oid, one.array_oid)}
    chosen: dict[str, str] = {}
    for oid in map(str, range(8600, 8606)):
        chosen[oid] = _choose(oid, {*taken, *chosen.values()}, map(str, range(8606, 9999)))
    return chosen


TAGS: Final = _free_tags("mJV!?Q")
"""A free tag for each tag that tests invent. The last one is the tag of no message."""
_VALUES: Final = _free_values()
VALUES: Final = {name: other for name, (_, other) in _VALUES.items()}
"""A free value for each enum value and flag that tests invent, by its name."""

_REPLACED: Final = {
    **{rf"\b{name}\b": other for name, other in _other_names(_NAMES)},
    **{rf"\b{oid}\b": other for oid, other in _free_oids().items()},
    **{rf"(?<=\b{name}: {{value: ){value}\b": other for name, (value, other) in _VALUES.items()},
    **{
        rf"(?<={before}){re.escape(tag)}(?![\w ])": other
        for tag, other in TAGS.items()
        for before in (r"^    tag: ", r"{tag: '", r"Byte1\('", r"\(tag '", 'b"')
    },
}
_FIELDS_REPLACED: Final = {
    rf"(?<!wire: )(?<!arrow: )\b{name}\b": other for name, other in _other_names(_FIELDS_IN_YAML)
}


@functools.cache
def _pattern(yaml: bool) -> tuple[re.Pattern[str], list[str]]:
    replaced = _REPLACED | (_FIELDS_REPLACED if yaml else {})
    return re.compile("|".join(f"({one})" for one in replaced), re.MULTILINE), [*replaced.values()]


def free(text: str, *, yaml: bool = False) -> str:
    """Replace what tests invent and the spec has, in YAML, code or a text, by what the spec does not have."""
    pattern, others = _pattern(yaml)
    return pattern.sub(lambda match: others[match.lastindex - 1], text)  # type: ignore[operator]
