"""The command `logicalrep config check`: finds missing secrets and conflicts in configuration files."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from logicalrep._text import counted
from logicalrep.cli.common.configuration import read_configuration
from logicalrep.cli.common.printing import complain

config_app = typer.Typer(name="config", help="Check configuration files.", no_args_is_help=True)

Options = Mapping[str, Mapping[str, Any]]
"""Values of options by parameter name, for each command of a file."""

_CREDENTIAL: Final = re.compile(r"/run/credentials/(logicalrep-.*)\.service/([^/]+)")
"""Pattern of a credential's path. systemd makes this file when a unit starts; only the unit can read it."""

_EXCLUSIVE: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "record": (("recording",), ("slot", "dsn"), ("metrics",)),
    "replicate": (("target",), ("metrics",)),
    "sync": (("recording",), ("target",), ("slot", "dsn"), ("metrics",)),
}
"""Groups of options, by command: no two processes may have the same values for a whole group."""


@config_app.command()
def check(
    context: typer.Context,
    file: Annotated[
        list[Path],
        typer.Argument(help="The configuration files of this machine.", show_default=False),
    ],
) -> None:
    """Check configuration files, without starting anything and without printing secrets.

    Exit code 1: a secret's file, program or variable is missing, or two processes would use the same place.
    """
    group: Any = context.find_root().command
    files = {one: read_configuration(one, group.configurable) for one in file}
    variables = {
        (name, option.name): str(option.envvar)
        for name, command in group.configurable.items()
        for option in command.params
    }
    problems = list(_find_problems(files, variables))
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(1)
    for one, options in files.items():
        print(f"{one}: the options of {counted(len(options), 'command')}")


def _find_problems(files: Mapping[Path, Options], variables: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Yield texts that describe the problems of configuration files in the environment of this process.

    Secrets are not read, and no program is started.

    Args:
        files: The options of each file.
        variables: Names of the environment variables that replace options, by command and parameter name.
    """
    claims: dict[str, str] = {}
    for path, commands in files.items():
        for command, options in commands.items():
            place = f"{path}: [{command}]"
            for name, value in options.items():
                if (variable := variables[command, name]) in os.environ:
                    yield f"{place}: {name}: the environment variable {variable} replaces it"
                for one in value if isinstance(value, list) else [value]:
                    if isinstance(one, dict):
                        ((source, text),) = one.items()
                        if problem := _SOURCES[source](text, path, command):
                            yield f"{place}: {name}: {source} = {text!r}: {problem}"
            for names in _EXCLUSIVE.get(command, ()):
                if all(name in options for name in names):
                    key = repr([(name, options[name]) for name in names])
                    if (first := claims.setdefault(key, place)) != place:
                        yield f"{place}: {' and '.join(names)}: {first} has the same; change one of them"
        recordings = {str(one["recording"]) for one in commands.values() if "recording" in one}
        if len(recordings) > 1:
            yield f"{path}: the commands have different recordings: {', '.join(sorted(recordings))}"


def _check_variable(name: str, path: Path, command: str) -> str:
    if name not in os.environ:
        return "the environment variable is not set"
    return "" if os.environ[name] else "the environment variable is empty"


def _check_file(name: str, path: Path, command: str) -> str:
    if (found := _CREDENTIAL.fullmatch(name)) is None:
        return _check_readable(name)
    unit = f"logicalrep-{command}@{path.stem}"
    if found[1] != unit:
        return f"{command} runs in the unit {unit}, which cannot read the credentials of other units"
    source = path.with_suffix(f".{found[2]}")
    problem = _check_readable(source)
    return f"systemd makes it from {source}: {problem}" if problem else ""


def _check_readable(name: str | Path) -> str:
    try:
        os.close(os.open(name, os.O_RDONLY | os.O_NONBLOCK))  # opening a pipe must not wait
    except OSError as error:
        return str(error.strerror)
    return "the file is empty" if os.path.isfile(name) and not os.path.getsize(name) else ""


def _check_command(text: str, path: Path, command: str) -> str:
    try:
        program, *_ = shlex.split(text)
    except ValueError as error:
        return str(error)
    return "" if shutil.which(program) else f"there is no program {program} that can be started"


_SOURCES: Final[Mapping[str, Callable[[str, Path, str], str]]] = {
    "env": _check_variable,
    "file": _check_file,
    "command": _check_command,
}
"""Functions that return the problem of a reference, or an empty text, by the reference's key (`env`, …)."""
