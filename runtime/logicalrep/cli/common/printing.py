"""Safe text for a terminal: control characters in streams and file names are printed as escapes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from logicalrep import __version__
from logicalrep._log import bounded_fields
from logicalrep._text import bounded
from logicalrep.compiled import HOW

_PROGRESS_SECONDS: Final = 60.0
"""Default number of seconds between two lines about progress in a log."""


def printable(text: str) -> str:
    """Return a text with escapes in place of control characters, surrogates and line ends."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def complain(text: str) -> None:
    """Print an error or warning as one line on standard error, of at most 4,096 characters."""
    print(bounded(f"logicalrep: {printable(text)}"), file=sys.stderr)


@contextmanager
def refused_values() -> Iterator[None]:
    """Print a ValueError of the `with` block, such as for an invalid DSN, as one line; exit with code 2."""
    try:
        yield
    except ValueError as error:
        complain(str(error))
        sys.exit(2)


def print_json(value: object, *, flush: bool = False) -> None:
    """Print a value as a line of JSON on standard output."""
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    if flush:
        sys.stdout.buffer.flush()


def print_event(event: msgspec.Struct, *, detail: bool = False) -> None:
    """Print an event as a line of JSON on standard output.

    Unless `detail`, lists and texts of an event with more than 4,096 bytes are cut off (`bounded_fields`).
    """
    print_json(event if detail else bounded_fields(event), flush=True)


class Interval:
    """Decides when a line about progress is printed.

    Args:
        seconds: Least time between two lines, in seconds. None: 60 in a log, no lines in a terminal.
        is_log: Whether the lines go to a log instead of a terminal.
        detail: Whether all lines are printed, whatever the interval.
    """

    def __init__(self, seconds: float | None, *, is_log: bool, detail: bool) -> None:
        self._seconds = _PROGRESS_SECONDS if seconds is None and is_log else seconds
        self._detail = detail
        self._last = time.monotonic()
        self._state: object = None

    def is_due(self, state: object) -> bool:
        """Return whether to print a line now: the interval has passed, and the line says something new.

        With `detail`, the result is always True.

        Args:
            state: What the line reports. A line is new if its state differs from that of the last line.
        """
        if self._detail:
            return True
        now = time.monotonic()
        if self._seconds is None or now - self._last < self._seconds or state == self._state:
            return False
        self._last, self._state = now, state
        return True


def version_line() -> str:
    """Return a line with the version of logicalrep, and whether logicalrep uses the compiled kernel."""
    return f"logicalrep {__version__}, {HOW}"
