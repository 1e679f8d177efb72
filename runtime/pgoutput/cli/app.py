"""The commands of `pgoutput` and their arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from pgoutput._extras import require
from pgoutput._stored_stream import StoredStream
from pgoutput._text import counted
from pgoutput.capturefile import CaptureFile
from pgoutput.cli import encoding, inspection, specification, tabular
from pgoutput.cli.configuration import ConfigurableGroup, check_processes, read_configuration
from pgoutput.cli.printing import complain, refused_values, version_line
from pgoutput.cli.vectors import vectors_app
from pgoutput.errors import RecordingError
from pgoutput.versions import LATEST, LATEST_RELEASED

app = typer.Typer(
    cls=ConfigurableGroup,
    help="Read, write and inspect PostgreSQL's logical replication stream.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

config_app = typer.Typer(name="config", help="Check configuration files.", no_args_is_help=True)

if TYPE_CHECKING:
    from pgoutput.recording import RecordingReader

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
Dsn = Annotated[
    str,
    typer.Option(
        help="Connection string of libpq; the default is its environment variables (PGHOST, …).",
        show_default=False,  # a help page must not have the password of a configuration file
    ),
]
Proto = Annotated[int, typer.Option(min=1, max=LATEST, help="Protocol version of the stream.")]
Metrics = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Serve metrics to Prometheus at HOST:PORT, such as 127.0.0.1:9187, and /healthz and /readyz.",
        show_default=False,
    ),
]
Log = Annotated[
    Literal["text", "json"],
    typer.Option(help="`json` prints a JSON object per event on standard output."),
]
LogSeconds = Annotated[
    float | None,
    typer.Option(
        min=0, help="Seconds between two lines about progress. By default, only `record --log json` has some."
    ),
]
Streaming = Annotated[
    Literal["off", "on", "parallel"], typer.Option(help="Option `streaming` of the stream.")
]


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


@app.command()
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
        with _opened(path, skip_bad) as stream:
            for decoded in stream.messages():
                if table:
                    console.print(tabular.line(decoded, stream.decoder))
                else:
                    sys.stdout.buffer.write(encoding.to_line(decoded))


@app.command()
def encode(
    file: Annotated[
        Path, typer.Argument(help="JSON lines as printed by `decode`; - is standard input.")
    ] = Path("-"),
    proto: Proto = LATEST_RELEASED,
    streaming: Streaming = "off",
) -> None:
    """Convert JSON objects, one per message, to a capture file on standard output."""
    for line in encoding.to_capture_file(file, proto, streaming):
        sys.stdout.buffer.write(line)


@app.command()
def inspect(files: Files, skip_bad: SkipBad = False) -> None:
    """Print each message as an annotated hex dump: every byte with its field, value and meaning."""
    console = Console(soft_wrap=True, highlight=False)
    for path in files:
        with _opened(path, skip_bad) as stream:
            for record in stream.records():
                inspection.show(console, stream, record)


@app.command()
def spec(
    proto: Annotated[int, typer.Option(min=1, max=LATEST, help="Protocol version.")] = LATEST_RELEASED,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
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
        typer.Option(help="A publication to record; repeat the option for several.", show_default=False),
    ],
    out: Annotated[
        str,
        typer.Option(
            help="The folder or URL (s3://, gs://, az://) of the recording; an existing one is continued."
        ),
    ],
    dsn: Dsn = "",
    proto: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LATEST,
            help="Protocol version; the default is the newest released version of the server.",
        ),
    ] = None,
    streaming: Annotated[
        Literal["off", "on", "parallel"] | None,
        typer.Option(
            help="Receive large transactions while in progress; the default is the most that the version has."
        ),
    ] = None,
    two_phase: Annotated[
        bool, typer.Option("--two-phase", help="Receive transactions when they are prepared.")
    ] = False,
    binary: Annotated[bool, typer.Option("--binary", help="Receive values in binary format.")] = False,
    messages: Annotated[
        bool, typer.Option("--messages", help="Also receive messages of pg_logical_emit_message.")
    ] = False,
    origin: Annotated[
        Literal["any", "none"] | None,
        typer.Option(help="`none` leaves out changes that were replicated from another server."),
    ] = None,
    create_slot: Annotated[
        bool, typer.Option("--create-slot", help="Create the slot if it does not exist; for a new recording.")
    ] = False,
    failover: Annotated[
        bool, typer.Option("--failover", help="Create a failover slot, which standbys keep (PostgreSQL 17).")
    ] = False,
    snapshot: Annotated[
        bool,
        typer.Option(
            "--snapshot",
            help="Create the slot, and copy the published tables; later also tables that are added.",
        ),
    ] = False,
    resync: Annotated[
        Literal["never", "on-ddl"],
        typer.Option(
            help="`on-ddl` copies a table anew after ALTER TABLE has changed its rows without sending them."
        ),
    ] = "never",
    workers: Annotated[int, typer.Option(min=1, help="Number of connections that copy tables.")] = 4,
    max_snapshot_age: Annotated[
        float | None,
        typer.Option(min=0, help="Age in seconds at which the rest is copied from a new exported snapshot."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse to record if the recording lacks rows of a table.")
    ] = False,
    segment_seconds: Annotated[
        float,
        typer.Option(min=0, help="Age in seconds at which a segment ends, so that readers see its changes."),
    ] = 10.0,
    until: Annotated[
        str | None,
        typer.Option(help="End when all up to this LSN is stored; `now` is the current end of the WAL."),
    ] = None,
    for_: Annotated[
        float | None, typer.Option("--for", min=0, help="End after this time, in seconds.")
    ] = None,
    retry_for: Annotated[
        float,
        typer.Option(
            min=0,
            help="Time to reconnect, in seconds; then give up with exit code 3. 0: never reconnect.",
        ),
    ] = 300.0,
    log: Log = "text",
    log_seconds: LogSeconds = None,
    metrics: Metrics = None,
) -> None:
    """Record a replication slot into a folder of segments.

    Ctrl-C stores and acknowledges everything received, then ends.
    """
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
        until=recording.parse_until(until),
        seconds=for_,
        log=log,
        interval=log_seconds,
        metrics=metrics,
        options=options,
        create_slot=create_slot,
        failover=failover,
        snapshot=snapshot,
        resync=resync,
        workers=workers,
        max_snapshot_age=max_snapshot_age,
        strict=strict,
        segment_seconds=segment_seconds,
        retry_for=retry_for,
    )


@app.command()
def segments(
    folder: Annotated[str, typer.Argument(help="The folder or URL of the recording.", show_default=False)],
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print each segment, and each verified table of a replica, as a JSON object."
        ),
    ] = False,
) -> None:
    """List the segments of a recording, and verify that none is missing."""
    from pgoutput.cli import listing

    listing.show(Console(width=1000, highlight=False, markup=False), folder, json)


@app.command()
def replicate(
    segments: Annotated[
        str, typer.Option(help="The recording: a folder, or a URI that pyarrow reads.", show_default=False)
    ],
    target: Annotated[
        str,
        typer.Option(
            help="The folder or URI of the Delta tables; existing tables are continued.", show_default=False
        ),
    ],
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            help="A table to follow from now on, such as public.orders; repeatable. A new target follows all "
            "tables if none is named.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep running, and apply new segments as they are recorded.")
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Keep all versions of a row, with __START_AT and __END_AT.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse a recording that lacks rows of a table, with exit code 2."),
    ] = False,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Start Spark on this machine, which applies tables in parallel."),
    ] = False,
    master: Annotated[
        str,
        typer.Option(help="Use the executors of a Spark cluster, such as spark://host:7077 or yarn."),
    ] = "",
    remote: Annotated[str, typer.Option(help="Use a Spark Connect server, such as sc://host:15002.")] = "",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Folder or URI of the checkpoint, always the same for a target; by default in the target.",
            show_default=False,
        ),
    ] = None,
    log: Log = "text",
    log_seconds: LogSeconds = None,
    metrics: Metrics = None,
    maintain: Annotated[
        bool,
        typer.Option("--maintain", help="With --follow: remove unused files of all tables each hour."),
    ] = False,
) -> None:
    """Keep a Delta table for each relation equal to its source, in one process or with Spark.

    Either can resume what the other has begun. Ctrl-C ends the command after the current commit. Exit code 1:
    changes of some tables could not be applied; the next run retries them.
    """
    require("replica", "deltalake", "pyarrow")
    if master and remote:
        raise typer.BadParameter("give one of --master and --remote")
    if maintain and not follow:
        raise typer.BadParameter("--maintain needs --follow")
    if spark := spark or bool(master or remote):
        require("spark", "pyspark")
    from pgoutput.cli import replication

    output = replication.Output(log, log_seconds)
    run = replication.Run(
        segments,
        target,
        follow=follow,
        history=history,
        strict=strict,
        checkpoint=checkpoint,
        output=output,
        tables=table or (),
    )
    if spark:
        from pgoutput.cli.spark_replication import SparkEngine

        replication.replicate(run, SparkEngine(master, remote), metrics, maintain=maintain)
    else:
        replication.replicate(run, replication.apply_directly, metrics, maintain=maintain)


@app.command()
def sync(
    publication: Annotated[
        list[str],
        typer.Option(help="A publication to replicate; repeat the option for several.", show_default=False),
    ],
    target: Annotated[
        str,
        typer.Option(
            help="The folder or URI of the Delta tables; existing tables are continued.", show_default=False
        ),
    ],
    dsn: Dsn = "",
    slot: Annotated[
        str | None,
        typer.Option(
            help="The replication slot, created for a new recording; the default is pgoutput_PUBLICATION."
        ),
    ] = None,
    recording: Annotated[
        str | None,
        typer.Option(help="The folder or URL of the recording; the default is _recording in the target."),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Keep all versions of a row, with __START_AT and __END_AT.")
    ] = False,
    segment_seconds: Annotated[
        float,
        typer.Option(min=0, help="Age in seconds at which a segment ends, so that readers see its changes."),
    ] = 1.0,
    log: Log = "text",
    log_seconds: LogSeconds = None,
    metrics: Metrics = None,
) -> None:
    """Record publications and keep a Delta table for each relation, in one command.

    It begins with a copy of the published tables. Ctrl-C ends the command after everything received is stored
    and applied; the next run continues.
    """
    require("recorder", "psycopg")
    require("replica", "deltalake", "pyarrow")
    from pgoutput.cli import replication, synchronization

    output = replication.Output(log, log_seconds)
    synchronization.synchronize(
        target,
        recording,
        publication,
        dsn,
        slot,
        segment_seconds,
        history=history,
        output=output,
        metrics=metrics,
    )


@app.command()
def status(
    recording: Annotated[
        str,
        typer.Option("--recording", help="The recording: a folder, or a URI.", show_default=False),
    ],
    dsn: Annotated[
        str | None,
        typer.Option(
            help="Connection string of libpq, to ask about the slot; '' for its environment variables.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="The folder or URI of a replica of the recording; repeatable.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a recording, its slot and recorder, its replicas, and their lag."""
    require("arrow", "pyarrow")
    from pgoutput.cli import status as command

    command.show(recording, dsn, target or (), json=json)


