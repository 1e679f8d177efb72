"""Safe text for a terminal: control characters in streams and file names are printed as escapes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from pgoutput import __version__
from pgoutput.compiled import HOW


def printable(text: str) -> str:
    """Return a text with escapes in place of control characters, surrogates and line ends."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def complain(text: str) -> None:
    """Print an error or warning as one line on standard error."""
    print(f"pgoutput: {printable(text)}", file=sys.stderr)


@contextmanager
def refused_values() -> Iterator[None]:
    """Print a ValueError, such as that of a DSN that cannot be read, as one line; exit with code 2."""
    try:
        yield
    except ValueError as error:
        complain(str(error))
        sys.exit(2)


def print_event(event: msgspec.Struct) -> None:
    """Print an event as a line of JSON on standard output."""
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


class Interval:
    """The interval of lines about progress.

    Args:
        seconds: Smallest number of seconds between two lines; None for no lines.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def is_due(self) -> bool:
        """Return whether to print a line now; the next interval then begins."""
        now = time.monotonic()
        if self._seconds is None or now - self._last < self._seconds:
            return False
        self._last = now
        return True


def version_line() -> str:
    """Return a line with the version of pgoutput, and whether pgoutput uses the compiled kernel."""
    return f"pgoutput {__version__}, {HOW}"
