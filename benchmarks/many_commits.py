"""Benchmark of a table after many commits that mark rows in deletion vectors, or position deletes of Iceberg.

`python -m benchmarks.many_commits [--iceberg] [ROWS [COMMITS [UPDATES]]]`

A table with ROWS rows gets COMMITS commits of UPDATES updates of random rows each. The benchmark prints the
files, the bytes of data and metadata, the bytes written and the CPU time for each changed row as the commits
go on. At the end it prints the CPU time in which deltalake or pyiceberg reads all rows, before and after
`maintain_tables`, as a ratio to the time after all data files were written again.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from unittest import mock

import numpy as np
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.large_table import Writer, fill, scrambled
from logicalrep.apply import DataFiles
from logicalrep.columns import encode_inserts, encode_updates
from logicalrep.replica import maintain_tables, replica_tables, replicate, use_iceberg
from logicalrep.targets.delta import cleaning
from tests.replica.tables import open_table

ROWS: Final = 5_000_000
COMMITS: Final = 100
UPDATES: Final = 5_000
_REPORTS: Final = 20
_RETENTION: Final = {
    "delta.logRetentionDuration": "interval 30 seconds",
    "delta.deletedFileRetentionDuration": "interval 60 seconds",
}
"""How long a Delta table keeps its log, and the names of replaced files in it: not for hours, as usual."""


def main() -> None:
    is_iceberg = "--iceberg" in sys.argv
    given = [int(float(text)) for text in sys.argv[1:] if text != "--iceberg"]
    rows, commits, updates = [*given, *(ROWS, COMMITS, UPDATES)[len(given) :]]
    with tempfile.TemporaryDirectory(prefix="logicalrep-bench-") as folder:
        measure(Path(folder), rows, commits, updates, is_iceberg=is_iceberg)


def measure(folder: Path, rows: int, commits: int, updates: int, *, is_iceberg: bool) -> None:
    """Make the commits, and print what they cost."""
    recording, target = folder / "recording", folder / "target"
    writer = Writer(recording)
    writer.write(encode_inserts, np.arange(1), np.arange(1))
    if is_iceberg:
        use_iceberg(target)
    replicate(recording, target, updates="vectors")
    (replica,) = replica_tables(target).values()
    place = Path(replica.place)
    fill(open_table(place), rows)
    if not is_iceberg:
        open_table(place).set_properties(_RETENTION)
    print(f"{rows:,} rows, {commits:,} commits of {updates:,} updates", flush=True)
    random = np.random.default_rng(1)
    seen: dict[Path, int] = {}
    for first in range(0, commits, commits // _REPORTS):
        for number in range(first, first + commits // _REPORTS):
            keys = random.choice(rows, updates, replace=False)
            writer.write(encode_updates, keys, scrambled(np.arange(len(keys)) + number * updates))
        known, cpu = set(seen), time.process_time()
        with (
            mock.patch("logicalrep.replica.replication.SEGMENTS_PER_BATCH", 1),
            mock.patch.multiple(cleaning, _HOURS=0, _has_our_retention=lambda _: True),
        ):
            replicate(recording, target)
        cpu = time.process_time() - cpu
        sizes = {path: path.stat().st_size for path in place.rglob("*") if _is_counted(path)}
        seen |= sizes
        written = sum(size for path, size in seen.items() if path not in known)
        changes = updates * (commits // _REPORTS)
        log = [size for path, size in sizes.items() if path.parent.name in ("_delta_log", "metadata")]
        data = [one.size for one in open_table(place).files()]
        print(
            f"  {first + commits // _REPORTS:,} commits: {len(data)} files with {sum(data) >> 20:,} MB, "
            f"{len(sizes) - len(log)} on disk, {len(log)} files of the metadata with {sum(log) >> 20:,} MB; "
            f"{written / changes:,.0f} bytes and {1e6 * cpu / changes:,.0f} µs of CPU for each changed row, "
            f"{1e3 * cpu * _REPORTS / commits:,.0f} ms for each commit",
            flush=True,
        )
    times = [min(scan(place, is_iceberg=is_iceberg) for _ in range(5))]
    maintain_tables(target)
    times.append(min(scan(place, is_iceberg=is_iceberg) for _ in range(5)))
    files = DataFiles(open_table(place))
    open_table(place).commit(files.write(batch for file in files for batch in files.read(file)), None)
    last = min(scan(place, is_iceberg=is_iceberg) for _ in range(5))
    before, maintained = (one / last for one in times)
    print(
        f"  all rows read with {before:.2f} times the CPU after all files were written again; "
        f"with {maintained:.2f} times after `maintain_tables`"
    )


def _is_counted(path: Path) -> bool:
    return path.is_file() and path.parent.name != "_logicalrep_index"


def scan(place: Path, *, is_iceberg: bool) -> float:
    """Return the seconds of CPU for reading all rows of a table."""
    began = time.process_time()
    if is_iceberg:
        catalog = SqlCatalog("logicalrep", uri=f"sqlite:///{place.parent}/_iceberg_catalog.db")
        namespace, name = place.name.split(".")
        batches = catalog.load_table((namespace, name)).scan().to_arrow_batch_reader()
    else:
        batches = DeltaTable(place).scan()
    for _ in batches:
        pass
    return time.process_time() - began


if __name__ == "__main__":
    main()
