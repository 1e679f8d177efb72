"""Fixtures: one server and one object store for all tests, and a new database for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from logicalrep.recorder.storage.store_folder import StoreFolder
from tests import store
from tests.conftest import Run
from tests.recorder.lab import Lab, wait_until
from tests.server import VERSION, Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server(VERSION) as server:
        yield server


@pytest.fixture
def lab(server: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(server, tmp_path) as lab:
        yield lab


@pytest.fixture
def table(lab: Lab) -> Lab:
    """Make a table with a key, and a publication of the table."""
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a text, b text)", "CREATE PUBLICATION p FOR TABLE t")
    return lab


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
"""Function that runs `logicalrep record`, and returns exit code, standard output and standard error."""


@pytest.fixture
def record_cli(lab: Lab, run: Run) -> Command:
    """Return a function that runs `logicalrep record` on the test database, in this process."""

    def record_cli(*arguments: str, **options: str | Path) -> tuple[object, str, str]:
        settings = {"dsn": lab.dsn, "slot": lab.slot, "publication": "p", "recording": lab.folder} | options
        flags = [f"--{name}={value}" for name, value in settings.items()]
        done = run("record", *flags, *arguments)
        return done.code, done.out, done.err

    return record_cli


@pytest.fixture(scope="session")
def moto() -> Iterator[int]:
    with store.moto() as port:
        yield port


@pytest.fixture
def proxy(moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[store.Proxy]:
    working_folder(monkeypatch, tmp_path / "machine")
    with store.Proxy(moto) as proxy:
        for name, value in store.settings(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def url(lab: Lab) -> str:
    return f"s3://{store.BUCKET}/{lab.name}/recording"


def working_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the next recorders use another working folder, as on another machine."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(StoreFolder, "save_seconds", 0.2)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))


@pytest.fixture
def direct(moto: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the object store without the proxy, which needs the GIL: pyarrow may hold it while it waits."""
    working_folder(monkeypatch, tmp_path / "machine")
    monkeypatch.setattr(StoreFolder, "search_seconds", 0.5)
    for name, value in store.settings(moto).items():
        monkeypatch.setenv(name, value)


def some(share: float, fault: store.Fault, *methods: str) -> Callable[[str, str], store.Fault]:
    """Return a function for `Proxy.fault` that injects a fault into a share (0 to 1) of requests.

    Args:
        share: Share of the requests that fail.
        fault: The fault.
        methods: HTTP methods of the requests that may fail; all if none is given.
    """
    random = Random(1)

    def inject(method: str, path: str) -> store.Fault:
        return fault if (not methods or method in methods) and random.random() < share else ""

    return inject
