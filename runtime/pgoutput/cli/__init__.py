"""The command line: the only place that parses arguments or prints."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys

from pgoutput.cli.printing import complain

_EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "psycopg": "cli,recorder",
    "pyarrow": "cli,recorder",
    "numpy": "cli,synth",
    "pyspark": "cli,spark",
    "deltalake": "cli,spark",
}
"""What packages outside the core come with."""


def main() -> None:
    """Run `pgoutput`. What is wrong is one line on standard error, and exit code 2, or 3 for servers."""
    _open_standard_streams()
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # Rich would print nothing in a terminal of width 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the locale cannot show
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    from pgoutput.errors import PgoutputError, ReplicationError

    try:
        try:
            from pgoutput.cli.app import app

            app()
        finally:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        complain(f"this needs an extra: pip install 'pgoutput[{_EXTRAS[error.name]}]'")
        sys.exit(2)
    except BrokenPipeError:  # whoever reads has read enough
        _close_stdout()
        sys.exit(1)
    except (PgoutputError, OSError) as error:
        _close_stdout()
        closed = isinstance(error, OSError) and error.errno == errno.EBADF
        complain("standard output is closed" if closed else str(error))
        sys.exit(3 if isinstance(error, ReplicationError) else 2)


def _open_standard_streams() -> None:
    """Open the standard streams that the caller closed.

    Otherwise a file that is opened later gets the number of standard output, and what is printed is written
    into it. Writing to a closed standard output fails; what is written to standard error is discarded.
    """
    for number, name, mode in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, mode), number)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def _close_stdout() -> None:
    """Write out what can be; what cannot must not fail once more when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
