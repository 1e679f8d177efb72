"""Crash test of a replica: recorder and Spark are killed repeatedly while many tables change.

`python -m tests.crash.replication --tables 200 --minutes 10 --seed 1`
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event, Thread

import msgspec
from deltalake import DeltaTable

from examples import shop
from pgoutput.recorder import RecorderOptions
from pgoutput.recording import find_segments, locate
from pgoutput.spark import replica_tables
from tests.crash.recorder import PUBLICATION
from tests.crash.shapes import Tables
from tests.server import Server
from tests.truth import TrueTable, equals_typed

ROOT = Path(__file__).parents[2]
REPLICATE = sys.executable, "-m", "pgoutput.cli", "replicate"

SEGMENTS = str(4 << 20), "1"
"""Size and age at which the recorder ends a segment, as command line arguments: bytes and seconds."""

PATIENCE = 900
"""Seconds that the recorder, and then Spark, may take to catch up after the workload has ended."""


class Outcome(msgspec.Struct, frozen=True):
    """Result of a crash test of a replica."""

    kills: dict[str, int]
    """Number of kills, by name of the killed process: recorder, spark or java."""
    steps: int
    """Number of steps that all writers of the workload have run."""
    segments: int
    tables: int
    rows: int
    different: tuple[str, ...]
    """Name and difference, as one text, of each table of the replica that differs from the server's table."""
    seconds: float

    def __str__(self) -> str:
        kills = ", ".join(f"{name} {times} times" for name, times in sorted(self.kills.items()))
        return (
            f"killed: {kills}; {self.steps:,} steps of writers, {self.segments:,} segments,"
            f" {self.seconds:.0f} s\n"
            f"{self.tables} tables with {self.rows:,} rows, {len(self.different)} of them different"
        )


class Process:
    """A program that can be started repeatedly.

    Args:
        name: Name of the program in the outcome and in error messages.
        command: Command line.
        log: File for the output of the program.
    """

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self._command = command
        self._log = log

    @contextmanager
    def started(self, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the program until the end of the `with` block; then kill the process and its descendants."""
        with (
            self._log.open("ab") as log,
            subprocess.Popen(
                [*self._command, *more],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            ) as process,
        ):
            try:
                yield process
            finally:
                _kill_all(process.pid)

    def finish(self, *more: str) -> None:
        """Run the program until it exits; raise AssertionError unless its exit code is 0."""
        with self.started(*more) as process:
            assert process.wait(PATIENCE) == 0, self.output

    @property
    def output(self) -> str:
        """The last 4000 characters of the program's output."""
        return self._log.read_text(errors="replace")[-4000:]


class Killer:
    """A thread that starts and kills a program repeatedly; a context manager.

    Attributes:
        kills: Number of kills, by name of the killed process.

    Args:
        process: The program.
        random: Random numbers that decide how long the program runs each time.
        between: Shortest and longest time from start to kill, in seconds.
    """

    def __init__(self, process: Process, random: Random, between: tuple[float, float]) -> None:
        self.kills: Counter[str] = Counter()
        self._process, self._random, self._between = process, random, between
        self._stop = Event()
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with self._process.started() as running:
                    self._stop.wait(self._random.uniform(*self._between))
                    assert running.poll() is None, f"{self._process.name} ended: {self._process.output}"
                    if not self._stop.is_set():
                        self.kills[self._kill(running.pid)] += 1
        except BaseException as failure:
            self._failure = failure

    def _kill(self, pid: int) -> str:
        """Kill the process, or the Java process that it has started; return the killed process's name."""
        others = [child for child in _descendants(pid) if _name(child) == "java"]
        if others and self._random.random() < 0.5:
            os.kill(others[0], signal.SIGKILL)
            time.sleep(1)  # the process may try to continue without Java
            return "java"
        os.kill(pid, signal.SIGKILL)
        return self._process.name


def replicate(folder: Path, tables: int, seconds: float, seed: int, *, longest: float = 100) -> Outcome:
    """Run the crash test of a replica; return its outcome.

    Args:
        folder: Folder in which the recording and the replica are created.
        tables: Number of tables.
        seconds: Duration of the workload, in seconds.
        seed: Seed of all random decisions. The time of each decision depends on the speed of the machine.
        longest: Longest time from a start of Spark to its kill, in seconds.
    """
    began = time.monotonic()
    random = Random(seed)
    recording, target = folder / "recording", folder / "replica"
    options = msgspec.json.encode(RecorderOptions(two_phase=True)).decode()
    with Server() as server:
        recorder = Process(
            "recorder",
            [
                sys.executable,
                "-m",
                "tests.crash.recorder",
                server.dsn,
                str(recording),
                options,
                PUBLICATION,
                "",
            ],
            folder / "recorder.log",
        )
        spark = Process(
            "spark",
            [*REPLICATE, "--segments", str(recording), "--target", str(target)],
            folder / "spark.log",
        )
        work = Tables(server.dsn, tables, seed)
        work.create()
        recorder.finish(
            "now", "0", *SEGMENTS
        )  # the slot is there before schemas change: see tests.crash.workload
        following = Process(spark.name, [*spark._command, "--follow"], spark._log)
        with (
            work,
            Killer(_recording(recorder), random, (1, longest / 4)) as one,
            Killer(following, random, (longest / 3, longest)) as other,
        ):
            time.sleep(seconds)
        recorder.finish("now", "0", *SEGMENTS)
        spark.finish()
        expected = shop.true_tables(server)
    return Outcome(
        kills=one.kills + other.kills,
        steps=work.steps,
        segments=len(find_segments(locate(recording))),
        tables=len(expected),
        rows=sum(len(table.rows) for table in expected),
        different=tuple(different(target, expected)),
        seconds=time.monotonic() - began,
    )


def different(target: Path, truth: list[TrueTable]) -> Iterator[str]:
    """Yield name and difference, as one text, of each replica table that differs from the server's table."""
    places = replica_tables(str(target))
    for table in truth:
        if table.oid not in places:
            yield f"{table.name} is missing"
            continue
        rows = DeltaTable(places[table.oid].place).to_pyarrow_table()
        if (names := set(rows.column_names) - {"_rescued_data"}) != {*table.columns}:
            yield f"{table.name} has other columns: {names ^ {*table.columns}}"
        elif not equals_typed(table, rows):
            yield f"{table.name}: {len(table.rows)} rows there, {rows.num_rows} here"


def _recording(process: Process) -> Process:
    """Return the recorder as a program that runs until it is killed."""
    return Process(process.name, [*process._command, "", "0", *SEGMENTS], process._log)


def _descendants(pid: int) -> list[int]:
    """Return the process IDs of the descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # the process has ended
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _kill_all(pid: int) -> None:
    """Kill a process and its descendants, also descendants in other process groups."""
    for one in [pid, *_descendants(pid)]:
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that started processes are ended
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pgoutput-replica-") as folder:
        outcome = replicate(Path(folder), arguments.tables, 60 * arguments.minutes, arguments.seed)
    print(outcome)
    if outcome.different:
        raise SystemExit("\n".join(["FAILED", *outcome.different]))


if __name__ == "__main__":
    main()
