"""Hooks of MkDocs: add the pages that are made from the code or stand outside `docs/`.

Pages outside `docs/` keep their path in the repository as their path in the site, so that one relative link
works on GitHub and in the site. Pages of the Python API and tables of command line options are made from the
code, so that they cannot be out of date.
"""

from __future__ import annotations

import importlib
import inspect
import posixpath
import re
import shutil
import tempfile
import tomllib
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import logicalrep
from logicalrep.versions import CODECS

ROOT = Path(__file__).parent.parent
OTHER_PAGES = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "spec/README.md",
    "benchmarks/README.md",
    "tests/captures/README.md",
    "examples/pipeline/README.md",
)
"""Pages of the site that stand outside `docs/`, beside `generated/reference/*.md`."""

EXPLORER = "generated/explorer/index.html"
"""The protocol explorer, which the site contains as it is."""

_API = "reference/api/"
_FENCES = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_merged: list[Path] = []


def public_modules() -> list[str]:
    """Return the names of all public modules, `logicalrep` first.

    They are those in the table of `logicalrep.__doc__`, which names the codec of each version
    `logicalrep.vN`. A package that exports nothing but modules, such as `logicalrep.schemas`, adds these
    modules.
    """
    names = ["logicalrep"]
    table = (logicalrep.__doc__ or "").split("\n===")[2]
    for name in re.findall(r"`(logicalrep\.[\w.]+)`", table):
        names += [f"logicalrep.v{version}" for version in CODECS] if name == "logicalrep.vN" else [name]
    for name in list(names):
        module = importlib.import_module(name)
        exported = [getattr(module, one, None) for one in getattr(module, "__all__", ())]
        if hasattr(module, "__path__") and all(inspect.ismodule(one) for one in exported):
            found = {path.stem for folder in module.__path__ for path in Path(folder).glob("[!_]*.py")}
            names += [f"{name}.{stem}" for stem in sorted(found)]
    return [name for name in names if importlib.import_module(name).__file__]  # folders have no docstring


def on_config(config: Any) -> Any:
    """Merge both source roots into a temporary folder, from which mkdocstrings reads the package."""
    folder = Path(tempfile.mkdtemp(prefix="logicalrep-docs-"))
    _merged.append(folder)
    for root in ("generated", "runtime"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyx")
        shutil.copytree(ROOT / root / "logicalrep", folder / "logicalrep", dirs_exist_ok=True, ignore=ignored)
    for inner in (folder / "logicalrep").rglob("*/"):
        (inner / "__init__.py").touch()  # Griffe finds no modules in folders without one
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(folder)]
    return config


on_config.mkdocs_priority = 100  # type: ignore[attr-defined]  # before mkdocstrings reads its configuration


def on_shutdown() -> None:
    """Remove the temporary folder."""
    while _merged:
        shutil.rmtree(_merged.pop(), ignore_errors=True)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside `docs/` and those of the Python API, and put them into the navigation."""
    from mkdocs.structure.files import File  # tests import this module without MkDocs

    protocol = sorted((ROOT / "generated/reference").glob("*.md"))
    pictures = (ROOT / "benchmarks").glob("*.svg")
    for path in [*(ROOT / page for page in OTHER_PAGES), *protocol, *pictures, ROOT / EXPLORER]:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    modules = public_modules()
    for name in modules:
        page = f"---\ntitle: {name}\n---\n\n::: {name}\n"
        files.append(File.generated(config, f"{_API}{name}.md", content=page))
    (reference,) = (section["Reference"] for section in config.nav if "Reference" in section)
    reference += [
        {"Protocol": [path.relative_to(ROOT).as_posix() for path in protocol]},
        {"Python API": ["reference/python.md", *(f"{_API}{name}.md" for name in modules)]},
    ]
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fill in the tables that are made from the code, and turn links into links of the site."""
    markdown = re.sub(r"<!-- options of ([\w -]+?) -->", lambda found: options_table(found[1]), markdown)
    markdown = markdown.replace("<!-- public modules -->", modules_table())
    markdown = re.sub(r"<!-- metrics of (\w+) -->", lambda found: metrics_table(found[1]), markdown)
    source = page.file.src_uri
    folder = posixpath.dirname(f"docs/{source}" if (ROOT / "docs" / source).exists() else source)

    def site_link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        if not target or ":" in target or source.startswith(_API):
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        uri = path.removeprefix("docs/")
        if files.get_file_from_path(uri) is not None:
            return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(source) or '.')}{anchor})"
        return f"[{text}]({_SOURCE_URL}/{path})" if _SOURCE_URL else text  # a file of the repository

    parts = _FENCES.split(markdown)
    parts[::2] = [_LINK.sub(site_link, part) for part in parts[::2]]
    return "".join(parts)


