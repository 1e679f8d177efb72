"""What `pgoutput serve` serves, and how it is stopped."""

from __future__ import annotations

import asyncio
import importlib
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import typer

from pgoutput.cli.signals import stop_at_signals
from pgoutput.errors import PgoutputError
from pgoutput.standin import Faults, RecordedSource, Source, StreamFactory, parse_faults, serve


def find_source(recording: Path | None, scenario: str | None) -> Source | StreamFactory:
    """What one of the two names.

    Raises:
        typer.BadParameter: Neither is given, or both, or there is no such scenario.
        RecordingError: The recording cannot be served.
    """
    if (recording is None) == (scenario is None):
        raise typer.BadParameter("give one of --from and --scenario")
    if recording is not None:
        return RecordedSource(recording)
    assert scenario is not None
    return _scenario(scenario)


def find_faults(texts: list[str]) -> Faults:
    """The faults of --fault.

    Raises:
        typer.BadParameter: One is none.
    """
    try:
        return parse_faults(texts)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--fault") from None


def find_password(user: str | None, file: Path | None) -> str | None:
    """The password of the only user: the first line of a file, or PGPASSWORD; never an argument.

    Raises:
        typer.BadParameter: There is a user without a password, or a file without a user.
        OSError: The file cannot be read.
    """
    if user is None:
        if file is not None:
            raise typer.BadParameter("--password-file wants a --user")
        return None
    password = file.read_text().partition("\n")[0] if file is not None else os.environ.get("PGPASSWORD")
    if not password:
        raise typer.BadParameter("--user wants a password: in --password-file, or in PGPASSWORD")
    return password


def find_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The server's certificate and its key.

    Raises:
        typer.BadParameter: They are none.
    """
    if certificate is None:
        if key is not None:
            raise typer.BadParameter("--tls-key wants a --tls-cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise typer.BadParameter(f"no certificate with its key: {error}", param_hint="--tls-cert") from None
    return context


def run(source: Source | StreamFactory, host: str, user: str | None, **options: Any) -> None:
    """Serve until SIGINT or SIGTERM; say where in one line.

    Raises:
        OSError: The address cannot be listened on.
    """
    database = getattr(source, "database", "") or "postgres"

    def listening(port: int) -> None:
        print(f"host={host} port={port} user={user or 'postgres'} dbname={database}", flush=True)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.ensure_future(serve(source, host=host, user=user, listening=listening, **options))

        def stop() -> None:
            loop.call_soon_threadsafe(serving.cancel)

        stop_at_signals(stop)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

    asyncio.run(main())


def _scenario(text: str) -> StreamFactory:
    module, mark, name = text.partition(":")
    if not (module and mark and name):
        raise typer.BadParameter(f"MODULE:NAME is wanted, not {text}", param_hint="--scenario")
    sys.path.insert(0, os.getcwd())  # as for a script: the command lies elsewhere
    try:
        found: Any = getattr(importlib.import_module(module), name)
        if not hasattr(found, "stream"):
            found = found()
    except PgoutputError:
        raise
    except Exception as error:  # it is the user's own, and may raise anything
        text = f"{text}: {type(error).__name__}: {error}"
        raise typer.BadParameter(text, param_hint="--scenario") from None
    if not (hasattr(found, "stream") and hasattr(found, "end_lsn")):
        raise typer.BadParameter(
            f"{text} is {type(found).__name__}, and no scenario", param_hint="--scenario"
        )
    return found  # type: ignore[no-any-return]
