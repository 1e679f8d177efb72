"""Benchmark of updates of random rows in a large Delta table, without Spark.

`python -m benchmarks.large_table [ROWS ...]`

Two Delta tables with six columns get their rows in the order of the key. Then 5,000, again 5,000, and 500,000
updates of random rows are recorded, and applied by a process of its own each, with deletion vectors to one
table and without to the other. The benchmark prints CPU time and peak memory of that process, the number of
data files that were written again, and the bytes written for each changed row. It checks that only files with
changed rows were written again, that the table has the new values, and the memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.one_table import PER_TRANSACTION, SHAPE, SOURCE, texts
from benchmarks.streams import OID, Numbers
from logicalrep import messages, v4
from logicalrep.apply.data_files import DataFiles
from logicalrep.columns import encode_inserts, encode_updates
from logicalrep.messages import XLogData
from logicalrep.recording import SegmentWriter, SessionStart
from logicalrep.replica import Updates, replica_tables, replicate
from logicalrep.targets import Table
from logicalrep.values import to_arrow
from tests.replica.tables import open_table

ROWS: Final = 5_000_000, 20_000_000, 50_000_000
UPDATES: Final = 5_000, 5_000, 500_000
"""Number of updates that are recorded at a time. With vectors, the first run makes the index of keys."""
MODES: Final[tuple[Updates, ...]] = "vectors", "rewrite"
MAX_MEMORY: Final = 2048
"""Largest allowed peak memory, in MB."""
_BATCH_ROWS: Final = 1 << 16


class Usage(msgspec.Struct):
    """What a process used that has applied updates."""

    cpu: float
    """Seconds of CPU, without the imports."""
    wall: float
    memory: int
    """Peak memory, in MB."""


def main() -> int:
    if sys.argv[1:2] == ["apply"]:
        recording, target, updates = sys.argv[2:]
        print(msgspec.json.encode(apply(Path(recording), Path(target), updates)).decode())  # type: ignore[arg-type]
        return 0
    met = True
    for rows in [int(float(text)) for text in sys.argv[1:]] or ROWS:
        with tempfile.TemporaryDirectory(prefix="logicalrep-bench-") as folder:
            met &= measure(Path(folder), rows)
    return 0 if met else 1


def measure(folder: Path, rows: int) -> bool:
    """Update a table with this number of rows; return whether the memory stayed within its limit."""
    recording = folder / "recording"
    writer = Writer(recording)
    writer.write(encode_inserts, np.arange(1), np.arange(1))
    for mode in MODES:
        run_apply(recording, folder / mode, mode)
        (replica,) = replica_tables(folder / mode).values()
        fill(open_table(replica.place), rows)
    size = sum(pa.table(DeltaTable(replica.place).get_add_actions())["size_bytes"].to_pylist())
    print(
        f"{rows:,} rows, {size >> 20:,} MB in {len(DeltaTable(replica.place).file_uris())} files:", flush=True
    )
    met, number = True, rows
    for count in UPDATES:
        keys = np.random.default_rng(number).choice(rows, min(count, rows), replace=False)
        numbers = scrambled(np.arange(number, number + len(keys)))
        number += len(keys)
        writer.write(encode_updates, keys, numbers)
        for mode in MODES:
            met &= measure_updates(recording, folder / mode, mode, rows, keys, numbers)
    return met


def measure_updates(
    recording: Path, target: Path, mode: Updates, rows: int, keys: Numbers, numbers: Numbers
) -> bool:
    """Apply recorded updates; return whether the memory stayed within its limit."""
    (replica,) = replica_tables(target).values()
    count = len(keys)
    before = files_with_keys(replica.place)
    version = DeltaTable(replica.place).version()
    usage = run_apply(recording, target, mode)
    after = DeltaTable(replica.place)
    rewritten, written = changed_files(Path(replica.place), version, after.version())
    unchanged = [path for path in rewritten & before.keys() if not np.isin(before[path], keys).any()]
    assert not unchanged, f"files without a changed row were written again: {unchanged}"
    check_rows(after, rows, keys, numbers)
    print(
        f"  {mode}, {count:,} updates in {after.version() - version} commits: {usage.cpu:.2f} s of CPU, "
        f"{usage.wall:.1f} s, peak memory {usage.memory:,} MB; "
        f"{len(rewritten & before.keys())} of {len(before)} files written again, "
        f"{written / count:,.0f} bytes written for each changed row",
        flush=True,
    )
    return usage.memory <= MAX_MEMORY


class Writer:
    """Writes a recording of changes of one table, a segment for each call."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        source = msgspec.structs.replace(SOURCE, recording=str(uuid4()))
        self._writer = SegmentWriter(folder, source, SessionStart(session=1, number=1, position=0, lsn=0))
        self._transactions = 0

    def write(self, encode: Callable[..., pa.BinaryArray], keys: Numbers, numbers: Numbers) -> None:
        """Record changes of the rows with the given keys, in transactions of ten, and end the segment."""
        data = encode(OID, texts(keys, numbers)).to_pylist()
        wrapped: list[XLogData] = []
        for first in range(0, len(data), PER_TRANSACTION):
            self._transactions += 1
            lsn, time_ = 1000 * self._transactions, 800_000_000_000_000 + self._transactions
            commit = messages.Commit(commit_lsn=lsn, end_lsn=lsn + 1, commit_time=time_)
            wrapped.append(
                XLogData(
                    wal_start=lsn,
                    wal_end=lsn,
                    send_time=0,
                    data=v4.encode(messages.Begin(final_lsn=lsn, commit_time=time_, xid=self._transactions)),
                )
            )
            wrapped += [XLogData(wal_start=0, wal_end=0, send_time=0, data=SHAPE.relation)] * (
                self._transactions == 1
            )
            wrapped += [
                XLogData(wal_start=lsn, wal_end=lsn, send_time=0, data=one)
                for one in data[first : first + PER_TRANSACTION]
            ]
            wrapped.append(XLogData(wal_start=lsn, wal_end=lsn, send_time=0, data=v4.encode(commit)))
        self._writer.write(wrapped, 1_000_000)
        self._writer.rotate()


