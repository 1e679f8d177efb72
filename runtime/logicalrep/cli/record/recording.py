"""The command `logicalrep record`: prints the recorder's events, and stops the recorder at a signal."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, Literal, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from logicalrep.cli.common.metrics import Metrics, serve_metrics
from logicalrep.cli.common.printing import Interval, complain, print_event, printable, refused_values
from logicalrep.cli.common.signals import stop_at_signals
from logicalrep.cli.record.metrics import RECORDER, RecorderMetrics
from logicalrep.recorder import Event, Lost, Progress, Recorder, Stored, event_level, event_text
from logicalrep.wire import parse_lsn

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
        raise typer.BadParameter(f"expected now or an LSN: {error}", param_hint="--until") from None


def record(
    dsn: str | Callable[[], str],
    slot: str,
    publications: Sequence[str],
    out: str,
    *,
    until: Until,
    seconds: float | None,
    log: Literal["text", "json"],
    interval: float | None,
    detail: bool,
    metrics: str | None,
    **options: Any,
) -> None:
    """Record a replication slot, and print the recorder's events.

    SIGINT and SIGTERM stop the recorder, which first stores all received messages.

    Args:
        dsn: Connection string of libpq, or a function that returns it.
        slot: Name of the replication slot.
        publications: Names of the publications to record.
        out: Folder or URL of the recording.
        until: LSN at which the recorder ends; `now` for the current end of the WAL, None for no such LSN.
        seconds: Number of seconds after which the recorder ends, None for no time limit.
        log: Format in which events are printed: readable text, or JSON lines.
        interval: Seconds between two printed events about progress, if something has changed. None means 60
            in a log, and no such events in a terminal.
        detail: Whether to print each event about progress, and all elements of lists as JSON.
        metrics: HOST:PORT to serve metrics at; None to serve none.
        options: Further keyword arguments of `Recorder`.

    Raises:
        LogicalrepError: The server cannot be recorded, or the folder cannot be used for the recording.
        OSError: A file cannot be written.
    """
    console = Console(stderr=True, highlight=False)
    progress = Interval(interval, is_log=log == "json" or not console.is_terminal, detail=detail)
    values = Metrics(RECORDER)
    observed = RecorderMetrics(values)
    with serve_metrics(metrics, values, [observed]), console.status("connecting") as status:

        def print_json(event: Event) -> None:
            if not _is_progress(event) or progress.is_due(_state(event)):
                print_event(event, detail=detail)

        def print_text(event: Event) -> None:
            if isinstance(event, Lost) and metrics is None:
                return  # the error itself is printed at once; with metrics, only after the last scrape
            text = event_text(event)
            if is_line(event) or progress.is_due(_state(event)):
                complain(text)
            status.update(escape(printable(text)))

        show = print_json if log == "json" else print_text

        def report(event: Event) -> None:
            observed.add(event)
            show(event)

        with refused_values():
            recorder = Recorder(dsn, slot, publications, out, on_event=report, **options)
        stop_at_signals(recorder.stop)
        gc.freeze()  # imported modules are never garbage: no collection shall search them
        recorder.run(until=until, seconds=seconds)


def decode_event(event: bytes) -> Event:
    """Return an event from its JSON."""
    decoded: Event = _EVENTS.decode(event)
    return decoded


def is_line(event: Event) -> bool:
    """Return whether the text of an event is always printed; otherwise it is a line about progress."""
    return not _is_progress(event) and not isinstance(event, Stored)


def _is_progress(event: Event) -> bool:
    return event_level(event) < logging.INFO


def _state(event: Event) -> object:
    """Return what `Interval.is_due` compares to decide whether the line of an event says something new.

    An event about progress says nothing new if only values such as LSNs and sizes have changed.
    """
    if not isinstance(event, Progress):
        return event
    is_stored = event.stored_lsn == event.received_lsn
    return event.messages, event.open_transactions, event.wal_status, is_stored


_EVENTS: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(reduce(or_, Event.__subclasses__()))
