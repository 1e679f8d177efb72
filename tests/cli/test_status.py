"""The command `pgoutput status`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgoutput.recorder import Connected
from pgoutput.recording import list_segments, locate
from pgoutput.replica import replica_tables
from pgoutput.replica.failed_tables import FailedTable, record_failure
from tests.conftest import Run
from tests.recorder.lab import Lab, wait_until
from tests.server import Server


@pytest.fixture
def lab(server: Server, tmp_path: Path) -> Iterator[Lab]:
    with Lab(server, tmp_path) as lab:
        lab.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        lab.record()
        lab.run("INSERT INTO t VALUES (1)")
        lab.record()
        yield lab


def test_slot_recorder_and_replica(lab: Lab, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    words = "status", "--recording", lab.folder, "--dsn", lab.dsn, "--target", target

    def status() -> dict[str, dict[str, object]]:
        done = run(*words, "--json")
        assert (done.code, done.err) == (0, "")
        found = json.loads(done.out)
        (found["replica"],) = found.pop("replicas")
        return dict(found)

    found = status()
    recorded = len(list_segments(lab.folder))
    assert (found["recording"]["slot"], found["recording"]["segments"]) == (lab.slot, recorded)
    assert found["slot"]["active_pid"] is None
    assert (found["slot"]["wal_status"], found["slot"]["client"]) == ("reserved", None)
    replica = found["replica"]
    assert (replica["segment"], replica["lag_segments"], replica["tables"]) == (0, recorded, 0)
    assert (replica["target"], replica["lag_seconds"]) == (str(target), None)
    assert int(str(found["replica"]["lag_bytes"])) > 0

    assert run("replicate", "--recording", lab.folder, "--target", target).code == 0
    with lab.recording() as recording:
        recording.wait(Connected)
        lab.run("INSERT INTO t VALUES (2)")
        wait_until(lambda: len(list_segments(lab.folder)) > recorded)
        found = status()
        assert found["slot"]["active_pid"] is not None
        assert found["slot"]["client"] == "pgoutput"
        assert found["slot"]["state"] == "streaming"
        replica = found["replica"]
        assert (replica["segment"], replica["lag_segments"], replica["tables"]) == (recorded, 1, 1)
        assert float(str(replica["lag_seconds"])) > 0
        printed = run(*words).out
    for text in (
        str(lab.folder),
        f"slot       {lab.slot}, reserved",
        "bytes until WAL is lost",
        "lag 1 segment",
    ):
        assert text in printed
    assert "recorder   pgoutput: streaming since 20" in printed


def test_trouble_is_listed(lab: Lab, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    assert run("replicate", "--recording", lab.folder, "--target", target).code == 0
    (oid,) = replica_tables(target)
    record_failure(locate(target), FailedTable(oid, "public", "t", "the disk\nis full"))
    lab.run(f"SELECT pg_drop_replication_slot('{lab.slot}')")
    done = run("status", "--recording", lab.folder, "--dsn", lab.dsn, "--target", target)
    assert done.code == 0
    assert f"slot       {lab.slot} does not exist\n" in done.out
    assert "failed     public.t: the disk\\nis full\n" in done.out


def test_without_a_server(lab: Lab, run: Run) -> None:
    done = run("status", "--recording", lab.folder)
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["recording", "source", "segments"]


def test_errors(lab: Lab, run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    folder = lab.folder
    for words, code, text in (
        (["--recording", tmp_path / "empty"], 2, "no segments are here"),
        (
            ["--recording", folder, "--target", tmp_path / "other"],
            2,
            "the target has no owner and is not empty",
        ),
        (["--recording", folder, "--dsn", "host=127.0.0.1 port=1 password=S3CRET"], 3, "127.0.0.1"),
        (["--recording", folder, "--dsn", "password=S3 CRET"], 2, "the DSN cannot be read"),
    ):
        done = run("status", *words)
        assert (done.code, done.out) == (code, "")
        assert text in done.err
        assert "CRET" not in done.err
