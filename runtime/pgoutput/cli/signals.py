"""SIGINT and SIGTERM: a long-running command finishes its current work, then ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


def stop_at_signals(stop: Callable[[], None]) -> None:
    """Install signal handlers that call `stop` at the first SIGINT or SIGTERM.

    A second SIGINT, or a second SIGTERM, ends the process at once.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
