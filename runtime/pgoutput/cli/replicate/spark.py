"""The command `pgoutput replicate` with Spark: a streaming query applies the changes."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from threading import Event

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pgoutput._text import counted
from pgoutput.cli.common.signals import stop_at_signals
from pgoutput.cli.replicate.replication import Run, segments_bar
from pgoutput.errors import PgoutputError
from pgoutput.replica import SEGMENTS_PER_BATCH, catch_up
from pgoutput.spark import cluster_session, local_session, replicate as start_query


class SparkEngine(msgspec.Struct, frozen=True):
    """A function that applies changes with Spark: on this machine, unless a master or remote is given."""

    master: str = ""
    """URL of the master of a Spark cluster."""
    remote: str = ""
    """URL of a Spark Connect server."""
    checkpoint: str | None = None
    """Folder or URI of the query's checkpoint; None for a folder in the target."""

    def __call__(self, run: Run, stop: Event) -> None:
        """Apply the changes of a run until the event is set or, unless the run follows, to the end."""
        # py4j logs tracebacks of errors that are reported below.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        try:
            session = self._start(run)
        except (PySparkException, Py4JError, OSError) as error:
            raise PgoutputError(_cause(error)) from None
        stop_at_signals(stop.set)  # Spark's own handler interrupts a call to Java
        try:
            if self.remote:
                run.is_counted = False
            else:
                session.sparkContext.setLogLevel("OFF")  # errors are reported below, in one line
            _run_query(session, run, stop, self.checkpoint)
        except (PySparkException, Py4JError, OSError) as error:
            if not stop.is_set():  # the signal may have ended Java too
                raise PgoutputError(_cause(error)) from None
        finally:
            with suppress(PySparkException, Py4JError, OSError):
                session.stop()

    def _start(self, run: Run) -> SparkSession:
        with run.output.console.status("starting Spark"):
            if self.master or self.remote:
                return cluster_session("pgoutput replicate", master=self.master, remote=self.remote)
            return local_session("pgoutput replicate")


def _run_query(session: SparkSession, run: Run, stop: Event, checkpoint: str | None) -> None:
    source = session.readStream.format("pgoutput").option("path", run.recording).option("view", "batches")
    changes = source.option("maxFilesPerTrigger", str(SEGMENTS_PER_BATCH)).load()
    pace = {"processingTime": f"{round(1000 * max(run.latency, 1))} milliseconds"}
    trigger = pace if run.follow else {"availableNow": True}
    # Spark does the same before each micro-batch, but without new segments there is none.
    if results := catch_up(run.recording, run.target, updates=run.updates, dropped=run.dropped):
        run.report(run.segments_recorded, results)
    # A Spark Connect server would call the function in another process, where it has no effect here.
    report, before = (run.report, {}) if run.is_counted else (None, run.tables())
    query = start_query(
        changes,
        run.target,
        history=run.history,
        updates=run.updates,
        dropped=run.dropped,
        checkpoint=checkpoint,
        trigger=trigger,
        on_batch=report,
    )
    with segments_bar(run.output.console) as bar:
        task = bar.add_task("replicating", total=run.segments_recorded)
        while not query.awaitTermination(1) and not stop.is_set():
            completed = _segments_read(query)
            run.check(completed)
            text = counted(sum(run.output.totals.values()), "change") if run.is_counted else "replicating"
            bar.update(task, total=run.segments_recorded, completed=completed, description=text)
            run.show_interval(text, completed)
    query.stop()
    if not run.is_counted:
        run.report_tables(before)


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
