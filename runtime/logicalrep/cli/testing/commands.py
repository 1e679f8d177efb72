"""Commands that make and serve streams."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from logicalrep._extras import require
from logicalrep._servers import MAJOR_VERSIONS
from logicalrep.cli.common.streams import opened
from logicalrep.cli.testing import encoding
from logicalrep.versions import LATEST, LATEST_RELEASED


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
    profile: Annotated[
        str | None,
        typer.Option(
            help="Shape of the transactions: everything, oltp, bulk or iot. "
            "Default: everything for up to 10,000 transactions, else oltp.",
            show_default=False,
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            help="A recording or capture file: make a stream with its tables, sizes of values, NULLs, keys "
            "and order of changes, but with none of its values.",
            show_default=False,
        ),
    ] = None,
    transactions: Annotated[str, typer.Option(help="Number of transactions; 1e6 is a million.")] = "1000",
    tables: Annotated[
        str | None, typer.Option(help="Number of tables, without those of varied transactions.")
    ] = None,
    changes: Annotated[
        str | None, typer.Option(help="Changes per transaction: a number, or a range like 1-20.")
    ] = None,
    mix: Annotated[
        str | None, typer.Option(help="Relative frequencies of changes, as insert=6,update=3,delete=1.")
    ] = None,
    value_sizes: Annotated[
        str | None, typer.Option(help="Size of text values, in bytes: a number, or a range like 10-200.")
    ] = None,
    large: Annotated[
        float | None, typer.Option(help="Share of large transactions, which --streaming streams; 0 to 1.")
    ] = None,
    varied: Annotated[
        float | None,
        typer.Option(
            help="Share of transactions with all kinds of messages: TRUNCATE, ALTER TABLE, TOASTed values, "
            "origins, savepoints, partitions, changed keys; 0 to 1."
        ),
    ] = None,
    replica_identity: Annotated[
        str | None,
        typer.Option(help="default, full, index or nothing; varied transactions have tables of each."),
    ] = None,
    server: Annotated[
        int | None,
        typer.Option(
            min=MAJOR_VERSIONS[0],
            max=MAJOR_VERSIONS[-1],
            help="Send what this major version of PostgreSQL sends. Default: 18.",
            show_default=False,
        ),
    ] = None,
    proto: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LATEST,
            help="Protocol version of the stream. Default: the newest that the server speaks.",
            show_default=False,
        ),
    ] = None,
    streaming: Annotated[
        str | None, typer.Option(help="Stream large transactions while in progress: off, on or parallel.")
    ] = None,
    two_phase: Annotated[
        bool | None,
        typer.Option("--two-phase", help="Send transactions when they are prepared."),
    ] = None,
    binary: Annotated[bool, typer.Option("--binary", help="Send values in binary format.")] = False,
    messages: Annotated[
        bool | None,
        typer.Option("--messages", help="Send messages of pg_logical_emit_message."),
    ] = None,
    origin: Annotated[str, typer.Option(help="any, or none for no transactions with an origin.")] = "any",
    seed: Annotated[
        str, typer.Option(help="Seed; the output is deterministic for a seed and options.")
    ] = "0",
) -> None:
    """Generate a stream of any size, and the rows that its tables hold at the end.

    The profile `everything` sends all kinds of messages: it sets --streaming, --two-phase and --messages,
    as far as the server and the protocol version have them.
    """
    require("synth", "numpy", "pyarrow")
    from logicalrep.cli.testing import synthesis

    fitted = None
    if like is not None:
        with opened(like, skip_bad=False) as stream:
            fitted = synthesis.fit(stream)
    workload = synthesis.make_workload(
        profile,
        fitted,
        transactions=synthesis.parse_number("--transactions", transactions),
        tables=tables and synthesis.parse_number("--tables", tables),
        changes=changes and synthesis.parse_range("--changes", changes),
        mix=mix and synthesis.parse_mix(mix),
        value_sizes=value_sizes and synthesis.parse_range("--value-sizes", value_sizes),
        large=large,
        varied=varied,
        replica_identity=replica_identity,
        server=server,
        proto_version=proto,
        streaming=streaming,
        two_phase=two_phase,
        binary=binary,
        messages=messages,
        origin=origin,
        seed=synthesis.parse_number("--seed", seed),
    )
    synthesis.synthesize(workload, out)


def serve(
    recording: Annotated[
        str | None,
        typer.Option(
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
            help="A fault: drop-after=N, delay=MS, duplicate=N, truncate-message=N, flip-bit=N or "
            "stall-keepalive; or one at a message or LSN, such as drop@17 or error@0/15D2E70."
        ),
    ] = None,
    wal_sender_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds after which a silent client is disconnected; 0: never.")
    ] = 60.0,
) -> None:
    """Serve a recording or a scenario as a PostgreSQL server would.

    Prints the connection parameters, and serves until Ctrl-C.
    """
    from logicalrep.cli.testing import serving
    from logicalrep.standin import StandIn

    server = StandIn(
        serving.find_source(recording, scenario),
        user=user,
        password=serving.find_password(user, password_file),
        tls=serving.find_tls(tls_cert, tls_key),
        faults=serving.find_faults(fault or []),
        wal_sender_timeout=wal_sender_timeout,
    )
    serving.run(server, host, port)


def encode(
    file: Annotated[
        Path, typer.Argument(help="JSON lines as printed by `decode`; - is standard input.")
    ] = Path("-"),
    proto: Annotated[
        int, typer.Option(min=1, max=LATEST, help="Protocol version of the stream.")
    ] = LATEST_RELEASED,
    streaming: Annotated[
        Literal["off", "on", "parallel"], typer.Option(help="Option `streaming` of the stream.")
    ] = "off",
) -> None:
    """Convert JSON objects, one per message, to a capture file on standard output."""
    for line in encoding.to_capture_file(file, proto, streaming):
        sys.stdout.buffer.write(line)
