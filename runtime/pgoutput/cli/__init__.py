"""The command line `pgoutput`. No other package of the project parses arguments or prints."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys

from pgoutput._extras import MissingExtraError, install_line, require
from pgoutput.cli.printing import complain, version_line
from pgoutput.errors import PgoutputError, ReplicationError


def main() -> None:
    """Run the command `pgoutput` with the arguments in `sys.argv`.

    An error is printed as one line on standard error. The exit code is 3 for an error of the replication
    connection or its server, 2 for any other error, and 130 after SIGINT or SIGTERM.
    """
    _open_standard_streams()
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # Rich would print nothing in a terminal of width 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for characters that the locale cannot show
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    try:
        try:
            _run_command()
        finally:
            sys.stdout.flush()
    except MissingExtraError as error:
        extras = dict.fromkeys(("cli", error.extra))
        complain(f"{error.name} is missing: {install_line(*extras)}")
        sys.exit(2)
    except BrokenPipeError:  # the reader of standard output has read enough
        _flush_stdout()
        sys.exit(1)
    except (PgoutputError, OSError) as error:
        _flush_stdout()
        closed = isinstance(error, OSError) and error.errno == errno.EBADF
        complain("standard output is closed" if closed else str(error))
        sys.exit(3 if isinstance(error, ReplicationError) else 2)


def _run_command() -> None:
    if sys.argv[1:] == ["--version"]:  # works without the extra `cli`
        print(version_line())
        return
    require("cli", "typer", "rich")
    from pgoutput.cli.app import app

    app()


def _open_standard_streams() -> None:
    """Open /dev/null in place of each standard stream that the parent process closed.

    If standard output stayed closed, a file that is opened later would get file descriptor 1, and printed
    text would be written into that file. Writing to the replaced standard output fails; text for the replaced
    standard error is discarded.
    """
    for number, name, mode in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, mode), number)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def _flush_stdout() -> None:
    """Flush standard output; if that fails, redirect it to /dev/null: Python's flush at exit must succeed."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
