"""What `pgoutput record` shows, and how it is stopped."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from functools import singledispatch
from pathlib import Path
from typing import Literal

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from pgoutput.cli.printing import complain, printable
from pgoutput.cli.signals import stop_at_signals
from pgoutput.recorder import (
    Connected,
    Event,
    Notice,
    Progress,
    PublicationAltered,
    Reconnecting,
    Recorder,
    RecorderOptions,
    SnapshotKept,
    Snapshotted,
    Stopped,
    Stored,
    TableIncomplete,
    Waiting,
)
from pgoutput.wire import parse_lsn

_LASTING = (
    Connected,
    Notice,
    PublicationAltered,
    Reconnecting,
    SnapshotKept,
    Stopped,
    TableIncomplete,
    Waiting,
)
"""Events that stay on the terminal as lines; others are shown while they are the latest."""


def parse_until(text: str | None) -> Literal["now"] | int | None:
    """The argument of --until.

    Raises:
        typer.BadParameter: It is neither `now` nor an LSN.
    """
    if text is None or text == "now":
        return text  # type: ignore[return-value]
    try:
        return parse_lsn(text)
    except ValueError as error:
        raise typer.BadParameter(f"now, or an LSN: {error}", param_hint="--until") from None


def record(
    dsn: str,
    slot: str,
    publications: Sequence[str],
    out: Path,
    options: RecorderOptions,
    create_slot: bool,
    failover: bool,
    snapshot: bool,
    strict: bool,
    until: Literal["now"] | int | None,
    seconds: float | None,
    retry_for: float,
    log: Literal["text", "json"],
) -> None:
    """Record, and tell how it goes; SIGINT and SIGTERM end it properly.

    Raises:
        PgoutputError: As `Recorder.run`.
        OSError: Likewise.
    """
    console = Console(stderr=True, highlight=False)
    with console.status("connecting") as status:

        def show(event: Event) -> None:
            status.update(escape(printable(_line(event))))

        def print_line(event: Event) -> None:
            if isinstance(event, _LASTING) or (isinstance(event, Stored) and not console.is_terminal):
                complain(_line(event))
            show(event)

        try:
            recorder = Recorder(
                dsn,
                slot,
                publications,
                out,
                options=options,
                create_slot=create_slot,
                failover=failover,
                snapshot=snapshot,
                strict=strict,
                retry_for=retry_for,
                on_event=_print_json if log == "json" else print_line,
            )
        except ValueError as error:
            complain(str(error))
            raise typer.Exit(2) from None
        stop_at_signals(recorder.stop)
        gc.freeze()  # what was imported stays: looking for garbage there, and at exit, is in vain
        recorder.run(until=until, seconds=seconds)


def _print_json(event: Event) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


@singledispatch
def _line(event: Event) -> str:
    """An event as a line for people."""
    return ""


@_line.register
def _(event: Connected) -> str:
    options = "".join(f", {name} = {value}" for name, value in event.options.items())
    return (
        f"recording {event.slot} of PostgreSQL {event.server_version} from {event.start_lsn}, "
        f"protocol version {event.proto_version}{options}"
    )


@_line.register
def _(event: Waiting) -> str:
    if event.xid is None:
        return (
            "waiting until the primary logs its running transactions: run SELECT pg_log_standby_snapshot() "
            "there, or wait for its next checkpoint"
        )
    details = [f"xid {event.xid}"]
    details += [
        f"{name} {value}"
        for name, value in (
            ("database", event.database),
            ("user", event.user),
            ("application", event.application),
            ("state", event.state),
            ("since", event.since),
        )
        if value
    ]
    if event.gid is not None:
        what, then = f'prepared transaction "{event.gid}"', "COMMIT PREPARED or ROLLBACK PREPARED it"
    else:
        what, then = f"transaction of the server process {event.pid}", "commit it, or roll it back"
    return f"waiting for the {what} ({', '.join(details)}): {then}"


@_line.register
def _(event: SnapshotKept) -> str:
    return f"the recording {event.recording} has a snapshot already, and is continued: --snapshot makes none"


@_line.register
def _(event: TableIncomplete) -> str:
    return f"incomplete: {event.table}: {event.reason}"


@_line.register
def _(event: PublicationAltered) -> str:
    return f"the publication {event.publication} was altered: {'; '.join(event.changes)}"


@_line.register
def _(event: Snapshotted) -> str:
    return f"snapshot: {event.tables_done} of {event.tables} tables; {event.table}, {event.rows:,} rows"


@_line.register
def _(event: Progress) -> str:
    lag = "unknown" if event.lag_bytes is None else f"{event.lag_bytes:,} bytes"
    return (
        f"{event.messages:,} messages, {event.messages_per_second:,.0f} a second; lag {lag}; "
        f"last commit {event.last_commit_time or 'not yet'}; {event.open_transactions} transactions open"
    )


@_line.register
def _(event: Notice) -> str:
    return f"{event.severity} of the server: {event.message}"


@_line.register
def _(event: Reconnecting) -> str:
    return f"{event.reason}; the next attempt is in {event.seconds} s"


@_line.register
def _(event: Stopped) -> str:
    if event.acknowledged_lsn is None:
        return "stopped before the recording began: nothing is stored"
    return f"stopped: {event.messages:,} messages, all stored and acknowledged up to {event.acknowledged_lsn}"


@_line.register
def _(event: Stored) -> str:
    return f"{event.path}: {event.messages:,} messages, {event.transactions:,} commits, up to {event.end_lsn}"
