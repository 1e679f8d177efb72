"""Options of commands from a TOML file.

A file has a table for each command, such as `[record]`. Its keys are the long names of the command's options,
without dashes in front.

A text can be given by reference, so that a file has no passwords: `{ env = "NAME" }` is the value of an
environment variable, `{ file = "PATH" }` the content of a file, and `{ command = "PROGRAM ARGUMENTS" }` what
a program prints. A line break at the end of this text is removed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperGroup

from logicalrep.errors import ConnectionLost, LogicalrepError


def read_configuration(path: Path, commands: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Read a configuration file, and check it; references are not resolved.

    Args:
        path: Path of the file.
        commands: The commands that a file can configure, by name.

    Returns:
        Values of options by parameter name, for each command of the file.

    Raises:
        LogicalrepError: The file cannot be read, is not TOML, has an unknown command or option, or a value of
            another type than its option.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise LogicalrepError(f"{path}: the file cannot be read: {error.strerror}") from None
    except ValueError as error:  # of tomllib, or of the encoding
        raise LogicalrepError(f"{path}: the file is not valid TOML: {error}") from None
    return {
        name: _check_options(f"{path}: [{name}]", commands, name, _table(options, f"{path}: {name}"))
        for name, options in content.items()
    }


def _table(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):  # the error does not quote the value, which may be a misplaced secret
        raise LogicalrepError(f"{place} must be a TOML table, such as [record]")
    return value


def _check_options(
    place: str, commands: Mapping[str, Any], name: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Check the options of one command, and the types of their values; return the values by parameter name.

    Raises:
        LogicalrepError: There is no such command or option, or a value has another type than the option.
    """
    if name not in commands:
        raise LogicalrepError(f"{place}: {name} is not a command: a file can configure {', '.join(commands)}")
    known = _options(commands[name])
    context = typer.Context(commands[name])
    checked = {}
    for key, value in options.items():
        if key not in known:
            raise LogicalrepError(f"{place}: {name} has no option {key}: its options are {', '.join(known)}")
        try:
            given = _without_references(value)
            converted = known[key].process_value(context, given)
            if isinstance(converted, str | Path) and not isinstance(given, str):  # typer converts any type
                raise typer.BadParameter(f"expected a string, found a value of type {type(given).__name__}")
        except typer.BadParameter as error:
            raise LogicalrepError(f"{place}: {key}: {error.message}") from None
        checked[known[key].name] = value
    return checked


def _options(command: Any) -> dict[str, Any]:
    """Return the options of a command that a file can set, by their long names without `--`."""
    names = ((one.opts[0], one) for one in command.params if one.name != "config")
    return {name.removeprefix("--"): one for name, one in names if name.startswith("--")}


def _without_references(value: Any) -> Any:
    """Return the value with a placeholder text for each reference, to check the value's type.

    References are checked, but not resolved.

    Raises:
        typer.BadParameter: A reference has an unknown key, not exactly one key, or a value other than a text.
    """
    if isinstance(value, list):
        return list(map(_without_references, value))
    if not isinstance(value, dict):
        return value
    if (
        len(value) != 1
        or not value.keys() <= _SOURCES.keys()
        or not all(isinstance(one, str) for one in value.values())
    ):
        raise typer.BadParameter(
            f"expected a reference with one of the keys {', '.join(_SOURCES)} and a string as its value"
        )
    return "text"


@dataclass(frozen=True)
class Reader:
    """A function that resolves the references in a value, such as `{ env = "NAME" }`; returns the result.

    Attributes:
        value: The value in the configuration file.
        place: File and command of the value, for error messages.
    """

    value: Any
    place: str

    def __call__(self) -> Any:
        """Return the value, after reading the environment variables, files or programs that it refers to.

        Each call reads them again.
        """
        return _resolve(self.value, self.place)


