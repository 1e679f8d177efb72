"""The Spark session of the command `logicalrep replicate`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from logicalrep.cli.common.signals import stop_at_signals
from logicalrep.cli.replicate.replication import Run, apply_changes
from logicalrep.errors import LogicalrepError
from logicalrep.spark import cluster_session, local_session, replicate

_JAVA: Final = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
"""Setting of Spark on this machine: Java runs without its second compiler (C2). For a million changes, C2
took 5 of 16 seconds of CPU time and saved less, because Java only moves bytes here."""


def apply_with_spark(run: Run, stop: Event, *, master: str, remote: str) -> None:
    """Apply the changes of a run with Spark: on this machine, unless a master or remote is given.

    Args:
        run: The recording and the target.
        stop: Ends the run when it is set.
        master: URL of the master of a Spark cluster.
        remote: URL of a Spark Connect server.

    Raises:
        LogicalrepError: Spark cannot be started, or has failed.
    """
    # py4j logs tracebacks of errors that are reported below.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        with _session(run, master, remote) as session:
            stop_at_signals(stop.set)  # Spark's own handler interrupts a call to Java
            if not remote:
                session.sparkContext.setLogLevel("OFF")  # errors are reported below, in one line
            apply_changes(run, stop, partial(replicate, session))
    except (PySparkException, Py4JError, OSError) as error:
        if not stop.is_set():  # after a signal, errors are expected: Java may have ended too
            raise LogicalrepError(_cause(error)) from None


@contextmanager
def _session(run: Run, master: str, remote: str) -> Iterator[SparkSession]:
    with run.output.console.status("starting Spark"):
        if master or remote:
            session = cluster_session("logicalrep replicate", master=master, remote=remote)
        else:
            session = local_session("logicalrep replicate", config=_JAVA)
    try:
        yield session
    finally:
        with suppress(PySparkException, Py4JError, OSError):
            session.stop()


def _cause(error: Exception) -> str:
    """Return the cause of a Spark error as one line, from the text of the error.

    The cause is the innermost error of the package logicalrep, else the innermost exception of Java or
    Python, else the first line of the text.
    """
    text = str(error)
    for pattern in (
        r"logicalrep\.errors\.\w+: (.+)",
        r"^(?:: |Caused by: )?[\w.$]*(?:Exception|Error): (.+)",
    ):
        found = [cause for cause in re.findall(pattern, text, re.MULTILINE) if "Traceback" not in cause]
        if found:
            return str(found[-1])
    return text.partition("\n")[0]
