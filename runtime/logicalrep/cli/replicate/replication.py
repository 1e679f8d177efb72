"""The command `logicalrep replicate`: prints how many changes it has applied, and ends at a signal."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from threading import Event
from typing import Literal

import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, SpinnerColumn, TextColumn
from rich.table import Table

from logicalrep._text import bounded, counted
from logicalrep.cli.common.metrics import Metric, Metrics, Observed, serve_metrics
from logicalrep.cli.common.permissions import refuse_root, restrict_permissions
from logicalrep.cli.common.printing import Interval, print_event, printable
from logicalrep.cli.common.signals import stop_at_signals
from logicalrep.cli.replicate.metrics import REPLICA, ReplicaMetrics
from logicalrep.errors import RecordingError
from logicalrep.recording import IncompleteTable, Recording, locate
from logicalrep.replica import (
    Applied,
    Dropped,
    Maintenance,
    Progress,
    TableResult,
    Updates,
    check_owner,
    existing_tables,
    replicate as start_query,
    reset_tables,
    select_tables,
    selected_tables,
    use_iceberg,
)
from logicalrep.wire import format_lsn

_FOLDER_SECONDS = 60.0
"""Longest time that a command waits for a recorder to create the folder of a recording, in seconds."""
_POLL_SECONDS = 0.2

OPERATIONS = ("Snapshot", "Insert", "Update", "Delete", "Truncate")


class Warned(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="warning"):
    """A warning of a command, as the option --log json prints it."""

    time: str
    """Time of the warning, in ISO 8601."""
    text: str


class Replicating(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="replicating"):
    """The progress of a replica, as the option --log json prints it."""

    time: str
    """Time of the event, in ISO 8601."""
    segment: int
    """Number of the last segment whose changes were all applied; 0 for none."""
    last_segment: int
    """Number of the last segment of the recording."""


class Output:
    """Output of one run of `logicalrep replicate`: warnings, micro-batches, and numbers of applied changes.

    Text goes to standard error, JSON to standard output.

    Attributes:
        totals: Number of applied changes, by qualified relation name and operation.
        failed: OIDs of the relations whose table has failed.
        is_json: Whether events are printed as JSON.
        detail: The argument `detail`.
        interval: Decides when a line about progress is printed.

    Args:
        log: Format of the output.
        seconds: Seconds between two lines about progress; None for 60 in a log, and none in a terminal.
        detail: Whether to print each line about progress, and all elements of lists as JSON.
    """

    def __init__(
        self, log: Literal["text", "json"] = "text", seconds: float | None = None, *, detail: bool = False
    ) -> None:
        self.is_json: bool = log == "json"
        self.detail = detail
        self.console: Console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.interval = Interval(seconds, is_log=self.is_json or not self.console.is_terminal, detail=detail)
        self.totals: Counter[tuple[str, str]] = Counter()
        self.failed: set[int] = set()
        self._incomplete: set[tuple[int, str]] = set()

    def add(self, applied: TableResult) -> None:
        """Add the changes applied to a table to `totals`; print why the table may differ or has failed."""
        relation = f"{applied.namespace}.{applied.name}"
        for operation, changes in applied.changes.items():
            self.totals[relation, operation] += changes
        if applied.may_differ:
            since = format_lsn(applied.may_differ[0].lsn)
            reasons = "; ".join(one.reason for one in applied.may_differ)
            self.warn(f"{relation} may differ from its source since LSN {since}: {reasons}")
        if applied.dropped:
            self.warn(f"{relation} was dropped on the server: {applied.dropped}")
        if applied.folder:
            self.warn(f"{relation} is now in the folder {applied.folder}")
        if applied.error:
            self.failed.add(applied.oid)
            self.warn(f"{relation} failed, and its changes will be applied again: {applied.error}")
        if not applied.error and applied.oid in self.failed:
            self.failed.discard(applied.oid)
            self.warn(f"{relation} does not fail any more")

    def warn_incomplete(self, tables: Iterable[IncompleteTable]) -> None:
        """Print incomplete tables of a recording with the reasons, each table and reason only once."""
        for one in tables:
            if (one.oid, one.reason) not in self._incomplete:
                self._incomplete.add((one.oid, one.reason))
                self.warn(f"{one.namespace}.{one.name} is incomplete: {one.reason}")

    def show_progress(self, text: str, segment: int, last_segment: int) -> None:
        """Print `text`, which describes what the run does, and how many segments are applied.

        With JSON output, `text` is not printed.
        """
        if self.is_json:
            now = datetime.now(UTC).isoformat()
            self.print_event(Replicating(time=now, segment=segment, last_segment=last_segment))
        else:
            self.warn(f"{text}; {segment:,} of {counted(last_segment, 'segment')} applied")

    def print_event(self, event: msgspec.Struct) -> None:
        """Print an event as JSON."""
        print_event(event, detail=self.detail)

    def warn(self, text: str) -> None:
        """Print a warning, or another line that stays in the terminal."""
        if self.is_json:
            self.print_event(Warned(time=datetime.now(UTC).isoformat(), text=text))
            return
        self.console.print(bounded(printable(text)), markup=False)


class Run:
    """One run of a command that keeps a replica: its recording and target, its output, and its progress.

    Attributes:
        metrics: Values of the metrics that are served.
        replica_metrics: Keeps the metrics of the replica up to date.
        applied_segment: Number of the last segment whose changes were all applied; 0 for none.
        observed: What the health pages report on: the replica, and in `logicalrep sync` also the recorder.

    Args:
        recording: Folder or URI of the recording.
        target: Folder or URI of the replica.
        follow: Whether to wait for new segments after the last segment, instead of ending.
        history: Whether to keep all versions of rows (SCD type 2).
        strict: Whether to refuse a recording with incomplete tables.
        latency: Least time between two micro-batches, in seconds.
        updates: How commits remove rows from now on: `vectors` (deletion vectors) or `rewrite` (of data
            files); None for no change.
        iceberg: Catalogue of the Iceberg tables of a new target. With None, a new target gets Delta tables.
        partition: Partition fields of new Iceberg tables.
        dropped: What happens to the tables of relations that were dropped on the server.
        output: Prints warnings and micro-batches; None to print text.
        metrics: Definitions of the metrics to serve.
        is_recording: Whether the command also records, so that the recording may not exist yet.
        tables: Names of tables that the target follows from now on. If empty, the target follows the same
            tables as before, and a new target all tables.
        reset: Names of tables to remove, and to build anew.

    Raises:
        LogicalrepError: The recording cannot be read, the target holds the replica of another recording, or
            tables cannot be added or reset.
    """

    def __init__(
        self,
        recording: str,
        target: str,
        *,
        follow: bool,
        history: bool,
        strict: bool,
        latency: float = 0.0,
        updates: Updates | None = None,
        iceberg: str | None = None,
        partition: Collection[str] = (),
        dropped: Dropped = "keep",
        output: Output | None = None,
        metrics: Iterable[Metric] = REPLICA,
        is_recording: bool = False,
        tables: Collection[str] = (),
        reset: Collection[str] = (),
    ) -> None:
        self.recording = recording
        self.target = target
        self.follow = follow
        self.history = history
        self.latency = latency
        self.updates: Updates | None = updates
        self.dropped: Dropped = dropped
        self.output = output or Output()
        self.metrics = Metrics(metrics)
        self._strict = strict
        refuse_root(recording, target)
        restrict_permissions(target)
        if follow and not is_recording:
            self._await_folder(recording)
        self._recording = Recording(recording, may_be_empty=follow, may_be_missing=is_recording)
        if iceberg is not None:
            use_iceberg(target, iceberg, partition)
        check_owner(target, "history" if history else "tables", self._recording.identity)
        if tables:
            self._select(tables)
        if reset:
            reset_tables(recording, target, reset)
        self._tables = selected_tables(locate(target))
        self.replica_metrics = ReplicaMetrics(
            self.metrics, self._recording, target, detail=self.output.detail
        )
        self.applied_segment = 0
        self.observed: list[Observed] = [self.replica_metrics]
        self._check_complete()

    def _select(self, tables: Collection[str]) -> None:
        for name in select_tables(self.recording, self.target, tables):
            self.output.warn(f"no table {name} has been recorded so far")

    def _check_complete(self) -> None:
        """Print the incomplete tables that the target follows.

        Raises:
            RecordingError: The run is strict, and there are such tables.
        """
        last, selected = self._recording.last, self._tables
        tables = () if last is None else last.incomplete
        if tables and selected is not None:
            existing = existing_tables(locate(self.target))
            tables = tuple(
                one for one in tables if one.oid in existing or f"{one.namespace}.{one.name}" in selected
            )
        self.output.warn_incomplete(tables)
        if self._strict and tables:
            raise RecordingError(
                f"{self._recording.location}: the recording lacks rows of "
                f"{bounded(', '.join(f'{one.namespace}.{one.name}' for one in tables))}. Leave out "
                "--strict to replicate the other rows, or record anew with --snapshot"
            )

    def _await_folder(self, recording: str) -> None:
        """Wait for a recorder that starts at the same time to create the folder, for a minute at most.

        Raises:
            RecordingError: The folder still does not exist; the cause, a TimeoutError, makes this retryable.
        """
        place, deadline = locate(recording), time.monotonic() + _FOLDER_SECONDS
        if not place.is_folder:
            self.output.warn(f"waiting for a recorder to begin the recording {recording}")
        while not place.is_folder:
            if time.monotonic() > deadline:
                raise RecordingError(
                    f"{place}: no recorder began the recording within {_FOLDER_SECONDS:.0f} seconds: start "
                    "`logicalrep record`, or correct --recording"
                ) from TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            time.sleep(_POLL_SECONDS)

    def report(self, segment: int, applied: Sequence[TableResult]) -> None:
        """Print the results of a micro-batch that ends with `segment`; add them to the totals and metrics."""
        if self.output.is_json:
            self.output.print_event(Applied(segment=segment, tables=tuple(applied)))
        self.replica_metrics.add_batch()
        for one in applied:
            self.add(one)

    def add(self, applied: TableResult) -> None:
        """Print the result for a table; add it to the totals and metrics."""
        self.output.add(applied)
        self.replica_metrics.add(applied)

    def check(self, applied_segment: int, last_segment: int | None = None) -> None:
        """Print tables that have become incomplete, and update the lags.

        Args:
            applied_segment: Number of the last segment whose changes were all applied; 0 for none.
            last_segment: Number of the last segment that the query has found; None if it is not known. If
                it equals `applied_segment` and `segments_recorded`, the recording is not searched for new
                segments.

        Raises:
            RecordingError: The run is strict, and the recording has incomplete tables.
        """
        if not self._recording.numbers:
            self._recording.refresh()
        elif not applied_segment == last_segment == self.segments_recorded:
            self._recording.extend()
        self._check_complete()
        self.applied_segment = applied_segment
        self.replica_metrics.show_progress(applied_segment)

    def show_interval(self, text: str, applied_segment: int) -> None:
        """Print a line about progress if it is due.

        Args:
            text: What the run does.
            applied_segment: Number of the last segment whose changes were all applied; 0 for none.
        """
        if self.output.interval.is_due((text, applied_segment, self.segments_recorded)):
            self.output.show_progress(text, applied_segment, self.segments_recorded)

    @property
    def segments_recorded(self) -> int:
        """Number of the last segment of the recording at the last check; 0 without segments."""
        return max(self._recording.numbers, default=0)


def replicate(run: Run, apply: Callable[[Run, Event], None], metrics: str | None = None) -> None:
    """Apply the changes of a recording that a target does not have yet, and print their number.

    Exits with code 130 after a signal, unless the run follows new segments; with code 1 if a table failed.

    Args:
        run: The recording and the target.
        apply: Applies the changes until the event is set or, unless the run follows, to the end.
        metrics: HOST:PORT to serve the metrics of the run at; None to serve none.

    Raises:
        LogicalrepError: The changes cannot be applied, or the run is strict and tables are incomplete.
    """
    totals, follows = run.output.totals, run.follow
    stop = Event()
    try:
        with (
            serve_metrics(metrics, run.metrics, run.observed),
            Maintenance(run.target) if follows else nullcontext(),
        ):
            if metrics is not None:
                run.replica_metrics.read_tables()
            stop_at_signals(stop.set)
            apply(run, stop)
    finally:
        if totals and not run.output.is_json:
            show(Console(highlight=False), totals)
    if stop.is_set() and not follows:
        sys.exit(130)
    if run.output.failed:
        sys.exit(1)
    if not stop.is_set() and not totals and not run.output.is_json:
        run.output.console.print("Nothing new was recorded since the last run.")


def apply_changes(run: Run, stop: Event, start: Callable[..., None] = start_query) -> None:
    """Apply the changes of a run: to the end of the recording or, if the run follows, until `stop` is set.

    Args:
        run: The recording and the target.
        stop: Ends the run when it is set.
        start: Applies the changes; called with the arguments that `logicalrep.replica.replicate` takes. That
            function is the default, imported as `start_query`.
    """
    with _segments_bar(run.output.console) as bar:
        task = bar.add_task("replicating", total=run.segments_recorded)

        def show_progress(progress: Progress) -> None:
            run.check(progress.applied_segment, progress.last_segment)
            done = sum(run.output.totals.values()) + progress.applied
            is_reading = not progress.changes and progress.segment > progress.applied_segment
            text = f"reading up to segment {progress.segment:,}" if is_reading else counted(done, "change")
            completed = max(progress.segment - 1, progress.applied_segment)
            bar.update(task, total=progress.last_segment, completed=completed, description=text)
            run.show_interval(text, progress.applied_segment)

        start(
            run.recording,
            run.target,
            history=run.history,
            follow=run.follow,
            latency=run.latency,
            updates=run.updates,
            dropped=run.dropped,
            stop=stop,
            on_batch=run.report,
            on_progress=show_progress,
        )


def _segments_bar(console: Console) -> Bar:
    """Return a progress bar that counts segments. As a context manager, it is shown in a terminal only."""
    return Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("segments"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def show(console: Console, totals: Counter[tuple[str, str]]) -> None:
    """Print a table with the number of applied changes for each relation and operation."""
    table = Table(box=box.SIMPLE)
    table.add_column("relation")
    for operation in OPERATIONS:
        table.add_column(operation, justify="right")
    for relation in sorted({relation for relation, _ in totals}):
        counts = (totals[relation, operation] for operation in OPERATIONS)
        table.add_row(printable(relation), *(f"{count:,}" if count else "" for count in counts))
    console.print(table)