def _as_default(value: Any, place: str) -> Any:
    """Return the value itself if it has no references, otherwise a function that resolves them."""
    if any(isinstance(one, dict) for one in (value if isinstance(value, list) else [value])):
        return Reader(value, place)
    return value


def _resolve(value: Any, place: str) -> Any:
    """Return a value in which each reference is replaced by the text that it refers to.

    Raises:
        ConnectionLost: A file cannot be read, or a program fails. A later attempt may succeed.
        LogicalrepError: An environment variable is not set.
    """
    if isinstance(value, list):
        return [_resolve(one, place) for one in value]
    if not isinstance(value, dict):
        return value
    ((source, name),) = value.items()
    try:
        return _SOURCES[source](name).removesuffix("\n")
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        kind = LogicalrepError if source == "env" else ConnectionLost
        raise kind(f"{place}: {source} = {name!r} cannot be read: {error}") from None


def _read_variable(name: str) -> str:
    if name not in os.environ:
        raise ValueError("the environment variable is not set")
    return os.environ[name]


_SOURCES: Final[Mapping[str, Callable[[str], str]]] = {
    "env": _read_variable,
    "file": lambda name: Path(name).read_text("utf-8"),
    "command": lambda command: (
        subprocess.run(shlex.split(command), check=True, stdout=subprocess.PIPE, text=True).stdout
    ),
}
"""Functions that return the text that a reference refers to, by the reference's key, such as `env`."""


def value_or_reader(context: typer.Context, parameter: str, value: str) -> str | Reader:
    """Return an option's value, or a function that returns it if it comes from a file or a program.

    Each call of the function reads the file or runs the program again, because the text may have changed.

    Args:
        context: The command's context.
        parameter: Name of the option's parameter.
        value: The value of the option when the command began.
    """
    source, default = context.get_parameter_source(parameter), (context.default_map or {}).get(parameter)
    is_default = source is not None and source.name == "DEFAULT_MAP"
    if is_default and isinstance(default, Reader) and "env" not in default.value:
        return default
    return value


def format_options(command: str, options: Mapping[str, str | Reader]) -> bytes:
    """Return a configuration file for one command.

    Args:
        command: Name of the command.
        options: By option name, the option's text, or a `Reader`, whose reference is written to the file.
    """
    lines = [f"[{command}]"]
    for name, text in options.items():
        if isinstance(text, Reader):
            ((source, place),) = text.value.items()
            lines.append(f"{name} = {{ {source} = {_quoted(place)} }}")
        else:
            lines.append(f"{name} = {_quoted(text)}")
    return "\n".join(lines).encode(errors="surrogateescape")


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML, which differs from a JSON string only in the character DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class ConfigurableGroup(TyperGroup):
    """A group of commands with the option `--config`: a configuration file with values of other options."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.configurable: dict[str, Any] = {
            name: command for name, command in self.commands.items() if name not in ("config", "vectors")
        }
        """The commands that a file can configure, by name."""
        declared = typer.main.get_command(_declaration).params[0]
        declared.expose_value = False
        for name, command in self.configurable.items():
            for key, option in _options(command).items():
                option.envvar = re.sub(r"\W", "_", f"LOGICALREP_{name}_{key}").upper()
            command.params.append(declared)


_declaration = typer.Typer(add_completion=False)


def _set_defaults(context: typer.Context, path: Path | None) -> None:
    if path is not None and not context.resilient_parsing:
        assert context.parent is not None
        group: Any = context.parent.command
        options = read_configuration(path, group.configurable).get(str(context.info_name), {})
        context.default_map = {name: _as_default(one, f"{path}: {name}") for name, one in options.items()}


@_declaration.command()
def _declare(
    config: Annotated[
        Path | None,
        typer.Option(
            callback=_set_defaults,
            is_eager=True,  # before the options whose values it sets
            envvar="LOGICALREP_CONFIG",
            help="A TOML file with values of options.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Declare the option `--config`, which every configurable command has."""
