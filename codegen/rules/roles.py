"""Checks of the spec: each message has a role, and fields with the meanings that the role requires.

A role is what a message does in a stream, such as `commit`. A meaning is what a field tells, such as `xid`.
"""

from __future__ import annotations

from collections.abc import Iterator

from codegen.model import Entry, Gate, Message, Spec
from codegen.roles import (
    C_TYPES,
    COMPANIONS,
    IN_BLOCKS,
    MEANINGS,
    ONE_OF,
    REPEATED,
    SAID,
    SINGLE,
    SORTS,
    Role,
    Sort,
)
from codegen.rules.common import Problem, label, walk
from codegen.yamlfile import Place


def roles(spec: Spec) -> Iterator[Problem]:
    """Check that each message of `pgoutput` has a `role`, and no other message has a `role` or `means`."""
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
                known = f"{', '.join(MEANINGS)}; a message that changes no row: `payload`"
                yield place, f"{name}: `role` is missing; the roles are {known}"
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
    """Check that the fields of each message have the `means` that its `role` requires, and no others."""
    for name, message in spec.protocols["pgoutput"].messages.items():
        yield from _meanings(spec, name, message)
        yield from _sorts(spec, name, message)
        yield from _named(name, message)
        yield from _said(spec, name, message)
        yield from _in_blocks(spec, name, message)


def tuple_tags(spec: Spec) -> Iterator[Problem]:
    """Check that tuples with the same tag have the same `means` (new, old or key) in all messages."""
    known: dict[str, tuple[str, str]] = {}
    for name, message in spec.protocols["pgoutput"].messages.items():
        for place, entry in walk(message.fields, ("messages", name, "fields")):
            if entry.tag is None or entry.means in (None, "none"):
                continue
            here = f"{name}.{entry.name}"
            meaning, other = known.setdefault(entry.tag, (str(entry.means), here))
            if meaning != entry.means:
                text = f"a tuple with the tag `{entry.tag}` means `{meaning}` in {other}, not `{entry.means}`"
                yield (*place, "means"), f"{here}: {text}: correct `means` or `tag`"


def companions(spec: Spec) -> Iterator[Problem]:
    """Check the roles of the messages of each version: roles that occur twice, and roles that are missing.

    A role is what a message does in a stream. Only a role in `REPEATED` can have several messages.
    `COMPANIONS` says which roles require others: with `begin` a version must also have `commit`.
    """
    messages = spec.protocols["pgoutput"].messages
    for version in spec.versions:
        found: dict[Role, str] = {}
        for name, message in messages.items():
            if message.role is None or version not in Gate.parse(message.versions):
                continue
            if message.role in found and message.role not in REPEATED:
                text = f"{found[message.role]} has the role `{message.role}` in version {version} already"
                yield ("messages", name, "role"), f"{name}: {text}: give one of both another role or gate"
            found.setdefault(message.role, name)
        for role, name in found.items():
            for other in COMPANIONS.get(role, ()):
                if other not in found:
                    text = f"version {version} has the role `{role}`, but no message with the role `{other}`"
                    yield ("messages", name, "role"), f"{name}: {text}: add one, or correct `role` or gate"


def contexts(spec: Spec) -> Iterator[Problem]:
    """Check that the messages that enter and leave the context `in_stream` open and close a stream block."""
    messages = spec.protocols["pgoutput"].messages
    for name, context in spec.contexts.items():
        for key, role in (("enter", "open_block"), ("leave", "close_block")):
            message = getattr(context, key)
            if messages[message].role != role:
                right = next((one for one, other in messages.items() if other.role == role), "none")
                text = f"`{key}` names a message with the role `{role}` ({right}), not {message}"
                yield ("contexts", name, key), f"{name}: {text}"


def _always_present(spec: Spec, message: Message, entry: Entry) -> bool:
    gate = spec.gate(entry.versions or message.versions)
    return spec.gate(message.versions).within(gate) and entry.when is None


def _meanings(spec: Spec, name: str, message: Message) -> Iterator[Problem]:
    assert message.role is not None  # checked by `roles`
    required, optional = MEANINGS[message.role]
    found: dict[str, str] = {}
    for place, entry in walk(message.fields, ("messages", name, "fields")):
        meaning = entry.means
        if meaning is None or meaning == "none":
            continue
        at = (*place, "means")
        if entry.name is None or entry.literal is not None:
            yield at, f"{name}.{label(entry)}: only a field of message objects has `means`"
        elif meaning not in (*required, *optional):
            known = ", ".join((*required, *optional)) or "none"
            text = f"the role `{message.role}` has no `{meaning}`; it has {known}"
            none = "if the runtime needs nothing of it, write `means: none`, and the reason in `because`"
            yield at, f"{name}.{entry.name}: {text}; {none}"
        elif meaning in required and (place[-2] != "fields" or not _always_present(spec, message, entry)):
            text = f"the role `{message.role}` needs `{meaning}` in every version and everywhere"
            yield at, f"{name}.{entry.name}: {text}: leave out `versions`, `when` and `one_of`"
        elif meaning in found:
            yield at, f"{name}.{entry.name}: {found[meaning]} means `{meaning}` already"
        found[meaning] = entry.name or ""
    for meaning in required:
        if meaning not in found:
            text = f"the role `{message.role}` needs a field with `means: {meaning}`"
            yield ("messages", name, "fields"), f"{name}: {text}"
    either = ONE_OF.get(message.role, ())
    if either and not found.keys() & set(either):
        text = f"the role `{message.role}` needs a field with `means: {'` or `means: '.join(either)}`"
        yield ("messages", name, "fields"), f"{name}: {text}"


