"""Checks of the spec: each message has a role, and fields with the meanings that the role requires."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.model import Entry, Gate, Message, Spec
from codegen.roles import MEANINGS, SINGLE
from codegen.rules.common import Problem, label, walk
from codegen.yamlfile import Place


def roles(spec: Spec) -> Iterator[Problem]:
    """Check that only messages of the output plugin have roles and meanings, and that each has a role."""
    holders: dict[str, str] = {}
    for protocol in spec.protocols.values():
        for name, message in protocol.messages.items():
            place = ("messages", name)
            if message.role in SINGLE:
                holder = holders.setdefault(message.role, name)
                if holder != name:
                    text = f"{holder} has the role `{message.role}` already: add fields to {holder} instead"
                    yield (*place, "role"), f"{name}: {text}"
            if protocol.name != "pgoutput" and message.role is not None:
                yield (*place, "role"), f"{name}: only messages of the protocol pgoutput have a `role`"
            elif protocol.name == "pgoutput" and message.role is None:
                yield place, f"{name}: `role` is missing; the roles are {', '.join(MEANINGS)}"
            for below, entry in walk(message.fields, (*place, "fields")):
                if protocol.name != "pgoutput" and entry.means is not None:
                    text = "only messages of the protocol pgoutput have `means`"
                    yield (*below, "means"), f"{name}.{label(entry)}: {text}"
    for name, struct in spec.structs.items():
        for i, entry in enumerate(struct.fields):
            if entry.means is not None:
                yield (
                    ("structs", name, "fields", i, "means"),
                    f"{name}.{label(entry)}: a struct has no `means`",
                )


def meanings(spec: Spec) -> Iterator[Problem]:
    """Check that each message has the meanings that its role requires, and only allowed meanings."""
    for name, message in spec.protocols["pgoutput"].messages.items():
        yield from _meanings(spec, name, message)


def _tuple(spec: Spec, message: Message, entry: Entry, place: Place, name: str) -> Iterator[Problem]:
    lists = message.role == "insert"
    if entry.type not in spec.tuples and not (lists and entry.list_of in spec.tuples):
        yield place, f"{name}: a field that means `{entry.means}` is a tuple{' or a list of tuples' * lists}"


def _always_present(message: Message, entry: Entry) -> bool:
    gate = Gate.parse(entry.versions or "1+")
    return Gate.parse(message.versions).within(gate) and entry.when is None


def _meanings(spec: Spec, name: str, message: Message) -> Iterator[Problem]:
    assert message.role is not None  # checked by `roles`
    required, optional = MEANINGS[message.role]
    found: dict[str, str] = {}
    for place, entry in walk(message.fields, ("messages", name, "fields")):
        meaning = entry.means
        if meaning is None:
            continue
        at = (*place, "means")
        if entry.name is None or entry.literal is not None:
            yield at, f"{name}.{label(entry)}: only a field of message objects has `means`"
        elif meaning not in (*required, *optional):
            known = ", ".join((*required, *optional)) or "none"
            yield at, f"{name}.{entry.name}: the role `{message.role}` has no `{meaning}`; it has {known}"
        elif meaning in required and (place[-2] != "fields" or not _always_present(message, entry)):
            text = f"the role `{message.role}` needs `{meaning}` in every version and everywhere"
            yield at, f"{name}.{entry.name}: {text}: leave out `versions`, `when` and `one_of`"
        elif meaning in found:
            yield at, f"{name}.{entry.name}: {found[meaning]} means `{meaning}` already"
        elif meaning in ("new", "old", "key"):
            yield from _tuple(spec, message, entry, at, f"{name}.{entry.name}")
        found[meaning] = entry.name or ""
    for meaning in required:
        if meaning not in found:
            text = f"the role `{message.role}` needs a field with `means: {meaning}`"
            yield ("messages", name, "fields"), f"{name}: {text}"
