"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pgoutput.versions import LATEST

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
RecordingPlace = Annotated[str, typer.Option(help="The folder or URI of the recording.", show_default=False)]
TableNames = Annotated[
    list[str] | None,
    typer.Option("--table", help="A table, such as public.orders; repeatable.", show_default=False),
]
Target = Annotated[
    str,
    typer.Option(
        help="The folder or URI of the Delta tables; existing tables are continued.", show_default=False
    ),
]
History = Annotated[
    bool, typer.Option("--history", help="Keep all versions of a row, with __START_AT and __END_AT.")
]
SegmentSeconds = Annotated[
    float,
    typer.Option(min=0, help="Age in seconds at which a segment ends, so that readers see its changes."),
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
        min=0,
        help="Seconds between two lines about progress, if there is any. The default is 60 in a log; "
        "in a terminal, the last line shows it.",
        show_default=False,
    ),
]
Detail = Annotated[
    bool,
    typer.Option(
        "--detail",
        help="Print all lines about progress, and with --log json whole lists; serve metrics of all tables.",
    ),
]
Streaming = Annotated[
    Literal["off", "on", "parallel"], typer.Option(help="Option `streaming` of the stream.")
]
