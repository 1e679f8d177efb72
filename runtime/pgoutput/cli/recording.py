"""The command `pgoutput record`: prints the recorder's events, and stops the recorder at a signal."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

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
    SnapshotKept,
    Snapshotted,
    Stopped,
    Stored,
    TableComplete,
    TableIncomplete,
    TableNotCopied,
    Waiting,
)
from pgoutput.wire import parse_lsn

Until: TypeAlias = Literal["now"] | int | None


def parse_until(text: str | None) -> Until:
    """Parse the value of --until: return `now`, an LSN, or None if the option is not given.

    Raises:
        typer.BadParameter: The text is neither `now` nor an LSN.
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
    *,
    until: Until,
    seconds: float | None,
    log: Literal["text", "json"],
    **options: Any,
) -> None:
    """Record a replication slot, and print the recorder's events.

    SIGINT and SIGTERM stop the recorder, which first stores all received messages.

    Args:
        dsn: Connection string of libpq.
        slot: Name of the replication slot.
        publications: Names of the publications to record.
        out: Folder of the recording.
        until: LSN at which the recorder ends; `now` for the current end of the WAL, None for no such LSN.
        seconds: Number of seconds after which the recorder ends, None for no time limit.
        log: Format in which events are printed: readable text, or JSON lines.
        options: Further keyword arguments of `Recorder`.

    Raises:
        PgoutputError: The server cannot be recorded, or the folder cannot be used for the recording.
        OSError: A file cannot be written.
    """
    console = Console(stderr=True, highlight=False)
    with console.status("connecting") as status:

        def print_text(event: Event) -> None:
            line, stays = _LINES[type(event)]
            text = line(event)
            if stays == "always" or (stays == "in logs" and not console.is_terminal):
                complain(text)
            status.update(escape(printable(text)))

        try:
            recorder = Recorder(
                dsn, slot, publications, out, on_event=_print_json if log == "json" else print_text, **options
            )
        except ValueError as error:
            complain(str(error))
            raise typer.Exit(2) from None
        stop_at_signals(recorder.stop)
        gc.freeze()  # imported modules are never garbage; do not search them, neither now nor at exit
        recorder.run(until=until, seconds=seconds)


def _print_json(event: Event) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


def _connected(event: Connected) -> str:
    options = "".join(f", {name} = {value}" for name, value in event.options.items())
    return (
        f"recording {event.slot} of PostgreSQL {event.server_version} from {event.start_lsn}, "
        f"protocol version {event.proto_version}{options}"
    )


def describe_wait(event: Waiting) -> str:
    """Return a line about the transaction that delays the creation of a slot."""
    if event.xid is None:
        return (
            "waiting until the primary logs its running transactions: run SELECT pg_log_standby_snapshot() "
            "there, or wait for its next checkpoint"
        )
    names = "database", "user", "application", "state", "since"
    details = [f"{name} {value}" for name in names if (value := getattr(event, name))]
    if event.gid is not None:
        holder, advice = f'prepared transaction "{event.gid}"', "COMMIT PREPARED or ROLLBACK PREPARED it"
    else:
        holder, advice = f"transaction of the server process {event.pid}", "commit it, or roll it back"
    return f"waiting for the {holder} ({', '.join([f'xid {event.xid}', *details])}): {advice}"


def _progress(event: Progress) -> str:
    lag = "unknown" if event.lag_bytes is None else f"{event.lag_bytes:,} bytes"
    return (
        f"{event.messages:,} messages, {event.messages_per_second:,.0f} a second; lag {lag}; "
        f"last commit {event.last_commit_time or 'not yet'}; {event.open_transactions} transactions open"
    )


def _snapshotted(event: Snapshotted) -> str:
    rate = event.bytes_per_second
    left = f"{max(event.bytes - event.bytes_done, 0) / rate:,.0f} s left" if rate else "time left unknown"
    return (
        f"snapshot of {event.snapshot_seconds:,.0f} s ago: {event.tables_done} of {event.tables} tables, "
        f"{event.rows_of_all:,} rows, {event.bytes_done / 1e6:,.0f} of {event.bytes / 1e6:,.0f} MB, "
        f"{rate / 1e6:,.0f} MB a second, {left}; {event.table}"
    )


def _stopped(event: Stopped) -> str:
    if event.acknowledged_lsn is None:
        return "stopped before the recording began: nothing is stored"
    return f"stopped: {event.messages:,} messages, all stored and acknowledged up to {event.acknowledged_lsn}"


class _Line(NamedTuple):
    """How `pgoutput record` prints the events of one event class."""

    format: Callable[[Any], str]
    stays: Literal["always", "in logs", "no"]
    """When an event's line stays on standard error; "in logs": only if standard error is not a terminal.

    A line that does not stay is replaced by the line of the next event.
    """


_LINES: Final[dict[type[Event], _Line]] = {
    Connected: _Line(_connected, "always"),
    Waiting: _Line(describe_wait, "always"),
    SnapshotKept: _Line(
        "the recording {0.recording} has a snapshot already, and is continued: --snapshot makes none".format,
        "always",
    ),
    TableIncomplete: _Line(
        lambda event: "; ".join(filter(None, [f"incomplete: {event.table}: {event.reason}", event.advice])),
        "always",
    ),
    TableComplete: _Line("complete: {0.table}: its rows as of {0.lsn} were added".format, "always"),
    TableNotCopied: _Line("{0.table}: its rows cannot be copied: {0.reason}".format, "always"),
    PublicationAltered: _Line(
        lambda event: f"the publication {event.publication} was altered: {'; '.join(event.changes)}", "always"
    ),
    Notice: _Line("{0.severity} of the server: {0.message}".format, "always"),
    Reconnecting: _Line("{0.reason}; the next attempt is in {0.seconds} s".format, "always"),
    Stopped: _Line(_stopped, "always"),
    Stored: _Line(
        "{0.path}: {0.messages:,} messages, {0.transactions:,} commits, up to {0.end_lsn}".format, "in logs"
    ),
    Progress: _Line(_progress, "no"),
    Snapshotted: _Line(_snapshotted, "no"),
}
