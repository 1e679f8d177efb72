"""Run cells of the grid: many cells share a server, a database and one `logicalrep sync`.

`python -m tests.grid.run --server 15 --minutes 60 --seed 0` writes results to .grid/SERVER.jsonl, and leaves
out the cells that this file has. `--cell` runs one cell, or all of a file with one name in each line.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, Self

import msgspec
import psycopg

from logicalrep.errors import LogicalrepError
from logicalrep.recording import locate
from logicalrep.replica import ReplicaTable, replica_table, replica_tables
from logicalrep.targets import find_table, registered_oids
from tests import temporary
from tests.grid.cells import Cell, cells, script
from tests.replica.tables import row_texts, rows_in
from tests.server import WHEEL_VERSION, Server

ROOT: Final = Path(__file__).parents[2]
SETUP: Final = Path(__file__).with_name("setup.sql").read_text()
OPTIONS: Final = "-c client_min_messages=error -c lock_timeout=60s -c extra_float_digits=3"

BATCH: Final = 400
"""Number of cells that share a database."""
PATIENCE: Final = 15
"""Seconds within which `sync` applies and copies everything, and 0.1 s more for each cell of the batch."""

PUBLISHED: Final = """
    SELECT c.oid, nspname, relname, c.relkind, {columns}
    FROM pg_publication_tables t JOIN pg_namespace n ON nspname = schemaname
    JOIN pg_class c ON relnamespace = n.oid AND relname = tablename
    WHERE pubname = ANY(%(names)s) AND nspname ~ '^c[0-9]' AND NOT EXISTS (
        SELECT FROM pg_partition_ancestors(c.oid) above JOIN pg_class a ON a.oid = above AND above <> c.oid
        JOIN pg_namespace m ON m.oid = a.relnamespace
        JOIN pg_publication_tables r ON r.schemaname = m.nspname AND r.tablename = a.relname
        JOIN pg_publication q ON q.pubname = r.pubname AND pubviaroot AND q.pubname = ANY(%(names)s))
"""
"""Query for the published tables, each with its columns and its row filter."""
COLUMNS: Final = """ARRAY(SELECT attname::text FROM pg_attribute
    WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum)"""
GONE: Final = """
    SELECT c.oid, nspname, relname, 'gone' || relkind::text, {columns}
    FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
    WHERE c.oid = ANY(%s) AND nspname ~ '^c[0-9]'
