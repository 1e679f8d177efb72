"""The commands and their arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from pgoutput.captures import Capture
from pgoutput.cli import encoding, inspection, specification, tabular
from pgoutput.cli.printing import complain
from pgoutput.errors import CaptureError
from pgoutput.versions import LATEST, LATEST_RELEASED

app = typer.Typer(
    help="Read, write and inspect PostgreSQL's logical replication stream.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Files = Annotated[
    list[Path], typer.Argument(help="Capture files, .jsonl or .jsonl.gz; - is stdin.", show_default=False)
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Go on behind lines and messages that cannot be read; count them.")
]


@app.command()
def decode(
    files: Files,
    table: Annotated[bool, typer.Option("--table", help="A line for people instead of JSON.")] = False,
    skip_bad: SkipBad = False,
) -> None:
    """Print one JSON object per message."""
    console = Console(soft_wrap=True, highlight=False)
    for path in files:
        with _opened(path, skip_bad) as capture:
            for decoded in capture.messages():
                if table:
                    console.print(tabular.line(decoded, capture.decoder))
                else:
                    sys.stdout.buffer.write(encoding.to_line(decoded))


@app.command()
def encode(
    file: Annotated[
        Path, typer.Argument(help="JSON lines as decode prints them; - is standard input.")
    ] = Path("-"),
    proto: Annotated[
        int, typer.Option(min=1, max=LATEST, help="Protocol version of the stream.")
    ] = LATEST_RELEASED,
    streaming: Annotated[
        Literal["off", "on", "parallel"], typer.Option(help="The option `streaming` of the stream.")
    ] = "off",
) -> None:
    """Print the capture file whose messages are the given JSON objects."""
    for line in encoding.to_capture(file, proto, streaming):
        sys.stdout.buffer.write(line)


@app.command()
def inspect(files: Files, skip_bad: SkipBad = False) -> None:
    """Print each message as an annotated hex dump: every byte with its field, value and meaning."""
    console = Console(soft_wrap=True, highlight=False)
    for path in files:
        with _opened(path, skip_bad) as capture:
            for record in capture.records():
                inspection.show(console, capture, record)


@app.command()
def spec(
    proto: Annotated[int, typer.Option(min=1, max=LATEST, help="Protocol version.")] = LATEST_RELEASED,
    json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Print every message of a protocol version with its fields, in wire order."""
    if json:
        sys.stdout.buffer.write(specification.as_json(proto))
    else:
        specification.show(Console(soft_wrap=True, highlight=False), proto)


@contextmanager
def _opened(path: Path, skip_bad: bool) -> Iterator[Capture]:
    """A capture file. What is skipped of it is told and counted."""
    skipped = 0

    def skip(error: CaptureError) -> None:
        nonlocal skipped
        skipped += 1
        complain(f"skipped: {error}")

    path = Path("/dev/stdin") if str(path) == "-" else path
    with Capture(path, on_bad=skip if skip_bad else None) as capture:
        yield capture
    if skipped:
        complain(f"{path}: {skipped} skipped")
