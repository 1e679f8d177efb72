"""Processes that each make some of the windows of a workload.

Threads would do if Python did not lock each other out so often. A worker writes what it has to a pipe, and
waits while that is full: so no more than a few windows are in memory.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from pgoutput.synth.workload import Workload
from pgoutput.synth.workload_batches import Left, Made, make
from pgoutput.synth.workload_plan import windows
from pgoutput.synth.workload_tables import make_tables

Prepare: TypeAlias = Callable[[Made], bytes | pa.Buffer]
"""What is to be done with each window, in any order; it can be pickled."""

_KEPT: Final = str(1 << 30)
_ENVIRONMENT: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": _KEPT,
    "MALLOC_TRIM_THRESHOLD_": _KEPT,
}
"""Memory that a window leaves is kept for the next one, not given back and cleared anew."""


class Prepared(msgspec.Struct, frozen=True):
    """A window that is done."""

    content: bytes | pa.Buffer
    left: list[Left]


class Task(msgspec.Struct, frozen=True):
    """Each `step`th window from `first` on."""

    workload: Workload
    window_messages: int
    prepare: Prepare
    first: int = 0
    step: int = 1

    def run(self) -> Iterator[Prepared]:
        """Make them. Each is prepared, which may wait for a disk, while the next one is made."""
        tables = make_tables(self.workload.tables)
        with ThreadPoolExecutor(1) as pool:
            before: Future[Prepared] | None = None
            for window in windows(self.workload, self.window_messages):
                if window.number % self.step == self.first:
                    made = make(self.workload, tables, window)
                    if before is not None:
                        yield before.result()
                    before = pool.submit(self._prepared, made)
            if before is not None:
                yield before.result()

    def _prepared(self, made: Made) -> Prepared:
        return Prepared(self.prepare(made), made.left)


@contextmanager
def workers(task: Task, count: int) -> Iterator[Iterator[Prepared]]:
    """The windows of a task, in their order, made by so many processes; they end with the context."""
    command = [sys.executable, "-P", "-m", "pgoutput.synth.workload_worker"]
    pipe = subprocess.PIPE
    begun: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(count):
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=os.environ | _ENVIRONMENT)
            begun.append(process)
            assert process.stdin is not None
            with process.stdin:
                pickle.dump(msgspec.structs.replace(task, first=number, step=count), process.stdin)
        yield _in_order(task, begun)
    finally:
        for process in begun:
            with process:
                process.kill()


def _in_order(task: Task, processes: list[subprocess.Popen[bytes]]) -> Iterator[Prepared]:
    for window in windows(task.workload, task.window_messages):
        pipe: Any = processes[window.number % len(processes)].stdout
        try:
            done = pickle.load(pipe)
        except (EOFError, pickle.UnpicklingError):
            raise ChildProcessError("a process that made a part of the stream was ended") from None
        if isinstance(done, BaseException):
            raise done
        yield done


def main() -> None:
    """Do the task that standard input has; its windows go to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever began this ends it
    task: Task = pickle.load(sys.stdin.buffer)
    try:
        for done in task.run():
            _hand_over(done)
    except BrokenPipeError:  # nobody wants more
        os._exit(1)
    except Exception as error:
        _hand_over(error)


def _hand_over(done: Prepared | Exception) -> None:
    pickle.dump(done, sys.stdout.buffer, protocol=5)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
