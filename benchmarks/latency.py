"""Latency of `logicalrep sync`: seconds from a commit until a reader of the Delta table sees it.

`python -m benchmarks.latency [--seconds 60] [--rate 50] [--segment-seconds 1.0]`

A client commits transactions of one row at a fixed rate. A reader looks for new versions of the Delta table
every 10 milliseconds. The benchmark prints percentiles of the latency, the CPU time of recorder and replica,
and the number of files that they leave behind.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from logicalrep.recording import list_segments
from tests.server import Server

TABLE: Final = "public.events"
POLL_SECONDS: Final = 0.01
PATIENCE: Final = 120.0


def newest_id(table: DeltaTable) -> int:
    """Return the greatest id in a Delta table, from the statistics of its files; 0 without rows."""
    actions = pa.table(table.get_add_actions(flatten=True))
    return max(actions["max.id"].to_pylist(), default=0) if "max.id" in actions.column_names else 0


def write_transactions(dsn: str, rate: float, count: int, committed: list[float]) -> None:
    """Commit transactions that each insert the next id; append the time after each commit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            connection.execute(f"INSERT INTO {TABLE} (at, text) VALUES (now(), 'some text')".encode())
            committed.append(time.monotonic())


def measure(server: Server, target: Path, rate: float, seconds: float, segment_seconds: float) -> list[float]:
    """Run `logicalrep sync` while transactions commit; return the latency of each, in seconds."""
    count = int(rate * seconds)
    committed: list[float] = []
    seen: list[float] = []
    command = [sys.executable, "-m", "logicalrep.cli", "sync", "--publication=events", f"--dsn={server.dsn}"]
    places = [f"--target={target}", f"--segment-seconds={segment_seconds}"]
    with subprocess.Popen([*command, *places], stdout=subprocess.DEVNULL) as process:
        try:
            table = wait_for_table(target / TABLE)
            writer = threading.Thread(
                target=write_transactions, args=(server.dsn, rate, count, committed), daemon=True
            )
            offset = newest_id(table)
            writer.start()
            end = time.monotonic() + seconds + PATIENCE
            while len(seen) < count:
                assert time.monotonic() < end, f"{count - len(seen)} transactions are missing"
                log = target / TABLE / "_delta_log" / f"{table.version() + 1:020}.json"
                if not log.exists():
                    time.sleep(POLL_SECONDS)
                    continue
                table.update_incremental()
                now, last = time.monotonic(), newest_id(table) - offset
                seen += [now] * (last - len(seen))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
    return [there - here for here, there in zip(committed, seen, strict=True)]


def wait_for_table(place: Path) -> DeltaTable:
    """Return the Delta table as soon as it exists and has rows."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if newest_id(table := DeltaTable(place)):
                return table
        except TableNotFoundError:
            pass
        time.sleep(0.1)
    raise AssertionError("the copy of the table is missing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=50, help="transactions a second")
    parser.add_argument("--segment-seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    with Server() as server, tempfile.TemporaryDirectory() as folder:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(
                f"CREATE TABLE {TABLE} (id bigserial PRIMARY KEY, at timestamptz, text text)".encode()
            )
            connection.execute(f"INSERT INTO {TABLE} (text) VALUES ('copied')".encode())
            connection.execute(f"CREATE PUBLICATION events FOR TABLE {TABLE}".encode())
        target = Path(folder, "lake")
        found = measure(server, target, arguments.rate, arguments.seconds, arguments.segment_seconds)
        p50, p95, p99 = np.percentile(found, [50, 95, 99])
        table, recording = DeltaTable(target / TABLE), target / "_recording"
        print(
            f"{len(found):,} transactions, segments of {arguments.segment_seconds:g} s: "
            f"p50 {p50:.2f} s, p95 {p95:.2f} s, p99 {p99:.2f} s; "
            f"{len(list_segments(recording))} segments in {len(list(recording.glob('0*')))} files, "
            f"{table.version()} versions with {len(table.file_uris())} files, "
            f"{len(list((target / TABLE).glob('*.parquet')))} with replaced ones, "
            f"{len(list((target / TABLE / '_delta_log').iterdir()))} files in the log"
        )


if __name__ == "__main__":
    main()
