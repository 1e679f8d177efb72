"""`pgoutput replicate`: tables that follow a recording, as a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pgoutput.segments import record_capture
from pgoutput.spark import replica_tables
from tests.truth import CAPTURES, equals_typed, true_tables

pytestmark = pytest.mark.spark

PATIENCE = 300


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pgoutput.cli", "replicate", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "pg18"
    record_capture(CAPTURES / "pg18_p4_par_2pc.jsonl.gz", folder, segment_bytes=20_000)
    return folder


def test_it_makes_the_tables_and_tells_what_it_did(recording: Path, tmp_path: Path) -> None:
    done = run("--segments", recording, "--target", tmp_path / "lake")
    assert (done.returncode, done.stderr) == (0, "")
    head, row = (
        line.split() for line in done.stdout.splitlines() if "relation" in line or "app.tr_a" in line
    )
    assert head == ["relation", "Snapshot", "Insert", "Update", "Delete", "Truncate"]
    assert row == ["app.tr_a", "2", "3"]
    places = replica_tables(tmp_path / "lake")
    for table in true_tables("pg18"):
        if table.oid in places:
            assert equals_typed(table, DeltaTable(places[table.oid]).to_pyarrow_table()), table.name
    assert len(places) > 30
    again = run("--segments", recording, "--target", tmp_path / "lake")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == "Nothing new was recorded since the last run.\n"
    other = run("--segments", recording, "--target", tmp_path / "lake", "--history")
    assert (other.returncode, other.stdout) == (2, "")
    said = f"pgoutput: {tmp_path}/lake: the query keeps tables here, and cannot keep history\n"
    assert other.stderr == said


def test_what_is_wrong_is_one_line(recording: Path, tmp_path: Path) -> None:
    none = run("--segments", tmp_path / "none", "--target", tmp_path / "lake")
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr.splitlines() == [
        f"pgoutput: {tmp_path}/none: no segments are here; `pgoutput capture` writes them"
    ]
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("")
    other = run("--segments", recording, "--target", taken)
    assert other.returncode == 2
    assert other.stderr.splitlines() == [f"pgoutput: {taken}: a new target is empty, but here is mine"]


def test_it_follows_until_it_is_told_to_end(recording: Path, tmp_path: Path) -> None:
    growing = tmp_path / "growing"
    growing.mkdir()
    first, *rest = sorted(recording.iterdir())
    (growing / first.name).write_bytes(first.read_bytes())
    command = [sys.executable, "-m", "pgoutput.cli", "replicate", "--follow"]
    arguments = ["--segments", str(growing), "--target", str(tmp_path / "lake")]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_for(tmp_path / "lake" / "_checkpoint" / "commits" / "0")
            for path in rest:
                part = growing / f".{path.name}"
                part.write_bytes(path.read_bytes())
                part.rename(growing / path.name)
            wait_for(tmp_path / "lake" / "_checkpoint" / "commits" / "1")
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "app.t_def" in said
    assert not [entry for entry in os.listdir(tmp_path / "lake") if entry.endswith(".part")]


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not come"
        time.sleep(0.1)
