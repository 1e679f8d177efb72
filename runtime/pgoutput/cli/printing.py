"""Safe text for a terminal: control characters in streams and file names are printed as escapes."""

from __future__ import annotations

import sys

from pgoutput import __version__
from pgoutput.compiled import HOW


def printable(text: str) -> str:
    """Return a text with escapes in place of control characters, surrogates and line ends."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def complain(text: str) -> None:
    """Print an error or warning as one line on standard error."""
    print(f"pgoutput: {printable(text)}", file=sys.stderr)


def version_line() -> str:
    """Return a line with the version of pgoutput, and whether pgoutput uses the compiled kernel."""
    return f"pgoutput {__version__}, {HOW}"
