"""The whole way in a minute: a real PostgreSQL 18 stream, through Spark, to tables.

The capture is that of a walsender with every option on: large transactions streamed in parallel, prepared
transactions, rolled-back savepoints, logical messages. Spark writes its messages and its tables as Parquet;
then each table is compared with what the server itself had in it. Exit code 0 says that all are equal.
"""

from __future__ import annotations

import logging
import tempfile

import pyarrow as pa
from pyspark.sql import SparkSession
from rich import box
from rich.console import Console
from rich.table import Table

from pgoutput.spark import SourceTable, local_session, write_tables
from pgoutput.spark.tables import table_paths
from tests.truth import CAPTURES, TrueTable, equals_typed, true_tables

CAPTURE = CAPTURES / "pg18_ws_p4_par_2pc_msg.jsonl.gz"
SHOWN_ROWS = 3
SHOWN_CHARACTERS = 24

console = Console(highlight=False)


def main() -> int:
    console.print(f"Starting Spark, to read [bold]{CAPTURE.name}[/], a stream that PostgreSQL 18 sent …")
    with (
        tempfile.TemporaryDirectory(prefix="pgoutput-demo-") as out,
        local_session("pgoutput demo") as session,
    ):
        tables = write_tables(session, [str(CAPTURE)], out)
        show_messages(session, out)
        unequal = show_tables(session, out, tables)
    if unequal:
        console.print(f"[bold red]These differ from the server's own tables: {', '.join(unequal)}")
        return 1
    console.print("[bold green]Every table equals the server's own contents.")
    return 0


def show_messages(session: SparkSession, out: str) -> None:
    counts = session.read.parquet(f"{out}/messages").groupBy("type").count().orderBy("type").collect()
    listed = ", ".join(f"{row['count']} {row['type']}" for row in counts)
    total = sum(row["count"] for row in counts)
    console.print(f"{total} messages: {listed}\n")


def show_tables(session: SparkSession, out: str, tables: list[SourceTable]) -> list[str]:
    """Print each table; give the names of those that the server had otherwise."""
    truth = {table.oid: table for table in true_tables("pg18")}
    unequal = []
    for table, path in zip(tables, table_paths(tables), strict=True):
        rows = session.read.parquet(f"{out}/tables/{path}").toArrow()
        verdict = compare(rows, truth.pop(table.oid, None))
        name = f"{table.relation.namespace}.{table.relation.name}"
        console.print(f"[bold]{name}[/], {rows.num_rows} rows: {verdict}", preview(rows))
        if verdict == DIFFERENT:
            unequal.append(name)
    # A table that is in no message must be empty on the server.
    return unequal + [table.name for table in truth.values() if table.rows]


EQUAL = "[green]equals the server's table"
DIFFERENT = "[red]differs from the server's table"
DROPPED = "[yellow]was dropped on the server"


def compare(rows: pa.Table, truth: TrueTable | None) -> str:
    if truth is None:
        return DROPPED
    return EQUAL if equals_typed(truth, rows) else DIFFERENT


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
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
