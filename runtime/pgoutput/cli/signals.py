"""Signals that end a long-running command in good order."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


def stop_at_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGINT or SIGTERM; a second signal ends the process at once."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
