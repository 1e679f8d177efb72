"""How commands that go on are ended in good order."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


def stop_at_signals(stop: Callable[[], None]) -> None:
    """The first signal asks for a proper end; a second one is as usual."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
