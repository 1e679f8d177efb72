"""The command line: the only place that parses arguments or prints."""

from __future__ import annotations

import io
import os
import sys

from pgoutput.cli.printing import complain


def main() -> None:
    """Run `pgoutput`. What is wrong is one line on standard error, and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the locale cannot show
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    try:
        from pgoutput.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        complain("the command line needs an extra: pip install 'pgoutput[cli]'")
        sys.exit(2)
    from pgoutput.errors import PgoutputError

    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has read enough
        _close_stdout()
        sys.exit(1)
    except (PgoutputError, OSError) as error:
        _close_stdout()
        complain(str(error))
        sys.exit(2)


def _close_stdout() -> None:
    """Write out what can be; what cannot must not fail once more when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
