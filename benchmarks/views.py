"""Benchmark of the views in Spark, against a `mapInArrow` that returns a recording's messages unchanged.

A SegmentWriter writes the recordings, without a server: six columns, 110 bytes per message, segments of 8 MB.
Times are those of whole queries with the sink `noop`, in one Spark session with two cores. Memory is the
resident memory of the largest Python worker, and of the Java virtual machine with a heap of 1 GB.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from benchmarks import one_table
from benchmarks.process_tree import process_tree
from logicalrep import messages as m, v4
from logicalrep.messages import Message, XLogData
from logicalrep.recording import SegmentWriter, SessionStart
from logicalrep.spark import from_pgoutput, local_session

SIZES = 1_000_000, 10_000_000
"""Number of changes in the small and in the large recording."""
STREAMED = 5_000_000
"""Number of rows in the streamed transaction."""
ROUNDS = 9
MAX_TIME_GROWTH = 1.2
"""Largest allowed ratio of a view's time per message on the large recording to that on the small one."""

FUNCTION_TARGET = 0.6
"""Smallest allowed ratio of the speed of `from_pgoutput` to that of a `mapInArrow` of the same structs."""

TARGETS = {"rows": 0.65, "changes": 0.4}
"""Smallest allowed ratio of a view's speed to that of `mapInArrow`, by the name in the results."""

MAX_MEMORY_GROWTH = 1.25
"""Largest allowed ratio of the Python worker's memory for the large recording to that for the small one."""

OID = 16384
TYPES = (20, -1), (25, -1), (1700, (12 << 16 | 2) + 4), (1184, -1), (16, -1), (25, -1)
COLUMNS = tuple(
    m.RelationColumn(flags=m.ColumnFlag(not i), name=f"c{i}", type_oid=oid, type_modifier=modifier)
    for i, (oid, modifier) in enumerate(TYPES)
)
ORDERS = m.Relation(
    oid=OID, namespace="public", name="orders", replica_identity=m.ReplicaIdentity.DEFAULT, columns=COLUMNS
)
SOURCE = replace(one_table.SOURCE, recording="", options={"streaming": "parallel"})
VIEW_OPTIONS: dict[str, dict[str, Any]] = {
    "messages": {"view": "messages"},
    "changes": {"view": "changes"},
    "table": {"view": "table", "table": "public.orders"},
    "rows": {"view": "table", "table": "public.orders", "columns": "operation, commit_lsn, position, after"},
}
"""Options with which the data source reads a view, by the name in the results."""


def main() -> int:
    met = True
    with tempfile.TemporaryDirectory(prefix="logicalrep-bench-") as folder:
        recordings = {size: Path(folder, str(size)) for size in SIZES}
        for size, path in recordings.items():
            write(path, ordinary(size))
        streamed = Path(folder, "streamed")
        write(streamed, one_streamed(STREAMED))
        with local_session("benchmark", cores=2, config={"spark.driver.memory": "1g"}) as session:
            met &= show_rates(session, recordings)
            met &= show_streamed(session, streamed)
            met &= show_functions(session, recordings[SIZES[0]], Path(folder, "structs"))
    return 0 if met else 1


def show_rates(session: SparkSession, recordings: dict[int, Path]) -> bool:
    """Measure all views; print speed, ratio to `mapInArrow`, and memory; return whether targets are met."""
    met = True
    small, large = recordings
    for view in VIEW_OPTIONS:
        ratios: list[float] = []
        times: dict[int, float] = {}
        memory: dict[int, dict[str, int]] = {}
        for size, path in recordings.items():
            view_times = []
            for _ in range(ROUNDS if size == small else 1):
                baseline = seconds(pass_through, session, path)
                with peak_memory() as peak:
                    view_times.append(seconds(read, session, path, view))
                if size == small:
                    ratios.append(baseline / view_times[-1])
            times[size], memory[size] = statistics.median(view_times), dict(peak)
        growth = times[large] / large / (times[small] / small)
        print(
            f"{view:9}{large / times[large]:11,.0f} messages a second,"
            f" {statistics.median(ratios):.2f} of mapInArrow"
            f" (rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)});"
            f" time per message of {large:,} to that of {small:,}: {growth:.2f};"
            f" worker {memory[small]['python']} and {memory[large]['python']} MB"
        )
        met &= statistics.median(ratios) >= TARGETS.get(view, 0)
        met &= growth <= MAX_TIME_GROWTH
        met &= memory[large]["python"] <= MAX_MEMORY_GROWTH * memory[small]["python"]
    targets = ", ".join(f"{view} at least {ratio} of mapInArrow" for view, ratio in TARGETS.items())
    growth_limits = f"time per message at most {MAX_TIME_GROWTH}, memory at most {MAX_MEMORY_GROWTH} times"
    print(f"Targets: {targets}; {growth_limits}: {'met' if met else 'MISSED'}.")
    return met


def show_streamed(session: SparkSession, path: Path) -> bool:
    """Read a large streamed transaction; print time and memory; return whether all changes were read."""
    with peak_memory() as peak:
        start = time.perf_counter()
        rows = load(session, path, "changes").count()
        elapsed = time.perf_counter() - start
    print(
        f"One streamed transaction of {STREAMED:,} rows ({size_of(path)} MB of messages):"
        f" {rows:,} changes in {elapsed:.0f} s; worker {peak['python']} MB, Java {peak['java']} MB,"
        f" driver {peak['driver']} MB"
    )
    return rows == STREAMED