"""
"""Query for tables that exist, are not published, and are not marked as dropped in the replica."""

LIMITS: Final = re.compile(
    "its .* are not published|lack the columns of its replica identity|of unlogged or foreign partitions"
)
"""Pattern for reasons that stay, since a copy does not help: the table is refused with a sentence."""
OPAQUE: Final = {"m", "r", "w", "ms", "rs", "q"}
"""Columns whose values in binary format stay hexadecimal text, since logicalrep does not know their types."""

FAILURES: Final = {
    "silent": "rows differ, and may_differ is empty",
    "stuck": "rows differ: marked, and never copied",
    "false": "marked, though all rows are equal",
    "needless": "a known table was copied for nothing",
    "alarm": "a known table was marked for nothing, for a time",
    "ended": "`sync` ended",
}
OTHERS: Final = {"equal": "right", "refused": "refused with a sentence", "server": "refused by the server"}


class Result(msgspec.Struct):
    """What became of a cell."""

    cell: str
    outcome: str = "equal"
    detail: str = ""
    copies: int = 0


class Ended(Exception):
    """A program has ended; the text is the end of its output."""


class Batch:
    """Cells that share a database, a recording and a replica; a context manager.

    Attributes:
        has_self_check: Whether `sync` checks itself, and so copies what the recorder has missed.

    Args:
        server: The server.
        cases: Cells of one environment; number N has the schema `cN`.
        folder: A new folder for recording and replica.
    """

    has_self_check = False

    def __init__(self, server: Server, cases: list[Cell], folder: Path) -> None:
        self.server, self.folder = server, folder
        self.name = f"grid_{folder.name}"
        self.target = folder / "lake"
        self.cells = {f"c{number}": cell for number, cell in enumerate(cases)}
        self.scripts = {schema: script(cell, schema) for schema, cell in self.cells.items()}
        self.results = {schema: Result(cell.name) for schema, cell in self.cells.items()}
        self.modes = {cell.axes["mode"] for cell in cases}
        self.binary = cases[0].binary
        self._program: subprocess.Popen[bytes] | None = None
        self._markers = self._first_copy = 0
        self._tables: dict[int, ReplicaTable] = {}
        """The tables of the replica; opening all of them takes seconds."""
        self._cells_of: dict[int, str] = {}
        """The schema of the cell of each table of the server that was compared, by OID."""

    def __enter__(self) -> Self:
        self.folder.mkdir()
        self._admin(f"CREATE DATABASE {self.name}")
        self.connection = psycopg.connect(self.server.dsn, dbname=self.name, autocommit=True, options=OPTIONS)
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self.connection.close()
        with suppress(psycopg.Error):
            self._admin(f"SELECT pg_drop_replication_slot('{self.name}')")
            self._admin(f"DROP DATABASE {self.name}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self) -> list[Result]:
        """Run all cells; return their results."""
        self.prepare()
        if self.binary:
            self.record_and_replicate()
        else:
            self.synchronize()
        self.judge(0 if self.binary else PATIENCE + len(self.cells) / 10)
        return [*self.results.values()]

    def prepare(self) -> None:
        """Make the publications, and the tables of the cells that are known."""
        own = any(cell.has_own_publication for cell in self.cells.values())
        self.connection.execute(SETUP.encode())
        self.connection.execute(
            "CREATE PUBLICATION p FOR " + ("TABLE grid.marker, grid.bulk" if own else "ALL TABLES")
        )
        if self.server.version >= 13:
            self.connection.execute("ALTER PUBLICATION p SET (publish_via_partition_root)")
        for schema, one in self.scripts.items():
            if self.execute(schema, one.prepare):
                self.connection.execute(
                    f"INSERT INTO grid.tables VALUES ('{schema}', to_regclass('{schema}.t'))".encode()
                )
        self.publications = [
            name for (name,) in self.connection.execute("SELECT pubname FROM pg_publication")
        ]
        if any(cell.axes["trigger"] == "yes" for cell in self.cells.values()):
            self.finish("install-ddl-events", "--dsn", self.dsn)

    def synchronize(self) -> None:
        """Run the cells beside `sync`, or while it does not run."""
        self.start("sync")
        if "copying" in self.modes:
            self.wait_for_slot()
            self.run_cells("copying")
        self.follow()
        self.wait_for_first_copy()
        self.run_cells("running")
        time.sleep(3)
        self.run_late("copying", "running")
        if self.modes & {"restart", "stopped"}:
            self.follow()
            self.stop()
            self.start("record")
            self.wait_for_slot()
            self.run_cells("restart")
            self.stop()
            self.run_cells("stopped")
            self.start("sync")
            self.wait_for_slot()
            time.sleep(3)
            self.run_late("restart", "stopped")
        self.follow()

    def record_and_replicate(self) -> None:
        self.start("record", "--binary")
        self.wait_for_slot()
        self.run_cells("running")
        time.sleep(3)
        self.run_late("running")
        time.sleep(PATIENCE)  # for copies
        self.stop()
        self.finish("replicate", f"--recording={self.target / '_recording'}", f"--target={self.target}")

    # Statements

    def execute(self, schema: str, texts: Iterable[str]) -> bool:
        """Run statements of a cell; if the server refuses one, note that, and return False."""
        result = self.results[schema]
        text = ""
        if result.outcome == "equal":
            try:
                for text in texts:
                    self.connection.execute(text.encode())
            except psycopg.Error as error:
                with suppress(psycopg.Error):
                    self.connection.execute("ROLLBACK")
                result.outcome, result.detail = "server", f"{str(error).splitlines()[0]}: {text[-200:]}"
        return result.outcome == "equal"

    def run_cells(self, mode: str) -> None:
        for schema, cell in self.cells.items():
            if (
                cell.axes["mode"] == mode
                and self.execute(schema, self.scripts[schema].run)
                and cell.axes["follow"] == "now"
            ):
                self.execute(schema, self.scripts[schema].follow)

    def run_late(self, *modes: str) -> None:
        """Run the changes that follow after some seconds."""
        for schema, cell in self.cells.items():
            if cell.axes["mode"] in modes and cell.axes["follow"] == "late":
                self.execute(schema, self.scripts[schema].follow)

    def _admin(self, sql: str) -> None:
        with self.server.connect() as connection:
            connection.execute(sql.encode())

    # Programs

    @property
    def dsn(self) -> str:
        return self.server.dsn.replace("dbname=postgres", f"dbname={self.name}")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def start(self, command: str, *more: str) -> None:
        """Start `sync` or `record`."""
        options = [f"--dsn={self.dsn}", f"--slot={self.name}", "--detail", "--log=json", *more]
        options += [f"--publication={name}" for name in self.publications]
        if command == "sync":
            options += [f"--target={self.target}", *([] if self.has_self_check else ["--no-self-check"])]
        else:
            options += [f"--recording={self.target / '_recording'}", "--snapshot", "--segment-seconds=1"]
        with (self.folder / "log").open("ab") as log:
            program = [sys.executable, "-m", "logicalrep.cli", command, *options]
            self._program = subprocess.Popen(program, stdout=log, stderr=log, cwd=ROOT)

    def finish(self, *command: str) -> None:
        """Run another command until it ends."""
        program = [sys.executable, "-m", "logicalrep.cli", *command]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Ended(done.stderr[-1500:])

    def stop(self) -> None:
        if self._program is not None:
            program, self._program = self._program, None
            program.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                program.wait(60)
            program.kill()
            program.wait()

    def check(self) -> None:
        """Raise Ended if the program has ended by itself."""
        if self._program is not None and self._program.poll() is not None:
            raise Ended(" ".join(self.log.splitlines()[-6:])[-1500:].replace(str(self.folder), ""))

    def wait_for(self, condition: str, query: str, seconds: float = 300) -> None:
        """Wait until a query returns a row."""
        end = time.monotonic() + seconds
        while self.connection.execute(query.encode()).fetchone() is None:
            self.check()
            if time.monotonic() > end:
                raise Ended(f"not within {seconds} s: {condition}")
            time.sleep(0.1)

    def wait_for_slot(self) -> None:
        query = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{self.name}'"
        self.wait_for("a session", query + ("" if "copying" in self.modes else " AND active"))

    def follow(self) -> None:
        """Wait until everything so far was applied."""
        self._markers += 1
        self.connection.execute("INSERT INTO grid.marker VALUES (%s)", [self._markers])
        (marker,) = self.connection.execute("SELECT 'grid.marker'::regclass::oid").fetchone() or (0,)
        end = time.monotonic() + 300
        while True:
            self.check()
            with suppress(LogicalrepError, OSError):
                table = find_table(locate(self.target), marker)
                if table is not None and self._markers in rows_in(table)["id"].to_pylist():
                    return
            if time.monotonic() > end:
                raise Ended("the replica did not follow")
            time.sleep(0.3)

    def wait_for_first_copy(self) -> None:
        """Wait until the replica has the tables that no cell has altered yet; later copies count."""
        known = [
            schema
            for schema, cell in self.cells.items()
            if cell.state == "known"
            and cell.axes["mode"] != "copying"
            and self.results[schema].outcome == "equal"
        ]
        left = [
            oid
            for (oid,) in self.connection.execute(
                "SELECT oid FROM grid.tables WHERE name = ANY (%s)", [known]
            )
        ]
        end = time.monotonic() + 300
        while left := [
            oid for oid in left if (one := replica_table(self.target, oid)) is None or one.may_differ
        ]:
            self.check()
            if time.monotonic() > end:
                raise Ended("the first copy did not end")
            time.sleep(0.5)
        self._first_copy = len(self.log.splitlines())

    # Comparison

    def judge(self, patience: float) -> None:
        """Compare until all is right, or the time is over; set the outcomes."""
        end = time.monotonic() + patience
        wrong = self.compare()
        while (
            left := {cell for cell, (one, _) in wrong.items() if one != "refused"}
        ) and time.monotonic() < end:
            self.check()
            time.sleep(1)
            wrong = self.compare(left)
            if len(wrong) < len(left):  # on a busy machine, copies take longer
                end = time.monotonic() + patience
            if all(one == "refused" for one, _ in wrong.values()):
                wrong = self.compare()  # also those that were right, or refused, before
        wrong = self.compare() if left else wrong
        events = [
            msgspec.json.decode(line)
            for line in self.log.splitlines()[self._first_copy :]
            if line.startswith('{"event":"table')
        ]
        for schema, result in self.results.items():
            own = [one for one in events if is_known(one.get("table", ""), schema)]
            marked = [f"{one['table']} {one['reason']}" for one in own if one["event"] == "tableincomplete"]
            marked = [one for one in marked if not LIMITS.search(one)]
            result.copies = len([one for one in own if one["event"] == "tablecomplete"])
            if schema in wrong:
                result.outcome, result.detail = wrong[schema]
            elif result.outcome == "equal" and self.cells[schema].is_quiet and (result.copies or marked):
                result.outcome, result.detail = ("needless" if result.copies else "alarm"), "; ".join(marked)

    def compare(self, only: Set[str] = frozenset()) -> dict[str, tuple[str, str]]:
        """Return the outcome and its details of each cell with a table that is not right, of `only` some."""
        if only:
            again = {oid for oid, cell in self._cells_of.items() if cell in only}
            for oid in again | (registered_oids(locate(self.target)) - self._tables.keys()):
                if (one := replica_table(self.target, oid)) is not None:
                    self._tables[oid] = one
        else:
            self._tables = replica_tables(self.target)
        found = self._tables
        wrong: dict[str, tuple[str, str]] = {}
        for oid, (schema, name, kind, columns, server) in self.server_rows(found, only).items():
            cell = self._cells_of[oid] = schema.split("_")[0]
            table = found.get(oid)
            if wrong.get(cell, ("",))[0] == "silent":
                continue
            ours = None if table is None or not table.place else replica_rows(self.target, oid, columns)
            reasons = [] if table is None else [one.reason for one in table.may_differ]
            limits = [one for one in reasons if LIMITS.search(one)]
            if table is not None and (table.error or limits):
                wrong[cell] = "refused", f"{name}: {table.error or limits}"
            elif ours != server and (ours is not None or server) and not (kind == "gone" and reasons):
                wrong[cell] = (
                    "stuck" if reasons else "silent",
                    f"{name}: {difference(columns, server, ours)} {reasons or ''}",
                )
            elif kind != "gone" and reasons:
                wrong[cell] = "false", f"{name}: {reasons}"
        return wrong

    def server_rows(
        self, found: dict[int, ReplicaTable], only: Set[str]
    ) -> dict[int, tuple[str, str, str, list[str], list[Any]]]:
        """Return schema, name, kind, columns and rows of tables that are published, or gone."""
        columns = "t.attnames::text[], t.rowfilter" if self.server.version >= 15 else f"{COLUMNS}, NULL"
        names: dict[str, Any] = {"names": self.publications}
        tables: dict[int, tuple[str, str, str, list[str]]] = {}
        filters: dict[int, list[str | None]] = {}
        for oid, schema, name, kind, columns_of, where in self.connection.execute(
            PUBLISHED.format(columns=columns).encode(), names
        ):
            tables[oid] = (schema, name, kind, columns_of)
            filters.setdefault(oid, []).append(where)
        left = [oid for oid, one in found.items() if oid not in tables and not one.dropped]
        for oid, *row in self.connection.execute(GONE.format(columns=COLUMNS).encode(), [left]):
            tables[oid] = tuple(row)
        rows = {}
        for oid, (schema, name, kind, columns_of) in tables.items():
            if only and schema.split("_")[0] not in only:
                continue
            chosen = [one for one in columns_of if not (self.binary and one in OPAQUE)]
            conditions = filters.get(oid, [None])
            where = "" if None in conditions else " WHERE " + " OR ".join(f"({one})" for one in conditions)
            # A cast to text may give another text than the type's output function, as of inet.
            values = ", ".join(
                f'CASE num_nulls("{one}") WHEN 0 THEN format(\'%s\', "{one}") END' for one in chosen
            )
            alone = "ONLY " if kind.endswith("r") else ""
            query = f'SELECT ARRAY[{values}]::text[] FROM {alone}"{schema}"."{name}"{where}'
            server = sorted((row for (row,) in self.connection.execute(query.encode())), key=_order)
            rows[oid] = schema, name, kind[:4], chosen, server
        return rows


def is_known(table: str, schema: str) -> bool:
    """Return whether an event is about a known table of a cell; the tables of forms have names with a."""
    space, _, name = table.partition(".")
    return space.split("_")[0] == schema and not name.startswith("a")


def replica_rows(target: Path, oid: int, columns: list[str]) -> list[Any] | None:
    """Return the rows of a relation's table in the replica as text; None if they cannot be read."""
    try:
        if (table := find_table(locate(target), oid)) is None:
            return None
        rows = map(row_texts, rows_in(table).to_pylist())
        return sorted(([row.get(one) for one in columns] for row in rows), key=_order)
    except (LogicalrepError, OSError):  # `sync` renames its folder
        return None


