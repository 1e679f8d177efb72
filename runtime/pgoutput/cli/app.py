"""The commands and their arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from pgoutput import __version__
from pgoutput._stored_stream import StoredStream
from pgoutput.capturefile import CaptureFile
from pgoutput.cli import encoding, inspection, specification, tabular
from pgoutput.cli.printing import complain
from pgoutput.compiled import HOW
from pgoutput.errors import RecordingError
from pgoutput.versions import LATEST, LATEST_RELEASED

app = typer.Typer(
    help="Read, write and inspect PostgreSQL's logical replication stream.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

if TYPE_CHECKING:
    from pgoutput.recording import RecordingReader

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


def _print_version(asked: bool) -> None:
    if asked:
        print(f"pgoutput {__version__}, {HOW}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """The options before a command."""


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
def record(
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
    failover: Annotated[
        bool, typer.Option("--failover", help="Create the slot so that standbys keep it (PostgreSQL 17).")
    ] = False,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Create the slot, and begin with what the tables hold then.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse to record where the recording lacks rows of tables.")
    ] = False,
    until: Annotated[
        str | None, typer.Option(help="End when all up to this LSN is stored; `now` is the end of the WAL.")
    ] = None,
    for_: Annotated[float | None, typer.Option("--for", min=0, help="End after so many seconds.")] = None,
    retry_for: Annotated[
        float,
        typer.Option(
            min=0,
            help="Give up, with exit code 3, when no connection has begun to stream for so many seconds.",
        ),
    ] = 300.0,
    log: Annotated[
        Literal["text", "json"], typer.Option(help="json: a JSON object per event on standard output.")
    ] = "text",
) -> None:
    """Record a replication slot into a folder of segments; Ctrl-C ends it with all stored."""
    from pgoutput.cli import recording
    from pgoutput.recorder import RecorderOptions

    options = RecorderOptions(
        proto_version=proto,
        streaming=streaming,
        two_phase=two_phase,
        binary=binary,
        messages=messages,
        origin=origin,
    )
    recording.record(
        dsn,
        slot,
        publication,
        out,
        options,
        create_slot,
        failover,
        snapshot,
        strict,
        recording.parse_until(until),
        for_,
        retry_for,
        log,
    )


@app.command()
def segments(
    folder: Annotated[Path, typer.Argument(help="The folder of a recording.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="A JSON object per segment: its metadata.")] = False,
) -> None:
    """List the segments of a recording, and see that they join without a gap."""
    from pgoutput.cli import listing

    listing.show(Console(width=1000, highlight=False, markup=False), folder, json)


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
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a recording that lacks rows of a table; exit code 2.")
    ] = False,
) -> None:
    """Keep a Delta table for each relation equal to its source; Ctrl-C ends it with nothing half done.

    Exit code 1 if tables have failed; the next run tries again.
    """
    from pgoutput.cli import replication

    replication.replicate(segments, target, follow=follow, history=history, strict=strict)


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


@app.command()
def serve(
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", help="A recording: a folder of segments, or a capture file.", show_default=False
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="MODULE:NAME, a scenario or a function that gives one.", show_default=False),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 is one that is free.")] = 0,
    user: Annotated[
        str | None,
        typer.Option(help="The only user, with the password in PGPASSWORD or a file; else any may connect."),
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option(help="The user's password, in the file's first line.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate for TLS, in PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, if it is not in there too.")] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="What goes wrong, again and again: drop-after=N, delay=MS, duplicate=N, truncate-message=N, "
            "flip-bit=N, stall-keepalive. Each Nth message is struck, but never one that is sent again."
        ),
    ] = None,
) -> None:
    """Serve a recorded or made stream as a PostgreSQL server would; print where, and go on until Ctrl-C."""
    from pgoutput.cli import serving

    serving.run(
        serving.find_source(from_, scenario),
        host,
        user,
        port=port,
        password=serving.find_password(user, password_file),
        tls=serving.find_tls(tls_cert, tls_key),
        faults=serving.find_faults(fault or []),
    )


@app.command()
def synth(
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            help="A new folder, for segments; FILE.jsonl[.gz], a capture file; or -, what a walsender sends.",
            show_default=False,
        ),
    ],
    tables: Annotated[str, typer.Option(help="How many tables.")] = "20",
    transactions: Annotated[str, typer.Option(help="How many transactions; 1e6 is a million.")] = "1000",
    changes: Annotated[str, typer.Option(help="Changes of a transaction: a number, or a range.")] = "10",
    mix: Annotated[
        str, typer.Option(help="How often the kinds of changes come.")
    ] = "insert=6,update=3,delete=1",
    value_sizes: Annotated[
        str, typer.Option(help="Bytes of text values: a number, or a range as 10-200.")
    ] = "10-50",
    large: Annotated[
        float, typer.Option(help="The share of transactions that are large, and streamed where that is on.")
    ] = 0.001,
    large_changes: Annotated[str, typer.Option(help="Changes of a large transaction.")] = "10000",
    rolled_back: Annotated[
        float, typer.Option(help="The share of streamed transactions and savepoints that are rolled back.")
    ] = 0.1,
    proto: Annotated[
        int, typer.Option(min=1, max=LATEST_RELEASED, help="Protocol version of the stream.")
    ] = LATEST_RELEASED,
    streaming: Annotated[
        Literal["off", "on", "parallel"], typer.Option(help="The option `streaming` of the stream.")
    ] = "off",
    seed: Annotated[str, typer.Option(help="The same seed and options give the same stream.")] = "0",
) -> None:
    """Make a stream of any size that a server could have sent, and its truth: the rows in the end."""
    from pgoutput.cli import synthesis

    workload = synthesis.make_workload(
        tables=synthesis.parse_number("--tables", tables),
        transactions=synthesis.parse_number("--transactions", transactions),
        changes=synthesis.parse_range("--changes", changes),
        mix=synthesis.parse_mix(mix),
        value_sizes=synthesis.parse_range("--value-sizes", value_sizes),
        large=large,
        large_changes=synthesis.parse_number("--large-changes", large_changes),
        rolled_back=rolled_back,
        proto_version=proto,
        streaming=streaming,
        seed=synthesis.parse_number("--seed", seed),
    )
    synthesis.synthesize(workload, out)


@contextmanager
def _opened(path: Path, skip_bad: bool) -> Iterator[StoredStream]:
    """A recorded stream. What is skipped of it is told and counted."""
    skipped = 0

    def skip(error: RecordingError) -> None:
        nonlocal skipped
        skipped += 1
        complain(f"skipped: {error}")

    path = Path("/dev/stdin") if str(path) == "-" else path
    with _kind(path)(path, on_bad=skip if skip_bad else None) as recorded:
        yield recorded
    if skipped:
        complain(f"{path}: {skipped} skipped")


def _kind(path: Path) -> type[CaptureFile] | type[RecordingReader]:
    """What is stored there. Only segments need pyarrow."""
    if not path.is_dir() and path.suffix != ".parquet":
        return CaptureFile
    from pgoutput.recording import RecordingReader

    return RecordingReader
