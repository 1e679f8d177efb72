"""Worker processes that build and encode windows of transactions.

Processes are used because threads would contend for the GIL. The process that plans the windows sends each
window to an idle worker process.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from logicalrep.synth.workload.definition import Workload
from logicalrep.synth.workload.messages import RemainingRows, WindowMessages, build_window
from logicalrep.synth.workload.plan import Window
from logicalrep.synth.workload.tables import make_tables

PrepareWindow: TypeAlias = Callable[[WindowMessages], bytes | pa.Buffer]
"""Picklable function that encodes or writes a window of transactions; returns the bytes yet to be written."""

_THREADS: Final = 2
"""Number of windows that are built at a time without worker processes."""

_KEEP_BYTES: Final = str(1 << 30)
_ENVIRONMENT: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": _KEEP_BYTES,
    "MALLOC_TRIM_THRESHOLD_": _KEEP_BYTES,
}
"""Environment variables that make the worker processes keep freed memory for the next window of
transactions, instead of returning the memory to the system."""


class PreparedWindow(msgspec.Struct, frozen=True):
    """An encoded window: bytes to write, expected rows, and the numbers of transactions and messages."""

    content: bytes | pa.Buffer
    """Bytes to write to the output file; empty if everything is written."""
    remaining_rows: list[RemainingRows]
    varied_rows: dict[str, pa.Table]
    transactions: int
    """Number of transactions in the window that are not varied."""
    messages: int


class WindowTask(msgspec.Struct, frozen=True):
    """Task of a worker: build each window of a workload, then apply `prepare` to the window."""

    workload: Workload
    prepare: PrepareWindow

    def run(self, window: Window) -> PreparedWindow:
        """Build the messages of a window, apply `prepare` to them, and return the result."""
        built = build_window(self.workload, make_tables(self.workload), window)
        return PreparedWindow(
            self.prepare(built),
            built.remaining_rows,
            window.varied.rows if window.varied else {},
            len(window.change_counts),
            len(built.data),
        )


def prepare_windows(task: WindowTask, windows: Iterable[Window], processes: int) -> Generator[PreparedWindow]:
    """Build windows of transactions in parallel, encode or write each, and yield the results in stream order.

    Args:
        task: Builds a window, then encodes or writes it with `WindowTask.prepare`.
        windows: Planned windows, in stream order.
        processes: Number of worker processes; 0 uses threads of this process.

    Raises:
        ChildProcessError: A worker process ended unexpectedly.
    """
    with ThreadPoolExecutor(processes or _THREADS) as pool, _workers(task, processes) as run:
        pending: deque[Future[PreparedWindow]] = deque()
        for window in windows:
            pending.append(pool.submit(run, window))
            if len(pending) > (processes or _THREADS):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@contextmanager
def _workers(task: WindowTask, count: int) -> Iterator[Callable[[Window], PreparedWindow]]:
    """Start worker processes, and yield a function that runs `task` for a window in an idle process.

    The end of the `with` block kills the processes. If `count` is 0, the function runs in this process.
    """
    command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()"]
    environment, pipe = os.environ | _ENVIRONMENT, subprocess.PIPE
    processes: list[subprocess.Popen[bytes]] = []
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    try:
        for _ in range(count):
            processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment))
            _send(task, processes[-1].stdin)
            idle.put(processes[-1])
        yield partial(_run_in_worker, idle) if processes else task.run
    finally:
        for process in processes:
            with suppress(BrokenPipeError), process:
                process.kill()


def _run_in_worker(idle: SimpleQueue[subprocess.Popen[bytes]], window: Window) -> PreparedWindow:
    process = idle.get()
    try:
        _send(window, process.stdin)
        prepared: PreparedWindow | Exception = pickle.load(process.stdout)  # type: ignore[arg-type]
    except (EOFError, pickle.UnpicklingError, BrokenPipeError):
        raise ChildProcessError(
            "a worker process of the workload was killed or failed; see its messages on standard error"
        ) from None
    finally:
        idle.put(process)
    if isinstance(prepared, Exception):
        raise prepared
    return prepared


def main() -> None:
    """Read a pickled `WindowTask` and windows from standard input; write each result to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends its workers
    task: WindowTask = pickle.load(sys.stdin.buffer)
    while True:
        window = pickle.load(sys.stdin.buffer)
        try:
            prepared: PreparedWindow | Exception = task.run(window)
        except Exception as error:
            prepared = error
        _send(prepared, sys.stdout.buffer)


def _send(value: Any, file: Any) -> None:
    pickle.dump(value, file, protocol=5)
    file.flush()