def _sort(spec: Spec, entry: Entry) -> Sort | None:
    """Return the kind of a field's type, such as `lsn`; None if the type has none of the kinds of `Sort`."""
    type_ = entry.type or entry.list_of or ""
    if type_ in spec.tuples:
        return "tuple"
    if type_ in spec.flags:
        return "flags" if "TRANSACTIONAL" in spec.flags[type_].bits else None
    if type_ not in spec.scalars:
        return None
    scalar = spec.scalars[type_]
    wires: dict[str, Sort] = {"bool": "bool", "cstring": "text"}
    return C_TYPES.get(scalar.c or "") or wires.get(scalar.wire)


def _examples(spec: Spec, sort: Sort) -> str:
    """Return the names of the types of one kind, such as `lsn`, for error texts."""
    names = [*spec.scalars, *spec.flags, *spec.tuples]
    return ", ".join(name for name in names if _sort(spec, Entry(name="x", type=name)) == sort)


def _sorts(spec: Spec, name: str, message: Message) -> Iterator[Problem]:
    """Check that each field's type fits the field's `means`.

    A meaning requires a kind of type, such as `lsn`. It also requires a list, or one value;
    only the meaning `new` of an insert allows both.
    """
    for place, entry in walk(message.fields, ("messages", name, "fields")):
        if entry.means is None or entry.means == "none":
            continue
        at, here = (*place, "means"), f"{name}.{entry.name}"
        sort = SORTS[entry.means]
        if _sort(spec, entry) != sort:
            text = f"the meaning `{entry.means}` needs the type {_examples(spec, sort)}"
            yield at, f"{here}: {text}, not {entry.type or f'a list of {entry.list_of}'}"
        elif (entry.list_of is not None) != (entry.means == "relations") and not (
            entry.means == "new" and message.role == "insert"
        ):
            text = (
                f"the meaning `{entry.means}` needs {'a list' if entry.means == 'relations' else 'one value'}"
            )
            yield at, f"{here}: {text}, not {'one value' if entry.list_of is None else 'a list'}"


def _named(name: str, message: Message) -> Iterator[Problem]:
    """Check that a field is not called `xid`, for example, if another field of the message means `xid`.

    Otherwise, the `means` of the two fields are probably swapped.
    """
    fields = [*walk(message.fields, ("messages", name, "fields"))]
    found = {entry.means: entry.name for _, entry in fields if entry.means is not None}
    for place, entry in fields:
        if entry.name in found and found[entry.name] != entry.name:
            text = f"{found[entry.name]} means `{entry.name}`, although this field has that name"
            yield place, f"{name}.{entry.name}: {text}: correct `means`, or rename the field"


def _said(spec: Spec, name: str, message: Message) -> Iterator[Problem]:
    """Check that each xid, OID, LSN, timestamp, tuple and flag field has `means`, or says why it has none."""
    assert message.role is not None
    known = [*MEANINGS[message.role].required, *MEANINGS[message.role].optional]
    for place, entry in walk(message.fields, ("messages", name, "fields")):
        here = f"{name}.{label(entry)}"
        if (entry.means == "none") != (entry.because is not None):
            key, other = ("because", "means: none") if entry.because else ("means", "because: …")
            yield (*place, key), f"{here}: `{key}` is given without `{other}`: write both"
        if entry.name is None or entry.literal is not None or entry.means is not None:
            continue
        sort = _sort(spec, entry)
        if sort in SAID:
            fitting = [f"`means: {meaning}`" for meaning in known if SORTS[meaning] == sort]
            text = f"a field of type {entry.type or entry.list_of} must say what it means"
            choice = f"{', '.join(fitting)}, or `means: none`" if fitting else "`means: none`"
            yield place, f"{here}: {text}: add {choice} with the reason in `because`"


def _in_blocks(spec: Spec, name: str, message: Message) -> Iterator[Problem]:
    """Check that changes, Relation and Type messages have a `subxid` in stream blocks, and all only there."""
    context = spec.contexts.get("in_stream")
    if context is None:
        return
    covered: set[int] = set()
    at: Place = ("messages", name, "fields")
    for place, entry in walk(message.fields, ("messages", name, "fields")):
        if entry.means == "subxid":
            at = place
            if entry.when != "in_stream" and message.role in (*IN_BLOCKS, "payload"):
                text = f"the role `{message.role}` has `subxid` only inside stream blocks"
                yield place, f"{name}.{entry.name}: {text}: write `when: in_stream`"
            gate = Gate.parse(entry.versions or message.versions)
            covered |= {version for version in spec.versions if version in gate}
    for version in spec.versions if message.role in IN_BLOCKS else ():
        inside = version in Gate.parse(context.versions) and version in Gate.parse(message.versions)
        if inside and version not in covered:
            text = f"version {version} has no field with `means: subxid` and `when: in_stream`"
            reason = "changes that are rolled back would stay: add the field, or widen its `versions`"
            yield at, f"{name}: {text}; {reason}"
            return
