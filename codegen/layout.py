"""Layouts of messages: the steps, in wire order, from which templates make code.

Adjacent fields of fixed width become one `Run`, read and written by one `struct.Struct`. Adjacent fields
under the same condition become one `When`. Each other field becomes a step `One`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

import msgspec

from codegen.resolve import Field, MessageView, View, snake

FORMATS = {
    (1, False): "B", (2, False): "H", (4, False): "I", (8, False): "Q", (2, True): "h", (4, True): "i",
    (8, True): "q",
}  # fmt: skip
"""Format characters of `struct`, by size in bytes and whether the integer is signed."""


def format_of(field: Field) -> str:
    """Return the `struct` format of a field of fixed width: `I`, or `11s` for bytes."""
    return f"{field.size}s" if field.arrow == "binary" else FORMATS[field.size, field.signed]


class Run(msgspec.Struct, frozen=True, tag=True):
    """A run: adjacent fields of fixed width, read and written together by one `struct.Struct`."""

    fields: tuple[Field, ...]

    @property
    def name(self) -> str:
        """Name of the run's `struct.Struct`, made of its field types: `_RUN_LSN_TIMESTAMP_XID`."""
        return "_RUN_" + "_".join(snake(field.type).upper() for field in self.fields)

    @property
    def format(self) -> str:
        """Format of the run's `struct.Struct`, big-endian, such as `>QqI`."""
        return ">" + "".join(map(format_of, self.fields))

    @property
    def size(self) -> int:
        """Total width of the run's fields, in bytes."""
        return sum(field.size for field in self.fields)


_VARYING = ("tuple", "counted")
"""Kinds of fields of varying width. Their `size` is the size of the count or length before them."""


class One(msgspec.Struct, frozen=True, tag=True):
    """A step of a layout: reads or writes one field of varying width, such as a string, tuple or list."""

    field: Field


class When(msgspec.Struct, frozen=True, tag=True):
    """A step of a layout: reads or writes adjacent fields sent only under a condition (`in_stream`)."""

    condition: str
    fields: tuple[Field, ...]
    steps: tuple[Run | One, ...]
    case: tuple[str, int] | None = None
    """Name of a field and the value that it must have; None if the condition is not about a field."""


class Layout(msgspec.Struct, frozen=True):
    """The layout of a message or list element: the steps that read or write its fields, in wire order."""

    name: str
    steps: tuple[Run | One | When, ...]

    @property
    def snake(self) -> str:
        """Name in snake_case, as in the names of generated functions."""
        return snake(self.name)

    @property
    def fixed(self) -> Run | None:
        """The layout's only run, if all fields have fixed width and no condition; else None."""
        match self.steps:
            case (Run() as run,):
                return run
        return None

    @property
    def runs(self) -> Iterator[Run]:
        """Yield all runs of adjacent fixed-width fields, including those under a condition."""
        for step in self.steps:
            if isinstance(step, Run):
                yield step
            elif isinstance(step, When):
                yield from (inner for inner in step.steps if isinstance(inner, Run))


def layout(name: str, fields: tuple[Field, ...]) -> Layout:
    """Return the layout of a message or struct with these fields."""
    steps: list[Run | One | When] = []
    for condition, group in groupby(fields, key=lambda field: field.when):
        members = tuple(group)
        if condition is None:
            steps += _steps(members)
        else:
            present = tuple(f for f in members if f.in_object)
            steps.append(When(condition, present, _steps(members), members[0].case))
    return Layout(name, tuple(steps))


def _steps(fields: tuple[Field, ...]) -> tuple[Run | One, ...]:
    steps: list[Run | One] = []
    for fixed, group in groupby(fields, key=lambda field: field.size > 0 and field.kind not in _VARYING):
        members = tuple(group)
        steps += [Run(members)] if fixed else [One(field) for field in members]
    return tuple(steps)


class Part(msgspec.Struct, frozen=True):
    """The fields and layout of a struct that repeats inside messages, such as a column of a Relation."""

    fields: tuple[Field, ...]
    layout: Layout


class Codec(msgspec.Struct, frozen=True):
    """Values from which a template generates the Python codec of one version."""

    structs: dict[str, str]
    """Formats of the `struct.Struct` objects for runs of fixed-width fields, by name."""
    enums: dict[str, dict[str, str]]
    flags: dict[str, Field]
    """A field of each type of flags, by name of the type."""
    tuples: dict[str, Field]
    parts: dict[str, Part]
    """Structs that repeat inside messages, by name."""
    messages: tuple[tuple[MessageView, Layout], ...]
    absent: dict[str, tuple[str, ...]]
    """Names of a class's fields that this version does not send, by name of the message or struct."""


