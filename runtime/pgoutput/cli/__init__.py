"""The command line: the only place that parses arguments or prints."""

from __future__ import annotations

import io
import os
import sys

from pgoutput.cli.printing import complain

_EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "psycopg": "cli,capture",
    "pyarrow": "cli,capture",
    "numpy": "cli,synth",
    "pyspark": "cli,spark",
    "deltalake": "cli,spark",
}
"""What packages outside the core come with."""


def main() -> None:
    """Run `pgoutput`. What is wrong is one line on standard error, and exit code 2, or 3 for servers."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what the locale cannot show
    try:
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
        complain(str(error))
        sys.exit(3 if isinstance(error, ReplicationError) else 2)


def _close_stdout() -> None:
    """Write out what can be; what cannot must not fail once more when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
