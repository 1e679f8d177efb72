"""The command `pgoutput replicate`: prints how many changes it has applied, and ends at a signal."""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from threading import Event

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from pgoutput.cli.printing import printable
from pgoutput.cli.signals import stop_at_signals
from pgoutput.errors import PgoutputError, RecordingError
from pgoutput.recording import Recording
from pgoutput.replica import TableResult, check_owner, retry_tables
from pgoutput.spark import local_session
from pgoutput.spark import replicate as start_query
from pgoutput.wire import format_lsn

SEGMENTS_PER_BATCH = 128
"""Maximum number of segments in a micro-batch.

The number is small, so that progress is visible and little work is repeated after a crash.
"""

OPERATIONS = ("Snapshot", "Insert", "Update", "Delete", "Truncate")


class Output:
    """Warnings of one run of `pgoutput replicate`, printed on standard error, and numbers of applied changes.

    Attributes:
        totals: Number of applied changes, by qualified relation name and operation.
        failed: OIDs of the relations that have a failed table.
    """

    def __init__(self) -> None:
        self.console: Console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.totals: Counter[tuple[str, str]] = Counter()
        self.failed: set[int] = set()
        self._incomplete: set[tuple[int, str]] = set()

    def add(self, applied: TableResult) -> None:
        """Add the changes applied to a table to `totals`; print why the table may differ or has failed.

        The failure of each table is printed only once.
        """
        relation = f"{applied.namespace}.{applied.name}"
        for operation, changes in applied.changes.items():
            self.totals[relation, operation] += changes
        if applied.may_differ:
            since = format_lsn(applied.may_differ[0].lsn)
            reasons = "; ".join(one.reason for one in applied.may_differ)
            self.warn(f"{relation} may differ from its source since LSN {since}: {reasons}")
        if applied.error and applied.oid not in self.failed:
            self.failed.add(applied.oid)
            self.warn(f"{relation} failed, and the next run retries it: {applied.error}")

    def warn_incomplete(self, recording: Recording, *, strict: bool) -> None:
        """Print the incomplete tables of a recording with the reasons, each table and reason only once.

        Raises:
            RecordingError: `strict` is True, and the recording has incomplete tables.
        """
        tables = recording.last.incomplete if recording.last else ()
        for one in tables:
            if (one.oid, one.reason) not in self._incomplete:
                self._incomplete.add((one.oid, one.reason))
                self.warn(f"{one.namespace}.{one.name} is incomplete: {one.reason}")
        if strict and tables:
            raise RecordingError(
                f"{recording.location}: the recording lacks rows of tables. Leave out --strict to replicate "
                "what it has, or record anew with a snapshot"
            )

    def warn(self, text: str) -> None:
        """Print a line on standard error."""
        self.console.print(printable(text), markup=False)


def replicate(segments: str, target: str, *, follow: bool, history: bool, strict: bool) -> None:
    """Apply the changes of a recording that a target does not have yet, and print their number.

    Exits with code 1 if a table failed, and with 130 after a signal.

    Args:
        segments: Folder or URI of the recording.
        target: Folder or URI of the replica.
        follow: Whether to wait for new segments after the last segment, instead of ending.
        history: Whether to keep all versions of rows (SCD type 2).
        strict: Whether to refuse a recording with incomplete tables.

    Raises:
        PgoutputError: The recording cannot be read, the target holds the replica of another recording,
            or `strict` is True and the recording has incomplete tables.
    """
    logging.disable()  # py4j logs tracebacks of errors that are reported below
    recording = Recording(segments, may_be_empty=follow)
    output = Output()
    console, totals = output.console, output.totals
    check_owner(target, "history" if history else "tables", recording.identity)
    output.warn_incomplete(recording, strict=strict)
    for applied in retry_tables(segments, target):
        output.add(applied)
    stop = Event()
    with console.status("starting Spark"):
        session = local_session("pgoutput replicate")
    stop_at_signals(stop.set)  # Spark's own handler interrupts a call to Java
    session.sparkContext.setLogLevel("OFF")  # errors are reported below, in one line
    try:
        _run(session, recording, target, output, stop, follow=follow, history=history, strict=strict)
    except (PySparkException, Py4JError, OSError) as error:
        if not stop.is_set():  # the signal may have ended Java too
            raise PgoutputError(_cause(error)) from None
    finally:
        with suppress(Py4JError, OSError):
            session.stop()
        if totals:
            show(Console(highlight=False), totals)
    if stop.is_set():
        sys.exit(130)
    if output.failed:
        sys.exit(1)
    if not totals:
        console.print("Nothing new was recorded since the last run.")


def _run(
    session: SparkSession,
    recording: Recording,
    target: str,
    output: Output,
    stop: Event,
    *,
    follow: bool,
    history: bool,
    strict: bool,
) -> None:
    def report(batch: int, applied: Sequence[TableResult]) -> None:
        for one in applied:
            output.add(one)

    source = session.readStream.format("pgoutput").option("path", recording.location.place)
    changes = source.option("maxFilesPerTrigger", str(SEGMENTS_PER_BATCH)).load()
    trigger = {"processingTime": "1 second"} if follow else {"availableNow": True}
    query = start_query(changes, target, history=history, trigger=trigger, report=report)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    progress = Progress(
        *columns,
        TextColumn("segments"),
        console=output.console,
        transient=True,
        disable=not output.console.is_terminal,
    )
    with progress:
        task = progress.add_task("replicating", total=len(recording.numbers))
        while not query.awaitTermination(1) and not stop.is_set():
            recording.refresh()
            output.warn_incomplete(recording, strict=strict)
            progress.update(
                task,
                total=len(recording.numbers),
                completed=_segments_read(query),
                description=f"{sum(output.totals.values()):,} changes",
            )
    query.stop()


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


def _segments_read(query: StreamingQuery) -> int:
    progress = query.lastProgress
    if not progress:
        return 0
    found = re.search(r"segment\W+(\d+)", str(progress["sources"][0]["endOffset"]))
    return int(found[1]) if found else 0


def _cause(error: Exception) -> str:
    """Return the cause of a Spark error as one line, from the text of the error.

    The cause is the innermost error of the package pgoutput, else the innermost exception of Java or Python,
    else the first line of the text.
    """
    text = str(error)
    for pattern in (r"pgoutput\.errors\.\w+: (.+)", r"^(?:: |Caused by: )?[\w.$]*(?:Exception|Error): (.+)"):
        found = [cause for cause in re.findall(pattern, text, re.MULTILINE) if "Traceback" not in cause]
        if found:
            return str(found[-1])
    return text.partition("\n")[0]
