"""The command `pgoutput run`: runs the processes of a configuration file, and restarts those that crash."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from selectors import EVENT_READ, BaseSelector, DefaultSelector
from types import FrameType
from typing import Any, Final

from pgoutput.cli.configuration import INSTANCE, Configuration, check_processes
from pgoutput.cli.printing import printable
from pgoutput.cli.service_manager import notify
from pgoutput.errors import PgoutputError

_FIRST_PAUSE: Final = 1.0
"""Seconds before the first restart of a process; each further pause is twice as long."""
_LONGEST_PAUSE: Final = 60.0
_HEALTHY_SECONDS: Final = 60.0
"""Seconds that a process has to run until its next pause is the first again."""

_FINAL_CODES: Final = (0, 2)
"""Exit codes after which a process is not restarted: it has ended, or a restart gives the same error."""

_PATIENCE: Final = 90.0
"""Seconds that all processes together may take to end after SIGTERM; the files in `deploy/` give 120."""

_POLL_SECONDS: Final = 0.2
"""Largest number of seconds between a signal or the end of a process, and the reaction to it."""

_READ_BYTES: Final = 65_536

_PR_SET_PDEATHSIG: Final = 1
"""Option of prctl(2): the signal that a process gets when its parent ends."""

_LIBC: Final = ctypes.CDLL(None)


class Supervisor:
    """Runs the processes of a configuration file.

    The supervisor has one thread: Linux ends a child when the thread that started it ends, and code between
    fork and exec must not run beside other threads.

    Args:
        configuration: The configuration.
        commands: The commands that a file can configure, by name.

    Raises:
        PgoutputError: The configuration has no processes, or a process lacks required options.
    """

    def __init__(self, configuration: Configuration, commands: Mapping[str, Any]) -> None:
        if not configuration.instances:
            raise PgoutputError(f"{configuration.path}: no table [run.NAME]: nothing is to run")
        check_processes(configuration, commands)
        self._selector = DefaultSelector()
        self._processes = [
            _Process(name, one.command, str(configuration.path), self._selector)
            for name, one in configuration.instances.items()
        ]
        self._signals = 0
        """Number of SIGINT and SIGTERM received."""
        self._told = 0.0
        """Time at which the service manager was told the state, by time.monotonic()."""

    def run(self) -> int:
        """Run until all processes have ended, or until SIGINT or SIGTERM; return the exit code.

        A signal ends all processes at the same time. Processes that run after 90 seconds, or at a second
        signal, are killed. The exit code is 130 if processes were killed, 2 if a process has ended with an
        error that a restart cannot solve, otherwise 0.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        notify("READY=1")
        try:
            while not self._signals and not all(one.has_ended for one in self._processes):
                for one in self._processes:
                    one.keep_running()
                self._wait()
            notify("STOPPING=1")
            was_killed = self._end()
        finally:
            for one in self._processes:
                one.kill()
        if was_killed:
            return 130
        return 2 if any(one.has_failed for one in self._processes) else 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _end(self) -> bool:
        """End the processes; return whether one has to be killed."""
        deadline = time.monotonic() + _PATIENCE
        for one in self._processes:
            one.terminate()
        while any(one.is_running() for one in self._processes):
            if self._signals > 1 or time.monotonic() > deadline:
                return True
            self._wait()
        return False

    def _wait(self) -> None:
        """Print what the processes print for a moment, and tell the service manager the state."""
        for key, _ in self._selector.select(_POLL_SECONDS):
            key.data()
        if (now := time.monotonic()) - self._told >= 1:
            self._told = now
            status = "; ".join(one.status() for one in self._processes)
            notify(f"WATCHDOG=1\nSTATUS={status}")


class _Process:
    """A process that is restarted when it crashes.

    Attributes:
        has_ended: Whether the process has ended, and is not restarted.
        has_failed: Whether the process has ended with an error that a restart cannot solve.

    Args:
        name: Name of the instance.
        command: Name of the command of `pgoutput`.
        config: Path of the configuration file.
        selector: Tells when the process has printed something; the data of a file is a function to call then.
    """

    def __init__(self, name: str, command: str, config: str, selector: BaseSelector) -> None:
        self.has_ended: bool = False
        self.has_failed: bool = False
        self._name = name
        self._command = [sys.executable, "-m", "pgoutput.cli", command, "--config", config]
        self._selector = selector
        self._process: subprocess.Popen[bytes] | None = None
        self._line = b""
        """Printed text without a line end."""
        self._began = self._restart = 0.0
        """Times of the last and the next start, by time.monotonic()."""
        self._pause = _FIRST_PAUSE
        self._end = ""
        """How the process has ended last."""
        self._is_stopped = False
        """Whether this process has ended it."""

    def keep_running(self) -> None:
        """Start the process if it does not run and is due; otherwise note its end."""
        if self.is_running() or self.has_ended or time.monotonic() < self._restart:
            return
        self._began = time.monotonic()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=os.environ | {INSTANCE: self._name, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C in a terminal reaches it through this process only
                preexec_fn=partial(_end_with, os.getpid()) if sys.platform == "linux" else None,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._note_end(f"cannot be started ({error})")
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector.register(self._process.stdout, EVENT_READ, self._print_lines)

    def is_running(self) -> bool:
        """Return whether the process runs; note its end once."""
        if self._process is None:
            return False
        code = self._process.poll()
        if code is None:
            return True
        while self._print_lines():
            pass
        self._close()
        self._process = None
        if not self._is_stopped:
            self.has_ended = code in _FINAL_CODES
            self.has_failed = self.has_ended and code != 0
            self._note_end(f"ended with exit code {code}")
        return False

    def status(self) -> str:
        """Return the name of the process, and whether it runs."""
        if self._process is not None:
            return f"{self._name} runs"
        return f"{self._name} {self._end}{'' if self.has_ended else ', restarts'}"

    def terminate(self) -> None:
        """Send SIGTERM to the process if it runs; do not restart it."""
        self._is_stopped = True
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()

    def _note_end(self, text: str) -> None:
        """Print how the process has ended, and set the time of its restart."""
        self._end = text
        if self.has_ended:
            _say(self._name, f"{text}, and is not restarted")
            return
        now = time.monotonic()
        if now - self._began > _HEALTHY_SECONDS:
            self._pause = _FIRST_PAUSE
        _say(self._name, f"{text}, and is restarted in {self._pause:.0f} s")
        self._restart = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _print_lines(self) -> bool:
        """Print what the process has printed, with its name in front; return whether there may be more."""
        assert self._process is not None
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            return False
        try:
            read = os.read(self._process.stdout.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        *lines, self._line = (self._line + read).split(b"\n")
        for line in lines:
            _say(self._name, line.decode(errors="replace"))
        if not read:
            self._close()
        return bool(read)

    def _close(self) -> None:
        """Close the output of the process; print the last line if it has no line end."""
        assert self._process is not None
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            self._selector.unregister(self._process.stdout)
            self._process.stdout.close()
        if self._line:
            _say(self._name, self._line.decode(errors="replace"))
            self._line = b""


def _end_with(parent: int) -> None:
    """Have Linux send SIGTERM to this process when the parent ends. Runs between fork and exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGTERM)


def _say(name: str, text: str) -> None:
    print(f"{name}: {printable(text)}", file=sys.stderr, flush=True)
