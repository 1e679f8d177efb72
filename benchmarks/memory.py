"""The memory that it takes to record one large transaction: `python -m benchmarks.memory`.

Each recording is a process of its own, which tells its peak of resident memory in the end. PostgreSQL 18
is the wheel's.
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
ROWS: Final = (1_000, 1_000_000)
"""Bytes of a row: ordinary ones, and large ones."""
OPTIONS: Final = {
    "protocol 4, streaming = parallel": ["--proto", "4", "--streaming", "parallel"],
    "protocol 1": ["--proto", "1"],
}
LIMIT: Final = 200 << 20


class Measured(msgspec.Struct, frozen=True):
    """How a transaction was recorded."""

    stored: int
    """Bytes of segments."""
    peak: int
    """Bytes of resident memory, at most."""
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
        raise SystemExit(f"That is more than {LIMIT >> 20} MiB.")


def write(server: Server, slots: list[str], size: int, row: int) -> None:
    """Make slots, and a transaction for them of about so many bytes, in rows of so many bytes."""
    with server.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute("DROP PUBLICATION IF EXISTS p")
        connection.execute("CREATE TABLE t (id int8, a text)")
        connection.execute("ALTER TABLE t ALTER a SET STORAGE EXTERNAL")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        for slot in slots:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        # Text that does not compress well: rows begin with what is their own.
        connection.execute(
            "INSERT INTO t SELECT g, rpad(md5(g::text), %s::int, md5(g::text) || md5((g + 1)::text))"
            " FROM generate_series(1, %s::int) g",
            [row, size // row],
        )


# Not what the system counts for a child: that begins with the memory of the parent (execve in getrusage(2)).
RECORDER: Final = """
import atexit
import resource
import sys


def tell():
    try:
        with open("/proc/self/status") as status:
            (line,) = (line for line in status if line.startswith("VmHWM:"))
        print(int(line.split()[1]) * 1024)
    except FileNotFoundError:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


atexit.register(tell)
from pgoutput.cli import main
main()
"""


def record(server: Server, slot: str, options: list[str]) -> Measured:
    """Record what a slot has."""
    with tempfile.TemporaryDirectory(prefix="pgoutput-memory-") as folder:
        command = [sys.executable, "-c", RECORDER, "record", "--dsn", server.dsn, "--slot", slot]
        command += ["--publication", "p", "--out", folder, "--until", "now", *options]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr}")
        stored = sum(path.stat().st_size for path in Path(folder).glob("*.parquet"))
        return Measured(stored, int(done.stdout), time.monotonic() - began)


if __name__ == "__main__":
    main()
