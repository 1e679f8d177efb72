"""The whole way in a minute: a live PostgreSQL 18, recorded, replicated by Spark, and compared.

A shop's database is recorded while it is at work: a snapshot of its tables first, then the stream, with large
transactions streamed in parallel and prepared ones sent when they are prepared. Spark shows what is in the
recording, and keeps a Delta table for each of the shop's; then each is compared with what the server has in
it. Exit code 0 says that all are equal.
"""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from rich import box
from rich.console import Console
from rich.table import Table

from examples import shop
from pgoutput.cli import replication
from pgoutput.recorder import Connected, Event, Recorder, RecorderOptions
from pgoutput.recording import find_inconsistencies, list_segments, read_metadata
from pgoutput.spark import local_session, replica_tables
from tests.server import Server
from tests.truth import TrueTable, equals_typed

SHOWN_ROWS = 3
SHOWN_CHARACTERS = 24

console = Console(highlight=False)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="pgoutput-demo-") as folder:
        recording = Path(folder, "shop")
        console.print("Starting PostgreSQL 18 …")
        with Server() as server:
            shop.open_shop(server)
            record(server, recording)
            truth = shop.true_tables(server)
        show_segments(recording)
        console.print("Starting Spark …")
        with local_session("pgoutput demo") as session:
            show_messages(session, recording)
            replica = f"{folder}/replica"
            console.print("[bold]pgoutput replicate[/], changes made in each table:")
            replication.replicate(str(recording), replica, follow=False, history=False, strict=True)
            unequal = show_tables(replica, truth)
    if unequal:
        console.print(f"[bold red]These differ from the server's own tables: {', '.join(unequal)}")
        return 1
    console.print("[bold green]Every table equals the server's own contents.")
    return 0


def record(server: Server, folder: Path) -> None:
    """Record the shop while it is at work; then what is left, in a second session."""
    arguments = (server.dsn, "shop", ["shop"], folder)
    options = RecorderOptions(two_phase=True, messages=True)
    with recording(*arguments, options=options, snapshot=True), server.connect() as connection:
        for event, statements in shop.WORKLOAD.items():
            console.print(f"  {event}")
            shop.run(connection, statements)
    Recorder(*arguments, options=options).run(until="now")


@contextmanager
def recording(*arguments: Any, **options: Any) -> Iterator[None]:
    """A recorder at work in a thread: the snapshot is made, and it streams."""
    streams = threading.Event()

    def run() -> None:
        try:
            recorder.run()
        finally:
            streams.set()

    def notice(event: Event) -> None:
        if isinstance(event, Connected):
            streams.set()

    recorder = Recorder(*arguments, **options, on_event=notice)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run)
        try:
            streams.wait()
            yield
        finally:
            recorder.stop()
        ended.result()


def show_segments(folder: Path) -> None:
    segments = [read_metadata(path) for path in list_segments(folder)]
    snapshot = sum(segment.kind == "snapshot" for segment in segments)
    console.print(
        f"Recorded {sum(segment.messages for segment in segments)} messages in {len(segments)} segments, "
        f"{snapshot} of them the snapshot; {segments[-1].session} sessions; "
        f"{'; '.join(find_inconsistencies(segments)) or 'no gap'}.\n",
        soft_wrap=True,
    )


def show_messages(session: SparkSession, recording: Path) -> None:
    source = session.read.format("pgoutput").option("path", str(recording))
    counts = source.option("view", "messages").load().groupBy("type").count().orderBy("type").collect()
    listed = ", ".join(f"{row['count']} {row['type']}" for row in counts)
    console.print(f"Messages: {listed}\n", soft_wrap=True)


def show_tables(replica: str, truth: list[TrueTable]) -> list[str]:
    """Print each table; give the names of those that the server has otherwise, or that are missing."""
    unequal = []
    places = replica_tables(replica)
    for table in sorted(truth, key=lambda one: one.name):
        if table.oid not in places:
            unequal.append(table.name)
            continue
        rows = DeltaTable(places[table.oid].place).to_pyarrow_table()
        equal = equals_typed(table, rows)
        verdict = "[green]equals the server's table" if equal else "[red]differs from the server's table"
        console.print(f"[bold]{table.name}[/], {rows.num_rows} rows: {verdict}", preview(rows))
        if not equal:
            unequal.append(table.name)
    return unequal


def preview(rows: pa.Table) -> Table:
    grid = Table(box=box.SIMPLE, padding=(0, 1))
    for field in rows.schema:
        grid.add_column(f"{field.name}\n[dim]{str(field.type).partition('<')[0]}", no_wrap=True)
    for row in rows.slice(0, SHOWN_ROWS).to_pylist():
        grid.add_row(*map(cell, row.values()))
    return grid


def cell(value: object) -> str:
    if value is None:
        return "[dim]NULL"
    text = " ".join(str(value).split()).replace("[", "\\[")
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


if __name__ == "__main__":
    logging.disable()  # at Ctrl-C, Spark's bridge to Java would log its own traceback
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
