"""The memory of a replica does not grow with the number of changes in a transaction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from benchmarks.memory import RECORDER
from logicalrep.replica import replica_tables
from tests.server import Server

MEGABYTE = 1 << 20
ROWS = 400_000, 1_600_000


@pytest.mark.nightly
def test_memory_does_not_depend_on_the_number_of_changes(tmp_path: Path) -> None:
    with Server(logical_decoding_work_mem="64kB", max_wal_size="8GB") as server:
        small, large = (peaks(server, tmp_path / str(rows), rows) for rows in ROWS)
    for before, after in zip(small, large, strict=True):
        assert after < before + 40 * MEGABYTE


def peaks(server: Server, folder: Path, rows: int) -> tuple[int, int]:
    """Replicate one streamed transaction; return the peak memory of recorder and replica, in bytes."""
    name, recording, target = f"large_{rows}", folder / "recording", folder / "target"
    with server.connect() as connection:
        connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, at timestamptz, a text)".encode())
        connection.execute(f"CREATE PUBLICATION {name} FOR TABLE {name}".encode())
        connection.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')".encode())
        connection.execute(
            f"INSERT INTO {name} SELECT g, now(), md5(g::text) FROM generate_series(1, {rows}) g".encode()
        )
    options = ["--dsn", server.dsn, "--slot", name, "--publication", name, "--streaming", "on"]
    recorder = run("record", *options, "--recording", recording, "--until", "now")
    replica = run("replicate", "--recording", recording, "--target", target)
    (table,) = replica_tables(target).values()
    assert DeltaTable(table.place).to_pyarrow_dataset().count_rows() == rows
    return recorder, replica


def run(*arguments: str | Path) -> int:
    """Run a command of logicalrep; return its peak resident memory, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", RECORDER, *arguments], capture_output=True, text=True, check=True
    )
    return int(done.stdout.splitlines()[-1])