def codec(view: View, union: View) -> Codec:
    """Return the values of the codec template for `view`; `union` is a view with all versions' fields."""
    messages = tuple((message, layout(message.name, message.fields)) for message in view.messages)
    structs = {
        name: Part(tuple(f for f in one if f.in_object), layout(name, one))
        for name, one in parts(view).items()
    }
    fields = [f for message in view.messages for f in (*message.members, *message.fields)]
    fields += [f for part in structs.values() for f in part.fields]
    elements = [f.fields[0] for f in fields if f.kind == "list"]
    layouts = [one for _, one in messages] + [part.layout for part in structs.values()]
    here = {m.name: m.members for m in view.messages} | parts(view)
    whole = {m.name: m.members for m in union.messages} | parts(union)
    return Codec(
        structs=dict(sorted({run.name: run.format for one in layouts for run in one.runs}.items())),
        enums={f.type: f.values for f in fields if f.kind == "enum"},
        flags={f.type: f for f in fields if f.kind == "flags"},
        tuples={f.type: f for f in (*fields, *elements) if f.kind == "tuple"},
        parts=structs,
        messages=messages,
        absent={
            name: tuple(f.name for f in whole[name] if f.name not in {g.name for g in members})
            for name, members in here.items()
        },
    )


def parts(view: View) -> dict[str, tuple[Field, ...]]:
    """Return the fields of each struct that repeats inside messages, by name of the struct."""
    found: dict[str, tuple[Field, ...]] = {}
    for message in view.messages:
        _add_parts(message.members, found)
    return found


def _add_parts(fields: tuple[Field, ...], found: dict[str, tuple[Field, ...]]) -> None:
    """Add the structs among the fields to `found`; structs inside a struct come before it."""
    for field in fields:
        if field.element == "struct":
            _add_parts(field.fields, found)
            found[field.type] = field.fields


class Form(msgspec.Struct, frozen=True):
    """The layout of a message, or of a struct inside messages, that one or more protocol versions share."""

    name: str
    """Name in generated functions. `insert_v2` is the layout of an Insert in version 2 and later."""
    type: str
    """Name of the message class or struct class."""
    tag: str
    """First byte of the message; empty for a struct."""
    fields: tuple[Field, ...]
    """Fields of the class that the versions with this layout send. Counts and lengths are not among them."""
    layout: Layout
    members: tuple[str, ...]
    """Names of all fields of the class."""

    @property
    def absent(self) -> tuple[str, ...]:
        """Names of the class's fields that the versions with this layout do not send."""
        here = {field.name for field in self.fields}
        return tuple(name for name in self.members if name not in here)


class Forms:
    """The distinct layouts of messages and structs in all versions, for the compiled kernel's template."""

    def __init__(self, views: Mapping[str, View], union: View) -> None:
        self._by_key: dict[bytes, Form] = {}
        self.parts: list[Form] = []
        """Layouts of the structs that repeat inside messages."""
        self.messages: list[Form] = []
        self.codecs: dict[str, tuple[View, list[Form]]] = {}
        """By codec (`v4` or `envelope`): the `View` that the codec implements, and its message layouts."""
        self.tables: dict[str, Field] = {}
        """By name of a table in the kernel, such as `REPLICA_IDENTITY`: a field with the table's values."""
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
        """Return the layout of the elements of a list field."""
        return self._by_key[_key(field.type, field.fields)]

    def table(self, field: Field) -> str:
        """Return the name of the kernel's table with the values of an enum or flag field: `REPLICA_IDENTITY`.

        If versions differ in these values, there are more tables: `REPLICA_IDENTITY_2` and so on.
        """
        name = first = snake(field.type).upper()
        number = 1
        while self.tables.setdefault(name, field).values != field.values:
            number += 1
            name = f"{first}_{number}"
        return name

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
            members = tuple(field.name for field in whole)
            form = Form(f"{snake(name)}_{label}", name, tag, here, layout(name, fields), members)
            self._by_key[key] = form
            forms.append(form)
            for field in here:
                if field.kind in ("enum", "flags"):
                    self.table(field)
        return self._by_key[key]


def _key(name: str, fields: tuple[Field, ...]) -> bytes:
    return msgspec.json.encode((name, [_bare(field) for field in fields]))


def _bare(field: Field) -> Field:
    """Return a copy of a field without attributes that do not affect its bytes or value, such as `doc`."""
    inner = tuple(map(_bare, field.fields))
    return msgspec.structs.replace(
        field, doc="", since=0, server="", source="", option=None, means=None, later={}, fields=inner
    )
