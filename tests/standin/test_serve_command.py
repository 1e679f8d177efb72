"""The command `logicalrep serve` serves recordings, capture files and scenarios until it is stopped."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Run
from tests.standin.clients import create_slot, read_with_psycopg3
from tests.standin.streams import Repeated, write_capture_file
from tests.truth import CAPTURES
from tests.versions import OLDEST

CAPTURE = CAPTURES / "pg18_p1.jsonl.gz"

SCENARIO = f"""
from logicalrep.synth.scenario import Scenario

def shop():
    made = Scenario(proto_version={OLDEST})
    orders = made.table("public.orders", id="int8 key", note="text")
    for number in range(20):
        with made.transaction() as transaction:
            transaction.insert(orders, id=number, note="x")
    return made
"""


@contextmanager
def serving(
    *arguments: str | Path, folder: Path, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `logicalrep serve` and yield the DSN and the process. Send SIGTERM at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "logicalrep.cli", "serve", *map(str, arguments)],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
        if process.poll() is None:
            process.terminate()
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_serve_a_recording_until_sigterm(tmp_path: Path) -> None:
    stream = Repeated(5)
    recording = write_capture_file(tmp_path / "c.jsonl", stream.payloads())
    with serving("--recording", recording, "--fault", "drop-after=300", folder=tmp_path) as (dsn, _):
        assert dsn.startswith("host=127.0.0.1 port=")
        create_slot(dsn)
        assert read_with_psycopg3(dsn, stream.end_lsn, tmp_path) == stream.payloads()[:300]
        with psycopg.connect(dsn):  # an open connection does not prevent the shutdown
            pass


def test_serve_a_scenario_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCENARIO)
    with serving("--scenario", "mine:shop", folder=tmp_path) as (dsn, _):
        create_slot(dsn)
        with psycopg.connect(dsn) as connection:
            end = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").fetchone()
        assert end is not None
        received = read_with_psycopg3(dsn, end[0], tmp_path)
        assert [one[:1] for one in received] == [b"B", b"R", b"I", b"C"] + [b"B", b"I", b"C"] * 19
        assert read_with_psycopg3(dsn, end[0], tmp_path) == []


def test_serve_with_a_password_from_the_environment_or_a_file_until_sigint(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("from a file\n")
    options = ("--recording", CAPTURE, "--user", "me")
    with serving(*options, folder=tmp_path, PGPASSWORD="secret") as (dsn, _):
        assert "user=me" in dsn
        assert "secret" not in dsn
        psycopg.connect(dsn, password="secret").close()
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(dsn, password="wrong")
    with serving(*options, "--password-file", "password", folder=tmp_path) as (dsn, process):
        connection = psycopg.connect(dsn, password="from a file", autocommit=True)
        process.send_signal(signal.SIGINT)
        assert select.select([connection.fileno()], [], [], 10)[0]  # the client is sent an error
        with pytest.raises(psycopg.OperationalError, match="terminating connection due to administrator"):
            connection.execute("SELECT 1")
        connection.close()
        process.wait(10)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "give either --recording or --scenario"),
        (("--recording", str(CAPTURE), "--scenario", "a:b"), "give either --recording or --scenario"),
        (("--recording", "nothing.jsonl"), "nothing.jsonl: No such file or directory"),
        (("--recording", str(CAPTURE), "--fault", "x"), "there is no fault 'x'"),
        (("--recording", str(CAPTURE), "--user", "me"), "--user needs a password"),
        (("--recording", str(CAPTURE), "--password-file", "x"), "--password-file needs --user"),
        (
            ("--recording", str(CAPTURE), "--user", "me", "--password-file", str(CAPTURE)),
            "the password is not in UTF-8",
        ),
        (
            ("--recording", str(CAPTURE), "--tls-cert", "x"),
            "expected PEM files with a certificate and its key",
        ),
        (("--recording", str(CAPTURE), "--tls-key", "x"), "--tls-key needs --tls-cert"),
        (("--scenario", "nonsense"), "expected MODULE:NAME, found nonsense"),
        (("--scenario", "no.such.module:x"), "ModuleNotFoundError"),
        (("--scenario", "os:getcwd"), "expected a scenario, found str"),
    ],
)
def test_invalid_options_are_rejected_with_a_clear_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], error: str
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))
    ended = run("serve", *arguments)
    assert ended.code == 2
    assert error in " ".join(ended.err.replace("│", " ").split())
