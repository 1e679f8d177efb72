"""A thousand tables with few changes each: commits, files, lag, CPU time and memory of recorder and replica.

`python -m benchmarks.many_tables [--tables 1000] [--rate 167] [--minutes 15] [--latency 60]`

A client commits transactions of one row to tables at random, at a fixed rate; two in five are updates. Each
minute the benchmark prints the number of Delta commits and of new files since the last line, the number of
files, and the greatest lag. In the end it compares all tables with the server.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

import psycopg
from deltalake import DeltaTable

from benchmarks.latency import newest_id
from benchmarks.process_tree import started
from tests.server import Server

PROBES: Final = 10
"""Number of tables whose lag is measured."""
PATIENCE: Final = 300.0


class Writer(threading.Thread):
    """A client that changes tables at random until it is stopped.

    Attributes:
        committed: For each probe, the ids of rows and the times of their commits; the reader removes them.
    """

    def __init__(self, dsn: str, tables: int, rate: float) -> None:
        super().__init__(daemon=True)
        self._dsn, self._tables, self._rate = dsn, tables, rate
        self.stop = threading.Event()
        self.committed: list[deque[tuple[int, float]]] = [deque() for _ in range(PROBES)]

    def run(self) -> None:
        choose, began, number = random.Random(0), time.monotonic(), 0
        last = [1] * self._tables
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self.stop.wait(max(0.0, began + number / self._rate - time.monotonic())):
                number += 1
                table = choose.randrange(self._tables)
                if choose.random() < 0.4:
                    id_ = choose.randint(max(1, last[table] - 5), last[table])
                    connection.execute(f"UPDATE t{table} SET v = 'text {number}' WHERE id = {id_}".encode())
                    continue
                last[table] += 1
                connection.execute(f"INSERT INTO t{table} VALUES ({last[table]}, 'a text')".encode())
                if table < PROBES:
                    self.committed[table].append((last[table], time.monotonic()))


class Lags(threading.Thread):
    """A reader of the probes' Delta tables.

    Attributes:
        found: Seconds from a commit until its row was in the Delta table.
    """

    def __init__(self, target: Path, writer: Writer) -> None:
        super().__init__(daemon=True)
        self._target, self._writer = target, writer
        self.stop = threading.Event()
        self.found: list[float] = []

    def run(self) -> None:
        tables = [DeltaTable(self._target / f"public.t{number}") for number in range(PROBES)]
        while not self.stop.wait(0.2):
            for table, committed in zip(tables, self._writer.committed, strict=True):
                log = Path(table.table_uri.removeprefix("file://"), "_delta_log")
                if not (log / f"{table.version() + 1:020}.json").exists():
                    continue
                table.update_incremental()
                newest, now = newest_id(table), time.monotonic()
                while committed and committed[0][0] <= newest:
                    self.found.append(now - committed.popleft()[1])


def totals(target: Path) -> tuple[int, int, set[str]]:
    """Return the sum of the tables' versions, the bytes, and the paths of all files of a target."""
    paths, size, versions = set[str](), 0, 0
    for folder, _, names in os.walk(target):
        for name in names:
            try:
                size += os.stat(path := os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
            paths.add(path)
        if folder.endswith("_delta_log"):
            commits = [int(name[:20]) for name in names if name.endswith(".json") and name[:20].isdecimal()]
            versions += max(commits, default=0)
    return versions, size, paths


def different(dsn: str, target: Path, tables: int) -> int:
    """Return the number of Delta tables whose rows differ from the server's."""
    found = 0
    with psycopg.connect(dsn) as connection:
        for number in range(tables):
            rows = connection.execute(f"SELECT id, v FROM t{number}".encode()).fetchall()
            have = DeltaTable(target / f"public.t{number}").to_pyarrow_table(columns=["id", "v"])
            found += sorted(rows) != sorted(zip(*have.to_pydict().values(), strict=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=167, help="transactions a second")
    parser.add_argument("--minutes", type=int, default=15)
    parser.add_argument("--latency", type=float, default=60)
    arguments = parser.parse_args()
    tables: int = arguments.tables
    with Server() as server, tempfile.TemporaryDirectory() as folder:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for number in range(tables):
                connection.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v text)".encode())
                connection.execute(f"INSERT INTO t{number} VALUES (1, 'first')".encode())
            connection.execute(b"CREATE PUBLICATION everything FOR ALL TABLES")
        target, recording = Path(folder, "lake"), Path(folder, "recording")
        command = [sys.executable, "-m", "logicalrep.cli"]
        record = [*command, "record", "--snapshot", "--slot=s", "--publication=everything"]
        place = [f"--recording={recording}"]
        follow = [*command, "replicate", "--follow", f"--latency={arguments.latency}", f"--target={target}"]
        with (
            started([*record, *place, f"--dsn={server.dsn}", "--segment-seconds=1"]) as recorder,
            started([*follow, *place]) as replica,
        ):
            measure(arguments, server.dsn, target)
            for name, running in (("replicate", replica), ("record", recorder)):
                running.interrupt()
                result = running.result()
                cores = result.cpu / result.seconds
                print(f"{name}: {result.cpu:.0f} s of CPU ({cores:.2f} cores), {result.memory} MB")
        print(f"{different(server.dsn, target, tables)} of {tables} tables differ")


def measure(arguments: argparse.Namespace, dsn: str, target: Path) -> None:
    """Change tables; print the costs of each minute."""
    tables: int = arguments.tables
    await_tables(target, tables)
    writer = Writer(dsn, tables, arguments.rate)
    lags = Lags(target, writer)
    writer.start()
    lags.start()
    versions, _, known = totals(target)
    for minute in range(1, arguments.minutes + 1):
        time.sleep(60)
        now, size, paths = totals(target)
        found, lags.found = lags.found, []
        print(
            f"minute {minute}: {now - versions:,} commits, {len(paths - known):,} new files, "
            f"{len(paths):,} files with {size / 1e6:.0f} MB, lag at most {max(found, default=0):.1f} s",
            flush=True,
        )
        versions, known = now, paths
    writer.stop.set()
    writer.join()
    lags.stop.set()
    time.sleep(2 * arguments.latency + 30)


def await_tables(target: Path, tables: int) -> None:
    """Wait until all tables are copied."""
    end = time.monotonic() + PATIENCE
    while len(list(target.glob("public.t*/_delta_log/*1.json"))) < tables:
        assert time.monotonic() < end, "the copies of the tables are missing"
        time.sleep(1)


if __name__ == "__main__":
    main()