def _find_source_url() -> str:
    """Return the URL of the repository's files, from the project's metadata; empty if it names none."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        urls = tomllib.load(file)["project"].get("urls", {})
    home = next((urls[name] for name in ("Source", "Repository", "Homepage") if name in urls), "")
    return f"{home.rstrip('/')}/blob/main" if "github.com" in home else ""


_SOURCE_URL = _find_source_url()


def modules_table() -> str:
    """Return a Markdown table of the public modules with the first line of their docstrings."""
    rows = ["| module | contents |", "|---|---|"]
    for name in public_modules():
        summary = (importlib.import_module(name).__doc__ or "").strip().split("\n\n")[0]
        rows.append(f"| [`{name}`](api/{name}.md) | {' '.join(summary.split())} |")
    return "\n".join(rows)


def options_table(command: str) -> str:
    """Return a Markdown table of a command's arguments and options, from the command line itself."""
    rows = ["| option | value | default | meaning |", "|---|---|---|---|"]
    for option in sorted(parameters(command), key=lambda one: one.param_type_name):
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        if option.param_type_name == "argument":
            names = f"`{option.name.rstrip('_').upper()}`"
        default = option.default
        if option.required:
            default = "required"
        elif default in (None, False, ""):
            default = ""
        else:
            default = f"`{default}`"
        value = "" if getattr(option, "is_flag", False) else _value(option)
        rows.append(f"| {names} | {value} | {default} | {(option.help or '').replace('|', '&#124;')} |")
    return "\n".join(rows)


def metrics_table(program: str) -> str:
    """Return a Markdown table of the metrics of a recorder or replica."""
    from logicalrep.cli.record.metrics import RECORDER
    from logicalrep.cli.replicate.metrics import REPLICA

    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for one in {"recorder": RECORDER, "replica": REPLICA}[program]:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        rows.append(f"| `{one.name}` | {one.kind} | {labels} | {one.help} |")
    return "\n".join(rows)


def parameters(command: str) -> list[Any]:
    """Return the arguments and options of a command, such as `decode` or `vectors run`, without `--help`."""
    import typer

    from logicalrep.cli.app import app

    group: Any = typer.main.get_command(app)
    for name in command.split():
        group = group.commands[name]
    return [one for one in group.params if "--help" not in one.opts]


def _value(option: Any) -> str:
    """Return the kind of an option's value: its choices, or its type with bounds."""
    annotation = option.type_descriptor.annotation
    kinds = [one for one in get_args(annotation) if one is not type(None)]
    if get_origin(annotation) in (list, Union, UnionType):
        annotation = kinds[0]
    if get_origin(annotation) is Literal:
        return " \\| ".join(f"`{choice}`" for choice in get_args(annotation))
    name = {str: "text", int: "integer", float: "number", Path: "path"}[annotation]
    low, high = option.min, option.max
    bounds = "" if low is None else f", at least {low}" if high is None else f", {low} to {high}"
    return f"{name}{bounds}{', repeatable' if option.multiple or option.nargs == -1 else ''}"
