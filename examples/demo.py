"""A tour of logicalrep in a minute: record a running PostgreSQL 18, replicate it, and compare.

The demo starts a server with the database of a small shop, and records it while SQL statements change it:
first a snapshot of the tables, then the stream of changes, with streamed and prepared transactions. Spark
reads the recording and keeps one Delta table per table of the shop; then the same is done without Spark. In
the end the demo compares each Delta table with the server's table: as `logicalrep verify` does, and row by
row. Exit code 0 means that all tables are equal.

The output is plain ASCII and fits into 60 columns.
"""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from rich.console import Console

from examples import shop
from logicalrep.recorder import Connected, Event, Recorder, RecorderOptions
from logicalrep.recording import find_inconsistencies, list_segments, read_metadata
from logicalrep.replica import TableResult, replica_tables, replicate as replicate_without_spark
from logicalrep.spark import LogicalrepDataSource, local_session, replicate
from logicalrep.verification import verify_tables
from logicalrep.wire import format_lsn
from tests.server import Server
from tests.truth import TrueTable, equals_typed

OPERATIONS = ("Snapshot", "Insert", "Update", "Delete", "Truncate")
SAMPLE_TABLE = "public.products"
SAMPLE_CHARACTERS = 27

OPTIONS = RecorderOptions(two_phase=True, messages=True)

console = Console(highlight=False)


def main() -> int:
    """Run the demo; return its exit code: 0 if all tables are equal, otherwise 1."""
    with tempfile.TemporaryDirectory(prefix="logicalrep-demo-") as folder:
        recording, target = Path(folder, "recording"), Path(folder, "tables")
        same = Path(folder, "same")
        step(1, "A PostgreSQL 18 server starts, with the database of a small shop.")
        with Server() as server:
            shop.open_shop(server)
            step(2, "The recorder copies the tables and then follows all changes, while the shop is at work:")
            record(server, recording)
            server_tables = shop.true_tables(server)
            summarize_recording(recording)
            step(3, "Spark reads the recording. These are its messages, counted by type:")
            with local_session("logicalrep demo") as session:
                session.dataSource.register(LogicalrepDataSource)
                count_messages(session, recording)
                step(4, "Spark applies the committed changes to Delta tables. Changes applied to each table:")
                apply_changes(session, recording, target)
            step(5, "The same changes are applied to other Delta tables without Spark, in this process:")
            apply_without_spark(recording, same)
            step(
                6,
                "The Delta tables are compared with the server's as logicalrep verify does, by hashes:",
            )
            unequal = verify(server, recording, target)
        step(7, "Each Delta table is also compared row by row, without the code of logicalrep verify:")
        unequal += compare_tables([target, same], server_tables)
    console.print()
    if unequal:
        say(f"These differ from the server's own tables: {', '.join(unequal)}.", indent="", style="bold red")
        return 1
    say("Every Delta table equals the server's table.", indent="", style="bold green")
    return 0


def say(text: str, *, indent: str = "   ", style: str = "") -> None:
    """Print text, wrapped at the width of the terminal, but at most 80 columns."""
    width = min(console.width, 80)
    lines = textwrap.fill(text, width, initial_indent=indent, subsequent_indent="   ")
    console.print(lines, markup=False, style=style, soft_wrap=True)


def step(number: int, sentence: str) -> None:
    """Print the number of a step of the demo, and a sentence that says what the step does."""
    if number > 1:
        console.print()
    say(sentence, indent=f"{number}. ", style="bold")


