"""Commands that show streams and recordings."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from logicalrep.cli.common.printing import print_json
from logicalrep.cli.common.streams import opened
from logicalrep.cli.look import decoding, inspection, specification
from logicalrep.versions import LATEST, LATEST_RELEASED

Files = Annotated[
    list[str],
    typer.Argument(
        help="Capture files (.jsonl, .jsonl.gz; - is standard input), segments, or folders or URLs of "
        "segments.",
        show_default=False,
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Skip lines and messages that cannot be read, and count them.")
]


def decode(
    files: Files,
    table: Annotated[
        bool, typer.Option("--table", help="Print a readable line per message instead of JSON.")
    ] = False,
    skip_bad: SkipBad = False,
) -> None:
    """Print one JSON object per message."""
    console = Console(soft_wrap=True, highlight=False)
    for path in files:
        with opened(path, skip_bad) as stream:
            for decoded in stream.messages():
                if table:
                    console.print(decoding.line(decoded, stream.decoder))
                else:
                    print_json(decoding.as_json(decoded))


def inspect(files: Files, skip_bad: SkipBad = False) -> None:
    """Print each message as an annotated hex dump: every byte with its field, value and meaning."""
    console = Console(soft_wrap=True, highlight=False)
    for path in files:
        with opened(path, skip_bad) as stream:
            for record in stream.records():
                inspection.show(console, stream, record)


def spec(
    proto: Annotated[int, typer.Option(min=1, max=LATEST, help="Protocol version.")] = LATEST_RELEASED,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print every message of a protocol version with its fields, in wire order."""
    if json:
        sys.stdout.buffer.write(specification.as_json(proto))
    else:
        specification.show(Console(soft_wrap=True, highlight=False), proto)


def check(
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Capture files, segments, or folders or URLs of segments.", show_default=False),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per violation, or per rule.")
    ] = False,
    rules: Annotated[
        bool, typer.Option("--rules", help="Print the rules, each with a legal and an illegal example.")
    ] = False,
) -> None:
    """Check streams against the rules that every server obeys; exit code 1 if one is violated."""
    from logicalrep.cli.look import checking

    console = Console(soft_wrap=True, highlight=False)
    if rules:
        checking.show_rules(console, json)
    elif not files:
        raise typer.BadParameter("give a file or folder to check", param_hint="FILES")
    legal = True
    for path in files or ():
        with opened(path, skip_bad=False) as stream:
            legal &= checking.check_stream(console, stream, json)
    if not legal:
        raise typer.Exit(1)


def segments(
    recording: Annotated[str, typer.Argument(help="The folder or URI of the recording.", show_default=False)],
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print each segment, and each verified table of a replica, as a JSON object."
        ),
    ] = False,
) -> None:
    """List the segments of a recording, and verify that none is missing."""
    from logicalrep.cli.look import segments as command

    command.show(recording, json)
