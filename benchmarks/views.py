"""The views of a recording in Spark, beside a `mapInArrow` that hands on the same bytes; and their memory.

Recordings are made by a SegmentWriter, without a server: six columns, 110 bytes a message, segments of 8 MB.
Times are of whole queries that write nowhere, in one session with two cores; resident memory is that of the
largest Python worker, and of the Java virtual machine with a heap of 1 GB.
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

from pgoutput import messages as m
from pgoutput import v4
from pgoutput.messages import Message, XLogData
from pgoutput.recording import SegmentWriter, SessionStart, Source
from pgoutput.spark import local_session

SIZES = 1_000_000, 10_000_000
STREAMED = 5_000_000
ROUNDS = 9
LINEAR = 1.2
"""How many times the time per message of the small recording a large one may take."""

PROMISED = {"table": 0.7, "changes": 0.4}
"""The rate of a view, at least, as a ratio to identity."""

FLAT = 1.25
"""How many times the memory of the small recording a large one may take."""

OID = 16384
TYPES = (20, -1), (25, -1), (1700, (12 << 16 | 2) + 4), (1184, -1), (16, -1), (25, -1)
COLUMNS = tuple(m.RelationColumn(not i, f"c{i}", *type_) for i, type_ in enumerate(TYPES))
ORDERS = m.Relation(OID, "public", "orders", m.ReplicaIdentity.DEFAULT, COLUMNS)
SOURCE = Source(
    recording="",
    system_identifier="1",
    server_version="18.4",
    database="bench",
    slot="bench",
    publications=("bench",),
    proto_version=4,
    options={"streaming": "parallel"},
)
READ: dict[str, dict[str, Any]] = {"messages": {}, "changes": {}, "table": {"table": "public.orders"}}
"""The views, with the options that they need."""


def main() -> int:
    kept = True
    with tempfile.TemporaryDirectory(prefix="pgoutput-bench-") as folder:
        recordings = {size: Path(folder, str(size)) for size in SIZES}
        for size, path in recordings.items():
            write(path, ordinary(size))
        streamed = Path(folder, "streamed")
        write(streamed, one_streamed(STREAMED))
        with local_session("benchmark", cores=2, config={"spark.driver.memory": "1g"}) as session:
            kept &= show_rates(session, recordings)
            kept &= show_streamed(session, streamed)
    return 0 if kept else 1


def show_rates(session: SparkSession, recordings: dict[int, Path]) -> bool:
    """Print rates, ratios and memory of all views; give whether they are as promised."""
    kept = True
    small, large = recordings
    for view in READ:
        ratios: list[float] = []
        times: dict[int, float] = {}
        memory: dict[int, dict[str, int]] = {}
        for size, path in recordings.items():
            taken = []
            for _ in range(ROUNDS if size == small else 1):
                before = seconds(identity, session, path)
                with peak_memory() as peak:
                    taken.append(seconds(read, session, path, view))
                if size == small:
                    ratios.append(before / taken[-1])
            times[size], memory[size] = statistics.median(taken), dict(peak)
        grows = times[large] / large / (times[small] / small)
        print(
            f"{view:9}{large / times[large]:11,.0f} messages a second,"
            f" {statistics.median(ratios):.2f} of identity"
            f" (rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)});"
            f" time per message of {large:,} to that of {small:,}: {grows:.2f};"
            f" worker {memory[small]['python']} and {memory[large]['python']} MB"
        )
        kept &= statistics.median(ratios) >= PROMISED.get(view, 0)
        kept &= grows <= LINEAR and memory[large]["python"] <= FLAT * memory[small]["python"]
    rates = " and ".join(f"{view} at least {ratio} of identity" for view, ratio in PROMISED.items())
    print(f"Promised: {rates}, time grows linearly (at most {LINEAR}), memory is flat (at most {FLAT}).")
    return kept


def show_streamed(session: SparkSession, path: Path) -> bool:
    """Print what a large streamed transaction takes; give whether all of it came."""
    with peak_memory() as peak:
        start = time.perf_counter()
        rows = load(session, path, "changes").count()
        taken = time.perf_counter() - start
    print(
        f"One streamed transaction of {STREAMED:,} rows ({size_of(path)} MB of messages):"
        f" {rows:,} changes in {taken:.0f} s; worker {peak['python']} MB, Java {peak['java']} MB,"
        f" driver {peak['driver']} MB"
    )
    return rows == STREAMED


def load(session: SparkSession, path: Path, view: str) -> DataFrame:
    reader = session.read.format("pgoutput").option("path", str(path)).option("view", view)
    return reader.options(**READ[view]).load()


def read(session: SparkSession, path: Path, view: str) -> None:
    load(session, path, view).write.format("noop").mode("overwrite").save()


def identity(session: SparkSession, path: Path) -> None:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    data = session.read.parquet(str(path)).select("data")
    data.mapInArrow(same, data.schema).write.format("noop").mode("overwrite").save()


def seconds(work: Callable[..., None], *arguments: Any) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


@contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Most resident memory while it lasts, in MB: of the driver, Java, and the largest Python worker."""
    peak = {"driver": 0, "java": 0, "python": 0}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            for kind, size in resident(os.getpid()):
                peak[kind] = max(peak[kind], size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def resident(driver: int) -> Iterator[tuple[str, int]]:
    """What this process and its descendants are, and their resident memory in MB."""
    parents, processes = {driver}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                said = (entry / "stat").read_text()
                pages = int((entry / "statm").read_text().split()[1])
            except OSError:  # it has ended
                continue
            name, _, rest = said.partition("(")[2].rpartition(")")
            processes[int(entry.name)] = (name, int(rest.split()[1]), pages * os.sysconf("SC_PAGESIZE") >> 20)
    yield "driver", processes[driver][2]
    while parents:
        children = {pid for pid, (_, parent, _) in processes.items() if parent in parents}
        for pid in children:
            name, _, size = processes[pid]
            yield ("java" if name == "java" else "python"), size
        parents = children


def size_of(path: Path) -> int:
    """Bytes of messages in a recording, in MB."""
    tables = (pq.read_table(file, columns=["data"]) for file in path.glob("*.parquet"))
    return sum(int(table.nbytes) for table in tables) >> 20


def write(folder: Path, stream: Iterable[Message]) -> None:
    """Write a recording."""
    folder.mkdir()
    writer = SegmentWriter(
        folder, SOURCE, SessionStart(session=1, number=1, position=0, lsn=0), segment_bytes=8 << 20
    )
    data = (XLogData(0, 0, 0, v4.encode(message)) for message in stream)
    while batch := list(islice(data, 1_000)):
        writer.write(batch, 0)
    writer.rotate()


def ordinary(size: int) -> Iterator[Message]:
    """Transactions of 1,000 changes, a quarter of them updates; the relation is described once."""
    for start in range(0, size, 1_000):
        lsn = 1_000 + start
        yield m.Begin(lsn + 100, 0, 700 + start // 1_000)
        if not start:
            yield ORDERS
        for i in range(start, start + 1_000):
            yield m.Insert(OID, row(i)) if i % 4 else m.Update(OID, row(i))
        yield m.Commit(lsn + 100, lsn + 110, 0)


def one_streamed(size: int) -> Iterator[Message]:
    """One transaction of inserts, in blocks of 10,000."""
    for start in range(0, size, 10_000):
        yield m.StreamStart(7, first_segment=not start)
        if not start:
            yield replace(ORDERS, xid=7)
        yield from (m.Insert(OID, row(i), 7) for i in range(start, start + 10_000))
        yield m.StreamStop()
    yield m.StreamCommit(7, 10_000, 10_010, 0)


def row(i: int) -> tuple[str, ...]:
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
