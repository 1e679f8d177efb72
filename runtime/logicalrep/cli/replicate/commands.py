"""Commands that keep replicas, and prove that they equal the source."""

from __future__ import annotations

from functools import partial
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
from logicalrep.cli.common.pandas import show_pandas
from logicalrep.cli.common.printing import refused_values

Target = Annotated[
    str,
    typer.Option(
        help="The folder or URI of the Delta tables; existing tables are continued.", show_default=False
    ),
]
History = Annotated[
    bool, typer.Option("--history", help="Keep all versions of a row, with __START_AT and __END_AT.")
]
Latency = Annotated[
    float,
    typer.Option(
        min=0,
        help="Least time between two commits to a Delta table, in seconds; 60 if there are many tables.",
    ),
]
Updates = Annotated[
    Literal["vectors", "rewrite"] | None,
    typer.Option(
        help="How commits remove rows from now on: they mark them in deletion vectors, or they write data "
        "files again. By default tables stay as they are, and new ones are written again.",
        show_default=False,
    ),
]
Iceberg = Annotated[
    str | None,
    typer.Option(
        metavar="CATALOG",
        help="Write Iceberg tables to a new target: 'local' for a catalogue in its folder, or a catalogue of "
        "pyiceberg's configuration; with prod.shop, in namespaces such as shop_public. The default is Delta.",
        show_default=False,
    ),
]
Partition = Annotated[
    list[str] | None,
    typer.Option(
        help="With --iceberg: partition tables that are created from now on by a column, or a transform such "
        "as 'day(created_at)' or 'bucket(16, id)', if they have the column; repeatable.",
        show_default=False,
    ),
]


def replicate(
    recording: RecordingPlace,
    target: Target,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            help="A table to follow from now on, such as public.orders; repeatable. A new target follows all "
            "tables if none is named.",
            show_default=False,
        ),
    ] = None,
    reset_table: Annotated[
        list[str] | None,
        typer.Option(
            "--reset-table",
            help="A table to remove and build anew, such as public.orders; repeatable. Stop other runs on "
            "the target before.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep running, and apply new segments as they are recorded.")
    ] = False,
    latency: Latency = 0.0,
    history: History = False,
    updates: Updates = None,
    iceberg: Iceberg = None,
    partition: Partition = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse a recording that lacks rows of a table, with exit code 2."),
    ] = False,
    dropped: Annotated[
        Literal["keep", "archive", "drop"],
        typer.Option(
            help="What happens to the table of a relation that was dropped on the server: it is marked, its "
            "folder is also renamed, or it is removed."
        ),
    ] = "keep",
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Start Spark on this machine, which applies tables in parallel."),
    ] = False,
    master: Annotated[
        str,
        typer.Option(help="Use the executors of a Spark cluster, such as spark://host:7077 or yarn."),
    ] = "",
    remote: Annotated[str, typer.Option(help="Use a Spark Connect server, such as sc://host:15002.")] = "",
    log: Log = "text",
    log_seconds: LogSeconds = None,
    detail: Detail = False,
    metrics: Metrics = None,
) -> None:
    """Keep a Delta or Iceberg table for each relation equal to its source, in one process or with Spark.

    Either can resume what the other has begun. Ctrl-C ends the command; the next run continues. Exit code 1:
    changes of some tables could not be applied; the next run tries again, and with --follow this one does.
    """
    require("replica", "deltalake", "pyarrow")
    _check_iceberg(iceberg, partition)
    if master and remote:
        raise typer.BadParameter("--master and --remote cannot be combined: give one of them")
    if latency and not follow:
        raise typer.BadParameter("--latency needs --follow")
    if spark := spark or bool(master or remote):
        require("spark", "pyspark")
        show_pandas()
    from logicalrep.cli.replicate import replication

    output = replication.Output(log, log_seconds, detail=detail)
    run = replication.Run(
        recording,
        target,
        follow=follow,
        history=history,
        strict=strict,
        latency=latency,
        updates=updates,
        iceberg=iceberg,
        partition=partition or (),
        dropped=dropped,
        output=output,
        tables=table or (),
        reset=reset_table or (),
    )
    if spark:
        from logicalrep.cli.replicate.spark import apply_with_spark

        replication.replicate(run, partial(apply_with_spark, master=master, remote=remote), metrics)
    else:
        replication.replicate(run, replication.apply_changes, metrics)


