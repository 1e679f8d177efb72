"""Render the templates: the contents of all generated files, in memory.

All files are rendered and formatted before the first file is written, so that `generated/` stays unchanged
if a template is broken or a spec yields invalid Python.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from jinja2.bccache import Bucket

from codegen import evolution, explorer, filters, javascript, json_schema, layout, states, stream_rules
from codegen.model import PROTOCOLS, Gate, Spec
from codegen.resolve import Field, MessageView, View, resolve, scalar_notation, snake
from codegen.tables import ICEBERG_OF_ARROW, PYARROW_OF_ARROW, SPARK_OF_ARROW

KERNEL = Path(__file__).parent.parent / "runtime/kernel"
"""Folder of the files that the generated kernel includes. Codegen reads them only for the kernel's digest."""

_MODULES = (
    "messages", "versions", "_protocols", "_rules", "catalog", "strategies",
    "schemas/__init__", "schemas/spark", "schemas/arrow",
)  # fmt: skip

_RUFF = (
    "--isolated", "--no-cache", "--quiet", "--target-version", "py311", "--line-length", str(filters.WIDTH),
)  # fmt: skip

_FILTERS = (
    filters.alternatives, filters.annotation, filters.arguments, filters.bounds, filters.byte,
    filters.c_arguments, filters.c_name, filters.c_type, filters.cell_structs, filters.cells, filters.compact,
    filters.condition, filters.contexts, filters.count_struct, filters.doc, filters.format, filters.kind,
    filters.length_sizes, filters.length_struct, filters.literal, filters.mask, filters.pairs,
    filters.target, filters.types, filters.value, filters.variable, filters.widths, filters.wrap, snake,
)  # fmt: skip