def fill(table: Table, rows: int) -> None:
    """Add the rows with keys from 1 to a Delta table that has the row with key 0."""
    schema, files = table.schema, DataFiles(table)

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(1, rows, _BATCH_ROWS):
            keys = np.arange(first, min(first + _BATCH_ROWS, rows))
            yield pa.record_batch(
                [*typed(schema, keys, scrambled(keys)), pa.nulls(len(keys), schema[-1].type)], schema=schema
            )

    table.commit(files.write(batches()), [])


def scrambled(numbers: Numbers) -> Numbers:
    """Return pseudo-random numbers, so that the values of successive rows cannot be compressed well."""
    return numbers * 2_654_435_761 % 2**31


def typed(schema: pa.Schema, keys: Numbers, numbers: Numbers) -> list[pa.Array]:
    """Return the columns of rows, in the types of the Delta table."""
    return [
        to_arrow(cells, type_.oid, type_.modifier, field.type)[0]
        for cells, type_, field in zip(texts(keys, numbers), SHAPE.types, schema, strict=False)
    ]


def run_apply(recording: Path, target: Path, updates: Updates) -> Usage:
    """Apply a recording in a process of its own."""
    arguments = ["-m", "benchmarks.large_table", "apply", str(recording), str(target), updates]
    done = subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout, type=Usage)


def apply(recording: Path, target: Path, updates: Updates) -> Usage:
    """Apply the changes that the target lacks; return what this process used."""
    cpu, wall = time.process_time(), time.perf_counter()
    replicate(recording, target, updates=updates)
    status = Path("/proc/self/status").read_text()  # ru_maxrss is also that of the process before
    memory = int(status.partition("VmHWM:")[2].split()[0]) >> 10
    return Usage(time.process_time() - cpu, time.perf_counter() - wall, memory)


def files_with_keys(place: str) -> dict[str, Numbers]:
    """Return the keys in each data file of the current version of a Delta table, by path."""
    paths = pa.table(DeltaTable(place).get_add_actions())["path"].to_pylist()
    return {path: pq.read_table(Path(place, path), columns=["c0"])["c0"].to_numpy() for path in paths}


def changed_files(place: Path, before: int, after: int) -> tuple[set[str], int]:
    """Return the paths of the files that commits have removed, and the number of bytes they have written."""
    removed, added, written = set(), set(), 0
    for version in range(before + 1, after + 1):
        commit = (place / "_delta_log" / f"{version:020}.json").read_bytes()
        written += len(commit)
        for line in commit.splitlines():
            for kind, action in msgspec.json.decode(line).items():
                if kind == "remove":
                    removed.add(action["path"])
                elif kind == "add":
                    added.add(action["path"])
    written += sum((place / path).stat().st_size for path in added - removed)
    return removed - added, written


def check_rows(table: DeltaTable, rows: int, keys: Numbers, numbers: Numbers) -> None:
    """Check that the table has each key once, and that the rows with the given keys have new values."""
    seen = np.zeros(rows, np.int8)
    order = np.argsort(keys)
    expected = typed(pa.schema(table.schema().to_arrow()), keys[order], numbers[order])
    types = pa.schema(table.schema().to_arrow())
    schema = pa.schema([types.field(name) for name in ("c0", "c1")])
    for found in pa.RecordBatchReader.from_stream(table.scan(["c0", "c1"])):
        batch = found.cast(schema)
        key = batch["c0"].to_numpy()
        np.add.at(seen, key, 1)
        places = np.searchsorted(keys[order], key)
        places[places == len(keys)] = 0
        updated = np.flatnonzero(keys[order][places] == key)
        assert pc.all(pc.equal(batch["c1"].take(updated), expected[1].take(places[updated]))).as_py() in (
            True,
            None,
        )
    assert (seen == 1).all()


if __name__ == "__main__":
    sys.exit(main())
