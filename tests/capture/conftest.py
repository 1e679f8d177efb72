"""A server for all tests of a run, and a database of its own for each."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.capture.lab import Lab
from tests.conftest import Run
from tests.server import WHEEL_VERSION, Server

VERSION = int(os.environ.get("PGOUTPUT_TEST_VERSION", WHEEL_VERSION))
"""The major version that is tested."""


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server(VERSION) as server:
        yield server


@pytest.fixture
def lab(server: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(server, tmp_path) as lab:
        yield lab


Command = Callable[..., tuple[object, str, str]]


@pytest.fixture
def capture(lab: Lab, run: Run) -> Iterator[Command]:
    """Run `pgoutput capture` in this process; give the exit code and what it has written."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def capture(*arguments: str, **options: str | Path) -> tuple[object, str, str]:
        settings = {"dsn": lab.dsn, "slot": lab.slot, "publication": "p", "out": lab.folder} | options
        given = [f"--{name}={value}" for name, value in settings.items()]
        ended = run("capture", *given, *arguments)
        return ended.code, ended.out, ended.err

    yield capture
    for number, handler in handlers.items():
        signal.signal(number, handler)