def show_functions(session: SparkSession, path: Path, structs: Path) -> bool:
    """Decode all Inserts of a recording with `from_pgoutput`; return whether the target is met."""
    data = session.read.parquet(str(path)).select("data")
    decode = {
        name: data.select(from_pgoutput("data", proto_version=4, message=name, mode="FAILFAST").alias("m"))
        for name in ("Insert", "Begin")
    }
    decode["Insert"].write.parquet(str(structs))
    decoded = session.read.parquet(str(structs))
    identity = decoded.mapInArrow(same, decoded.schema)
    ratios: dict[str, list[float]] = {"Insert": [], "Begin": [], "same structs": []}
    for _ in range(ROUNDS):
        baseline = seconds(pass_through, session, path)
        times = {name: seconds(drop, df) for name, df in decode.items()}
        for name, elapsed in times.items():
            ratios[name].append(baseline / elapsed)
        ratios["same structs"].append(seconds(drop, identity) / times["Insert"])
    shown = {name: statistics.median(found) for name, found in ratios.items()}
    met = shown["same structs"] >= FUNCTION_TARGET
    print(
        f"from_pgoutput: {shown['same structs']:.2f} of mapInArrow of the structs of Inserts; of mapInArrow "
        f"of the messages {shown['Insert']:.2f} for Inserts, and {shown['Begin']:.2f} for Begins. "
        f"Target: at least {FUNCTION_TARGET} of the same structs: {'met' if met else 'MISSED'}."
    )
    return met


def drop(df: DataFrame) -> None:
    """Compute all rows of a DataFrame, and drop them."""
    df.write.format("noop").mode("overwrite").save()


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches unchanged."""
    yield from batches


def load(session: SparkSession, path: Path, view: str) -> DataFrame:
    """Return a view of a recording as a DataFrame."""
    reader = session.read.format("pgoutput").option("path", str(path))
    return reader.options(**VIEW_OPTIONS[view]).load()


def read(session: SparkSession, path: Path, view: str) -> None:
    """Read all rows of a view of a recording with Spark, and drop them."""
    drop(load(session, path, view))


def pass_through(session: SparkSession, path: Path) -> None:
    """Read a recording's messages with Spark, pass them through Python unchanged, and drop them."""
    data = session.read.parquet(str(path)).select("data")
    drop(data.mapInArrow(same, data.schema))


def seconds(work: Callable[..., None], *arguments: Any) -> float:
    """Call a function; return how many seconds it ran."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


@contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Yield a dict that after the `with` block has the peak memory in MB by kind: driver, java, python."""
    peak = {"driver": 0, "java": 0, "python": 0}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            for one in process_tree(os.getpid()):
                peak[one.kind] = max(peak[one.kind], one.memory)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def size_of(path: Path) -> int:
    """Return the size of a recording's messages, in MB."""
    tables = (pq.read_table(file, columns=["data"]) for file in path.glob("*.parquet"))
    return sum(int(table.nbytes) for table in tables) >> 20


def write(folder: Path, stream: Iterable[Message]) -> None:
    """Write messages as a recording with one session."""
    folder.mkdir()
    writer = SegmentWriter(
        folder, SOURCE, SessionStart(session=1, number=1, position=0, lsn=0), segment_bytes=8 << 20
    )
    data = (XLogData(wal_start=0, wal_end=0, send_time=0, data=v4.encode(message)) for message in stream)
    while batch := list(islice(data, 1_000)):
        writer.write(batch, 0)
    writer.rotate()


def ordinary(size: int) -> Iterator[Message]:
    """Yield `size` changes, a quarter of them Updates, in transactions of 1,000 changes, and one Relation."""
    for start in range(0, size, 1_000):
        lsn = 1_000 + start
        yield m.Begin(final_lsn=lsn + 100, commit_time=0, xid=700 + start // 1_000)
        if not start:
            yield ORDERS
        for i in range(start, start + 1_000):
            yield m.Insert(relation_oid=OID, new=row(i)) if i % 4 else m.Update(relation_oid=OID, new=row(i))
        yield m.Commit(commit_lsn=lsn + 100, end_lsn=lsn + 110, commit_time=0)


def one_streamed(size: int) -> Iterator[Message]:
    """Yield one streamed transaction with `size` Inserts, in stream blocks of 10,000 Inserts."""
    for start in range(0, size, 10_000):
        yield m.StreamStart(xid=7, first_stream_segment=not start)
        if not start:
            yield replace(ORDERS, xid=7)
        yield from (m.Insert(relation_oid=OID, new=row(i), xid=7) for i in range(start, start + 10_000))
        yield m.StreamStop()
    yield m.StreamCommit(xid=7, commit_lsn=10_000, end_lsn=10_010, commit_time=0)


def row(i: int) -> tuple[str, ...]:
    """Return the cells of row number `i` in text format."""
    return (
        str(i),
        f"customer-{i % 977}",
        f"{i % 9999}.{i % 100:02}",
        f"2026-11-21 10:00:{i % 60:02}.123456+00",
        "t",
        f"note {i} for the order",
    )


if __name__ == "__main__":
    sys.exit(main())
