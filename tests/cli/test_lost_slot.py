"""A lost slot: the last metrics are scraped, and Prometheus fires the alert after the recorder has ended."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.conftest import Run
from tests.recorder.lab import PATIENCE, Lab, wait_until
from tests.server import Server

RULES = Path(__file__).parents[2] / "deploy/prometheus/alerts.yaml"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def get(port: int, page: str) -> str:
    """Return the text of a page; an empty text if nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Server(max_slot_wal_keep_size="1MB") as server, Lab(server, tmp_path) as lab:
        lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        yield lab


@contextmanager
def recorder_of_a_lost_slot(lab: Lab, port: int) -> Iterator[subprocess.Popen[str]]:
    """Run a recorder with metrics; the server gives the slot up while the recorder is not connected."""
    command = lab.command("--create-slot", f"--metrics=127.0.0.1:{port}")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: "logicalrep_recorder_connected 1.0" in get(port, "/metrics"))
        assert "logicalrep_recorder_changes_lost 0.0" in get(port, "/metrics")
        yield process
        process.kill()


def lose_slot(lab: Lab) -> None:
    """Drop the slot, as an administrator does who sees that it fills the disk."""
    lab.run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
    wait_until(lambda: dropped(lab))


def dropped(lab: Lab) -> bool:
    free = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
    lab.run(free)
    return lab.slots() == []


def test_the_last_state_is_scraped_once(lab: Lab) -> None:
    port = free_port()
    with recorder_of_a_lost_slot(lab, port) as process:
        lose_slot(lab)
        wait_until(lambda: "logicalrep_recorder_changes_lost 1.0" in get(port, "/metrics"))
        _, printed = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "the recording cannot be continued: the slot" in printed


def test_a_signal_ends_the_wait_for_the_last_scrape(lab: Lab) -> None:
    port = free_port()
    with recorder_of_a_lost_slot(lab, port) as process:
        lose_slot(lab)
        assert process.stderr is not None
        wait_until(lambda: "cannot be continued" in process.stderr.readline())  # type: ignore[union-attr]
        since = time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            process.terminate()
        assert time.monotonic() - since < PATIENCE / 4


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_prometheus_fires_the_alert(lab: Lab, tmp_path: Path) -> None:
    """Also minutes after the recorder has ended, and until a recorder serves 0 again."""
    port, own = free_port(), free_port()
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": "logicalrep", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        ],
    }
    config = tmp_path / "prometheus.yml"
    config.write_text(yaml.safe_dump(settings))
    options = f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{own}"

    def firing() -> set[str]:
        alerts = json.loads(get(own, "/api/v1/alerts"))["data"]["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    command = ["prometheus", f"--config.file={config}", *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as prometheus:
        try:
            with recorder_of_a_lost_slot(lab, port) as process:
                wait_until(lambda: '"up"' in get(own, "/api/v1/query?query=up%20%3D%3D%201"))
                lose_slot(lab)
                assert process.wait(PATIENCE) == 2
            wait_until(lambda: '"up"' in get(own, "/api/v1/query?query=up%20%3D%3D%200"))
            assert "LogicalrepChangesLost" in firing()
            lab.folder = tmp_path / "anew"
            with recorder_of_a_lost_slot(lab, port):
                wait_until(lambda: "LogicalrepChangesLost" not in firing())
        finally:
            prometheus.terminate()
            prometheus.wait()


def test_status_of_a_lost_slot_has_exit_code_1(lab: Lab, run: Run) -> None:
    lab.record()
    lab.run("INSERT INTO t VALUES (1)")
    lab.record()
    words = "status", "--recording", lab.folder, "--dsn", lab.dsn
    assert run(*words).code == 0
    lab.server.grow_wal(lab.lsn() + (64 << 20))
    lab.run("CHECKPOINT")
    lost = run(*words)
    assert (lost.code, lost.err) == (1, "")
    assert re.search(rf"slot +{lab.slot}, (lost|wal_removed)\n +WAL is lost\n", lost.out)
    lose_slot(lab)
    absent = run(*words)
    assert (absent.code, absent.err) == (1, "")
    assert f"slot       {lab.slot} does not exist\n" in absent.out


def test_status_names_a_long_transaction(lab: Lab, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logicalrep.cli.operate.status.LONG_SECONDS", 0.5)
    lab.record()
    lab.run("INSERT INTO t VALUES (1)")
    lab.record()
    words = "status", "--recording", lab.folder, "--dsn", lab.dsn
    assert "held back" not in run(*words).out
    with lab.connect() as connection:
        connection.autocommit = False
        connection.execute("INSERT INTO t VALUES (2)")
        pid = connection.info.backend_pid
        text = (
            rf"held back by a transaction that is open for \d+ s \(server process {pid}, user postgres, idle"
        )
        wait_until(lambda: bool(re.search(text, run(*words).out)))
        connection.rollback()
    assert "held back" not in run(*words).out
