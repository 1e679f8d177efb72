"""Small crash tests of the recorder; `make crash` runs large crash tests.

The environment variable LOGICALREP_TEST_VERSION, which `make matrix` sets, chooses the server's version.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import Final

import pytest

from tests import store
from tests.crash.recorder import PUBLICATION
from tests.crash.replay import compare
from tests.crash.run import crash
from tests.crash.workload import Workload, prepare
from tests.server import VERSION, WHEEL_VERSION, Server

PAUSE: Final = 0.1
"""Seconds between two steps of a writer: most CPU time of these tests was for what writers wrote."""


def test_kills_and_restarts_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    failovers = int(VERSION == WHEEL_VERSION)
    outcome = crash(tmp_path, VERSION, 3, 1, failovers, seed=1, rows=20_000, longest=1.5, pause=PAUSE)
    print(outcome)
    assert (sum(outcome.kills.values()), outcome.restarts, outcome.failovers) == (3, 1, failovers)
    assert outcome.comparison.sessions > 1
    assert outcome.comparison.equal, outcome.comparison


@pytest.mark.nightly
def test_kills_on_two_machines_with_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"s3://{store.BUCKET}/recording"
    with store.moto() as port:
        for name, value in store.settings(port).items():
            monkeypatch.setenv(name, value)
        outcome = crash(tmp_path, VERSION, 6, 2, 0, seed=1, rows=20_000, longest=4, url=url)
    assert sum(outcome.kills.values()) == 6
    assert outcome.comparison.sessions > 1
    assert outcome.comparison.equal, outcome.comparison


def test_a_recording_begun_with_a_snapshot_under_load_equals_the_tables(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    with Server(VERSION) as server:
        with server.connect() as connection:
            prepare(connection, VERSION, 20_000)
        command = [sys.executable, "-m", "logicalrep.cli", "record", "--dsn", server.dsn, "--slot", "s"]
        command += ["--publication", PUBLICATION, "--recording", str(folder), "--snapshot", "--log", "json"]
        command += ["--segment-seconds", "1"]
        with (
            Workload(server.dsn, VERSION, 2, pause=PAUSE) as workload,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as recorder,
        ):
            timer = Timer(60, recorder.kill)
            timer.start()
            try:
                assert recorder.stdout is not None
                for line in recorder.stdout:
                    if b'"connected"' in line:
                        workload.altering.set()
                    elif b'"stored"' in line and workload.altering.is_set():  # a segment of the session
                        recorder.send_signal(signal.SIGINT)
                        break
                _, errors = recorder.communicate()
                assert recorder.returncode == 0, errors.decode()
            finally:
                timer.cancel()
                recorder.kill()
        subprocess.run([*command, "--until", "now"], check=True, capture_output=True, timeout=60)
        comparison = compare(folder, server, workload.altered)
    assert comparison.sessions == 2, comparison
    assert comparison.equal, comparison