@app.command()
def snapshot(
    recording: Annotated[
        str,
        typer.Option(
            "--recording", help="The folder or URL that `pgoutput record` writes.", show_default=False
        ),
    ],
    table: Annotated[
        list[str],
        typer.Option(
            "--table", help="A published table, such as public.orders; repeatable.", show_default=False
        ),
    ],
) -> None:
    """Add the rows of tables to a recording, while `pgoutput record` runs.

    The running recorder copies the tables; otherwise the next recorder does. The command waits until the rows
    are stored. Ctrl-C ends the command, but not the copying.
    """
    from pgoutput.cli import snapshots

    snapshots.snapshot(recording, table)


@app.command()
def prune(
    recording: Annotated[
        str,
        typer.Option(
            "--recording", help="The folder or URI that `pgoutput record` writes.", show_default=False
        ),
    ],
    keep: Annotated[
        str, typer.Option(help="Keep segments that were stored in this time, such as 90m, 12h or 7d.")
    ] = "7d",
    forget: Annotated[
        list[str] | None,
        typer.Option(help="ID of a registered reader that is gone; repeatable.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be removed.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Remove the segments at the beginning of a recording that all registered readers have read.

    Replicas register by themselves. Recorder and replicas may run at the same time.
    """
    from pgoutput.cli import pruning

    pruning.prune(recording, keep, forget or (), dry_run=dry_run, json=json)


@app.command("install-ddl-events")
def install_ddl_events(
    dsn: Dsn = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the event trigger.")] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL statements instead of running them.")
    ] = False,
) -> None:
    """Install an event trigger in a database that describes each ALTER TABLE in the stream.

    Recorders notice the event trigger, also while they run. Replicas then rename columns as the server does,
    and give existing rows the constant defaults of added columns.
    """
    require("recorder", "psycopg")
    from pgoutput import recorder

    if sql:
        print(*recorder.ddl_events_sql(remove=remove), sep=";\n", end=";\n")
    else:
        with refused_values():
            recorder.install_ddl_events(dsn, remove=remove)


@app.command()
def verify(
    recording: Annotated[
        str,
        typer.Option(
            "--recording", help="The folder or URL that `pgoutput record` writes.", show_default=False
        ),
    ],
    target: Annotated[
        str, typer.Option(help="The folder of the Delta tables of the recording.", show_default=False)
    ],
    dsn: Dsn = "",
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table", help="A table to compare, such as public.orders; repeatable.", show_default=False
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object per table.")] = False,
    rate: Annotated[
        float | None,
        typer.Option(min=1, help="Rows to read from the server per second; the default is no limit."),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Have the recorder copy the rows that differ again."),
    ] = False,
) -> None:
    """Prove that the tables of a replica equal the source, as of one LSN.

    Exit code 1: tables differ, or could not be compared. Ctrl-C ends the command; the next run goes on.
    """
    require("replica", "deltalake", "pyarrow")
    from pgoutput.cli import verification

    with refused_values():
        verification.verify(recording, target, dsn, table or (), json=json, rate=rate, repair=repair)


@app.command()
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
    from pgoutput.cli import checking

    console = Console(soft_wrap=True, highlight=False)
    if rules:
        checking.show_rules(console, json)
    elif not files:
        raise typer.BadParameter("name a file or folder to check", param_hint="FILES")
    legal = True
    for path in files or ():
        with _opened(path, skip_bad=False) as stream:
            legal &= checking.check_stream(console, stream, json)
    if not legal:
        raise typer.Exit(1)


@app.command()
def serve(
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="A recording: a folder or URL of segments, or a capture file.",
            show_default=False,
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="MODULE:NAME of a scenario, or of a function that returns one.", show_default=False
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 0,
    user: Annotated[
        str | None,
        typer.Option(
            help="The only user, with its password in PGPASSWORD or a file. By default anyone may connect."
        ),
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option(help="A file with the user's password in its first line.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate for TLS, a PEM file.")] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The key of the certificate, if it is in another file.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="A fault to inject repeatedly: drop-after=N, delay=MS, duplicate=N, truncate-message=N, "
            "flip-bit=N, stall-keepalive. Every Nth message is affected, but never one that is sent again."
        ),
    ] = None,
) -> None:
    """Serve a recording or a scenario as a PostgreSQL server would.

    Prints the connection parameters, and serves until Ctrl-C.
    """
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
            help="A new folder for a recording; FILE.jsonl[.gz] for a "
            "capture file; - for a walsender's bytes.",
            show_default=False,
        ),
    ],
    tables: Annotated[str, typer.Option(help="Number of tables.")] = "20",
    transactions: Annotated[str, typer.Option(help="Number of transactions; 1e6 is a million.")] = "1000",
    changes: Annotated[str, typer.Option(help="Changes per transaction: a number, or a range.")] = "10",
    mix: Annotated[
        str, typer.Option(help="Relative frequencies of the kinds of changes.")
    ] = "insert=6,update=3,delete=1",
    value_sizes: Annotated[
        str, typer.Option(help="Size of text values, in bytes: a number, or a range like 10-200.")
    ] = "10-50",
    large: Annotated[
        float, typer.Option(help="Share of large transactions, which --streaming streams; 0 to 1.")
    ] = 0.001,
    large_changes: Annotated[str, typer.Option(help="Changes per large transaction.")] = "10000",
    rolled_back: Annotated[
        float,
        typer.Option(help="Share of streamed transactions and savepoints that are rolled back; 0 to 1."),
    ] = 0.1,
    proto: Proto = LATEST_RELEASED,
    streaming: Streaming = "off",
    seed: Annotated[
        str, typer.Option(help="Seed; the output is deterministic for a seed and options.")
    ] = "0",
) -> None:
    """Generate a stream of any size, and the rows that its tables hold at the end."""
    require("synth", "numpy", "pyarrow")
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


@app.command()
def run(
    context: typer.Context,
    config: Annotated[
        Path,
        typer.Option(
            envvar="PGOUTPUT_CONFIG", help="A TOML file that describes processes.", show_default=False
        ),
    ],
) -> None:
    """Run the processes of a configuration file, and restart those that crash, until Ctrl-C or SIGTERM.

    Exit code 2: a process has ended with an error that a restart cannot solve.
    """
    from pgoutput.cli.supervision import Supervisor

    assert context.parent is not None
    group: Any = context.parent.command
    configuration = read_configuration(config, group.configurable)
    sys.exit(Supervisor(configuration, group.configurable).run())


@config_app.command("check")
def check_config(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The configuration file.", show_default=False)],
) -> None:
    """Check a configuration file, without starting anything and without reading secrets."""
    group: Any = context.find_root().command
    configuration = read_configuration(file, group.configurable)
    check_processes(configuration, group.configurable)
    commands, processes = len(configuration.commands), len(configuration.instances)
    print(f"{file}: {counted(commands, 'command')} and {counted(processes, 'process')}")


app.add_typer(vectors_app)
app.add_typer(config_app)


@contextmanager
def _opened(path: str, skip_bad: bool) -> Iterator[StoredStream]:
    """Open a capture file, segment or recording; with `skip_bad`, print skipped messages and their number."""
    skipped = 0

    def skip(error: RecordingError) -> None:
        nonlocal skipped
        skipped += 1
        complain(f"skipped: {error}")

    path = "/dev/stdin" if path == "-" else path
    with _reader(path)(path, on_error=skip if skip_bad else None) as stream:
        yield stream
    if skipped:
        complain(f"{path}: {skipped} skipped")


def _reader(path: str) -> type[CaptureFile] | type[RecordingReader]:
    """Return the class that reads the file or folder at a path or URL; import pyarrow only if needed."""
    if not (Path(path).is_dir() or path.endswith(".parquet") or "://" in path):
        return CaptureFile
    from pgoutput.recording import RecordingReader

    return RecordingReader
