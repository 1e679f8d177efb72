"""The command `logicalrep serve`: reads the arguments, and runs the stand-in server until a signal."""

from __future__ import annotations

import asyncio
import importlib
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import typer

from logicalrep.cli.common.signals import stop_at_signals
from logicalrep.errors import LogicalrepError
from logicalrep.standin import Faults, RecordedSource, Source, StandIn, StreamFactory, parse_faults


def find_source(recording: str | None, scenario: str | None) -> Source | StreamFactory:
    """Return the recording or scenario that the stand-in server is to serve.

    Args:
        recording: Value of the option --recording, or None.
        scenario: Value of the option --scenario, or None.

    Raises:
        typer.BadParameter: Both options or neither are given, or the scenario cannot be imported.
        RecordingError: The recording cannot be served.
    """
    if (recording is None) == (scenario is None):
        raise typer.BadParameter("give either --recording or --scenario")
    if recording is not None:
        return RecordedSource(recording)
    assert scenario is not None
    return _scenario(scenario)


def find_faults(texts: list[str]) -> Faults:
    """Parse the values of the option --fault; return the faults.

    Raises:
        typer.BadParameter: A value does not name a fault.
    """
    try:
        return parse_faults(texts)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--fault") from None


def find_password(user: str | None, file: Path | None) -> str | None:
    """Return the password: the first line of `file`, or PGPASSWORD without `file`; None if `user` is None.

    Raises:
        typer.BadParameter: `user` is given without a password, or `file` without `user` or not in UTF-8.
        OSError: The file cannot be read.
    """
    if user is None:
        if file is not None:
            raise typer.BadParameter("--password-file needs --user")
        return None
    try:
        text = file.read_text() if file is not None else os.environ.get("PGPASSWORD", "")
    except UnicodeDecodeError as error:
        text = f"{file}: the password is not in UTF-8: {error}"
        raise typer.BadParameter(text, param_hint="--password-file") from None
    password = text.partition("\n")[0]
    if not password:
        raise typer.BadParameter("--user needs a password: give --password-file, or set PGPASSWORD")
    return password


def find_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return a TLS context with the server's certificate and key; None if `certificate` is None.

    Raises:
        typer.BadParameter: The files do not contain a certificate and its key, or only `key` is given.
    """
    if certificate is None:
        if key is not None:
            raise typer.BadParameter("--tls-key needs --tls-cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        text = f"expected PEM files with a certificate and its key: {error}"
        raise typer.BadParameter(text, param_hint="--tls-cert") from None
    return context


def run(server: StandIn, host: str, port: int) -> None:
    """Run a stand-in server until SIGINT or SIGTERM; print its connection parameters in one line.

    Raises:
        OSError: The server cannot listen on the address.
    """

    def listening(port: int) -> None:
        print(f"host={host} port={port} user={server.user} dbname={server.database}", flush=True)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.ensure_future(server.serve(host, port, listening))

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
        raise typer.BadParameter(f"expected MODULE:NAME, found {text}", param_hint="--scenario")
    sys.path.insert(0, os.getcwd())  # as Python does for a script
    try:
        streams: Any = getattr(importlib.import_module(module), name)
        if not hasattr(streams, "stream"):
            streams = streams()
    except LogicalrepError:
        raise
    except Exception as error:  # the user's module may raise anything
        text = f"{text}: {type(error).__name__}: {error}"
        raise typer.BadParameter(text, param_hint="--scenario") from None
    if not (hasattr(streams, "stream") and hasattr(streams, "end_lsn")):
        raise typer.BadParameter(
            f"{text}: expected a scenario, found {type(streams).__name__}", param_hint="--scenario"
        )
    return streams  # type: ignore[no-any-return]
