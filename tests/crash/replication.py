"""Crash test of recorder, table snapshots and replica: random actions while many tables change.

`python -m tests.crash.replication --tables 200 --seconds 1800 --seed 1`

Recorder, replica and server are killed, tables join and leave the publication, and snapshots of tables are
requested. Tables of the replica, and files about its progress, are replaced by older copies or removed. Rows
of the replica are changed, which `logicalrep verify` must find. In the end each published table
of the replica must equal the server's table. After a failure the folder with the recording, the replica, the
server's rows and the logs is kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, Self, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from logicalrep.errors import RecordingError
from logicalrep.recorder import is_requested, request_snapshot
from logicalrep.recording import Location, Recording
from logicalrep.replica import replica_tables, use_iceberg
from tests.crash.recorder import PUBLICATION
from tests.crash.run import draw_options
from tests.crash.shapes import QUIET, Tables
from tests.crash.verification import change_rows, found_ids, is_replaced, read_verdicts, row_keys
from tests.replica.tables import open_table, read_table
from tests.server import WHEEL_VERSION, Server
from tests.truth import TrueTable, equals_typed

ROOT: Final = Path(__file__).parents[2]

Engine: TypeAlias = Literal["spark", "direct", "mixed"]

ENGINES: Final[dict[Engine, tuple[str, ...]]] = {
    "spark": ("--spark",),
    "direct": ("",),
    "mixed": ("--spark", ""),
}
"""By engine, options of `logicalrep replicate`; each of its runs takes the next one, from the first again."""
UPDATES: Final = "", "--updates=vectors", "--updates=vectors", "--updates=rewrite"
"""Options of `logicalrep replicate`, one of which is chosen at random for each of its runs."""

SEGMENT_BYTES: Final = 1 << 17, 1 << 20
"""Sizes at which the recorder ends a segment, one of which is chosen at random."""

PATIENCE: Final = 1800
"""Seconds that the recorder, and then the replica, may take to catch up after the workload has ended."""

CATALOG_SECONDS: Final = 30
"""Seconds within which the recorder notices that a table has joined or left the publication."""

PROGRESS: Final = "_reached.json", "_relations"
"""Names of files and folders of a replica with its positions, and with the places of its tables."""

PAUSES: Final = 0.0, 0.05, 0.5, 3.0
"""Seconds between two statements or processes of one action; one of these values is chosen at random."""


class Outcome(msgspec.Struct, frozen=True):
    """Result of a crash test of a replica."""

    actions: dict[str, int]
    """Number of actions, by name."""
    steps: int
    """Number of steps that all writers of the workload have run."""
    segments: int
    tables: int
    rows: int
    different: tuple[str, ...]
    """Name and difference, as one text, of each table of the replica that differs from the server's table."""
    seconds: float

    def __str__(self) -> str:
        actions = ", ".join(f"{name} {times} times" for name, times in sorted(self.actions.items()))
        return (
            f"{actions}; {self.steps:,} steps of writers, {self.segments:,} segments, {self.seconds:.0f} s\n"
            f"{self.tables} tables with {self.rows:,} rows, {len(self.different)} of them different"
        )


class Program:
    """A program that can be started repeatedly; a context manager whose exit kills the program.

    Args:
        name: Name of the program in error messages, and of its log.
        command: Module and arguments.
        folder: Folder for the log.
    """

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self._name = name
        self._command = command
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def start(self, *more: str) -> None:
        """Start the program with further arguments; kill it before if it runs."""
        self.kill()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._command, *more],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the program and its descendants, also descendants in other process groups."""
        if self._process is not None:
            for pid in [self._process.pid, *_descendants(self._process.pid)]:
                _kill(pid)
            with self._process as process:
                process.wait()
            self._process = None

    def kill_java(self) -> None:
        """Kill the Java process that the program has started, if any."""
        assert self._process is not None
        for pid in _descendants(self._process.pid):
            if _process_name(pid) == "java":
                _kill(pid)

    def poll(self) -> int | None:
        """Return the exit code of the program, or None if it runs."""
        assert self._process is not None
        return self._process.poll()

    def wait(self) -> int:
        """Wait until the program has ended; return its exit code."""
        assert self._process is not None
        return self._process.wait(PATIENCE)

    def check(self) -> bool:
        """Return whether the program runs; raise AssertionError if it was not killed and has ended."""
        code = self.poll()
        assert code in (None, -signal.SIGKILL), f"{self._name} has ended with code {code}: {self.output}"
        return code is None

    def finish(self, *more: str) -> None:
        """Run the program until it exits; raise AssertionError unless its exit code is 0."""
        self.start(*more)
        assert self.wait() == 0, f"{self._name} failed: {self.output}"

    @property
    def output(self) -> str:
        """The last 4000 characters of the program's output."""
        return self.log[-4000:]

    @property
    def log(self) -> str:
        """The output of all runs of the program."""
        return self._log.read_text(errors="replace")


