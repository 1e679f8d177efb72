"""Arguments and options that several groups of commands have."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Dsn = Annotated[
    str,
    typer.Option(
        help="Connection string of libpq; the default is its environment variables (PGHOST, …).",
        show_default=False,  # a help page must not have the password of a configuration file
    ),
]
RecordingPlace = Annotated[str, typer.Option(help="The folder or URI of the recording.", show_default=False)]
SegmentSeconds = Annotated[
    float,
    typer.Option(min=0, help="Age in seconds at which a segment ends, so that readers see its changes."),
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
