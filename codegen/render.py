"""Templates to files: what `generated/` should hold, in memory.

Every file is rendered and formatted before any is written, so a broken template or a spec that makes no
Python leaves `generated/` as it is.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from codegen import evolution, layout, resolve
from codegen.model import Gate, Spec
from codegen.resolve import SIZES, Field, MessageView, View, snake
from codegen.rules import SPARK_OF_ARROW

_WIDTH = 100
_ORDER = ("text", "null", "unchanged", "binary")
"""The forms of a cell, the most frequent first: the order in which a decoder asks."""

_ARROW = {
    "bool": "pa.bool_()", "int16": "pa.int16()", "int32": "pa.int32()", "int64": "pa.int64()",
    "string": "pa.string()", "binary": "pa.binary()",
    "timestamp[us, tz=UTC]": 'pa.timestamp("us", tz="UTC")',
}  # fmt: skip
"""The Arrow types that message fields have, as pyarrow writes them."""


class RenderError(Exception):
    """A template gave something that is not Python."""


def render(spec: Spec) -> dict[str, str]:
    """Every generated file: its path below the output folder, and its text."""
    env = _environment(spec)
    versioned = spec.protocols["pgoutput"]
    union = resolve.resolve(spec, versioned, None)
    unions = [resolve.resolve(spec, p, None) for p in spec.protocols.values()]
    versions = {v: resolve.resolve(spec, versioned, v) for v in spec.versions}
    envelope = resolve.resolve(spec, spec.protocols["replication"], None)
    whole = layout.codec(union, union)
    layouts, layout_names = _distinct([*versions.values(), envelope])
    env.globals.update(
        spec=spec,
        layouts=layouts,
        layout_names=layout_names,
        tuples=whole.tuples,
        views=unions,
        union=union,
        versions=versions,
        envelope=envelope,
        parts=whole.parts,
        messages=[message for view in unions for message in view.messages],
        columns=_columns(union),
    )
    env.globals["spark_imports"] = _spark_imports(env.globals["messages"])

    def codec(title: str, view: View, whole: View, layout_name: str) -> str:
        one = layout.codec(view, whole)
        return env.get_template("codec.py.jinja").render(
            title=title,
            codec=one,
            version=view.version,
            layout_name=layout_name,
            contexts=_uses_context(view),
            **_used(one),
        )

    files = {
        f"pgoutput/v{number}.py": codec(
            f"Logical replication messages, protocol version {number}: bytes to objects and back.",
            view,
            union,
            f"V{number}",
        )
        for number, view in versions.items()
    }
    files["pgoutput/envelope.py"] = codec(
        "Streaming replication messages, what CopyData holds: bytes to objects and back.",
        envelope,
        envelope,
        "ENVELOPE",
    )
    for name in (
        "messages", "versions", "layouts", "catalog", "strategies", "schemas/spark", "schemas/arrow",
    ):  # fmt: skip
        files[f"pgoutput/{name}.py"] = env.get_template(f"{name}.py.jinja").render()
    files = _format(files)
    files["pgoutput/py.typed"] = ""
    page = env.get_template("reference.md.jinja")
    for number, view in versions.items():
        files[f"reference/v{number}.md"] = page.render(view=view, version=number)
    files["reference/envelope.md"] = page.render(view=envelope, version=None)
    pairs = [(old, old + 1) for old in versions if old + 1 in versions]
    changes = {
        (old, new): evolution.changes(evolution.wire_form(versions[old]), evolution.wire_form(versions[new]))
        for old, new in pairs
    }
    files["reference/changes.md"] = env.get_template("changes.md.jinja").render(changes=changes)
    files["reference/types.md"] = env.get_template("types.md.jinja").render()
    return files


def _distinct(views: list[View]) -> tuple[list[tuple[str, MessageView]], dict[tuple[int | None, str], str]]:
    """The messages that differ, each under a name of its own, and the name by version and message."""
    names: dict[bytes, str] = {}
    variants: dict[str, int] = {}
    by_version: dict[tuple[int | None, str], str] = {}
    for view in views:
        for message in view.messages:
            key = msgspec.json.encode(message)
            if key not in names:
                variants[message.name] = variants.get(message.name, 0) + 1
                suffix = f"_{variants[message.name]}" if variants[message.name] > 1 else ""
                names[key] = f"_{message.snake.upper()}{suffix}"
            by_version[view.version, message.name] = names[key]
    by_name = {by_version[view.version, m.name]: m for view in views for m in view.messages}
    return [*by_name.items()], by_version


def _columns(union: View) -> list[Field]:
    """The fields of all messages side by side, each name once."""
    columns: dict[str, Field] = {}
    for message in union.messages:
        for field in message.members:
            columns.setdefault(field.name, field)
    return [*columns.values()]


def _spark_imports(messages: list[MessageView]) -> list[str]:
    fields = [f for message in messages for member in message.members for f in (member, *member.fields)]
    names = {SPARK_OF_ARROW[field.arrow] for field in fields if field.arrow}
    return sorted(names | {"ArrayType", "BinaryType", "MapType", "StringType", "StructField", "StructType"})


def _uses_context(view: View) -> bool:
    return any(field.when for message in view.messages for field in message.fields)


def _used(codec: layout.Codec) -> dict[str, Any]:
    """What of `pgoutput.wire` a codec needs to import, and whether it reads booleans."""
    fields = [f for m, _ in codec.messages for f in (*m.members, *m.fields)]
    fields += [f for part in codec.parts.values() for f in part.fields]
    kinds = {field.kind for field in fields}
    names = {"Buffer"}
    if codec.tuples:
        names.add("UNCHANGED")
    if "string" in kinds:
        names |= {"read_string", "write_string"}
    if "flags" in kinds:
        names.add("known_bits")
    return {"wire_imports": sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name)), "uses_bool": "bool" in kinds}


def _format(files: dict[str, str]) -> dict[str, str]:
    """The Python files, as ruff formats them."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        options = ["--isolated", "--no-cache", "--quiet", "--line-length", str(_WIDTH), "--target-version", "py311"]
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "format", *options, "."],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            kept = Path(tempfile.mkdtemp(prefix="codegen-"))
            for name, text in files.items():
                path = kept / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            raise RenderError(f"{done.stderr.strip()}\nthe files are kept in {kept}")
        return {name: Path(folder, name).read_text(encoding="utf-8") for name in files}


