"""The command line ends with each exit code that docs/exit-codes.md lists."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from logicalrep.cli.replicate import replication
from logicalrep.recording import object_store, record_capture_file
from tests import store
from tests.conftest import Run
from tests.store import settings
from tests.truth import CAPTURES
from tests.versions import OLDEST

CAPTURE = CAPTURES / "pg10_p1.jsonl.gz"


def test_0_done(run: Run) -> None:
    assert run("check", CAPTURE).code == 0


def test_1_a_violation_is_found(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "illegal.jsonl"
    path.write_bytes(b'{"proto_version":%d}\n{"data":"43"}\n' % OLDEST)
    assert run("check", path).code == 1


def test_2_bad_usage_and_bad_input(run: Run, tmp_path: Path) -> None:
    for arguments in (
        ("nonsense",),
        ("decode", "--nonsense", CAPTURE),
        ("decode", tmp_path / "nowhere"),
        ("check", tmp_path),
        ("segments", tmp_path),
        ("encode", tmp_path / "nowhere"),
        ("serve", "--recording", tmp_path),
        ("synth", "--out", "-", "--mix", "nonsense"),
    ):
        assert run(*arguments).code == 2, arguments


def test_3_the_server_refuses(run: Run, tmp_path: Path) -> None:
    done = run(
        *("record", "--dsn", "service=nowhere", "--slot", "s", "--publication", "p", "--until", "now"),
        *("--recording", tmp_path / "out"),
    )
    assert (done.code, done.err.count("\n")) == (3, 1)


def test_3_no_recorder_has_begun_the_recording(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A service manager starts the replica again, because the recorder may take longer to connect."""
    monkeypatch.setattr(replication, "_FOLDER_SECONDS", 0.3)
    command = "replicate", "--recording", tmp_path / "none", "--target", tmp_path / "lake"
    done = run(*command, "--follow")
    assert (done.code, done.err.splitlines()[1:]) == (
        3,
        [
            f"logicalrep: {tmp_path}/none: no recorder began the recording within 0 seconds: start "
            "`logicalrep record`, or correct --recording"
        ],
    )
    assert run(*command).code == 2, "only --follow waits for a recorder"


@pytest.mark.nightly  # the store's client tries for a minute
def test_3_the_object_store_does_not_answer(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in settings(1).items():
        monkeypatch.setenv(name, value)
    record_capture_file(CAPTURE, tmp_path / "recording")
    for arguments in (
        ("segments", "s3://bucket/recording"),
        ("replicate", "--recording", "s3://bucket/recording", "--target", tmp_path / "lake"),
        ("replicate", "--recording", tmp_path / "recording", "--target", "s3://bucket/lake"),
    ):
        assert run(*arguments).code == 3, arguments


def test_130_ended_by_ctrl_c() -> None:
    command = [sys.executable, "-m", "logicalrep.cli", "decode", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.writelines(gzip.decompress(CAPTURE.read_bytes()).splitlines(keepends=True)[:200])
        process.stdin.flush()
        assert process.stdout.read(1)  # the command is running, and waits for more
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == b""
    assert process.returncode == 130


def test_130_ended_by_sigterm() -> None:
    """SIGTERM ends every command with exit code 130, whatever the command is doing."""
    code = (
        "import os, signal, time; from logicalrep import cli; "
        "cli._run = lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(10)); cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.returncode, done.stderr) == (130, b"")


ALWAYS: Final = "record --slot s --publication p --until now --retry-for 0 --recording"
"""A command that tries once to record; the URL of a recording follows."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_end_the_taking_of_an_import_lock(number: signal.Signals) -> None:
    """Python takes the lock of imports in this file; an exception there would never release it."""
    code = f"import os, time; os.kill(os.getpid(), {number.value}); print('taken', flush=True)"
    program = (
        "import time; from logicalrep import cli; "
        f"step = compile({code!r}, '<frozen importlib._bootstrap>', 'exec'); "
        "cli._run = lambda: (exec(step), time.sleep(10)); cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "taken\n", "")


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[store.Proxy]:
    """A store that answers each request with status 403; no server is behind the proxy."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with store.Proxy(0) as proxy:
        for name, value in settings(proxy.port).items():
            monkeypatch.setenv(name, value)
        proxy.fault = lambda method, path: "403"
        yield proxy


def test_3_the_object_store_refuses_access(run: Run, refusing: store.Proxy, tmp_path: Path) -> None:
    """Credentials are replaced, and rights are granted: a service manager starts the command again."""
    record_capture_file(CAPTURE, tmp_path / "recording")
    for arguments in (
        f"{ALWAYS} s3://bucket/recording",
        "segments s3://bucket/recording",
        "status --recording s3://bucket/recording",
        "prune --recording s3://bucket/recording",
        "snapshot --recording s3://bucket/recording --table public.t",
        f"replicate --recording s3://bucket/recording --target {tmp_path}/lake",
        f"replicate --recording {tmp_path}/recording --target s3://bucket/lake",
        "tables s3://bucket/lake",
    ):
        done = run(*arguments.split())
        assert (done.code, done.err.count("\n")) == (3, 1), (arguments, done.err)


@pytest.mark.parametrize(
    "arguments",
    [
        f"{ALWAYS} PLACE/new --dsn host=nowhere.invalid",
        f"{ALWAYS} s3://bucket/recording",
        f"{ALWAYS} PLACE/new --dsn host=/nowhere --metrics nowhere.invalid:9187",
        "segments s3://bucket/recording",
        "status --recording PLACE/recording --dsn host=nowhere.invalid",
        "install-ddl-events --dsn host=nowhere.invalid",
    ],
)
def test_3_a_name_is_not_resolved(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: str
) -> None:
    for name, value in settings(1).items():
        monkeypatch.setenv(name, value.replace("127.0.0.1:1", "nowhere.invalid"))
    monkeypatch.setattr(object_store, "_RETRIES", 0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record_capture_file(CAPTURE, tmp_path / "recording")
    done = run(*arguments.replace("PLACE", str(tmp_path)).split())
    assert (done.code, done.err.count("\n")) == (3, 1), done.err


def test_3_the_metadata_service_fails(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in settings(1):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setattr(object_store, "_RETRIES", 0)
    monkeypatch.setattr(object_store, "_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done = run(*f"{ALWAYS} s3://bucket/recording".split())
    assert done.code == 3
    assert "no credentials were found on this machine" in done.err
