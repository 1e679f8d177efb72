"""The command line: the only place that parses arguments or prints."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `pgoutput`. Bad input is one line on standard error and exit code 2."""
    try:
        from pgoutput.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("pgoutput: the command line needs an extra: pip install 'pgoutput[cli]'")
    from pgoutput.errors import PgoutputError

    try:
        app()
    except PgoutputError as error:
        print(f"pgoutput: {error}", file=sys.stderr)
        sys.exit(2)