def sync(
    context: typer.Context,
    publication: Annotated[
        list[str],
        typer.Option(help="A publication to replicate; repeat the option for several.", show_default=False),
    ],
    target: Target,
    dsn: Dsn = "",
    slot: Annotated[
        str | None,
        typer.Option(
            help="The replication slot, created for a new recording; the default is logicalrep_PUBLICATION."
        ),
    ] = None,
    recording: Annotated[
        str | None,
        typer.Option(help="The folder or URL of the recording; the default is _recording in the target."),
    ] = None,
    history: History = False,
    updates: Updates = None,
    iceberg: Iceberg = None,
    partition: Partition = None,
    segment_seconds: SegmentSeconds = 1.0,
    latency: Latency = 0.0,
    self_check: Annotated[
        bool,
        typer.Option(
            "--self-check/--no-self-check",
            help="Compare samples of the tables with the server, and have differences copied again.",
        ),
    ] = True,
    self_check_copies: Annotated[
        float,
        typer.Option(
            min=0, help="Size in GB below which a table is copied again if the self-check finds a difference."
        ),
    ] = 1.0,
    log: Log = "text",
    log_seconds: LogSeconds = None,
    detail: Detail = False,
    metrics: Metrics = None,
) -> None:
    """Record publications and keep a Delta or Iceberg table for each relation, in one command.

    It begins with a copy of the published tables. Ctrl-C ends the command after everything received is stored
    and applied; the next run continues.
    """
    require("recorder", "psycopg")
    require("replica", "deltalake", "pyarrow")
    _check_iceberg(iceberg, partition)
    from logicalrep.cli.replicate import replication, synchronization

    output = replication.Output(log, log_seconds, detail=detail)
    synchronization.synchronize(
        target,
        recording,
        publication,
        value_or_reader(context, "dsn", dsn),
        slot,
        segment_seconds,
        history=history,
        latency=latency,
        updates=updates,
        iceberg=iceberg,
        partition=partition or (),
        copied_bytes=int(self_check_copies * 1e9) if self_check else None,
        output=output,
        metrics=metrics,
    )


def verify(
    recording: RecordingPlace,
    target: Target,
    dsn: Dsn = "",
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="A table, such as public.orders; repeatable.", show_default=False),
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
    from logicalrep.cli.replicate import verification

    with refused_values():
        verification.verify(recording, target, dsn, table or (), json=json, rate=rate, repair=repair)


def tables(
    target: Annotated[str, typer.Argument(help="The folder or URI of the Delta tables.", show_default=False)],
    as_of: Annotated[
        str | None,
        typer.Option(
            help="An LSN, or a time such as 2026-01-31T12:00:00Z: a time gives the last moment up to it for "
            "which all tables have a version. The default is the last such moment.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object per table.")] = False,
) -> None:
    """List the tables of a target, with the version of each as of one moment."""
    require("replica", "deltalake", "pyarrow")
    from logicalrep.cli.replicate import cuts

    cuts.show(target, as_of, json=json)


def _check_iceberg(iceberg: str | None, partition: list[str] | None) -> None:
    """Raise an error for partitions of Delta tables, or for Iceberg tables if pyiceberg is not installed."""
    if iceberg is not None:
        require("iceberg", "pyiceberg", "sqlalchemy")
    elif partition:
        raise typer.BadParameter("--partition needs --iceberg: logicalrep does not partition Delta tables")
