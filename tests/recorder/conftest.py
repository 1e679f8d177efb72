"""Fixtures: one server for all tests, and a new database for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.recorder.lab import Lab, wait_until
from tests.server import WHEEL_VERSION, Server

VERSION = int(os.environ.get("PGOUTPUT_TEST_VERSION", WHEEL_VERSION))
"""Major version of the tested server."""


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server(VERSION) as server:
        yield server


@pytest.fixture
def lab(server: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(server, tmp_path) as lab:
        yield lab


@pytest.fixture(scope="session")
def guarded() -> Iterator[Server]:
    """Start a server that asks the roles `scram` and `plain` for passwords, and rejects `stranger`."""
    with Server(VERSION) as server:
        path = server.data / "pg_hba.conf"
        rules = "local all stranger reject\nlocal all scram scram-sha-256\nlocal all plain password\n"
        path.write_text(rules + path.read_text())
        with server.connect() as connection:
            connection.execute("SET password_encryption = 'scram-sha-256'")
            for role in ("scram", "plain", "stranger", "nologin"):
                options = "NOLOGIN" if role == "nologin" else "LOGIN REPLICATION"
                connection.execute(f"CREATE ROLE {role} {options} PASSWORD 'right'".encode())
            connection.execute("CREATE ROLE reader LOGIN")
            connection.execute("SELECT pg_reload_conf()")
            rows = "SELECT count(*) FROM pg_hba_file_rules WHERE user_name = '{scram}'"
            wait_until(lambda: connection.execute(rows.encode()).fetchone() == (1,))
        yield server


Command = Callable[..., tuple[object, str, str]]
"""Function that runs `pgoutput record`, and returns exit code, standard output and standard error."""


@pytest.fixture
def record_cli(lab: Lab, run: Run) -> Command:
    """Return a function that runs `pgoutput record` on the test database, in this process."""

    def record_cli(*arguments: str, **options: str | Path) -> tuple[object, str, str]:
        settings = {"dsn": lab.dsn, "slot": lab.slot, "publication": "p", "out": lab.folder} | options
        flags = [f"--{name}={value}" for name, value in settings.items()]
        done = run("record", *flags, *arguments)
        return done.code, done.out, done.err

    return record_cli
