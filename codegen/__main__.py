"""The command `python -m codegen`, which generates the files in `generated/` from `spec/`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from codegen import evolution, files, kaitai, lock, rules, skeleton
from codegen.load import load
from codegen.model import Spec
from codegen.render import RenderError, render
from codegen.resolve import resolve
from codegen.yamlfile import SpecError

app = typer.Typer(
    help="Generate codecs, message classes, schemas, strategies and reference pages from a spec.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

SpecOption = Annotated[Path, typer.Option("--spec", help="Folder of the spec.")]
OutOption = Annotated[Path, typer.Option("--out", help="Folder of the generated files.")]


class Refused(Exception):
    """The command cannot be carried out. `main` prints the text of the exception."""


@app.callback(invoke_without_command=True)
def generate(
    context: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; list stale, missing and orphaned files.")
    ] = False,
    release: Annotated[
        bool, typer.Option("--release", help="Store the layouts of newly released versions in the lock.")
    ] = False,
    spec: SpecOption = Path("spec"),
    out: OutOption = Path("generated"),
    json_: Annotated[
        bool, typer.Option("--json", help="Print an error as a JSON object on standard output.")
    ] = False,
) -> None:
    """Write the generated files; a second run changes nothing."""
    if context.invoked_subcommand is None:
        loaded = load(spec)
        locked = {} if loaded.plain else lock.read_lock(spec, begin=release)
        _generate(spec, out, loaded, locked, check=check, release=release)


def _generate(
    spec: Path,
    out: Path,
    loaded: Spec,
    locked: Mapping[str, evolution.WireForm],
    *,
    check: bool = False,
    release: bool = False,
) -> None:
    """Write the generated files and the lock, or only compare them with the files on disk if `check` is true.

    Raises:
        SpecError: A released version has another layout than in `locked`, or is not in `locked` although
            `release` is false.
        Refused: `check` is true, and a file differs.
    """
    if not loaded.plain:
        lock.check(locked, loaded)
        if not release:
            lock.check_locked(locked, loaded)
    rules.check_used(loaded)
    rendered = render(loaded)
    text = None if loaded.plain else lock.lock_text(loaded)
    if not check:
        if text is not None and _stale(spec / lock.LOCK, text):
            files.write_file(spec / lock.LOCK, text)
            typer.echo(f"wrote {spec / lock.LOCK}")
        for line in files.write(out, rendered):
            typer.echo(line)
        return
    state = files.compare(out, rendered)
    lines = [f"{kind}: {out / name}" for kind, names in state.items() for name in names]
    if text is not None and _stale(spec / lock.LOCK, text):
        lines.append(f"stale: {spec / lock.LOCK}")
    if lines:
        raise Refused("\n".join([*lines, "run `python -m codegen`, and commit what it writes"]))


@app.command()
def remove(
    label: Annotated[str, typer.Argument(metavar="VERSION", help="The version, such as v1.")],
    spec: SpecOption = Path("spec"),
    out: OutOption = Path("generated"),
) -> None:
    """Remove a version that the spec no longer has from `released.json`, and write the generated files."""
    loaded = _versioned(spec)
    locked = lock.read_lock(spec)
    _generate(spec, out, loaded, lock.without(spec, locked, loaded, label))


@app.command()
def diff(
    old: Annotated[str, typer.Argument(help="A spec folder, or a version such as v3.")],
    new: Annotated[str, typer.Argument(help="A spec folder, or a version such as v4.")],
    spec: SpecOption = Path("spec"),
) -> None:
    """List the changes between two specs or versions; fail on a change to a released version."""
    match [re.fullmatch(r"v([0-9]+)", side) for side in (old, new)]:
        case [None, None]:
            before, after = _versioned(Path(old)), _versioned(Path(new))
            typer.echo(_listed(evolution.compare(before, after)))
            lock.check(evolution.released(before), after)
        case [re.Match() as first, re.Match() as second]:
            loaded = _versioned(spec)
            forms = [_form(loaded, int(match[1])) for match in (first, second)]
            typer.echo(_listed([change.text for change in evolution.changes(*forms)]))
        case _:
            raise Refused(f"compare two versions (v3 v4) or two spec folders, not one of each: {old} {new}")


@app.command("new-message")
def new_message(
    name: Annotated[str, typer.Argument(help="Name of the message, such as SequenceState.")],
    version: Annotated[
        int | None,
        typer.Option(help="First protocol version that has it; by default the first unreleased one."),
    ] = None,
    spec: SpecOption = Path("spec"),
) -> None:
    """Add a message to the spec, with its gate, a free tag and a role; fill in its texts and fields."""
    file, text = skeleton.with_message(_versioned(spec), name, version)
    files.write_file(file.path, text)
    line = text[: text.index(f"\n  {name}:\n")].count("\n") + 2
    typer.echo(
        f"{file.path}:{line}: wrote {name}: correct its role, texts and fields, then run `make generate`"
    )


@app.command()
def export(
    form: Annotated[
        Literal["kaitai"], typer.Argument(help="The form of the files: kaitai, for `.ksy` files.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the exported files.")] = Path("kaitai"),
    spec: SpecOption = Path("spec"),
) -> None:
    """Write the messages of each version as files for a parser generator such as Kaitai Struct."""
    exported = {"kaitai": kaitai.files}[form](_versioned(spec))
    for line in files.write(out, exported):
        typer.echo(line)


def _versioned(folder: Path) -> Spec:
    spec = load(folder)
    if spec.plain:
        raise Refused(f"{folder}: this command does not work for a spec without the section `versions`")
    return spec


def _listed(words: Sequence[str]) -> str:
    return "\n".join(words) or "nothing changed on the wire"


def _form(spec: Spec, version: int) -> evolution.WireForm:
    if version not in spec.versions:
        known = ", ".join(map(str, spec.versions))
        raise Refused(f"there is no version {version}; the versions are {known}")
    return evolution.wire_form(resolve(spec, spec.protocols["pgoutput"], version))


def _stale(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text(encoding="utf-8") != text


def main() -> None:
    """Run the command. On an expected error, such as one in the spec, print it and exit with code 1."""
    try:
        app()
    except (SpecError, Refused, RenderError, files.NotGenerated, kaitai.NotExportable) as error:
        _print_error(str(error))
    except OSError as error:
        _print_error(f"{error.filename}: {error.strerror}")


def _print_error(text: str) -> NoReturn:
    """Print an error, as a JSON object if the command line has `--json`, and exit with code 1."""
    if "--json" in sys.argv:
        typer.echo(json.dumps(described(text)))
    else:
        typer.echo(text, err=True)
    raise SystemExit(1) from None


_REMEDY = (
    "(?:add|choose|correct|define|did|for|give|if|indent|leave|quote|remove|rename|restore|sort|use|write)"
)
"""First words of what an error says to do."""


def described(text: str) -> dict[str, str | int | None]:
    """Return file, line, column, value and remedy of an error's text; None for what the text does not say.

    The column is that of the first value in backquotes that is in the line, else that of the first character.
    """
    match = re.match(r"(.+?):(\d+): (.*)", text, re.DOTALL)
    if not match:
        return {"file": None, "line": None, "column": None, "value": None, "error": text, "remedy": None}
    file, line, error = match[1], int(match[2]), match[3]
    lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    source = lines[line - 1] if line <= len(lines) else ""
    values = re.findall("unknown \\w+ `([^`]*)`", error) + re.findall("`([^`]*)`", error)
    value = next((one for one in values if one in source), None)
    column = source.index(value) if value else len(source) - len(source.lstrip())
    remedy = re.match(rf"(?:[^`]|`[^`]*`)*?[:;] ({_REMEDY} .*)", error, re.DOTALL)
    return {
        "file": file, "line": line, "column": column + 1, "value": value,
        "error": error, "remedy": remedy[1] if remedy else None,
    }  # fmt: skip


if __name__ == "__main__":
    main()
