"""Settings, hooks and the fixture `run`, which all tests share."""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import effort, java, leftovers, temporary
from tests.cli.one_process import run_main

effort.register_profiles()

Run = Callable[..., SimpleNamespace]


def pytest_configure() -> None:
    # Ended by a signal, pytest must still leave the fixtures: they end servers, Java and other processes.
    # A shell starts a job in the background with SIGINT ignored, and so would be the Ctrl-C of the tests.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    atexit.register(_silence_duckdb)
    temporary.use_memory()
    leftovers.watch()
    java.set_options()


def _silence_duckdb() -> None:
    """Hide what DuckDB's Python bindings print when a worker process ends: false reports of memory leaks."""
    if "duckdb" in sys.modules:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from tests.schedule import by_duration

        items[:] = by_duration(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    if config.getoption("dist") != "loadscope":
        return None
    from tests.schedule import LongestFirst

    return LongestFirst(config, log)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Run]:
    """A function that runs the command `logicalrep` in this process; returns exit code and output."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["logicalrep", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run_main()
        out, err = capfdbinary.readouterr()
        return SimpleNamespace(code=code, out=out.decode(), err=err.decode())

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    os.umask(mask := os.umask(0))
    yield run
    os.umask(mask)  # a replica restricts it
    for number, handler in handlers.items():
        signal.signal(number, handler)