def _environment(spec: Spec) -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.globals.update(
        header=_header,
        attribute=_attribute,
        gates=_gates,
        when_in_words=lambda when: _when_in_words(spec, when),
        Gate=Gate,
    )
    env.filters.update(
        annotation=_annotation,
        arguments=_arguments,
        arrow=_ARROW.__getitem__,
        bounds=_bounds,
        byte=lambda tag: f"0x{ord(tag):02X}",
        cells=lambda field: sorted(field.cells, key=lambda cell: _ORDER.index(cell.form)),
        compact=lambda text: "".join(line + "\n" for line in text.splitlines() if line.strip()),
        condition=_condition,
        count_struct=lambda field: f"_COUNT{field.size * 8}",
        format=lambda field: layout._FORMATS[field.size, field.signed],
        kind=lambda step: type(step).__name__,
        length_sizes=lambda field: sorted({cell.length_size for cell in field.cells} - {0}),
        literal=_literal,
        mask=lambda field: f"0x{sum(int(bit) for bit in field.values):02X}",
        pairs=lambda values: ", ".join(f"{value} {name}" for value, name in values.items()),
        snake=snake,
        spark=SPARK_OF_ARROW.__getitem__,
        target=_target,
        wrap=_wrap,
    )
    return env


def _header(title: str) -> str:
    return f'"""{title}\n\nGenerated by `python -m codegen` from `spec/`. Do not edit.'


def _wrap(text: str, indent: int) -> str:
    """Text for a docstring whose lines are indented; the first line follows what is already there."""
    lines = textwrap.wrap(" ".join(text.split()), _WIDTH - 3 - indent, break_on_hyphens=False, break_long_words=False)
    return ("\n" + " " * indent).join(lines)


