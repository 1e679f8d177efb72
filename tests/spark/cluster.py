"""A standalone cluster of Spark on this machine: a master and workers, whose jars are those of pyspark."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Self

import pyspark

from logicalrep.spark.session import LOOPBACK, launcher_environment

_PATIENCE = 120
_CLASSES = "org.apache.spark.deploy"


class Cluster:
    """A standalone cluster; a context manager that ends its processes. All ports are on the loopback address.

    Attributes:
        url: The URL of the master.

    Args:
        folder: A folder for logs, and for the files of executors.
        workers: Number of workers, each with one core.
        memory: Memory of each worker, in MiB.
    """

    def __init__(self, folder: Path, *, workers: int, memory: int = 1024) -> None:
        self._folder = folder
        self._workers = workers
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        try:
            log = self._start("master.Master", "--port", "0")
            self.url = _await(log, r"Starting Spark master at (spark://\S+)")
            for number in range(self._workers):
                folder = self._folder / f"worker{number}"
                options = ("--cores", "1", "--memory", f"{self._memory}M", "--work-dir", str(folder))
                _await(self._start("worker.Worker", *options, self.url), "(Successfully registered)")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def _start(self, name: str, *arguments: str) -> Path:
        """Start the Java class `name` of Spark in a process; return the file that it writes its log to."""
        log = self._folder / f"{len(self._processes)}.log"
        environment = launcher_environment()
        home = Path(pyspark.__file__).parent
        # Spark's shell scripts set both, from the folders that they find.
        environment |= {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}
        command = [
            f"{environment['JAVA_HOME']}/bin/java",
            "-Xmx512m",
            "-cp",
            f"{home}/jars/*",
            f"{_CLASSES}.{name}",
        ]
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [*command, "--host", LOOPBACK, "--webui-port", "0", *arguments],
                    stdout=output,
                    stderr=output,
                    env=os.environ | environment,
                )
            )
        return log

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(_PATIENCE)


def _await(log: Path, pattern: str) -> str:
    """Wait until a log contains a match of a regular expression; return the match's first group."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    raise TimeoutError(f"{log}: {log.read_text(errors='replace')[-2000:]}")
