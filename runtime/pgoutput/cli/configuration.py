"""Options of commands from a TOML file.

A file has a table for each command, such as `[record]`. Its keys are the long names of the command's options,
without dashes in front. A table `[run.NAME]` describes one process of `pgoutput run`: the key `command` names
the command, and the other keys are its options, which replace those of the command's own table.

A text can be given by reference, so that a file has no passwords: `{ env = "NAME" }` is the value of an
environment variable, `{ file = "PATH" }` the content of a file, and `{ command = "PROGRAM ARGUMENTS" }` what
a program prints. One line end at the end is removed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
import typer.main
from typer.core import TyperGroup

from pgoutput.errors import PgoutputError

INSTANCE: Final = "PGOUTPUT_INSTANCE"
"""Environment variable that `pgoutput run` sets: the NAME of the table `[run.NAME]` with the options."""


class Instance(msgspec.Struct, frozen=True):
    """A process of `pgoutput run`."""

    command: str
    options: dict[str, Any]
    """Values of options, by parameter name, which replace those of the command."""


class Configuration(msgspec.Struct, frozen=True):
    """The content of a configuration file, checked against the options of the commands."""

    path: Path
    commands: dict[str, dict[str, Any]]
    """Values of each command's options, by parameter name; references are not resolved."""
    instances: dict[str, Instance]
    """Processes of `pgoutput run`, by name."""

    def instance(self, command: str, name: str) -> Instance:
        """Return a process of `pgoutput run`; without a name, the command with the options of its table.

        Raises:
            PgoutputError: The file has no such instance of the command.
        """
        if not name:
            return Instance(command, {})
        found = self.instances.get(name)
        if found is None or found.command != command:
            raise PgoutputError(f"{self.path}: there is no [run.{name}] with command = {command!r}")
        return found

    def defaults(self, instance: Instance) -> dict[str, Any]:
        """Return the defaults of a process's options, by parameter name.

        The default of an option with references is a function, which resolves them when the value is needed:
        the text of a help page does not contain it. The function raises PgoutputError if that fails.
        """
        options = self.commands.get(instance.command, {}) | instance.options
        return {name: _as_default(value, f"{self.path}: {name}") for name, value in options.items()}


def read_configuration(path: Path, commands: Mapping[str, Any]) -> Configuration:
    """Read a configuration file, and check it; references are not resolved.

    Args:
        path: Path of the file.
        commands: The commands that a file can configure, by name.

    Raises:
        PgoutputError: The file cannot be read, is not TOML, has an unknown command or option, or a value of
            another type than its option.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise PgoutputError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # of tomllib, or of the encoding
        raise PgoutputError(f"{path}: {error}") from None
    instances: dict[str, Instance] = {}
    for name, value in _table(content.pop("run", {}), f"{path}: run").items():
        place = f"{path}: [run.{name}]"
        options = dict(_table(value, place))
        command = options.pop("command", None)
        if not isinstance(command, str):
            raise PgoutputError(f'{place}: the key command is missing: the command to run, such as "record"')
        instances[name] = Instance(command, _check_options(place, commands, command, options))
    return Configuration(
        path,
        {
            name: _check_options(f"{path}: [{name}]", commands, name, _table(options, f"{path}: {name}"))
            for name, options in content.items()
        },
        instances,
    )


def check_processes(configuration: Configuration, commands: Mapping[str, Any]) -> None:
    """Check that each process of `pgoutput run` has its required options, in the file or the environment.

    Args:
        configuration: The configuration.
        commands: The commands that a file can configure, by name.

    Raises:
        PgoutputError: A process lacks required options, or its command needs an argument.
    """
    for name, instance in configuration.instances.items():
        given = configuration.commands.get(instance.command, {}) | instance.options
        missing = [
            one.opts[0]
            for one in commands[instance.command].params
            if one.required and one.name not in given and not os.environ.get(one.envvar or "")
        ]
        if missing:
            raise PgoutputError(
                f"{configuration.path}: [run.{name}]: {instance.command} lacks {', '.join(missing)}"
            )


def _table(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):  # the error does not quote the value, which may be a misplaced secret
        raise PgoutputError(f"{place} is not a table, such as [record]")
    return value


def _check_options(
    place: str, commands: Mapping[str, Any], name: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values by parameter name, after a check of options and types.

    Raises:
        PgoutputError: There is no such command or option, or a value has another type than the option.
    """
    if name not in commands:
        raise PgoutputError(f"{place}: {name} is not a command: a file can configure {', '.join(commands)}")
    known = _options(commands[name])
    context = typer.Context(commands[name])
    checked = {}
    for key, value in options.items():
        if key not in known:
            raise PgoutputError(f"{place}: {name} has no option {key}: its options are {', '.join(known)}")
        try:
            given = _without_references(value)
            converted = known[key].process_value(context, given)
            if isinstance(converted, str | Path) and not isinstance(given, str):  # typer converts any object
                raise typer.BadParameter(f"a text is expected, not a value of type {type(given).__name__}")
        except typer.BadParameter as error:
            raise PgoutputError(f"{place}: {key}: {error.message}") from None
        checked[known[key].name] = value
    return checked


