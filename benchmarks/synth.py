"""Making segments with `pgoutput synth`, beside `pg_recvlogical -f /dev/null`, which only receives.

The server has done the same workload: the same changes of the same rows in the same transactions, as SQL.
Both are whole commands and take turns. `pgoutput synth` makes more of it, so that the second in which Python
starts does not count for much. PostgreSQL 18 is the wheel's.
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
from pgoutput.recording import list_segments, read_metadata
from pgoutput.synth.workload import Workload
from tests.server import Server
from tests.synth.workloads import create_tables, statements, stream

AT_LEAST: Final = 5
"""How many times as many messages a second as the server sends, at least."""

MORE: Final = 20
"""So many times the server's transactions are made."""

MORE_MEMORY: Final = 1.25
"""How much the memory may grow from the small run to the large one, which is 10 times as large."""

WORKLOAD: Final = Workload(transactions=100_000, large=0, seed=7)
ROUNDS: Final = 3


class Made(msgspec.Struct, frozen=True):
    """What one run of `pgoutput synth` took."""

    messages: int
    seconds: float
    peak: int
    """Bytes of resident memory, at most; without those of its two workers, which have a window at a time."""


def main() -> int:
    slots = [f"bench_{i}" for i in range(ROUNDS)]
    with Server(logical_decoding_work_mem="64MB", max_wal_size="8GB", autovacuum="off") as server:
        end, messages = prepare(server, slots)
        received, made = [], []
        for slot in slots:
            received.append(messages / seconds(lambda slot=slot: receive(server, slot, end)))  # type: ignore[misc]
            made.append(synth(MORE * WORKLOAD.transactions))
    rates = [one.messages / one.seconds for one in made]
    print(f"{'pg_recvlogical':18} {statistics.median(received):11,.0f} messages a second")
    print(f"{'pgoutput synth':18} {statistics.median(rates):11,.0f} messages a second")
    ratios = [one / other for one, other in zip(rates, received, strict=True)]
    ratio, listed = statistics.median(ratios), ", ".join(f"{ratio:.1f}" for ratio in ratios)
    print(f"Making has {ratio:.1f} times the speed of receiving (rounds: {listed}).")
    small = synth(MORE * WORKLOAD.transactions // 10)
    large = max(made, key=lambda one: one.peak)
    for one in (small, large):
        print(f"{one.messages:,} messages take {one.peak >> 20} MB in the process that hands them out")
    kept = ratio >= AT_LEAST and large.peak <= MORE_MEMORY * small.peak
    limits = f"at least {AT_LEAST} times, and memory at most {MORE_MEMORY} times as much"
    print(f"Promised: {limits}: {'kept' if kept else 'broken'}.")
    return 0 if kept else 1


def prepare(server: Server, slots: list[str]) -> tuple[str, int]:
    """Have the server do the workload; give the LSN behind it, and how many messages it sends."""
    with server.connect() as connection:
        for statement in create_tables(WORKLOAD):
            connection.execute(statement.encode())
        connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        for slot in (*slots, "count"):
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        transactions = statements(WORKLOAD, stream(WORKLOAD))
        while some := list(islice(transactions, 50)):
            connection.execute(";".join(some).encode())
        row = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        count = connection.execute(
            "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('count', NULL, NULL,"
            " 'proto_version', '4', 'publication_names', 'p')"
        ).fetchone()
        connection.execute("SELECT pg_drop_replication_slot('count')")
    assert row is not None
    assert count is not None
    return str(row[0]), int(count[0])


def synth(transactions: int) -> Made:
    """Make so many transactions."""
    with tempfile.TemporaryDirectory(prefix="pgoutput-bench-") as folder:
        out = Path(folder) / "out"
        options = ["--transactions", str(transactions), "--large", "0", "--seed", str(WORKLOAD.seed)]
        command = [sys.executable, "-c", RECORDER, "synth", *options, "-o", str(out)]
        began = time.perf_counter()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        taken = time.perf_counter() - began
        messages = sum(read_metadata(path).messages for path in list_segments(out))
        return Made(messages, taken, int(done.stdout))


if __name__ == "__main__":
    raise SystemExit(main())
