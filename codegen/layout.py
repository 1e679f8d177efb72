"""The wire order of a message as steps that a template can write down.

Neighbouring fields of fixed width become one `Run`, read and written by one `struct.Struct`; neighbouring
fields under the same condition become one `When`. Everything else is a step of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import msgspec

from codegen.resolve import Field, MessageView, View, snake

FORMATS = {
    (1, False): "B", (2, False): "H", (4, False): "I", (8, False): "Q", (4, True): "i", (8, True): "q",
}  # fmt: skip
"""Formats of `struct`, by size and sign."""


class Run(msgspec.Struct, frozen=True, tag=True):
    """Adjacent fields of fixed width, read by one `struct.Struct`."""

    fields: tuple[Field, ...]

    @property
    def name(self) -> str:
        """Name of the run's `struct.Struct`, made of its field types: `_RUN_LSN_TIMESTAMP_XID`."""
        return "_RUN_" + "_".join(snake(field.type).upper() for field in self.fields)

    @property
    def format(self) -> str:
        """Format of the run's `struct.Struct`, big-endian."""
        return ">" + "".join(FORMATS[field.size, field.signed] for field in self.fields)

    @property
    def size(self) -> int:
        """Width of the run, in bytes."""
        return sum(field.size for field in self.fields)


class One(msgspec.Struct, frozen=True, tag=True):
    """A field of variable width."""

    field: Field


class When(msgspec.Struct, frozen=True, tag=True):
    """Steps that are on the wire only under a condition."""

    condition: str
    fields: tuple[Field, ...]
    steps: tuple[Run | One, ...]


class Layout(msgspec.Struct, frozen=True):
    """The steps that read or write a message, or a struct that repeats in a list."""

    name: str
    steps: tuple[Run | One | When, ...]

    @property
    def snake(self) -> str:
        """Name in snake_case, as in function names."""
        return snake(self.name)

    @property
    def fixed(self) -> Run | None:
        """The run that is the whole message, or None."""
        match self.steps:
            case (Run() as run,):
                return run
        return None

    @property
    def runs(self) -> Iterator[Run]:
        """Return all runs, including those under a condition."""
        for step in self.steps:
            if isinstance(step, Run):
                yield step
            elif isinstance(step, When):
                yield from (inner for inner in step.steps if isinstance(inner, Run))


def layout(name: str, fields: tuple[Field, ...]) -> Layout:
    """Return the steps of a field list."""
    steps: list[Run | One | When] = []
    for condition, group in groupby(fields, key=lambda field: field.when):
        members = tuple(group)
        if condition is None:
            steps += _steps(members)
        else:
            steps.append(When(condition, tuple(f for f in members if f.in_object), _steps(members)))
    return Layout(name, tuple(steps))


def _steps(fields: tuple[Field, ...]) -> tuple[Run | One, ...]:
    steps: list[Run | One] = []
    for fixed, group in groupby(fields, key=lambda field: field.size > 0 and field.kind != "tuple"):
        members = tuple(group)
        steps += [Run(members)] if fixed else [One(field) for field in members]
    return tuple(steps)


class Part(msgspec.Struct, frozen=True):
    """A struct that repeats inside messages."""

    fields: tuple[Field, ...]
    layout: Layout


class Codec(msgspec.Struct, frozen=True):
    """The parts of one version's codec, as its template needs them."""

    structs: dict[str, str]
    """Names and formats of the `struct.Struct`s."""
    enums: dict[str, dict[str, str]]
    tuples: dict[str, Field]
    parts: dict[str, Part]
    """The structs that repeat inside messages."""
    messages: tuple[tuple[MessageView, Layout], ...]
    absent: dict[str, tuple[str, ...]]
    """Fields that the classes have and this version does not, by message or struct."""


def codec(view: View, union: View) -> Codec:
    """Return the codec of `view`; `union` is the view with all versions' fields."""
    messages = tuple((message, layout(message.name, message.fields)) for message in view.messages)
    structs = {name: Part(one, layout(name, one)) for name, one in parts(view).items()}
    fields = [f for message in view.messages for f in (*message.members, *message.fields)]
    fields += [f for part in structs.values() for f in part.fields]
    layouts = [one for _, one in messages] + [part.layout for part in structs.values()]
    here = {m.name: m.members for m in view.messages} | parts(view)
    whole = {m.name: m.members for m in union.messages} | parts(union)
    return Codec(
        structs=dict(sorted({run.name: run.format for one in layouts for run in one.runs}.items())),
        enums={f.type: f.values for f in fields if f.kind == "enum"},
        tuples={f.type: f for f in fields if f.kind == "tuple"},
        parts=structs,
        messages=messages,
        absent={
            name: tuple(f.name for f in whole[name] if f.name not in {g.name for g in members})
            for name, members in here.items()
        },
    )


def parts(view: View) -> dict[str, tuple[Field, ...]]:
    """Return the structs that repeat inside messages, with their fields."""
    fields = [field for message in view.messages for field in message.members]
    lists = [field for field in fields if field.kind == "list" and field.fields[0].name]
    return {field.type: field.fields for field in lists}


class Form(msgspec.Struct, frozen=True):
    """The form of a message, or of a struct inside messages, shared by one or more versions."""

    name: str
    """What functions call it: `insert_v2` is how an Insert looks from version 2 on."""
    type: str
    """The class."""
    tag: str
    """The first byte of a message."""
    fields: tuple[Field, ...]
    """The fields of the object that are there."""
    layout: Layout
    members: tuple[str, ...]
    """All fields of the class, in its order."""

    @property
    def absent(self) -> tuple[str, ...]:
        """Fields of the class that these versions do not send."""
        here = {field.name for field in self.fields}
        return tuple(name for name in self.members if name not in here)


class Forms:
    """The distinct message forms of all versions, for the kernel's template."""

    def __init__(self, views: Mapping[str, View], union: View) -> None:
        self._by_key: dict[bytes, Form] = {}
        self.parts: list[Form] = []
        """The structs that repeat inside messages."""
        self.messages: list[Form] = []
        self.codecs: dict[str, tuple[View, list[Form]]] = {}
        """What each codec consists of, by `v4` or `envelope`."""
        whole = {m.name: m.members for m in union.messages} | parts(union)
        for label, view in views.items():
            for name, fields in parts(view).items():
                self._add(self.parts, label, name, "", fields, fields, whole[name])
            forms = [
                self._add(self.messages, label, m.name, m.tag, m.fields, m.members, whole[m.name])
                for m in view.messages
            ]
            self.codecs[label] = (view, forms)

    def part(self, field: Field) -> Form:
        """Return the form of a list's elements."""
        return self._by_key[_key(field.type, field.fields)]

    def _add(
        self,
        forms: list[Form],
        label: str,
        name: str,
        tag: str,
        fields: tuple[Field, ...],
        here: tuple[Field, ...],
        whole: tuple[Field, ...],
    ) -> Form:
        key = _key(name, fields)
        if key not in self._by_key:
            members = [field.name for field in sorted(whole, key=lambda field: not field.required)]
            form = Form(f"{snake(name)}_{label}", name, tag, here, layout(name, fields), tuple(members))
            self._by_key[key] = form
            forms.append(form)
        return self._by_key[key]


def _key(name: str, fields: tuple[Field, ...]) -> bytes:
    return msgspec.json.encode((name, [_bare(field) for field in fields]))


def _bare(field: Field) -> Field:
    """Return the properties of a field that its bytes and its Python object depend on."""
    inner = tuple(map(_bare, field.fields))
    return msgspec.structs.replace(field, doc="", since=0, server="", source="", option=None, fields=inner)