def _options(command: Any) -> dict[str, Any]:
    """Return the options that a file can set, by their long names without dashes."""
    names = ((one.opts[0], one) for one in command.params if one.name != "config")
    return {name.removeprefix("--"): one for name, one in names if name.startswith("--")}


def _without_references(value: Any) -> Any:
    """Return a value with some text in place of each reference, to check its type.

    Raises:
        typer.BadParameter: A reference has other keys than one of those that are possible.
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
        raise typer.BadParameter(f"a reference has one of the keys {', '.join(_SOURCES)}, with a text")
    return "text"


def _as_default(value: Any, place: str) -> Any:
    """Return a value without references, or a function that returns the value with references resolved."""
    if any(isinstance(one, dict) for one in (value if isinstance(value, list) else [value])):
        return lambda: _resolve(value, place)
    return value


def _resolve(value: Any, place: str) -> Any:
    """Return a value with the text of each reference in place of the reference.

    Raises:
        PgoutputError: A reference cannot be resolved.
    """
    if isinstance(value, list):
        return [_resolve(one, place) for one in value]
    if not isinstance(value, dict):
        return value
    ((source, name),) = value.items()
    try:
        return _SOURCES[source](name).removesuffix("\n")
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise PgoutputError(f"{place}: {source} = {name!r} cannot be read: {error}") from None


def _read_variable(name: str) -> str:
    if name not in os.environ:
        raise ValueError("the environment variable is not set")
    return os.environ[name]


def _run_program(command: str) -> str:
    return subprocess.run(shlex.split(command), check=True, stdout=subprocess.PIPE, text=True).stdout


_SOURCES: Final[Mapping[str, Callable[[str], str]]] = {
    "env": _read_variable,
    "file": lambda name: Path(name).read_text("utf-8"),
    "command": _run_program,
}
"""Functions that return the text of a reference, by its key."""


class ConfigurableGroup(TyperGroup):
    """Commands that have an option `--config`: a configuration file with values of their other options."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.configurable: dict[str, Any] = {
            name: command
            for name, command in self.commands.items()
            if name not in ("run", "config", "vectors")
        }
        """The commands that a file can configure, by name."""
        declared = typer.main.get_command(_declaration).params[0]
        declared.expose_value = False
        for name, command in self.configurable.items():
            for key, option in _options(command).items():
                option.envvar = re.sub(r"\W", "_", f"PGOUTPUT_{name}_{key}").upper()
            command.params.append(declared)


_declaration = typer.Typer(add_completion=False)


def _set_defaults(context: typer.Context, path: Path | None) -> None:
    if path is not None and not context.resilient_parsing:
        assert context.parent is not None
        group: Any = context.parent.command
        configuration = read_configuration(path, group.configurable)
        instance = configuration.instance(str(context.info_name), os.environ.get(INSTANCE, ""))
        for option in context.command.params:
            if option.name in instance.options:  # the environment is that of all processes
                os.environ.pop(str(option.envvar), None)
        context.default_map = configuration.defaults(instance)


@_declaration.command()
def _declare(
    config: Annotated[
        Path | None,
        typer.Option(
            callback=_set_defaults,
            is_eager=True,  # before the options whose values it sets
            envvar="PGOUTPUT_CONFIG",
            help="A TOML file with values of options.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Declare the option that every command has."""