def say_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table at its full width: the first column aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        first, *others = (
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        console.print("   " + "  ".join((first, *others)).rstrip(), markup=False, soft_wrap=True)


def record(server: Server, folder: Path) -> None:
    """Record a snapshot and the shop's workload in one session, and the remaining changes in a second one."""
    arguments = (server.dsn, "shop", ["shop"], folder)
    with running_recorder(*arguments, options=OPTIONS, snapshot=True), server.connect() as connection:
        for event, statements in shop.WORKLOAD.items():
            say(event, indent="   - ")
            shop.run(connection, statements)
    Recorder(*arguments, options=OPTIONS).run(until="now")


@contextmanager
def running_recorder(*arguments: Any, **options: Any) -> Iterator[None]:
    """Run a recorder in a thread. The `with` block starts after the stream; its end stops the recorder."""
    is_ready = threading.Event()

    def run() -> None:
        try:
            recorder.run()
        finally:
            is_ready.set()

    def notice(event: Event) -> None:
        if isinstance(event, Connected):
            is_ready.set()

    recorder = Recorder(*arguments, **options, on_event=notice)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(run)
        try:
            is_ready.wait()
            yield
        finally:
            recorder.stop()
        result.result()


def summarize_recording(folder: Path) -> None:
    """Print the number of messages and segments of a recording, and any missing segments."""
    segments = [read_metadata(path) for path in list_segments(folder)]
    messages = sum(segment.messages for segment in segments)
    snapshot = sum(segment.kind == "snapshot" for segment in segments)
    gaps = "; ".join(find_inconsistencies(segments)) or "no gap"
    say(
        f"The recording has {messages:,} messages in {len(segments)} segments, {snapshot} of them the "
        f"snapshot, with {gaps}."
    )


def count_messages(session: SparkSession, recording: Path) -> None:
    """Print how many messages of each type a recording has."""
    messages = session.read.format("pgoutput").option("path", str(recording)).option("view", "messages")
    counts = messages.load().groupBy("type").count().orderBy("type").collect()
    say_table(("type", "messages"), [(row["type"], f"{row['count']:,}") for row in counts])


def apply_changes(session: SparkSession, recording: Path, target: Path) -> None:
    """Apply a recording's changes to Delta tables; print the number of changes by table and operation."""
    counts: dict[str, Counter[str]] = {}

    def report(batch: int, results: Sequence[TableResult]) -> None:
        for result in results:
            counts.setdefault(result.name, Counter()).update(result.changes)

    replicate(session, recording, target, on_batch=report)
    rows = [(name, *(f"{counts[name][operation]:,}" for operation in OPERATIONS)) for name in sorted(counts)]
    say_table(("table", *OPERATIONS), rows)


def apply_without_spark(recording: Path, target: Path) -> None:
    """Apply a recording's changes to Delta tables in this process; print their number and the time."""
    began, counts = time.monotonic(), Counter[str]()

    def report(batch: int, results: Sequence[TableResult]) -> None:
        for result in results:
            counts.update(result.changes)

    replicate_without_spark(recording, target, on_batch=report)
    say(f"{counts.total():,} changes were applied in {time.monotonic() - began:.1f} seconds.")


def verify(server: Server, recording: Path, target: Path) -> list[str]:
    """Print whether each Delta table equals the server's table; return the names of unequal tables."""
    with running_recorder(server.dsn, "shop", ["shop"], recording, options=OPTIONS):
        verdicts = sorted(verify_tables(recording, target, server.dsn), key=lambda verdict: verdict.table)
    say_table(
        ("table", "rows", "as of", "equal"),
        [
            (one.table, f"{one.rows:,}", format_lsn(one.lsn), "yes" if one.is_equal else "no")
            for one in verdicts
        ],
    )
    return [one.table for one in verdicts if not one.is_equal]


def compare_tables(targets: Sequence[Path], server_tables: list[TrueTable]) -> list[str]:
    """Print whether the Delta tables equal the server's tables; return the names of unequal tables."""
    replicas = [replica_tables(target) for target in targets]
    rows, unequal = [], []
    sample: list[tuple[str, str, str]] = []
    for table in sorted(server_tables, key=lambda table: table.name):
        found = [tables[table.oid] for tables in replicas if table.oid in tables]
        if len(found) < len(targets) or any(replica.error for replica in found):
            rows.append((table.name, "", "missing" if len(found) < len(targets) else "failed"))
            unequal.append(table.name)
            continue
        delta_tables = [DeltaTable(replica.place) for replica in found]
        delta_table = delta_tables[0]
        contents = pa.table(delta_table.scan())
        is_equal = all(equals_typed(table, pa.table(one.scan())) for one in delta_tables)
        rows.append((table.name, f"{contents.num_rows:,}", "yes" if is_equal else "no"))
        if not is_equal:
            unequal.append(table.name)
        if table.name == SAMPLE_TABLE:
            (row,) = contents.slice(0, 1).to_pylist()
            sample = [
                (field.name, str(field.type.type), shorten(row[field.name]))
                for field in delta_table.schema().fields
            ]
    say_table(("table", "rows", "equal"), rows)
    if sample:
        step(8, f"This is a row of the Delta table of {SAMPLE_TABLE}:")
        for name, type_, value in sample:
            console.print(f"   {name:<15}{type_:<15}{value}", markup=False, soft_wrap=True)
    return unequal


def shorten(value: object) -> str:
    """Return a value as ASCII text of at most `SAMPLE_CHARACTERS` characters."""
    if value is None:
        return "NULL"
    text = ascii(value) if isinstance(value, bytes | list) else str(value)
    limit = SAMPLE_CHARACTERS - len("...")
    return text if len(text) <= SAMPLE_CHARACTERS else f"{text[:limit]}..."


if __name__ == "__main__":
    logging.disable()  # at Ctrl-C, Spark's bridge to Java would log its own traceback
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
