"""Benchmark of `logicalrep record` to an object store: `python -m benchmarks.object_stores`.

Transactions whose values do not compress are recorded to a local folder and to an S3 server: one that keeps
objects in memory, the same with a limit of its speed, and Moto's. The same segments are then stored without a
recorder, which is the limit of the store. An argument sets the size of the rows in MiB.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.memory import RECORDER
from logicalrep import compiled
from logicalrep.recording import ObjectStore
from tests import store
from tests.server import Server

MEBIBYTES: Final = 1024
"""Size of the rows, unless an argument says otherwise."""
AT_LEAST: Final = 0.8
"""Smallest allowed ratio of the speed of recording to a store to that of the slower of folder and store."""
ROUNDS: Final = 3
TRANSACTIONS: Final = 64

INSERT: Final = """
    INSERT INTO t SELECT string_agg(sha512((%s || '-' || g || '-' || i)::text::bytea), '')
    FROM generate_series(1, %s) g, generate_series(1, 128) i GROUP BY g"""
"""Rows of 8 KiB."""


@contextmanager
def in_memory(speed: float) -> Iterator[int]:
    """Run the server that keeps objects in memory, with a speed in MiB a second; yield its port."""
    command = [sys.executable, "-m", "benchmarks.memory_store", str(speed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


STORES: Final[dict[str, Callable[[float], AbstractContextManager[int]]]] = {
    "in memory": lambda folder: in_memory(math.inf),
    "in memory, 1.5 times as fast as the folder": lambda folder: in_memory(1.5 * folder),
    "Moto": lambda folder: store.moto(),
}
"""Functions that start a store, given the speed of the folder in MiB a second, by name of the store."""


class Recorded(msgspec.Struct, frozen=True):
    """Measurements of one recording."""

    speed: float
    """MiB of rows a second, from the start of the stream until the last segment was stored."""
    peak: int
    """Peak resident memory of the recorder, in bytes."""


def main() -> int:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else MEBIBYTES
    met = True
    print(f"logicalrep runs {compiled.HOW}.")
    with Server(logical_decoding_work_mem="64MB", max_wal_size="8GB", max_replication_slots="40") as server:
        slots = [f"bench_{number}" for number in range(2 * ROUNDS * len(STORES))]
        insert(server, slots, size)
        for name, start in STORES.items():
            ratios = []
            for number in range(ROUNDS):
                with tempfile.TemporaryDirectory(prefix="logicalrep-bench-") as folder:
                    local = record(server, slots.pop(), f"{folder}/out", size)
                    with start(local.speed) as port:
                        os.environ |= store.settings(port)
                        stored = record(server, slots.pop(), f"s3://{store.BUCKET}/recording", size)
                        alone = store_alone(sorted(Path(folder, "out").glob("*.parquet")))
                ratios.append(stored.speed / min(local.speed, alone))
                print(
                    f"{name}, round {number + 1}: folder {local.speed:.0f} MiB/s and {local.peak >> 20} MiB, "
                    f"store {stored.speed:.0f} MiB/s and {stored.peak >> 20} MiB, "
                    f"store without recorder {alone:.0f} MiB/s",
                    flush=True,
                )
            ratio = statistics.median(ratios)
            met &= ratio >= AT_LEAST or name == "Moto"  # takes processor time that the recorder needs
            print(f"{name}: {ratio:.2f} of the speed of the slower of folder and store.", flush=True)
    print(f"Target for the stores in memory: at least {AT_LEAST}: {'met' if met else 'MISSED'}.")
    return 0 if met else 1


def insert(server: Server, slots: list[str], mebibytes: int) -> None:
    """Create the slots and a table, and insert the rows."""
    with server.connect() as connection:
        connection.execute("CREATE TABLE t (value bytea)")
        connection.execute("ALTER TABLE t ALTER value SET STORAGE EXTERNAL")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        for slot in slots:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        for number in range(TRANSACTIONS):
            connection.execute(INSERT, [number, mebibytes * 128 // TRANSACTIONS])


def record(server: Server, slot: str, out: str, mebibytes: int) -> Recorded:
    """Record all changes of a slot, which have so many MiB, with the command `logicalrep record`."""
    stream = ["--dsn", server.dsn, "--slot", slot, "--publication", "p", "--until", "now", "--binary"]
    run = [sys.executable, "-c", RECORDER, "record", *stream, "--recording", out, "--log", "json"]
    *lines, peak = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    events = [json.loads(line) for line in lines]
    (begin,) = [one["time"] for one in events if one["event"] == "connected"]
    *_, end = [one["time"] for one in events if one["event"] == "stored"]
    seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    return Recorded(mebibytes / seconds, int(peak))


def store_alone(segments: list[Path]) -> float:
    """Store segments one after another, as a recorder does; return MiB a second."""
    objects = ObjectStore(f"s3://{store.BUCKET}/alone")
    start = time.perf_counter()
    for segment in segments:
        objects.create(segment.name, segment)
    return sum(one.stat().st_size for one in segments) / (time.perf_counter() - start) / (1 << 20)


if __name__ == "__main__":
    raise SystemExit(main())