def _literal(value: Any) -> str:
    """A Python literal; long text as several lines."""
    if not isinstance(value, str) or len(value) < _WIDTH - 30:
        return repr(value)
    lines = textwrap.wrap(value, _WIDTH - 30, drop_whitespace=False, break_on_hyphens=False)
    return "(" + " ".join(repr(line) for line in lines) + ")"


def _bounds(wire: str) -> str:
    """The lowest and highest value of an integer on the wire."""
    bits = SIZES[wire] * 8
    return f"-(2**{bits - 1}), 2**{bits - 1} - 1" if wire.startswith("int") else f"0, 2**{bits} - 1"


def _target(field: Field) -> str:
    """The variable that a decoder reads a field into."""
    if field.kind == "count":
        return f"n_{field.of}"
    return "length" if field.kind == "length" else field.name


def _value(field: Field) -> str:
    """What a decoder makes of that variable."""
    match field.kind:
        case "enum":
            return f"_{snake(field.type).upper()}[{field.name}]"
        case "bool":
            return f"_BOOL[{field.name}]"
        case "flags":
            return f"known_bits({field.name}, 0x{sum(int(bit) for bit in field.values):02X})"
    return field.name


def _arguments(fields: tuple[Field, ...]) -> str:
    """The arguments that make an object: what is always there by position, the rest by name."""
    required = [_value(field) for field in fields if field.required]
    return ", ".join(required + [f"{f.name}={_value(f)}" for f in fields if not f.required])


def _annotation(field: Field, module: str = "") -> str:
    match field.kind:
        case "bool":
            return "bool"
        case "integer" | "flags":
            return "int"
        case "string":
            return "str"
        case "bytes" | "rest":
            return "bytes"
        case "list":
            return f"tuple[{_list_type(field, module)}, ...]"
    return module + field.type


def _list_type(field: Field, module: str = "") -> str:
    return module + field.type if field.fields[0].name else "int"


def _attribute(field: Field, spec: Spec) -> str:
    """A field of a message class, with its docstring."""
    optional = "" if field.required else " | None"
    default = "" if field.required else " = None"
    notes = [field.doc]
    if field.when:
        notes.append(f"Only {_when_in_words(spec, field.when)}; None elsewhere.")
    elif not field.required and field.since > 1:
        notes.append(f"Since protocol version {field.since}; None before.")
    elif not field.required:
        notes.append("None where it is not sent.")
    match field.kind:
        case "flags":
            notes.append(f"Bits of `{field.type}`.")
        case "list" | "tuple" | "enum":
            pass
        case _:
            notes.append(f"{field.type_doc}")
    notes.append(f"`{field.notation}`.")
    doc = _wrap(" ".join(notes), 4)
    return f'    {field.name}: {_annotation(field)}{optional}{default}\n    """{doc}"""'


def _when_in_words(spec: Spec, when: str) -> str:
    if when in spec.contexts:
        doc = spec.contexts[when].doc.rstrip(".")
        return f"{doc[0].lower()}{doc[1:]} (protocol version {spec.contexts[when].versions})"
    option, _, value = when.partition(" = ")
    return f"with `{when}` (protocol version {spec.options[option].values[value].versions})"


def _gates(message: MessageView, view: View) -> str:
    parts = [f"Tag `{message.tag}`"]
    if view.protocol.name == "pgoutput":
        parts.append(f"protocol version {message.since}+")
    parts.append(f"server {message.server}")
    if message.option:
        parts.append(f"option `{message.option}`")
    if view.protocol.name == "replication":
        parts.append(f"sent by the {message.sender}")
    return "; ".join(parts) + f". Source: {message.source}."


def _condition(when: str) -> str:
    """`in_stream` as it is, `streaming = parallel` as a comparison."""
    if " = " not in when:
        return when
    option, _, value = when.partition(" = ")
    return f'{option} == "{value}"'