class Request(msgspec.Struct, frozen=True):
    """A request to the recorder for snapshots of tables, which may not be done yet."""

    path: Location
    tables: list[str]
    began: float
    """Time of the request, by time.monotonic()."""


class Comparison(msgspec.Struct, frozen=True):
    """A run of `logicalrep verify`, which compares the replica with the server."""

    program: Program
    began: float
    """Time at which the comparison began, by time.monotonic()."""
    incomplete: set[str]
    """Qualified names of the tables that were incomplete when the comparison began."""


class Run:
    """One run of the crash test; a context manager whose exit stops the server and kills all programs.

    Attributes:
        random: Random numbers that decide which actions run.
        server: The server.
        work: The tables, and the writers that change them.
        recorder: The recorder. It may kill itself at a random file operation.
        replica: The program that keeps the replica.
        published: Names of the tables that are published.
        actions: Number of actions that have run, by name.
        recording: Folder of the recording.
        target: Folder of the replica.

    Args:
        folder: Folder for recording, replica and logs.
        tables: Number of tables. Half of them are published at first.
        seed: Seed of all random decisions. The time of each decision depends on the speed of the machine.
        engine: Whether the replica is kept with Spark, without, or by both in turns.
        unsent: Whether to alter columns also in ways that give existing rows values that are not sent.
        iceberg: Whether the tables of the replica are Iceberg tables.
        pause: Seconds that each writer waits after a step, in addition to its own pauses.
    """

    def __init__(
        self,
        folder: Path,
        tables: int,
        seed: int,
        engine: Engine,
        *,
        unsent: bool,
        iceberg: bool = False,
        pause: float = 0.0,
    ) -> None:
        self.random = Random(seed)
        self.actions: Counter[str] = Counter()
        self.recording, self.target = folder / "recording", folder / "replica"
        if iceberg:
            use_iceberg(self.target, partition=self.random.choice([[], ["bucket(3, id)"]]))
        self._folder = folder
        self._began = time.monotonic()
        self._requests: list[Request] = []
        self._left: dict[str, float] = {}
        """Times by time.monotonic() at which tables left the publication, by name."""
        self._joined: dict[str, float] = {}
        """Times by time.monotonic() at which tables joined the publication or were restored, by name."""
        self._comparison: Comparison | None = None
        self._interrupted: Comparison | None = None
        """The last comparison, if a kill has interrupted it; otherwise None."""
        self._comparisons = 0
        self._unsent, self._iceberg = unsent, iceberg
        self._engines = cycle(ENGINES[engine])
        self._repaired: dict[str, int] = {}
        """Commit LSNs of the positions of Delta tables before their last repair, by qualified table name."""
        self._changed: dict[str, set[str]] = {}
        """Ids of the rows of the replica that were changed and are not repaired, by qualified table name."""
        self._changed_at: dict[str, int] = {}
        """Commit LSNs of the positions of Delta tables when rows were changed, by qualified table name."""
        self._first = self.random.sample(list(ACTIONS), len(ACTIONS))
        """Actions that have not run yet. Each action runs once before any runs again."""
        self._stack = ExitStack()
        self.server = self._stack.enter_context(Server())
        self.work = Tables(self.server.dsn, tables, seed, unsent=unsent, pause=pause)
        self.published = set(self.work.names[: tables // 2])
        options = msgspec.json.encode(draw_options(WHEEL_VERSION, self.random)).decode()
        self._segments = str(self.random.choice(SEGMENT_BYTES)), "0.5"
        history = ["--history"] if self.random.random() < 0.3 else []
        self.log(f"seed {seed}, {engine}, {options}, segments {self._segments} {' '.join(history)}")
        recorder = ["tests.crash.recorder", self.server.dsn, str(self.recording), options, PUBLICATION, ""]
        places = [f"--recording={self.recording}", f"--target={self.target}"]
        self.recorder = self._stack.enter_context(Program("recorder", recorder, folder))
        self.replica = self._stack.enter_context(
            Program("replica", ["logicalrep.cli", "replicate", *places, *history], folder)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def run(self, seconds: float) -> None:
        """Run random actions for `seconds`, then let recorder and replica catch up; check the replica."""
        with self.server.connect() as connection:
            self.work.create(connection, sorted(self.published))
        # The slot is there before schemas change: see tests.crash.workload.
        self.recorder.finish("now", "0", *self._segments)
        with self.work:
            self.start_recorder()
            self.start_replica()
            end = time.monotonic() + seconds
            while self._first or time.monotonic() < end:
                time.sleep(self.random.uniform(0, 2))
                self._act()
        with self.server.connect() as connection:
            self.work.touch(connection)
        self.log("catching up")
        if self._comparison is not None:
            self._comparison.program.wait()
            self._check_comparison()
        self.recorder.finish("now", "0", *self._segments)
        self._prove()
        self._check_requests()
        assert not self._requests, f"the recorder has not stored {self._requests}: {self.recorder.output}"
        self.replica.finish(*self._engine())

    def start_recorder(self) -> None:
        """Start the recorder, which in some runs kills itself at a random file operation."""
        die_at = self.random.randint(1, 400) if self.random.random() < 0.3 else 0
        self.recorder.start("", str(die_at), *self._segments)

    def start_replica(self) -> None:
        """Start `logicalrep replicate --follow` with the next engine."""
        self.replica.start("--follow", *self._engine())

    def _engine(self) -> list[str]:
        """Return the options of the next run of `logicalrep replicate`: engine, and how it removes rows."""
        options = [next(self._engines), self.random.choice(UPDATES)]
        self.log(f"replica: {' '.join(options)}")
        return [option for option in options if option]

    def publish(self, clause: str, name: str) -> None:
        """Add a table to the publication, or drop a table from it; `clause` is ADD or DROP."""
        table = self.work.published[name] if clause == "ADD" else name
        self.log(f"{clause} TABLE {table}")
        with self.server.connect() as connection:
            connection.execute(f"ALTER PUBLICATION {PUBLICATION} {clause} TABLE {table}".encode())
        if clause == "ADD":
            self.published.add(name)
            self._joined[name] = time.monotonic()
        else:
            self.published.remove(name)
            self._left[name] = time.monotonic()

    def request(self, tables: list[str], keys: Mapping[str, list[tuple[str, ...]]] = {}) -> None:
        """Request snapshots of tables; `keys` (by qualified name) limits tables to rows with these keys."""
        path = request_snapshot(self.recording, [f"public.{name}" for name in tables], keys)
        self._requests.append(Request(path, tables, time.monotonic()))

    def compare(self) -> None:
        """Change rows of the replica and start `logicalrep verify`, unless that or a repair is running."""
        requested = {name for one in self._requests for name in one.tables}
        if self._comparison is not None or not (self.target / "_owner.json").exists() or requested & {*QUIET}:
            return
        if not self._changed and self._is_repairing():
            return
        # A comparison that was interrupted goes on, and does not read rows again that it has compared.
        interrupted = self._interrupted
        if not self._changed and interrupted is None:
            self._change_rows()
            self.log(f"changed {sum(map(len, self._changed.values()))} rows of the replica")
        self._comparison = Comparison(
            self._verify(),
            time.monotonic() if interrupted is None else interrupted.began,
            self._incomplete() | (set() if interrupted is None else interrupted.incomplete),
        )

    def _change_rows(self) -> None:
        self._changed = change_rows(self.target, self.random)
        self._changed_at = {name: self._position(name) for name in self._changed}

    def _copied(self) -> set[str]:
        """Return the names of tables with changed rows whose position has moved since, as by a new copy."""
        return {name for name in self._changed if self._position(name) > self._changed_at[name]}

    def _verify(self, *options: str) -> Program:
        """Start `logicalrep verify`; return the program."""
        self._comparisons += 1
        places = [f"--recording={self.recording}", f"--target={self.target}", f"--dsn={self.server.dsn}"]
        program = Program(
            f"verify-{self._comparisons}", ["logicalrep.cli", "verify", "--json", *places], self._folder
        )
        self._stack.enter_context(program)
        program.start(*options)
        return program

    def _incomplete(self) -> set[str]:
        """Return the qualified names of the tables that are incomplete now."""
        state = msgspec.json.decode((self.recording / "_recording.json").read_bytes())
        return {f"{one['namespace']}.{one['name']}" for one in state["incomplete"]}

    def _check_comparison(self) -> None:
        """If `logicalrep verify` has ended, check its verdicts, and have the changed rows repaired.

        Changed rows must be found. Other rows may only differ in tables that have joined or left the
        publication just before. A kill of recorder or server may interrupt the comparison.
        """
        comparison = self._comparison
        if comparison is None or (code := comparison.program.poll()) is None:
            return
        self._comparison = None
        self._interrupted = None if code in (0, 1) else comparison
        log = comparison.program.log
        assert "Traceback" not in log, log
        verdicts = {one["table"]: one for one in read_verdicts(log)}
        different = {name: found_ids(one) for name, one in verdicts.items() if one["different_rows"]}
        self.log(
            f"verify: exit code {code}, {len(verdicts)} tables, different: {sorted(different)},"
            f" not compared: {[one['error'] for one in verdicts.values() if one['error']]}"
        )
        compared = {name for name, one in verdicts.items() if not one["error"]}
        copied = self._copied()
        for name in (compared & self._changed.keys()) - copied:
            if is_replaced(verdicts[name]):
                continue
            assert different.get(name) == self._changed[name], f"{name}: {verdicts[name]}"
        others = different.keys() - self._changed.keys() - comparison.incomplete
        for name in () if self._unsent else others:  # altered rows differ until the recorder copies them
            table = name.removeprefix("public.")
            moved = max(self._left.get(table, 0.0), self._joined.get(table, 0.0))
            assert moved > comparison.began - CATALOG_SECONDS, f"{name}: {verdicts[name]}"
        self._changed = {name: ids for name, ids in self._changed.items() if name not in copied}
        # Tables that cannot be compared, because of values in binary format, are repaired too.
        if code == 1 and (repaired := verdicts.keys() & self._changed.keys()):
            keys = {name: row_keys(verdicts[name]) for name in repaired if self.random.random() < 0.7}
            self.log(f"repairs {sorted(repaired)}, of {sorted(keys)} only the rows that differ")
            self._repaired = {name: self._position(name) for name in repaired}
            self.request([name.removeprefix("public.") for name in sorted(repaired)], keys)
            self._changed = {name: ids for name, ids in self._changed.items() if name not in repaired}

    def _is_repairing(self) -> bool:
        """Return whether a repair is not applied yet; applying it would also undo new changes of rows."""
        return any(self._position(name) <= position for name, position in self._repaired.items())

    def _position(self, name: str) -> int:
        """Return the commit LSN of the last change that a Delta table of the replica has applied.

        The table's version is no measure: it also changes when no rows change.
        """
        return max(0, open_table(self.target / name).position.commit_lsn)

    def _prove(self) -> None:
        """Run `logicalrep verify --repair`, then compare again; now all tables must be equal."""
        self.recorder.start("", "0", *self._segments)
        end = time.monotonic() + PATIENCE
        while not self._changed and self._is_repairing():
            assert self.recorder.check()
            assert self.replica.check()
            assert time.monotonic() < end, f"not repaired: {self._repaired}"
            time.sleep(0.5)
        if not self._changed:
            self._change_rows()
        self.log(f"{sum(map(len, self._changed.values()))} rows of the replica are changed")
        while (first := self._verify("--repair")).wait() == 2:  # the recorder has not begun yet
            assert self.recorder.check()
        assert "Traceback" not in first.log, first.log
        verdicts = read_verdicts(first.log)
        found = {
            one["table"] for one in verdicts if one["different_rows"] or one["error"] or is_replaced(one)
        }
        missed = self._changed.keys() - found - self._copied()
        assert not missed, f"{missed} were changed, and not found"
        failed = {one["table"].removeprefix("public.") for one in verdicts if one["error"]}
        if published := sorted(failed & self.published):  # a request for another table is refused as a whole
            self.request(published)
        self.log(f"repaired: {[line for line in first.log.splitlines() if ' copies ' in line]}")
        second = self._verify()
        second.wait()
        different = [one for one in read_verdicts(second.log) if one["different_rows"]]
        assert not different, different
        assert second.poll() in (0, 1), second.log
        self.recorder.finish("now", "0", *self._segments)

    def restore(self) -> None:
        """Copy random files and tables of the replica, put earlier copies in their place, or remove them."""
        if self._comparison is not None or self._interrupted is not None:
            return
        self.replica.kill()
        (copies := self._folder / "copies").mkdir(exist_ok=True)
        names = sorted(self.published - {*QUIET})
        # Copies of Iceberg tables would not fit their catalogue.
        tables = [] if self._iceberg else [f"public.{name}" for name in names]
        for name in self.random.sample([*PROGRESS, *tables], len(PROGRESS) + min(2, len(tables))):
            place, copy = self.target / name, copies / name
            if name in PROGRESS and self.random.random() < 0.3:
                self.log(f"remove {name}")
                _remove(place)
            elif copy.exists():
                self.log(f"restore {name}")
                _remove(place)
                copy.rename(place)
                self._joined[name.removeprefix("public.")] = time.monotonic()
            elif place.exists():
                self.log(f"copy {name}")
                copy_any = shutil.copytree if place.is_dir() else shutil.copy
                copy_any(place, copy)
        self.start_replica()

    def pause(self) -> None:
        """Wait for a random time."""
        time.sleep(self.random.choice(PAUSES))

    def log(self, text: str) -> None:
        """Print a line with the seconds since the beginning; write it to the log of actions too."""
        line = f"{time.monotonic() - self._began:8.2f} {text}"
        print(line, flush=True)
        with (self._folder / "actions.log").open("a") as log:
            log.write(f"{line}\n")

    def _act(self) -> None:
        self.work.check()
        self.replica.check()
        if not self.recorder.check():
            self.log("the recorder has killed itself")
            self.start_recorder()
        self._check_requests()
        self._check_comparison()
        if self._first:
            action = self._first.pop()
        else:
            (action,) = self.random.choices(list(ACTIONS), list(ACTIONS.values()))
        self.log(action.__name__)
        action(self)
        self.actions[action.__name__] += 1

    def _check_requests(self) -> None:
        """Remove finished requests. Fail if a request was refused although all its tables were published."""
        unfinished = []
        for one in self._requests:
            try:
                if is_requested(one.path):
                    unfinished.append(one)
                else:
                    self.log(f"{one.tables} requested {time.monotonic() - one.began:.1f} s ago, now stored")
            except RecordingError as error:
                self.log(f"{one.tables}: {error}")
                if not any(
                    self._left.get(name, 0.0) > one.began or name not in self.published for name in one.tables
                ):
                    raise
        self._requests = unfinished


# Actions


def kill_recorder(run: Run) -> None:
    run.recorder.kill()
    run.pause()
    run.start_recorder()


def kill_replica(run: Run) -> None:
    if run.random.random() < 0.5:
        run.replica.kill_java()
        time.sleep(1)  # the process may try to continue without Java
    run.replica.kill()
    run.start_replica()


def crash_server(run: Run) -> None:
    run.server.crash()
    run.pause()
    run.server.start()


def restart_server(run: Run) -> None:
    run.server.stop()
    run.pause()
    run.server.start()


def join(run: Run) -> None:
    if others := sorted(set(run.work.names) - run.published):
        run.publish("ADD", run.random.choice(others))


def leave(run: Run) -> None:
    if len(run.published - {*QUIET}) > 2:
        run.publish("DROP", run.random.choice(sorted(run.published - {*QUIET})))


def leave_and_join(run: Run) -> None:
    name = run.random.choice(sorted(run.published - {*QUIET}))
    run.publish("DROP", name)
    run.pause()
    run.publish("ADD", name)


def snapshot(run: Run) -> None:
    tables = sorted(run.published - {*QUIET})
    run.request(run.random.sample(tables, min(run.random.randint(1, 3), len(tables))))


def verify(run: Run) -> None:
    run.compare()


def restore(run: Run) -> None:
    run.restore()


ACTIONS: Final[dict[Callable[[Run], None], int]] = {
    kill_recorder: 15,
    kill_replica: 3,
    crash_server: 3,
    restart_server: 2,
    join: 15,
    leave: 12,
    leave_and_join: 10,
    snapshot: 15,
    verify: 10,
    restore: 10,
}
"""Relative frequency of each action, a method of `Run`."""


# Comparison


def true_tables(server: Server) -> list[TrueTable]:
    """Return the published tables of the server, by name, with the published rows and columns."""
    with server.connect() as connection:
        connection.execute("SET extra_float_digits = 3")
        tables = connection.execute(
            "SELECT relid::int8, n.nspname || '.' || relname, array_agg(attname::text ORDER BY attnum),"
            " format('SELECT %%s FROM %%s WHERE %%s', string_agg(quote_ident(attname), ', ' ORDER BY attnum),"
            " relid::regclass, coalesce(pg_get_expr(qual, relid), 'true'))"
            " FROM pg_get_publication_tables(%s) JOIN pg_class c ON c.oid = relid"
            " JOIN pg_namespace n ON n.oid = relnamespace"
            " JOIN pg_attribute ON attrelid = relid AND attnum = ANY (attrs) GROUP BY 1, 2, relid, qual",
            [PUBLICATION],
        ).fetchall()
        return [
            TrueTable(oid, name, tuple(columns), _rows(connection.pgconn, query))
            for oid, name, columns, query in tables
        ]


def _rows(connection: Any, query: str) -> list[tuple[str | None, ...]]:
    """Return the rows of a query, with values in text format."""
    result = connection.exec_(query.encode())
    values = ([result.get_value(row, n) for n in range(result.nfields)] for row in range(result.ntuples))
    return [tuple(None if value is None else value.decode() for value in row) for row in values]


def different(recording: Path, target: Path, truth: list[TrueTable]) -> Iterator[str]:
    """Yield name and difference, as one text, of each replica table that differs from the server's table."""
    last = Recording(recording).last
    incomplete = {one.oid: one.reason for one in last.incomplete} if last else {}
    places = replica_tables(str(target))
    for table in truth:
        if table.oid in incomplete:
            yield f"{table.name} is incomplete: {incomplete[table.oid]}"
        if table.oid not in places:
            yield f"{table.name} is missing"
            continue
        rows = current_rows(places[table.oid].place, table.columns)
        if (names := set(rows.column_names) - {"_rescued_data"}) != {*table.columns}:
            yield f"{table.name} has other columns: {names ^ {*table.columns}}"
        elif not equals_typed(table, rows):
            at = table.columns.index("id")
            there = Counter(str(row[at]) for row in table.rows)
            here = Counter(str(one) for one in rows["id"].to_pylist())
            yield (
                f"{table.name}: {len(table.rows)} rows there, {rows.num_rows} here; "
                f"lacks {list(there - here)[:5]}, has {list(here - there)[:5]}"
            )


def current_rows(place: str, columns: Iterable[str]) -> pa.Table:
    """Return the rows of a replica table; with history, the current versions without dropped columns."""
    rows = read_table(place)
    if "__END_AT" not in rows.column_names:
        return rows
    names = [name for name in (*columns, "_rescued_data") if name in rows.column_names]
    return rows.filter(pc.is_null(rows["__END_AT"])).select(names)


def replicate(
    folder: Path,
    tables: int,
    seconds: float,
    seed: int,
    *,
    engine: Engine = "spark",
    unsent: bool = False,
    iceberg: bool = False,
    pause: float = 0.0,
) -> Outcome:
    """Run the crash test; return its outcome.

    Args:
        folder: Folder in which the recording and the replica are created.
        tables: Number of tables.
        seconds: Duration of the random actions, in seconds.
        seed: Seed of all random decisions. The time of each decision depends on the speed of the machine.
        engine: Whether the replica is kept with Spark, without, or by both in turns.
        unsent: Whether to alter columns also in ways that give existing rows values that are not sent.
        iceberg: Whether the tables of the replica are Iceberg tables.
        pause: Seconds that each writer waits after a step, in addition to its own pauses.
    """
    began = time.monotonic()
    with Run(folder, tables, seed, engine, unsent=unsent, iceberg=iceberg, pause=pause) as run:
        run.run(seconds)
        expected = true_tables(run.server)
        (folder / "truth.json").write_bytes(msgspec.json.encode(expected))
        return Outcome(
            actions=dict(run.actions),
            steps=run.work.steps,
            segments=len(Recording(run.recording).numbers),
            tables=len(expected),
            rows=sum(len(table.rows) for table in expected),
            different=tuple(different(run.recording, run.target, expected)),
            seconds=time.monotonic() - began,
        )


def _remove(place: Path) -> None:
    """Remove a file or folder if it exists."""
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _descendants(pid: int) -> list[int]:
    """Return the process IDs of the descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # the process has ended
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--engine", choices=ENGINES, default="mixed")
    parser.add_argument("--unsent", action="store_true", help="alter columns so that values are not sent")
    parser.add_argument("--iceberg", action="store_true", help="keep Iceberg tables")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that started processes are ended
    folder = Path(tempfile.mkdtemp(prefix="logicalrep-replica-"))
    try:
        outcome = replicate(folder, **vars(arguments))
        print(outcome)
        assert not outcome.different, "\n".join(outcome.different)
    except BaseException:
        print(f"FAILED with seed {arguments.seed}; see {folder}")
        raise
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
