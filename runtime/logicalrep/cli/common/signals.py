"""SIGINT and SIGTERM: a long-running command finishes its current work, then ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

_IMPORTS: Final = "<frozen importlib._bootstrap>"


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; a signal handler for the time before a command installs its own handler.

    Python's own handler may raise the exception where an import has just taken a lock. The lock is then never
    released, and the next import of another thread never ends. So this handler waits for the import to end.
    """
    if frame is not None and frame.f_code.co_filename == _IMPORTS:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        return
    raise KeyboardInterrupt


def stop_at_signals(stop: Callable[[], None]) -> None:
    """Install signal handlers that call `stop` at the first SIGINT or SIGTERM.

    A second SIGINT, or a second SIGTERM, ends the process at once.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
