"""The commands and their arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from pgoutput.captures import Capture
from pgoutput.cli import encoding, inspection, specification, tabular
from pgoutput.cli.printing import complain
from pgoutput.errors import CaptureError
from pgoutput.reading import Recorded
from pgoutput.versions import LATEST, LATEST_RELEASED

app = typer.Typer(
    help="Read, write and inspect PostgreSQL's logical replication stream.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

if TYPE_CHECKING:
    from pgoutput.segments import Segments

Files = Annotated[
    list[Path],
    typer.Argument(
        help="Capture files, .jsonl or .jsonl.gz, - is stdin; or segments, or folders of them.",
        show_default=False,
    ),
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


@app.command()
def capture(
    slot: Annotated[str, typer.Option(help="The replication slot.", show_default=False)],
    publication: Annotated[
        list[str],
        typer.Option(help="A publication to record; may be given several times.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="The folder for the segments; a recording there is continued.")],
    dsn: Annotated[
        str, typer.Option(help="Server and database, as libpq takes it; else its environment variables hold.")
    ] = "",
    proto: Annotated[
        int | None,
        typer.Option(
            min=1, max=LATEST_RELEASED, help="Protocol version; else the newest that the server speaks."
        ),
    ] = None,
    streaming: Annotated[
        Literal["off", "on", "parallel"] | None,
        typer.Option(
            help="Whether large transactions come while in progress; else as far as the version can."
        ),
    ] = None,
    two_phase: Annotated[
        bool, typer.Option("--two-phase", help="Transactions come when they are prepared.")
    ] = False,
    binary: Annotated[bool, typer.Option("--binary", help="Values come in binary format.")] = False,
    messages: Annotated[
        bool, typer.Option("--messages", help="The messages of pg_logical_emit_message come too.")
    ] = False,
    origin: Annotated[
        Literal["any", "none"] | None, typer.Option(help="none: only changes from no other server.")
    ] = None,
    create_slot: Annotated[
        bool, typer.Option("--create-slot", help="Create the slot if a new recording does not find it.")
    ] = False,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Create the slot, and begin with what the tables hold then.")
    ] = False,
    until: Annotated[
        str | None, typer.Option(help="End when all up to this LSN is stored; `now` is the end of the WAL.")
    ] = None,
    for_: Annotated[float | None, typer.Option("--for", min=0, help="End after so many seconds.")] = None,
    log: Annotated[
        Literal["text", "json"], typer.Option(help="json: a JSON object per event on standard output.")
    ] = "text",
) -> None:
    """Record a replication slot into a folder of segments; Ctrl-C ends it with all stored."""
    from pgoutput.capture import Options
    from pgoutput.cli import recording

    options = Options(
        proto_version=proto,
        streaming=streaming,
        two_phase=two_phase,
        binary=binary,
        messages=messages,
        origin=origin,
    )
    recording.record(
        dsn, slot, publication, out, options, create_slot, snapshot, recording.parse_until(until), for_, log
    )


@app.command()
def segments(
    folder: Annotated[Path, typer.Argument(help="The folder of a recording.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="A JSON object per segment: its metadata.")] = False,
) -> None:
    """List the segments of a recording, and see that they join without a gap."""
    from pgoutput.cli import listing

    listing.show(Console(width=1000, highlight=False), folder, json)


@app.command()
def replicate(
    segments: Annotated[
        str, typer.Option(help="The recording: a folder, or a URI as pyarrow takes it.", show_default=False)
    ],
    target: Annotated[
        str,
        typer.Option(help="The folder of the Delta tables; tables there are continued.", show_default=False),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what is recorded from now on.")
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Keep all versions of rows, with __START_AT and __END_AT.")
    ] = False,
) -> None:
    """Keep a Delta table for each relation equal to its source; Ctrl-C ends it with nothing half done."""
    from pgoutput.cli import replication

    replication.replicate(segments, target, follow=follow, history=history)


@app.command()
def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="As for decode.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="A JSON object per violation, or per rule.")] = False,
    rules: Annotated[
        bool, typer.Option("--rules", help="Print the rules, each with a legal and an illegal example.")
    ] = False,
) -> None:
    """Tell whether streams are such as servers send; exit code 1 if one is not."""
    from pgoutput.cli import checking

    console = Console(soft_wrap=True, highlight=False)
    if rules:
        checking.show_rules(console, json)
    elif not files:
        raise typer.BadParameter("which file or folder is to be checked?", param_hint="FILES")
    legal = True
    for path in files or ():
        with _opened(path, skip_bad=False) as recorded:
            legal &= checking.check_stream(console, recorded, json)
    if not legal:
        raise typer.Exit(1)


@contextmanager
def _opened(path: Path, skip_bad: bool) -> Iterator[Recorded]:
    """A recorded stream. What is skipped of it is told and counted."""
    skipped = 0

    def skip(error: CaptureError) -> None:
        nonlocal skipped
        skipped += 1
        complain(f"skipped: {error}")

    path = Path("/dev/stdin") if str(path) == "-" else path
    with _kind(path)(path, on_bad=skip if skip_bad else None) as recorded:
        yield recorded
    if skipped:
        complain(f"{path}: {skipped} skipped")


def _kind(path: Path) -> type[Capture] | type[Segments]:
    """What is stored there. Only segments need pyarrow."""
    if not path.is_dir() and path.suffix != ".parquet":
        return Capture
    from pgoutput.segments import Segments

    return Segments
