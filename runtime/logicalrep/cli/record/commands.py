"""Commands that write recordings."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from logicalrep._extras import require
from logicalrep.cli.common.configuration import value_or_reader
from logicalrep.cli.common.options import (
    Detail,
    Dsn,
    Log,
    LogSeconds,
    Metrics,
    RecordingPlace,
    SegmentSeconds,
)
from logicalrep.cli.common.printing import refused_values
from logicalrep.versions import LATEST


def record(
    context: typer.Context,
    slot: Annotated[str, typer.Option(help="The replication slot.", show_default=False)],
    publication: Annotated[
        list[str],
        typer.Option(help="A publication to record; repeat the option for several.", show_default=False),
    ],
    recording: Annotated[
        str,
        typer.Option(
            help="The folder or URL (s3://, gs://, az://) of the recording; an existing one is continued.",
            show_default=False,
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
    after_upgrade: Annotated[
        bool,
        typer.Option(
            "--after-upgrade",
            help="Continue on the server that pg_upgrade has made of the recorded one (PostgreSQL 17).",
        ),
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
    segment_seconds: SegmentSeconds = 10.0,
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
    detail: Detail = False,
    metrics: Metrics = None,
) -> None:
    """Record a replication slot into a folder of segments.

    Ctrl-C stores and acknowledges everything received, then ends.
    """
    from logicalrep.cli.record import recording as command
    from logicalrep.recorder import RecorderOptions

    options = RecorderOptions(
        proto_version=proto,
        streaming=streaming,
        two_phase=two_phase,
        binary=binary,
        messages=messages,
        origin=origin,
    )
    command.record(
        value_or_reader(context, "dsn", dsn),
        slot,
        publication,
        recording,
        until=command.parse_until(until),
        seconds=for_,
        log=log,
        interval=log_seconds,
        detail=detail,
        metrics=metrics,
        options=options,
        create_slot=create_slot,
        failover=failover,
        after_upgrade=after_upgrade,
        snapshot=snapshot,
        resync=resync,
        workers=workers,
        max_snapshot_age=max_snapshot_age,
        strict=strict,
        segment_seconds=segment_seconds,
        retry_for=retry_for,
    )


def snapshot(
    recording: RecordingPlace,
    table: Annotated[
        list[str],
        typer.Option(
            "--table", help="A published table, such as public.orders; repeatable.", show_default=False
        ),
    ],
) -> None:
    """Add the rows of tables to a recording, while `logicalrep record` runs.

    The running recorder copies the tables; otherwise the next recorder does. The command waits until the rows
    are stored. Ctrl-C ends the command, but not the copying.
    """
    from logicalrep.cli.record import snapshots

    snapshots.snapshot(recording, table)


def prune(
    recording: RecordingPlace,
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
    from logicalrep.cli.record import pruning

    pruning.prune(recording, keep, forget or (), dry_run=dry_run, json=json)


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
    from logicalrep import recorder

    if sql:
        print(*recorder.ddl_events_sql(remove=remove), sep=";\n", end=";\n")
    else:
        with refused_values():
            recorder.install_ddl_events(dsn, remove=remove)
