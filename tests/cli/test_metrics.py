"""The option --metrics: a recorder and a replica of a server are scraped, as Prometheus does."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import psycopg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from logicalrep.cli.common.lag import LagClock
from logicalrep.cli.common.metrics import Metrics
from logicalrep.cli.record.metrics import RECORDER, RecorderMetrics
from logicalrep.cli.replicate.metrics import REPLICA, ReplicaMetrics
from logicalrep.recorder import Connected
from logicalrep.recording import Recording
from logicalrep.replica import TableResult, replica_tables, replicate
from tests.conftest import Run
from tests.server import Server

PATIENCE = 60


class Scraped:
    """A command that runs with --metrics in a process of its own; a context manager that kills it."""

    def __init__(self, *arguments: str | Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._command = [
            sys.executable,
            "-m",
            "logicalrep.cli",
            *map(str, arguments),
            "--metrics",
            self._address,
        ]

    def __enter__(self) -> Scraped:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def get(self, page: str) -> tuple[int, str]:
        """Return status and text of a page; status 0 as long as nothing answers."""
        try:
            with urllib.request.urlopen(f"http://{self._address}{page}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            assert self.process.poll() is None, self.process.communicate()
            return 0, ""

    def values(self) -> dict[str, float]:
        """Return the values of all metrics, by name and values of the labels in the order of their names."""
        found = text_string_to_metric_families(self.get("/metrics")[1])
        return {
            one.name + "".join(f"[{value}]" for value in one.labels.values()): one.value
            for family in found
            for one in family.samples
        }

    def wait(self, conditions: dict[str, Callable[[float], bool]]) -> dict[str, float]:
        """Wait until values meet their conditions; return all values."""
        end = time.monotonic() + PATIENCE
        while True:
            values = self.values()
            if all(name in values and is_met(values[name]) for name, is_met in conditions.items()):
                return values
            assert time.monotonic() < end, "\n".join(f"{name} {value}" for name, value in values.items())
            time.sleep(0.1)


def sync(server: Server, name: str, target: Path) -> Scraped:
    return Scraped("sync", f"--dsn={server.dsn}", f"--publication={name}", f"--target={target}")


def test_sync_serves_every_metric(server: Server, connection: psycopg.Connection, tmp_path: Path) -> None:
    name = "test_sync_serves_every_metric"
    with sync(server, name, tmp_path) as command:
        command.wait({"logicalrep_recorder_connected": lambda value: value == 1})
        for number in range(5):
            connection.execute(f"INSERT INTO {name} VALUES ({number})".encode())
        connection.execute(f"DELETE FROM {name} WHERE id = 3".encode())
        applied = "logicalrep_replica_applied_changes_total"
        values = command.wait(
            {
                f"{applied}[Insert][public.{name}]": lambda value: value == 5,
                f"{applied}[Delete][public.{name}]": lambda value: value == 1,
                "logicalrep_replica_lag_segments": lambda value: value == 0,
                "logicalrep_recorder_lag_bytes[acknowledged]": lambda value: value == 0,
                "logicalrep_slot_safe_wal_bytes": lambda value: value > 0,
            }
        )
        now = time.time()
        assert values["logicalrep_recorder_stored_transactions_total"] >= 6
        assert (
            values["logicalrep_recorder_received_messages_total"] >= 19
        )  # Begin, change, Commit; one Relation
        assert values["logicalrep_recorder_received_bytes_total"] > 19 * 20
        assert values["logicalrep_recorder_lag_seconds[acknowledged]"] == 0
        assert values["logicalrep_slot_wal_status[reserved]"] == 1
        assert values["logicalrep_slot_wal_status[lost]"] == 0
        assert 0 < values["logicalrep_slot_retained_wal_bytes"] < 1 << 30
        assert values["logicalrep_replica_lag_bytes"] == values["logicalrep_replica_lag_seconds"] == 0
        for metric in (
            "logicalrep_recorder_last_commit_timestamp_seconds",
            "logicalrep_replica_last_commit_timestamp_seconds",
            f"logicalrep_replica_table_applied_timestamp_seconds[public.{name}]",
        ):
            assert now - PATIENCE < values[metric] <= now
        served = {re.sub(r"\[.*", "", one) for one in values}
        assert served == {one.name for one in RECORDER + REPLICA}
        assert command.get("/healthz") == command.get("/readyz") == (200, "ok\n")
        assert command.get("/other")[0] == 404


def test_a_recorder_shows_open_transactions_and_a_lost_server(tmp_path: Path) -> None:
    with Server() as server, psycopg.connect(server.dsn) as connection:
        connection.execute("CREATE TABLE t (id int, text text)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        connection.commit()
        options = (
            f"--dsn={server.dsn}",
            "--slot=s",
            "--publication=p",
            "--create-slot",
            f"--recording={tmp_path / 'r'}",
        )
        with Scraped("record", *options) as command:
            command.wait({"logicalrep_recorder_connected": lambda value: value == 1})
            assert command.get("/readyz") == (200, "ok\n")
            connection.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 10000) i")
            age = "logicalrep_recorder_oldest_transaction_age_seconds"
            values = command.wait({age: lambda value: value > 1})
            assert values["logicalrep_recorder_open_transactions"] == 1
            assert values["logicalrep_recorder_received_bytes_total"] > 100_000
            assert {one.partition("[")[0] for one in values} <= {one.name for one in RECORDER}
            connection.rollback()
            values = command.wait({age: lambda value: value == 0})
            assert values["logicalrep_recorder_open_transactions"] == 0

            server.stop()
            lag = "logicalrep_recorder_lag_seconds[stored]"
            values = command.wait(
                {"logicalrep_recorder_connected": lambda value: value == 0, lag: lambda value: value > 1}
            )
            assert values["logicalrep_recorder_errors_total[connection]"] >= 1
            assert command.get("/healthz") == (200, "ok\n"), "it connects again"
            assert command.get("/readyz") == (503, "the recorder is not connected to the server\n")


@pytest.mark.nightly
@pytest.mark.spark
def test_a_replica_kept_by_spark_serves_the_same_metrics(run: Run, tmp_path: Path) -> None:
    recording, target = tmp_path / "r", tmp_path / "lake"
    assert run("synth", "--out", recording, "--tables=2", "--transactions=20").code == 0
    options = "--follow", "--spark", "--recording", recording, "--target", target
    with Scraped("replicate", *options) as command:
        values = command.wait(
            {
                "logicalrep_replica_lag_segments": lambda value: value == 0,
                "logicalrep_replica_batches_total": lambda value: value > 0,
            }
        )
        applied = [name for name in values if name.startswith("logicalrep_replica_applied_changes_total")]
        batches: list[Sequence[TableResult]] = []
        replicate(recording, tmp_path / "other", on_batch=lambda _, results: batches.append(results))
        in_process = sum(sum(one.changes.values()) for results in batches for one in results)
        assert sum(values[name] for name in applied) == in_process
        assert command.get("/readyz") == (200, "ok\n")


def test_a_replica_with_a_failed_table_is_not_ready(run: Run, tmp_path: Path) -> None:
    recording, target = tmp_path / "r", tmp_path / "lake"
    assert run("synth", "--out", recording, "--tables=2", "--transactions=20").code == 0
    assert run("replicate", "--recording", recording, "--target", target).code == 0
    table = next(iter(replica_tables(target).values()))
    for file in Path(table.place, "_delta_log").iterdir():
        file.write_text("damaged")
    with Scraped("replicate", "--follow", "--recording", recording, "--target", target) as command:
        values = command.wait(
            {
                "logicalrep_replica_failed_tables": lambda value: value == 1,
                "logicalrep_replica_lag_segments": lambda value: value == 0,  # no change is missing
            }
        )
        assert values[f"logicalrep_replica_table_errors_total[{table.namespace}.{table.name}]"] >= 1
        assert {one.partition("[")[0] for one in values} <= {one.name for one in REPLICA}
        assert command.get("/healthz") == (200, "ok\n")
        assert command.get("/readyz") == (503, "failed tables: 1\n")


def test_a_table_that_may_differ_is_counted(
    server: Server, connection: psycopg.Connection, run: Run, tmp_path: Path
) -> None:
    name = "test_a_table_that_may_differ_is_counted"
    recording, target = tmp_path / "r", tmp_path / "lake"
    recorded = (
        "record",
        f"--dsn={server.dsn}",
        "--slot=differs",
        f"--publication={name}",
        "--recording",
        recording,
    )
    connection.execute(f"INSERT INTO {name} VALUES (1)".encode())
    with Scraped(*recorded, "--create-slot", "--segment-seconds=0.2") as recorder:
        recorder.wait({"logicalrep_recorder_connected": lambda value: value == 1})
        connection.execute(f"ALTER TABLE {name} ADD y int DEFAULT 3".encode())
        connection.execute(f"INSERT INTO {name} VALUES (2, 3)".encode())
        recorder.wait({"logicalrep_recorder_incomplete_tables": lambda value: value == 1})
        with Scraped("replicate", "--follow", "--recording", recording, "--target", target) as command:
            command.wait({"logicalrep_replica_tables_that_may_differ": lambda value: value == 1})
        with Scraped("replicate", "--follow", "--recording", recording, "--target", target) as command:
            command.wait({"logicalrep_replica_tables_that_may_differ": lambda value: value == 1})
            requested = run("snapshot", "--recording", recording, f"--table=public.{name}")
            assert requested.code == 0, requested.err
            recorder.wait({"logicalrep_recorder_incomplete_tables": lambda value: value == 0})
            values = command.wait({"logicalrep_replica_tables_that_may_differ": lambda value: value == 0})
            assert "logicalrep_replica_last_commit_timestamp_seconds" in values, (
                "the last segment has no commit"
            )


def test_a_recorder_is_stuck_if_it_is_silent_while_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    recorder = RecorderMetrics(Metrics(RECORDER))
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert recorder.stuck() == "", "it may wait for hours until the slot can be created"
    options = {"session": 1, "server_version": "18.4", "slot": "s", "proto_version": 4, "start_lsn": "0/1"}
    recorder.add(msgspec.convert({"event": "connected", "options": {}, **options}, Connected))
    assert recorder.stuck() == recorder.not_ready() == ""
    monkeypatch.setattr(time, "time", lambda: now + 3661)
    assert recorder.stuck() == "the recorder is connected, and has reported nothing for 61 seconds"


def test_a_replica_is_stuck_if_it_is_silent(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("synth", "--out", tmp_path / "r", "--tables=2", "--transactions=20").code == 0
    recording = Recording(tmp_path / "r")
    replica = ReplicaMetrics(Metrics(REPLICA), recording, str(tmp_path / "lake"))
    replica.show_progress(0)
    now = time.time()
    assert replica.stuck() == replica.not_ready() == ""
    monkeypatch.setattr(time, "time", lambda: now + 601)
    assert replica.stuck() == "the replica has reported nothing for 601 seconds"


@pytest.mark.parametrize("detail", [False, True])
def test_the_page_has_the_tables_with_the_greatest_lag(run: Run, tmp_path: Path, detail: bool) -> None:
    assert run("synth", "--out", tmp_path / "r", "--tables=2", "--transactions=20").code == 0
    metrics, recording = Metrics(REPLICA), Recording(tmp_path / "r")
    replica = ReplicaMetrics(metrics, recording, str(tmp_path / "lake"), detail=detail)
    for number in range(1000):
        name = f"a_table_with_a_long_name_{number}"
        replica.add(TableResult(number, "public", name, {"Insert": number, "Delete": 1}, (), ""))
    replica.add(TableResult(5, "public", "a_table_with_a_long_name_5", {}, (), "damaged"))
    registry = CollectorRegistry()
    registry.register(metrics)
    page = generate_latest(registry).decode()
    found = set(re.findall(r'table="public.a_table_with_a_long_name_(\d+)"', page))
    assert found == set(map(str, range(1000) if detail else [5, *range(981, 1000)]))
    assert detail or len(page) < 15_000
    assert f'logicalrep_replica_changes_total{{operation="Insert"}} {999 * 500:.1f}\n' in page
    assert "logicalrep_replica_errors_total 1.0\n" in page
    assert "logicalrep_replica_failed_tables 1.0\n" in page


def test_lag_in_seconds() -> None:
    clock = LagClock()
    assert clock.behind(0, now=100) == 0
    clock.saw_end(10, 100)
    clock.saw_end(20, 105)
    clock.saw_end(20, 108)
    assert [clock.behind(position, now=110) for position in (9, 10, 19, 20)] == [10, 5, 5, 0]
    clock.saw_end(5, 90)
    assert clock.behind(4, now=110) == 20
    clock.forget(10)
    assert clock.behind(4, now=110) == 5


def test_a_long_lag_takes_little_memory() -> None:
    clock = LagClock()
    for second in range(100_000):
        clock.saw_end(second, second)
    assert clock.behind(-1, now=100_000) == 100_000
    assert clock.behind(50_000, now=100_000) == pytest.approx(50_000, rel=0.01)
    assert len(clock._samples) <= 4096


@pytest.mark.parametrize("address", ["9187", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:http"])
def test_an_address_must_be_host_and_port(run: Run, tmp_path: Path, address: str) -> None:
    done = run(
        "record", "--slot=s", "--publication=p", f"--recording={tmp_path / 'r'}", f"--metrics={address}"
    )
    assert done.code == 2
    assert "HOST:PORT" in done.err


def test_an_address_in_use_ends_the_command(run: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = run(
            "record", "--slot=s", "--publication=p", f"--recording={tmp_path / 'r'}", f"--metrics={address}"
        )
    assert done.code == 3
    assert (
        done.err == f"logicalrep: [Errno 98] metrics cannot be served: Address already in use: '{address}'\n"
    )