class _Compiled(jinja2.BytecodeCache):
    """Compiled templates in memory: a second `render` in the same process does not compile them again."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _Compiled()


class RenderError(Exception):
    """A template produced text that is not valid Python."""


def render(spec: Spec) -> dict[str, str]:
    """Return the text of each generated file, by path below the output folder."""
    env = _environment(spec)
    if spec.plain:
        return _render_plain(env, spec)
    versioned, unversioned = (spec.protocols[name] for name in PROTOCOLS)
    union = resolve(spec, versioned, None)
    envelope = resolve(spec, unversioned, None)
    versions = {number: resolve(spec, versioned, number) for number in spec.versions}
    messages = union.messages + envelope.messages
    whole = View(protocol=versioned, version=None, messages=messages)
    layouts, layout_names = _distinct([*versions.values(), union, envelope])
    tuples = layout.codec(whole, whole).tuples
    env.globals.update(
        spec=spec,
        digest="",
        layouts=layouts,
        layout_names=layout_names,
        tuples=tuples,
        views=(union, envelope),
        union=union,
        versions=versions,
        envelope=envelope,
        parts=layout.parts(whole),
        messages=messages,
        columns=_columns(union),
        checks=stream_rules.checks(spec),
        needs=stream_rules.needs,
        forms=layout.Forms({f"v{n}": view for n, view in versions.items()} | {"envelope": envelope}, whole),
        spark_imports=_spark_imports(messages),
    )
    kernel = env.get_template("kernel.pyx.jinja")
    kernel_files = [kernel.render().encode(), *(path.read_bytes() for path in sorted(KERNEL.glob("*.pxi")))]
    env.globals["digest"] = hashlib.sha256(b"".join(kernel_files)).hexdigest()[:16]
    files = {
        f"logicalrep/v{number}.py": _codec(
            env,
            f"Codec of logical replication messages, protocol version {number}: bytes to objects and back.",
            view,
            union,
            f"V{number}",
        )
        for number, view in versions.items()
    }
    files["logicalrep/envelope.py"] = _codec(
        env,
        "Codec of streaming replication messages (the content of CopyData): bytes to objects and back.",
        envelope,
        envelope,
        "ENVELOPE",
    )
    for name in _MODULES:
        files[f"logicalrep/{name}.py"] = env.get_template(f"{name}.py.jinja").render()
    files = _format(files)
    files["logicalrep/_kernel.pyx"] = kernel.render()
    files["logicalrep/py.typed"] = ""
    page = env.get_template("reference.md.jinja")
    for number, view in versions.items():
        files[f"reference/v{number}.md"] = page.render(
            view=view, version=number, diagram=states.diagram(view)
        )
    files["reference/envelope.md"] = page.render(view=envelope, version=None)
    forms = {number: evolution.wire_form(view) for number, view in versions.items()}
    changes = {
        (old, new): evolution.changes(forms[old], forms[new]) for old, new in itertools.pairwise(versions)
    }
    files["reference/changes.md"] = env.get_template("changes.md.jinja").render(changes=changes)
    for name in ("options", "types"):
        files[f"reference/{name}.md"] = env.get_template(f"{name}.md.jinja").render()
    files[json_schema.NAME] = json_schema.text()
    tables = javascript.Layouts(spec, versions, union, envelope)
    package = _javascript(env, tables)
    modules = {Path(name).name: text for name, text in package.items()}
    rules = {"rules.js": env.get_template("explorer/rules.js.jinja").render()}
    files[explorer.NAME] = env.get_template("explorer/index.html.jinja").render(
        explorer=explorer,
        sources=explorer.sources() | rules,
        codec=explorer.codec(modules),
        tables=explorer.tables(spec, versions, envelope, tables),
    )
    return files | package


def _render_plain(env: jinja2.Environment, spec: Spec) -> dict[str, str]:
    """Return the files of a spec whose protocols have no versions: a package with one codec per protocol."""
    views = [resolve(spec, protocol, None) for protocol in spec.protocols.values()]
    messages = [message for view in views for message in view.messages]
    parts = {name: fields for view in views for name, fields in layout.parts(view).items()}
    env.globals.update(
        spec=spec,
        views=views,
        messages=messages,
        parts={name: [one for one in parts[name] if one.in_object] for name in spec.structs},
        spark_imports=_spark_imports(messages),
    )
    files = {
        f"{name}.py": env.get_template(f"plain/{template}.py.jinja").render()
        for name, template in _PLAIN_MODULES.items()
    }
    for view in views:
        codec = layout.codec(view, view)
        files[f"{view.protocol.name}.py"] = env.get_template("plain/codec.py.jinja").render(
            view=view, codec=codec, tagged=bool(view.messages[0].tag), **_used(codec)
        )
    files = _format(files)
    page = env.get_template("reference.md.jinja")
    return files | {f"{view.protocol.name}.md": page.render(view=view, version=None) for view in views}


_PLAIN_MODULES = {
    "__init__": "__init__", "messages": "messages", "_layouts": "layouts", "arrow": "arrow", "spark": "spark",
}  # fmt: skip
"""Templates of the modules of a spec without versions, by name of the module."""


def _javascript(env: jinja2.Environment, layouts: javascript.Layouts) -> dict[str, str]:
    """Return the text of each file of the npm package, by path below the output folder."""
    names = [name for name in env.list_templates() if name.startswith("javascript/")]
    files = {
        name.removesuffix(".jinja"): env.get_template(name).render(js=javascript, layouts=layouts)
        for name in names
        if name.endswith(".jinja")
    }
    files |= {f"javascript/src/{name}": text for name, text in javascript.sources().items()}
    return files | {"javascript/LICENSE": (javascript.ROOT / "LICENSE").read_text(encoding="utf-8")}


def _codec(env: jinja2.Environment, title: str, view: View, union: View, layout_name: str) -> str:
    codec = layout.codec(view, union)
    return env.get_template("codec.py.jinja").render(
        title=title,
        codec=codec,
        version=view.version,
        layout_name=layout_name,
        label=layout_name.lower(),
        contexts=filters.contexts(view),
        **_used(codec),
    )


def _distinct(views: list[View]) -> tuple[list[tuple[str, MessageView]], dict[tuple[int | None, str], str]]:
    """Return the distinct layouts of messages as pairs (name, layout), and which message has which layout.

    The name is the variable of the layout in generated code, such as `_INSERT_2`. The second result has this
    name by protocol version and message name.
    """
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
    """Return the fields of all messages; of fields with the same name, only the first."""
    fields = [field for message in union.messages for field in message.members]
    counts = Counter(field.name for field in fields)
    columns: dict[str, Field] = {}
    for field in fields:
        alone = counts[field.name] == 1
        columns.setdefault(field.name, msgspec.structs.replace(field, type_doc="") if alone else field)
    return [*columns.values()]


def _spark_imports(messages: Sequence[MessageView]) -> list[str]:
    members = [member for message in messages for member in message.members]
    fields = [field for member in members for field in (member, *member.fields)]
    fields += [element for field in fields for element in field.fields]
    names = {SPARK_OF_ARROW[field.arrow] for field in fields if field.arrow}
    return sorted(names | {"ArrayType", "BinaryType", "MapType", "StringType", "StructField", "StructType"})


def _used(codec: layout.Codec) -> dict[str, Any]:
    """Return a codec template's variables: `wire_imports` (from `logicalrep.wire`), `uses_bool`, `prefixes`.

    `prefixes` has the name and format of each `struct.Struct` for the length before a field.
    """
    fields = [f for m, _ in codec.messages for f in (*m.members, *m.fields)]
    fields += [f for part in codec.parts.values() for f in part.fields]
    fields += [f.fields[0] for f in fields if f.element in ("string", "counted")]
    kinds = {field.kind for field in fields}
    names = {"Buffer"}
    if codec.tuples:
        names |= {"UNCHANGED", "escaped_bytes"}
    if "string" in kinds:
        names |= {"read_string", "write_string"}
    if "flags" in kinds:
        names |= {"flag_table", "known_bits"}
    if any(field.kind == "counted" and field.name for field in fields):
        names |= {"read_counted", "write_counted"}
    if any(field.element == "counted" and field.end for field in fields):
        names.add("write_counted")
    if "fixed" in kinds:
        names.add("exact")
    if any(field.end for field in fields):
        names.add("not_ending")
    # Constants, classes, functions: as ruff sorts imports.
    imports = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    prefixes = {
        filters.length_struct(f): f">{layout.FORMATS[f.size, f.signed]}"
        for f in fields
        if f.kind == "counted"
    }
    return {"wire_imports": imports, "uses_bool": "bool" in kinds, "prefixes": [*prefixes.items()]}


def _format(files: dict[str, str]) -> dict[str, str]:
    """Return the Python files, given as text by path, formatted by ruff."""
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), files)
        done = subprocess.run(
            [sys.executable, "-m", "ruff", "format", *_RUFF, "."],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            kept = Path(tempfile.mkdtemp(prefix="codegen-"))
            _write(kept, files)
            raise RenderError(f"{done.stderr.strip()}\nruff cannot format the generated files in {kept}")
        return {name: Path(folder, name).read_text(encoding="utf-8") for name in files}


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _environment(spec: Spec) -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        bytecode_cache=_COMPILED,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.globals.update(
        attribute=filters.attribute,
        gates=filters.gates,
        header=functools.partial(filters.header, spec.files[0].path.parent.name),
        when_in_words=functools.partial(filters.when_in_words, spec),
        Gate=Gate,
    )
    env.filters.update({one.__name__: one for one in _FILTERS})
    env.filters.update(
        arrow=PYARROW_OF_ARROW.__getitem__,
        iceberg=lambda builtin: builtin.iceberg or ICEBERG_OF_ARROW[builtin.arrow],
        parts_of=lambda view: layout.parts(view).items(),
        scalar_notation=scalar_notation,
        since=functools.partial(filters.since, spec),
        spark=SPARK_OF_ARROW.__getitem__,
    )
    return env
