"""Benchmark of a Delta table after many commits that mark rows in deletion vectors.

`python -m benchmarks.many_commits [ROWS [COMMITS [UPDATES]]]`

A table with ROWS rows gets COMMITS commits of UPDATES updates of random rows each. The benchmark prints the
files, the bytes of data and log, the bytes written and the CPU time for each changed row as the commits go
on, and at the end how long deltalake takes to read all rows, as a ratio to a copy that was just written.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from unittest import mock

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.large_table import Writer, fill, scrambled
from pgoutput.columns import encode_inserts, encode_updates
from pgoutput.replica import replica_tables, replicate
from tests.replica.tables import open_table

ROWS: Final = 5_000_000
COMMITS: Final = 100
UPDATES: Final = 5_000
_REPORTS: Final = 5


def main() -> None:
    given = [int(float(text)) for text in sys.argv[1:]]
    rows, commits, updates = [*given, *(ROWS, COMMITS, UPDATES)[len(given) :]]
    with tempfile.TemporaryDirectory(prefix="pgoutput-bench-") as folder:
        measure(Path(folder), rows, commits, updates)


def measure(folder: Path, rows: int, commits: int, updates: int) -> None:
    """Make the commits, and print what they cost."""
    recording, target = folder / "recording", folder / "target"
    writer = Writer(recording)
    writer.write(encode_inserts, np.arange(1), np.arange(1))
    replicate(recording, target, updates="vectors")
    (replica,) = replica_tables(target).values()
    place = Path(replica.place)
    fill(open_table(place), rows)
    print(f"{rows:,} rows, {commits:,} commits of {updates:,} updates", flush=True)
    random = np.random.default_rng(1)
    seen: dict[Path, int] = {}
    for first in range(0, commits, commits // _REPORTS):
        for number in range(first, first + commits // _REPORTS):
            keys = random.choice(rows, updates, replace=False)
            writer.write(encode_updates, keys, scrambled(np.arange(len(keys)) + number * updates))
        known, cpu = set(seen), time.process_time()
        with mock.patch("pgoutput.replica.replication.SEGMENTS_PER_BATCH", 1):
            replicate(recording, target)
        cpu = time.process_time() - cpu
        for path in [*place.glob("*.parquet"), *(place / "_delta_log").iterdir()]:
            seen[path] = path.stat().st_size
        written = sum(size for path, size in seen.items() if path not in known)
        changes = updates * (commits // _REPORTS)
        log = [path.stat().st_size for path in (place / "_delta_log").iterdir()]
        data = [one.size for one in open_table(place).files()]
        print(
            f"  {first + commits // _REPORTS:,} commits: {len(data)} files with {sum(data) >> 20:,} MB, "
            f"{len(list(place.glob('*.parquet')))} on disk, {len(log)} files of the log with "
            f"{sum(log) >> 20:,} MB; {written / changes:,.0f} bytes and {1e6 * cpu / changes:,.0f} µs of CPU "
            "for each changed row",
            flush=True,
        )
    copy = folder / "copy"
    table = pa.table(DeltaTable(place).scan())
    write_deltalake(copy, table)
    assert table.num_rows == rows
    del table
    times = {path: min(scan(path) for _ in range(3)) for path in (place, copy)}
    print(f"  all rows read in {times[place] / times[copy]:.2f} times the time of a table just written")


def scan(place: Path) -> float:
    """Return the seconds of reading all rows of a Delta table."""
    began = time.perf_counter()
    for _ in DeltaTable(place).scan():
        pass
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
