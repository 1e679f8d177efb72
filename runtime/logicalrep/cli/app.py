"""The groups of the commands of `logicalrep`, as `logicalrep --help` shows them."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from logicalrep.cli.common.configuration import ConfigurableGroup
from logicalrep.cli.common.printing import version_line
from logicalrep.cli.look.commands import check, decode, inspect, segments, spec
from logicalrep.cli.operate.commands import doctor, status
from logicalrep.cli.operate.config import config_app
from logicalrep.cli.record.commands import install_ddl_events, prune, record, snapshot
from logicalrep.cli.replicate.commands import replicate, sync, tables, verify
from logicalrep.cli.testing.commands import encode, serve, synth
from logicalrep.cli.testing.vectors import vectors_app

app = typer.Typer(
    cls=ConfigurableGroup,
    help="Read, write and inspect PostgreSQL's logical replication stream.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
"""The commands by the title of their group, in the order of `logicalrep --help`."""

for title, commands in _GROUPS.items():
    for command in commands:
        app.command(rich_help_panel=title)(command)
app.add_typer(vectors_app, rich_help_panel="Test")
app.add_typer(config_app, rich_help_panel="Operate")
