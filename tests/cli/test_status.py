"""The command `logicalrep status`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logicalrep.recorder import Connected
from logicalrep.recording import list_segments, locate
from logicalrep.replica import replica_tables
from logicalrep.replica.failed_tables import FailedTable, record_failure
from logicalrep.wire import parse_lsn
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
    assert replica["target"] == str(target)
    assert float(str(replica["lag_seconds"])) > 0
    assert int(str(found["replica"]["lag_bytes"])) > 0

    assert run("replicate", "--recording", lab.folder, "--target", target).code == 0
    with lab.recording() as recording:
        recording.wait(Connected)
        lab.run("INSERT INTO t VALUES (2)")
        wait_until(lambda: len(list_segments(lab.folder)) > recorded)
        found = status()
        assert found["slot"]["active_pid"] is not None
        assert found["slot"]["client"] == "logicalrep"
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
    assert "recorder   logicalrep: streaming since 20" in printed


def test_trouble_is_listed(lab: Lab, run: Run, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    assert run("replicate", "--recording", lab.folder, "--target", target).code == 0
    (oid,) = replica_tables(target)
    record_failure(locate(target), FailedTable(oid, "public", "t", "the disk\nis full"))
    lab.run(f"SELECT pg_drop_replication_slot('{lab.slot}')")
    done = run("status", "--recording", lab.folder, "--dsn", lab.dsn, "--target", target)
    assert (done.code, done.err) == (1, "")
    assert "\nlost       the slot does not exist: record anew in another folder\n" in done.out
    assert f"slot       {lab.slot} does not exist\n" in done.out
    assert "failed     public.t: the disk\\nis full\n" in done.out


def test_a_slot_that_somebody_else_has_read(lab: Lab, run: Run) -> None:
    """The recording cannot be continued, although the slot is valid."""
    lab.run("INSERT INTO t VALUES (2)")
    options = "'proto_version', '1', 'publication_names', 'p'"
    lab.run(f"SELECT pg_logical_slot_get_binary_changes('{lab.slot}', NULL, NULL, {options})")
    words = "status", "--recording", lab.folder, "--dsn", lab.dsn
    done = run(*words)
    assert (done.code, done.err) == (1, "")
    assert f"slot       {lab.slot}, reserved\n" in done.out
    assert "\nlost       another client has read from the slot: the slot is acknowledged up to " in done.out
    assert json.loads(run(*words, "--json").out)["lost"].startswith("another client has read")


def test_missing_segments_are_counted(lab: Lab, run: Run) -> None:
    for number in (2, 3):
        lab.run(f"INSERT INTO t VALUES ({number})")
        lab.record()
    first, second, _ = list_segments(lab.folder)
    Path(second).unlink()
    done = run("status", "--recording", lab.folder)
    assert done.code == 1
    assert "; 1 missing, see `logicalrep segments`\n" in done.out
    Path(first).unlink()
    assert "; 2 missing, " in run("status", "--recording", lab.folder).out


def test_an_incomplete_table_gives_exit_code_1(lab: Lab, run: Run) -> None:
    lab.run(
        "CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)", "ALTER PUBLICATION p ADD TABLE u"
    )
    lab.run("INSERT INTO u VALUES (2)")
    lab.record()
    done = run("status", "--recording", lab.folder, "--dsn", lab.dsn)
    assert (done.code, done.err) == (1, "")
    assert "\nincomplete public.u: " in done.out


def test_the_lag_of_a_failed_table_grows(lab: Lab, run: Run, tmp_path: Path) -> None:
    """Other tables are up to date, and no further change comes."""
    target = tmp_path / "lake"
    words = "status", "--recording", lab.folder, "--target", target
    lab.run("CREATE TABLE u (id int PRIMARY KEY)", "ALTER PUBLICATION p ADD TABLE u")
    lab.run("INSERT INTO u VALUES (1)")
    lab.record()
    assert run("replicate", "--recording", lab.folder, "--target", target).code == 0
    applied = lab.lsn()
    for file in (target / "public.t").glob("*.parquet"):
        file.unlink()
    lab.run("DELETE FROM t")
    lab.record()
    lab.run("INSERT INTO u VALUES (2)")
    lab.record()
    assert run("replicate", "--recording", lab.folder, "--target", target).code == 1
    lags = []
    for _ in range(2):
        done = run(*words, "--json")
        (replica,) = json.loads(done.out)["replicas"]
        table = replica["failed"]["public.t"]
        assert (done.code, replica["lag_segments"], table["lag_seconds"]) == (1, 2, replica["lag_seconds"])
        assert parse_lsn(table["commit_lsn"]) < applied
        lags.append(table["lag_seconds"])
        time.sleep(0.1)
    assert lags[1] > lags[0] + 0.1
    printed = run(*words).out
    assert f"replica    {target}: 2 tables, 1 failed, segment " in printed
    assert f"           applied up to {table['commit_lsn']}, lag " in printed


def test_a_table_that_cannot_be_read_is_named(lab: Lab, run: Run, tmp_path: Path) -> None:
    """Its position and name are those of the last run. No run has stored the error yet."""
    target = tmp_path / "lake"
    words = "status", "--recording", lab.folder, "--target", target
    assert run("replicate", "--recording", lab.folder, "--target", target).code == 0
    equal = run(*words)
    (oid,) = replica_tables(target)
    shutil.move(target / "_relations", tmp_path / "registry")
    done = run(*words)
    assert done.code == 1
    assert f"failed     public.t: {target}/_relations/{oid}: the file is missing, " in done.out
    shutil.move(tmp_path / "registry", target / "_relations")
    for file in (target / "public.t" / "_delta_log").glob("*.json"):
        file.write_text("{")
    done = run(*words)
    assert done.code == 1
    assert f"failed     public.t: {target}/public.t: the Delta table cannot be read" in done.out
    assert "lag 0 segments, 0 bytes of WAL, 0.0 s\n" in equal.out
    assert "lag 0 segments, 0 bytes of WAL, 0.0 s\n" in done.out
    (target / "_reached.json").unlink()
    assert f"failed     OID {oid}: {target}/public.t: " in run(*words).out


def test_without_a_server(lab: Lab, run: Run) -> None:
    """What the server knows is unknown; what the recording and the replica tell is printed."""
    done = run("status", "--recording", lab.folder)
    assert (done.code, done.err) == (0, "")
    headings = ["recording", "source", "segments", "slot", "recorder"]
    assert [line.split()[0] for line in done.out.splitlines()] == headings
    assert done.out.endswith(
        f"slot       {lab.slot}: unknown: without --dsn, the server is not asked\nrecorder   unknown\n"
    )
    words = "status", "--recording", lab.folder, "--dsn", "host=127.0.0.1 port=1 password=S3CRET"
    refused = run(*words)
    assert refused.code == 3
    assert f"slot       {lab.slot}: unknown: no connection: " in refused.out
    assert refused.out.splitlines()[:3] == done.out.splitlines()[:3]
    found = run(*words, "--json")
    assert "127.0.0.1" in json.loads(found.out)["slot_unknown"]
    assert "127.0.0.1" in found.err
    assert "S3CRET" not in refused.out + refused.err + found.out + found.err


def test_errors(lab: Lab, run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    folder = lab.folder
    for words, code, text in (
        (["--recording", tmp_path / "empty"], 2, "no segments found"),
        (
            ["--recording", folder, "--target", tmp_path / "other"],
            2,
            "expected a target or an empty folder, found",
        ),
        (["--recording", folder, "--dsn", "password=S3 CRET"], 2, "the DSN cannot be read"),
    ):
        done = run("status", *words)
        assert (done.code, done.out) == (code, "")
        assert text in done.err
        assert "CRET" not in done.err


@pytest.mark.parametrize(
    ("statements", "text"),
    [
        (["DROP PUBLICATION p"], "the publication p does not exist (if it was renamed, rename it back)"),
        (["ALTER PUBLICATION p RENAME TO q"], "the publication p does not exist (if it was renamed, rename"),
        (
            ["DROP PUBLICATION p", "CREATE PUBLICATION p FOR TABLE t"],
            "the publication p was dropped and created anew, or another was renamed to it: record anew in "
            "another folder",
        ),
        (["ALTER PUBLICATION p RENAME TO q", "ALTER PUBLICATION q RENAME TO p"], ""),
    ],
)
def test_a_publication_that_is_not_the_recorded_one(
    statements: list[str], text: str, lab: Lab, run: Run
) -> None:
    lab.run(*statements)
    done = run("status", "--recording", lab.folder, "--dsn", lab.dsn)
    assert (done.code, done.err) == (1 if text else 0, "")
    assert (f"\nlost       {text}" in done.out) == bool(text)
    with lab.server.connect() as connection:  # another database tells nothing
        other = lab.dsn.replace(lab.name, connection.info.dbname)
    assert "\nlost" not in run("status", "--recording", lab.folder, "--dsn", other).out
