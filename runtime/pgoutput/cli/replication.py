"""What `pgoutput replicate` shows, and how it is stopped."""

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
from pgoutput.errors import PgoutputError
from pgoutput.replica import Applied
from pgoutput.spark import local_session
from pgoutput.spark import replicate as start_query
from pgoutput.views import Recording

SEGMENTS_PER_BATCH = 128
"""So that progress is seen, and a crash costs little."""

OPERATIONS = ("Snapshot", "Insert", "Update", "Delete", "Truncate")


def replicate(segments: str, target: str, *, follow: bool, history: bool) -> None:
    """Bring the tables of a target up to date, and tell what was done.

    Raises:
        PgoutputError: The recording cannot be read, or the target is not its replica.
    """
    logging.disable()  # Spark's bridge to Java would log tracebacks of its own
    recording = Recording(segments, may_be_empty=follow)
    totals: Counter[tuple[str, str]] = Counter()
    console = Console(stderr=True, highlight=False)
    stop = Event()
    with console.status("starting Spark"):
        session = local_session("pgoutput replicate")
    stop_at_signals(stop.set)  # Spark's own handler would end a call to Java in its middle
    session.sparkContext.setLogLevel("OFF")  # what fails is told below, in one line
    try:
        _run(session, recording, target, totals, console, stop, follow=follow, history=history)
    except (PySparkException, Py4JError, OSError) as error:
        if not stop.is_set():  # who is told to end may lose its Java, which was told as well
            raise PgoutputError(_cause(error)) from None
    finally:
        with suppress(Py4JError, OSError):
            session.stop()
        if totals:
            show(Console(highlight=False), totals)
    if stop.is_set():
        sys.exit(130)
    if not totals:
        console.print("Nothing new was recorded since the last run.")


def _run(
    session: SparkSession,
    recording: Recording,
    target: str,
    totals: Counter[tuple[str, str]],
    console: Console,
    stop: Event,
    *,
    follow: bool,
    history: bool,
) -> None:
    def report(batch: int, applied: Sequence[Applied]) -> None:
        for one in applied:
            totals[f"{one.namespace}.{one.name}", one.operation] += one.changes

    source = session.readStream.format("pgoutput").option("path", recording.location.place)
    changes = source.option("maxFilesPerTrigger", str(SEGMENTS_PER_BATCH)).load()
    trigger = {"processingTime": "1 second"} if follow else {"availableNow": True}
    query = start_query(changes, target, history=history, trigger=trigger, report=report)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    progress = Progress(
        *columns,
        TextColumn("segments"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task("replicating", total=len(recording.numbers))
        while not query.awaitTermination(1) and not stop.is_set():
            recording.refresh()
            progress.update(
                task,
                total=len(recording.numbers),
                completed=_segments_read(query),
                description=f"{sum(totals.values()):,} changes",
            )
    query.stop()


def show(console: Console, totals: Counter[tuple[str, str]]) -> None:
    """Print how many changes of each kind were made in each table."""
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
    found = re.search(r"\d+", str(progress["sources"][0]["endOffset"]))
    return int(found[0]) if found else 0


def _cause(error: Exception) -> str:
    """What went wrong: what this package said, else what Java said, else the first line."""
    said = str(error)
    found = re.findall(r"pgoutput\.errors\.\w+: (.+)", said) or re.findall(r"java\.\S+Exception: (.+)", said)
    return str(found[-1]) if found else said.partition("\n")[0]