def _order(row: list[str | None]) -> list[tuple[bool, str]]:
    return [(one is None, one or "") for one in row]


def difference(columns: list[str], server: list[Any], ours: list[Any] | None) -> str:
    """Return the rows that only one side has, reduced to the columns that differ."""
    if ours is None:
        return f"server has {len(server)} rows, and the replica no table"
    left, right = (
        [row for row in rows if row not in others] for rows, others in ((server, ours), (ours, server))
    )
    if len(server) != len(ours):
        return f"server {len(server)} rows, such as {left[:2]}; replica {len(ours)}, such as {right[:2]}"
    places = [
        n for n in range(len(columns)) if Counter(row[n] for row in left) != Counter(row[n] for row in right)
    ]
    return "; ".join(
        f"{columns[n]} {[row[n] for row in left][:4]}, replica {[row[n] for row in right][:4]}"
        for n in places
    )


def run_cells(server: Server, cases: list[Cell], folder: Path) -> Iterator[Result]:
    """Run cells of one environment; if `sync` ends, run those that its error names alone, or each half."""
    with Batch(server, cases, folder / str(time.monotonic_ns())) as batch:
        try:
            yield from batch.run()
            return
        except Ended as error:
            text = str(error)
    if len(cases) == 1:
        is_told = cases[0].is_unsafe and "publication" in text
        yield Result(cases[0].name, "refused" if is_told else "ended", text)
        return
    guilty = {int(one) for one in re.findall(r"\bc(\d+)(?:_\w)?\.", text)}
    parts = [[one for n, one in enumerate(cases) if (n in guilty) is named] for named in (True, False)]
    if not all(parts):
        parts = [cases[: len(cases) // 2], cases[len(cases) // 2 :]]
    for part in parts:
        yield from run_cells(server, part, folder)


def batches(chosen: list[Cell], size: int) -> Iterator[list[Cell]]:
    """Divide cells by environment; those of all environments come in turns."""
    groups: dict[str, list[Cell]] = {}
    for cell in chosen:
        groups.setdefault(cell.environment, []).append(cell)
    parts = [
        (start, group[start : start + size])
        for group in groups.values()
        for start in range(0, len(group), size)
    ]
    yield from (part for _, part in sorted(parts, key=lambda one: one[0]))


def report(version: int, results: list[Result], seconds: float) -> str:
    """Return one line for each cell that failed, which reproduces it, and the counts."""
    counts = Counter(one.outcome for one in results)
    lines = [
        f"{one.outcome}: make grid SERVER={version} CELL={shlex.quote(one.cell)}  # {one.detail}"
        for one in results
        if one.outcome in FAILURES
    ]
    totals = [f"{counts[name]:6} {name}: {text}" for name, text in (OTHERS | FAILURES).items()]
    return "\n".join([*lines, f"PostgreSQL {version}: {len(results)} cells, {seconds:.0f} s", *totals])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=int, default=WHEEL_VERSION)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--match", default="", help="only cells whose name has this regular expression")
    parser.add_argument("--cell", default=os.environ.get("CELL", ""))
    parser.add_argument("--self-check", action="store_true", help="with the self-check of `sync`")
    options = parser.parse_args()
    Batch.has_self_check = options.self_check
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends `sync` too
    temporary.use_memory()
    path = ROOT / ".grid" / f"{options.server}.jsonl"
    path.parent.mkdir(exist_ok=True)
    done: list[Result] = []
    if options.cell:
        names = (
            Path(options.cell).read_text().splitlines() if Path(options.cell).is_file() else [options.cell]
        )
        chosen, path = [Cell.parse(name) for name in names], Path(os.devnull)
    else:
        if path.exists():
            done = [msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines()]
        have = {one.cell for one in done}
        chosen = [one for one in cells(options.server, options.seed) if one.name not in have]
        chosen = [one for one in chosen if re.search(options.match, one.name)]
        Random(options.seed).shuffle(chosen)
    began = time.monotonic()
    with (
        Server(options.server, max_connections="60") as server,
        tempfile.TemporaryDirectory() as folder,
        path.open("ab") as file,
    ):
        for batch in batches(chosen[: options.limit], options.batch):
            if time.monotonic() - began > 60 * options.minutes:
                print(f"stopped after {options.minutes} minutes; run it again for the rest")
                break
            for result in run_cells(server, batch, Path(folder)):
                done.append(result)
                file.write(msgspec.json.encode(result) + b"\n")
                file.flush()
            print(
                f"{len(done)} cells, {time.monotonic() - began:.0f} s: {batch[0].environment}",
                file=sys.stderr,
                flush=True,
            )
    print(report(options.server, done, time.monotonic() - began))
    return any(one.outcome in FAILURES for one in done)


if __name__ == "__main__":
    sys.exit(main())
