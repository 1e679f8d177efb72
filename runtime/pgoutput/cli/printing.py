"""Text for a terminal. What comes out of a stream or a file name must not steer it."""

from __future__ import annotations

import sys


def printable(text: str) -> str:
    """The text with escapes for what is not printable: control characters, lone surrogates, line ends."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def complain(text: str) -> None:
    """One line on standard error."""
    print(f"pgoutput: {printable(text)}", file=sys.stderr)
