"""Measurement of a command with all processes that it starts.

`python -m benchmarks.process_tree COMMAND …` runs a command, waits until all its processes have ended, and
prints the measurements as JSON. SIGINT is passed on to the command. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import msgspec

PR_SET_CHILD_SUBREAPER = 36
"""Option of prctl(2): processes whose parent has ended become children of this process."""


class Measured(msgspec.Struct, frozen=True):
    """Measurements of a command with all processes that it started."""

    exit_code: int
    began: float
    """Time at which the command was started, in seconds since 1970."""
    seconds: float
    """Seconds until the command ended."""
    cpu: float
    """CPU time of all processes, in seconds."""
    memory: int
    """Peak of the sum of the resident memory of all processes, in MB, as seen every 0.1 seconds."""


class Running:
    """A command that is being measured.

    Attributes:
        process: The process that measures the command.
    """

    def __init__(self, command: Sequence[object], environment: Mapping[str, str]) -> None:
        arguments = [sys.executable, "-m", "benchmarks.process_tree", *map(str, command)]
        # An installed package has its bytecode: its modules are not compiled at every start.
        variables = os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | dict(environment)
        self.process = subprocess.Popen(
            arguments, env=variables, stdout=subprocess.PIPE, start_new_session=True
        )

    def interrupt(self) -> None:
        """Send SIGINT to the command."""
        self.process.send_signal(signal.SIGINT)

    def result(self) -> Measured:
        """Wait until all processes of the command have ended, and return the measurements."""
        output, _ = self.process.communicate()
        return msgspec.json.decode(output, type=Measured)


@contextmanager
def started(command: Sequence[object], environment: Mapping[str, str] = {}) -> Iterator[Running]:
    """Start a command, with additions to the environment; interrupt it if the `with` block raises."""
    running = Running(command, environment)
    try:
        yield running
    except BaseException:
        running.interrupt()
        running.process.communicate()
        raise


def measure(command: Sequence[object], environment: Mapping[str, str] = {}) -> Measured:
    """Run a command; return the measurements.

    Raises:
        RuntimeError: The command fails.
    """
    with started(command, environment) as running:
        measured = running.result()
    if measured.exit_code:
        raise RuntimeError(f"exit code {measured.exit_code}: {command}")
    return measured


class Process(msgspec.Struct, frozen=True):
    """A running process."""

    pid: int
    kind: str
    """Which part of the command it is: driver, java or python."""
    memory: int
    """Resident memory in MB."""
    cpu: float
    """CPU time in seconds, without that of other processes."""


def process_tree(driver: int) -> Iterator[Process]:
    """Yield the process `driver` and each descendant."""
    parents, found = {driver}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
                pages = int((entry / "statm").read_text().split()[1])
            except OSError:  # the process has ended
                continue
            name, _, rest = stat.partition("(")[2].rpartition(")")
            fields = rest.split()
            cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            kind = "java" if name == "java" else "python"
            process = Process(int(entry.name), kind, pages * os.sysconf("SC_PAGESIZE") >> 20, cpu)
            found[process.pid] = int(fields[1]), process
    yield msgspec.structs.replace(found[driver][1], kind="driver")
    while parents:
        children = {pid for pid, (parent, _) in found.items() if parent in parents}
        yield from (found[pid][1] for pid in children)
        parents = children


def _main() -> None:
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    began, start = time.time(), time.perf_counter()
    process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
    signal.signal(signal.SIGINT, lambda *_: process.send_signal(signal.SIGINT))
    ended = Event()
    peak, seen = 0, dict[int, float]()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.1):
            _, *processes = process_tree(os.getpid())
            peak = max(peak, sum(one.memory for one in processes))
            seen.update((one.pid, one.cpu) for one in processes)

    watcher = Thread(target=watch)
    watcher.start()
    exit_code = process.wait()
    seconds = time.perf_counter() - start
    try:
        while True:
            os.wait()
    except ChildProcessError:  # all have ended
        pass
    ended.set()
    watcher.join()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = max(peak, usage.ru_maxrss >> 10)
    # Processes that nobody waits for, such as Spark's Python workers, are missing in the usage.
    cpu = max(usage.ru_utime + usage.ru_stime, sum(seen.values()))
    measured = Measured(exit_code, began, seconds, cpu, peak)
    sys.stdout.buffer.write(msgspec.json.encode(measured))


if __name__ == "__main__":
    _main()
