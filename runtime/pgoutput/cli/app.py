"""The commands of `pgoutput` and their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pgoutput._text import counted
from pgoutput.cli.configuration import ConfigurableGroup, read_configuration
from pgoutput.cli.configuration_check import find_problems
from pgoutput.cli.printing import complain, version_line
from pgoutput.cli.recording_commands import (
    doctor,
    install_ddl_events,
    prune,
    record,
    segments,
    snapshot,
    status,
)
from pgoutput.cli.replica_commands import replicate, sync, tables, verify
from pgoutput.cli.stream_commands import check, decode, encode, inspect, serve, spec, synth
from pgoutput.cli.vectors import vectors_app

app = typer.Typer(
    cls=ConfigurableGroup,
    help="Read, write and inspect PostgreSQL's logical replication stream.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

config_app = typer.Typer(name="config", help="Check configuration files.", no_args_is_help=True)


def _print_version(requested: bool) -> None:
    if requested:
        print(version_line())
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Accept the options before a command."""


_GROUPS: Final = {
    "Look": (decode, inspect, check, spec, segments),
    "Record": (record, snapshot, prune, install_ddl_events),
    "Replicate": (replicate, sync, verify, tables),
    "Test": (synth, serve, encode),
    "Operate": (doctor, status),
}
"""The commands by the title of their group, in the order of `pgoutput --help`."""

for title, commands in _GROUPS.items():
    for command in commands:
        app.command(rich_help_panel=title)(command)


@config_app.command("check")
def check_config(
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
    problems = list(find_problems(files, variables))
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(1)
    for one, options in files.items():
        print(f"{one}: the options of {counted(len(options), 'command')}")


app.add_typer(vectors_app, rich_help_panel="Test")
app.add_typer(config_app, rich_help_panel="Operate")
