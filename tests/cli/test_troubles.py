"""The troubles of docs/howto/production.md have the page's output and exit code, and its remedies work."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
from deltalake import DeltaTable

from logicalrep.recorder import Connected
from logicalrep.recorder.client.connection import Connection
from logicalrep.replica import replica_tables
from tests.conftest import Run
from tests.recorder.lab import PATIENCE, Lab, wait_until
from tests.server import Server
from tests.versions import OLDEST

PAGE: Final = Path(__file__).parents[2] / "docs/howto/production.md"
HEAD: Final = "| trouble | what it looks like | what to do |\n|---|---|---|\n"


def read_rows() -> dict[str, str]:
    """Return what a trouble looks like, by trouble."""
    table = PAGE.read_text().partition(HEAD)[2].partition("\n\n")[0]
    rows = (line.strip("| ").split(" | ") for line in table.splitlines())
    return {trouble: looks for trouble, looks, _ in rows}


ROWS: Final = read_rows()


def compare(trouble: str, printed: str, code: object = None) -> None:
    """Check that the page has what was printed and the exit code. `…` on the page stands for any text.

    Args:
        trouble: The trouble, as the page names it.
        printed: What a command has printed.
        code: Exit code of the command; None if the command goes on.
    """
    looks = ROWS[trouble]
    for text in re.findall(r"`([^`]+)`", looks):
        if not text.startswith(("--", "logicalrep ")):
            assert re.search(".*".join(map(re.escape, text.split("…"))), printed), (text, printed)
    assert re.findall(r"exit code (\d)", looks)[:1] == ([] if code is None else [str(code)]), printed


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that asks the role `clerk` for a password."""
    with Server() as server:
        hba = server.data / "pg_hba.conf"
        hba.write_text(f"local all clerk scram-sha-256\n{hba.read_text()}")
        with server.connect() as connection:
            connection.execute("CREATE ROLE clerk LOGIN REPLICATION SUPERUSER PASSWORD 'old'")
            connection.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def lab(server: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(server, tmp_path) as lab:
        lab.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE t")
        yield lab


class Program:
    """A `logicalrep` process; a context manager that kills it.

    Args:
        command: The command line.
        folder: Folder for the file with what the process prints.
    """

    def __init__(self, command: list[str], folder: Path) -> None:
        self._output = folder / "printed"
        self._command = command

    def __enter__(self) -> Program:
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def printed(self) -> str:
        return self._output.read_text()

    def wait(self, text: str) -> None:
        """Wait until the process has printed a text."""
        wait_until(lambda: text in self.printed or self.process.poll() is not None)
        assert text in self.printed

    def end(self) -> int:
        """Wait for the end of the process; return the exit code."""
        return self.process.wait(PATIENCE)


def record(lab: Lab, run: Run, *options: str) -> SimpleNamespace:
    """Record until the current end of the WAL."""
    return run(*lab.command("--until=now", *options)[3:])


def replicate(lab: Lab, run: Run) -> SimpleNamespace:
    return run("replicate", "--recording", lab.folder, "--target", lake(lab))


def lake(lab: Lab) -> Path:
    return lab.folder.with_name("lake")


def test_the_server_is_down(lab: Lab, tmp_path: Path) -> None:
    with Program(lab.command("--create-slot", "--retry-for=2"), tmp_path) as recorder:
        recorder.wait("recording ")
        lab.server.stop()
        try:
            code = recorder.end()
        finally:
            lab.server.start()
            lab.reconnect()
        compare("The server is down", recorder.printed, code)
    lab.run("INSERT INTO t VALUES (1)")
    lab.record()
    lab.assert_equal()


def test_the_password_has_changed(lab: Lab, tmp_path: Path) -> None:
    """A recorder that has given up reads the new password when it is started again."""
    secret, config = tmp_path / "dsn", tmp_path / "logicalrep.toml"
    dsn = f"{lab.dsn.replace('user=postgres', 'user=clerk')} password="
    secret.write_text(f"{dsn}old\n")
    config.write_text(f"[record]\ndsn = {{ file = '{secret}' }}\n")
    options = ["--create-slot", "--retry-for=1", f"--config={config}"]
    command = [one for one in lab.command(*options) if not one.startswith("--dsn=")]
    with Program(command, tmp_path) as recorder:
        recorder.wait("recording ")
        lab.run("ALTER ROLE clerk PASSWORD 'new'", "INSERT INTO t VALUES (1)")
        try:
            lab.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'clerk'")
            code = recorder.end()
            compare("The password has changed", recorder.printed, code)
            secret.write_text(f"{dsn}new\n")
            assert subprocess.run([*command, "--until=now"], check=False).returncode == 0
        finally:
            lab.run("ALTER ROLE clerk PASSWORD 'old'")
    lab.assert_equal()


@pytest.mark.parametrize("command", ["record", pytest.param("sync", marks=pytest.mark.nightly)])
def test_the_password_has_changed_and_the_program_that_prints_it_fails_once(
    lab: Lab, tmp_path: Path, command: str
) -> None:
    """The running recorder runs the program before each attempt to connect, until the new password works."""
    secret, failing, config = tmp_path / "dsn", tmp_path / "failing", tmp_path / "logicalrep.toml"
    dsn = f"{lab.dsn.replace('user=postgres', 'user=clerk')} password="
    secret.write_text(f"{dsn}old\n")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntest ! -e {failing} || {{ rm {failing}; exit 7; }}; exec cat {secret}\n")
    program.chmod(0o700)
    config.write_text(f"[{command}]\ndsn = {{ command = '{program}' }}\n")
    words = [one for one in lab.command(f"--config={config}") if "--dsn=" not in one]
    own = ["--create-slot"] if command == "record" else [f"--target={lake(lab)}"]
    with Program([*words[:3], command, *words[4:], *own], tmp_path) as recorder:
        recorder.wait("recording ")
        lab.run("ALTER ROLE clerk PASSWORD 'new'", "INSERT INTO t VALUES (1)")
        try:
            failing.touch()
            lab.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'clerk'")
            recorder.wait("returned non-zero exit status 7")
            recorder.wait("password authentication failed")
            secret.write_text(f"{dsn}new\n")
            wait_until(lambda: recorder.printed.count("recording ") == 2)
            recorder.process.terminate()
            assert recorder.end() == 0
        finally:
            lab.run("ALTER ROLE clerk PASSWORD 'old'")
    lab.record()
    lab.assert_equal()


def test_the_slot_is_gone(lab: Lab, run: Run, tmp_path: Path) -> None:
    assert record(lab, run, "--snapshot").code == 0
    assert replicate(lab, run).code == 0
    lab.run(f"SELECT pg_drop_replication_slot('{lab.slot}')", "INSERT INTO t VALUES (1)")
    refused = record(lab, run, "--snapshot")
    compare("The slot is gone", refused.err, refused.code)
    lab.folder = tmp_path / "anew"
    assert record(lab, run, "--snapshot").code == 0
    lab.assert_equal()
    assert replicate(lab, run).code == 2
    assert run("replicate", "--recording", lab.folder, "--target", tmp_path / "new").code == 0


def test_the_slot_has_lost_wal(lab: Lab, run: Run, tmp_path: Path) -> None:
    assert record(lab, run, "--snapshot").code == 0
    lab.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        for number in range(3):
            lab.run(f"INSERT INTO t VALUES ({number})", "SELECT pg_switch_wal()")
        lab.run("CHECKPOINT")
        refused = record(lab, run, "--snapshot")
    finally:
        lab.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    compare("The slot has lost WAL", refused.err, refused.code)
    lab.run(f"SELECT pg_drop_replication_slot('{lab.slot}')")
    lab.folder = tmp_path / "anew"
    assert record(lab, run, "--snapshot").code == 0
    lab.assert_equal()


def test_the_slot_is_in_use(lab: Lab, run: Run) -> None:
    assert record(lab, run, "--create-slot").code == 0
    lab.run("INSERT INTO t VALUES (1)")
    with Connection(lab.dsn, replication=True) as other:
        other.start_replication(
            f"START_REPLICATION SLOT {lab.slot} LOGICAL 0/0 (proto_version '{OLDEST}', publication_names 'p')"
        )
        refused = record(lab, run, "--retry-for=1")
        compare("The slot is in use", refused.err, refused.code)
    assert record(lab, run).code == 0
    lab.assert_equal()


def test_two_recorders(lab: Lab, run: Run) -> None:
    with lab.recording() as recording:
        recording.wait(Connected)
        refused = record(lab, run)
        compare("Two recorders, one recording", refused.err, refused.code)
    assert record(lab, run).code == 0


def test_segments_were_removed(lab: Lab, run: Run, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        assert record(lab, run, "--create-slot").code == 0
        lab.run(f"INSERT INTO t VALUES ({number})")
    last = sorted(lab.folder.glob("*.parquet"))[-1]
    kept = last.rename(tmp_path / last.name)
    refused = record(lab, run)
    compare("Segments were removed by hand", refused.err, refused.code)
    kept.rename(last)
    assert record(lab, run).code == 0
    lab.assert_equal()


SMALL_DISK: Final = (
    'mount -t tmpfs -o size=200k,mode=700 tmpfs "$1" && cp -r "$0/." "$1" && shift && exec "$@"'
)
"""A shell script that runs a command with a copy of the folder `$0` on a small disk at `$1`."""


def test_the_disk_is_full(lab: Lab, tmp_path: Path) -> None:
    """The small disk ends with its process, so the recording continues where nothing was stored."""
    lab.record()
    before = lab.confirmed_lsn()
    kept = tmp_path / "kept"
    shutil.copytree(lab.folder, kept)
    lab.run("INSERT INTO t SELECT n, md5(n::text) FROM generate_series(1, 20000) n")
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    script = ["sh", "-c", SMALL_DISK, str(kept), str(lab.folder)]
    done = subprocess.run(
        ["unshare", *namespaces, *script, *lab.command("--until=now")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stderr.startswith("unshare: "):
        pytest.skip("needs user namespaces")
    compare("The disk of the recording is full", done.stderr, done.returncode)
    assert lab.confirmed_lsn() == before
    lab.record()
    lab.assert_equal()


def test_a_table_fails_in_the_replica(lab: Lab, run: Run, tmp_path: Path) -> None:
    lab.run("CREATE TABLE other (id int PRIMARY KEY)", "ALTER PUBLICATION p ADD TABLE other")
    assert record(lab, run, "--snapshot").code == 0
    lab.run("INSERT INTO t VALUES (1)", "INSERT INTO other VALUES (1)")
    assert record(lab, run).code == 0
    assert replicate(lab, run).code == 0
    lab.run("INSERT INTO t VALUES (2)", "INSERT INTO other VALUES (2)")
    assert record(lab, run).code == 0
    table = lake(lab) / "public.t"
    kept = table.rename(tmp_path / "kept")
    table.write_text("not a folder")
    failed = replicate(lab, run)
    compare("A table fails in the replica", failed.err, failed.code)
    assert (rows(lab, "other"), failed.err.count(" failed, ")) == ([1, 2], 1)
    table.unlink()
    kept.rename(table)
    assert replicate(lab, run).code == 0
    assert rows(lab, "t") == [1, 2]


@pytest.mark.parametrize("option", ["--snapshot", "--create-slot"])
def test_a_table_was_added_with_rows(lab: Lab, run: Run, tmp_path: Path, option: str) -> None:
    with Program(lab.command(option, "--segment-seconds=0.1"), tmp_path) as recorder:
        recorder.wait("recording ")
        lab.run("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late SELECT generate_series(1, 5)")
        lab.run("ALTER PUBLICATION p ADD TABLE late", "INSERT INTO late VALUES (6)")
        recorder.wait("incomplete: ")
        wait_until(lambda: any(lab.folder.glob("*.parquet")))
        if option == "--create-slot":
            compare("A table was added with rows", recorder.printed + replicate(lab, run).err)
            assert run("snapshot", "--recording", lab.folder, "--table", "public.late").code == 0
        recorder.wait(" were added")
        recorder.process.send_signal(signal.SIGTERM)
        assert recorder.end() == 0
    lab.assert_equal()
    assert replicate(lab, run).code == 0
    assert rows(lab, "late") == [1, 2, 3, 4, 5, 6]


def test_a_table_cannot_be_read(lab: Lab, run: Run) -> None:
    lab.run("INSERT INTO t VALUES (1)", "CREATE ROLE reader LOGIN REPLICATION")
    options = [
        one.replace("user=postgres", "user=reader") for one in lab.command("--snapshot", "--until=now")
    ]
    try:
        refused = run(*options[3:])
        compare("A table cannot be read", refused.err, refused.code)
        lab.run(refused.err.partition("a superuser has to run: ")[2])
        assert run(*options[3:]).code == 0
        lab.assert_equal()
    finally:
        lab.run("DROP OWNED BY reader", "DROP ROLE reader")


@pytest.mark.nightly  # verify waits until the recording has an LSN, for 10 seconds
def test_somebody_has_changed_the_replica(lab: Lab, run: Run) -> None:
    lab.run("INSERT INTO t SELECT n, 'v' FROM generate_series(1, 10) n")
    verify = "verify", "--recording", lab.folder, "--target", lake(lab), "--dsn", lab.dsn
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        wait_until(lambda: replicate(lab, run).code == 0)
        (table,) = replica_tables(lake(lab)).values()
        DeltaTable(table.place).delete("id > 8")
        different = run(*verify)
        compare("Somebody has changed the replica", different.out + different.err, different.code)
        assert run(*verify, "--repair").code == 1
        assert replicate(lab, run).code == 0
        assert run(*verify).code == 0
    assert rows(lab, "t") == list(range(1, 11))


def rows(lab: Lab, name: str) -> list[int]:
    """Return the keys in a table of the replica."""
    (place,) = (one.place for one in replica_tables(lake(lab)).values() if one.name == name)
    return sorted(DeltaTable(place).to_pyarrow_table()["id"].to_pylist())


def test_every_trouble_of_the_page_is_tried() -> None:
    tried = re.findall(r'compare\("(.*?)"', Path(__file__).read_text())
    assert ROWS.keys() == set(tried)
