"""What `pgoutput replicate` shows, and how it is stopped."""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from pgoutput.cli.printing import printable
from pgoutput.errors import PgoutputError
from pgoutput.replica import Applied
from pgoutput.spark import local_session
from pgoutput.spark import replicate as start_query
from pgoutput.views import Recording

SEGMENTS_PER_BATCH = 32
"""So that progress is seen, and a crash costs little."""

OPERATIONS = ("Snapshot", "Insert", "Update", "Delete", "Truncate")


def replicate(segments: str, target: str, *, follow: bool, history: bool) -> None:
    """Bring the tables of a target up to date, and tell what was done.

    Raises:
        PgoutputError: The recording cannot be read, or the target is not its replica.
    """
    recording = Recording(segments, may_be_empty=follow)
    totals: Counter[tuple[str, str]] = Counter()
    console = Console(stderr=True, highlight=False)
    with _quiet_exit(), console.status("starting Spark"):
        session = local_session("pgoutput replicate")
    session.sparkContext.setLogLevel("OFF")  # what fails is told below, in one line
    try:
        with _quiet_exit():
            _run(session, recording, target, totals, console, follow=follow, history=history)
    finally:
        show(Console(highlight=False), totals)
        session.stop()


def _run(
    session: SparkSession,
    recording: Recording,
    target: str,
    totals: Counter[tuple[str, str]],
    console: Console,
    *,
    follow: bool,
    history: bool,
) -> None:
    source = session.readStream.format("pgoutput").option("path", str(recording.location))
    changes = source.option("maxFilesPerTrigger", str(SEGMENTS_PER_BATCH)).load()

    def report(batch: int, applied: Sequence[Applied]) -> None:
        for one in applied:
            totals[f"{one.namespace}.{one.name}", one.operation] += one.changes

    trigger = {"processingTime": "1 second"} if follow else {"availableNow": True}
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TextColumn("segments"), console=console, transient=True) as progress:
        task = progress.add_task("replicating", total=len(recording.numbers))
        try:
            query = start_query(changes, target, history=history, trigger=trigger, report=report)
            try:
                while not query.awaitTermination(1):
                    recording.refresh()
                    progress.update(
                        task,
                        total=len(recording.numbers),
                        completed=_segments_read(query),
                        description=f"{sum(totals.values()):,} changes",
                    )
            finally:
                query.stop()
        except PySparkException as error:
            raise PgoutputError(_cause(error)) from None


def show(console: Console, totals: Counter[tuple[str, str]]) -> None:
    """Print how many changes of each kind were made in each table."""
    if not totals:
        console.print("Nothing new was recorded since the last run.")
        return
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


def _cause(error: PySparkException) -> str:
    """What went wrong: what this package said, else the first line of what Spark says."""
    said = str(error)
    own = re.findall(r"pgoutput\.errors\.\w+: (.+)", said)
    return own[-1] if own else said.partition("\n")[0]


@contextmanager
def _quiet_exit() -> Iterator[None]:
    """SIGTERM ends this as SIGINT does, and Spark's bridge to Java logs no traceback of its own."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
