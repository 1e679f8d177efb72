"""Worker processes that generate a workload in windows of transactions.

Processes are used because threads would contend for the GIL. A worker writes its windows to a pipe and blocks
while the pipe is full, so only a few windows are in memory.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from pgoutput.synth.workload.definition import Workload
from pgoutput.synth.workload.messages import RemainingRows, WindowMessages, build_window
from pgoutput.synth.workload.plan import count_windows, plan_windows
from pgoutput.synth.workload.tables import make_tables

PrepareWindow: TypeAlias = Callable[[WindowMessages], bytes | pa.Buffer]
"""Picklable function that encodes or writes a window of transactions; returns the bytes yet to be written."""

_KEEP_BYTES: Final = str(1 << 30)
_ENVIRONMENT: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": _KEEP_BYTES,
    "MALLOC_TRIM_THRESHOLD_": _KEEP_BYTES,
}
"""Environment variables that make the worker processes keep freed memory for the next window of
transactions, instead of returning the memory to the system."""


class PreparedWindow(msgspec.Struct, frozen=True):
    """A window of transactions after a `PrepareWindow` function has encoded or written its messages."""

    content: bytes | pa.Buffer
    """Bytes to write to the output file; empty if everything is written."""
    remaining_rows: list[RemainingRows]
    """Rows that the window's transactions inserted and did not delete, one item per table."""
    varied_rows: Mapping[str, pa.Table] | None
    """Rows of the tables of varied transactions, by name with schema; None before the last window."""
    transactions: int
    """Number of transactions that are not varied."""
    messages: int
    """Number of messages."""


class WindowTask(msgspec.Struct, frozen=True):
    """Work of one process: generate every `step`th window of a workload's transactions, from `first` on."""

    workload: Workload
    window_messages: int
    """Approximate number of messages per window of transactions."""
    prepare: PrepareWindow
    first: int = 0
    step: int = 1

    def run(self) -> Iterator[PreparedWindow]:
        """Yield prepared windows of transactions. A thread prepares a window while the next is generated."""
        tables = make_tables(self.workload)
        with ThreadPoolExecutor(1) as pool:
            pending: Future[PreparedWindow] | None = None
            for window in plan_windows(self.workload, self.window_messages):
                if window.number % self.step == self.first:
                    built = build_window(self.workload, tables, window)
                    if pending is not None:
                        yield pending.result()
                    pending = pool.submit(self._prepare, built)
            if pending is not None:
                yield pending.result()

    def _prepare(self, built: WindowMessages) -> PreparedWindow:
        window = built.window
        transactions = len(window.change_counts) + len(window.streamed)
        return PreparedWindow(
            self.prepare(built), built.remaining_rows, window.varied_rows, transactions, len(built.data)
        )


@contextmanager
def worker_processes(task: WindowTask, count: int) -> Iterator[Iterator[PreparedWindow]]:
    """Start worker processes, yield an iterator over the prepared windows, and kill the processes on exit.

    Args:
        task: The work for the whole workload, which is split between the processes.
        count: Number of processes.

    Raises:
        ChildProcessError: A worker process ended unexpectedly.
    """
    command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()"]
    pipe = subprocess.PIPE
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(count):
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=os.environ | _ENVIRONMENT)
            processes.append(process)
            assert process.stdin is not None
            with process.stdin:
                pickle.dump(msgspec.structs.replace(task, first=number, step=count), process.stdin)
        yield _receive_in_order(task, processes)
    finally:
        for process in processes:
            with process:
                process.kill()


def _receive_in_order(task: WindowTask, processes: list[subprocess.Popen[bytes]]) -> Iterator[PreparedWindow]:
    for number in range(count_windows(task.workload, task.window_messages)):
        pipe: Any = processes[number % len(processes)].stdout
        try:
            prepared = pickle.load(pipe)
        except (EOFError, pickle.UnpicklingError):
            raise ChildProcessError("a worker process of the workload ended unexpectedly") from None
        if isinstance(prepared, BaseException):
            raise prepared
        yield prepared


def main() -> None:
    """Read a pickled `WindowTask` from standard input, and write its prepared windows to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends its workers
    task: WindowTask = pickle.load(sys.stdin.buffer)
    try:
        for prepared in task.run():
            _send(prepared)
    except BrokenPipeError:  # the parent process stopped reading
        os._exit(1)
    except Exception as error:
        _send(error)


def _send(prepared: PreparedWindow | Exception) -> None:
    pickle.dump(prepared, sys.stdout.buffer, protocol=5)
    sys.stdout.buffer.flush()
