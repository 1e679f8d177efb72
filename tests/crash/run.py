"""Crash test: kill the recorder and restart the server repeatedly while writers change tables.

`python -m tests.crash.run --version 18 --kills 50 --restarts 10 --seed 1`
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from threading import Timer
from typing import Self

import msgspec

from logicalrep.recorder import RecorderOptions
from logicalrep.recording import STATE_FILE, locate
from tests import store
from tests.crash import publisher
from tests.crash.recorder import PUBLICATION, SLOT
from tests.crash.replay import Comparison, compare
from tests.crash.workload import Workload, prepare
from tests.server import WHEEL_VERSION, Server, Standby

SMALL_SEGMENTS = "262144", "0.3"
"""Size and age at which the recorder ends a segment, as command line arguments: bytes and seconds."""

PATIENCE = 120
"""Seconds that the recorder may take to catch up or end, and that a standby may take to get the slot."""


class Outcome(msgspec.Struct, frozen=True):
    """Result of a crash test of the recorder."""

    kills: dict[str, int]
    """Number of kills, by phase of the recorder at the kill: snapshotting, connecting or recording."""
    restarts: int
    crashes: int
    """Number of restarts of the server after an immediate shutdown, included in `restarts`."""
    failovers: int
    alterations: int
    """Number of tables that were created, or whose publication was altered, during the test."""
    steps: int
    """Number of steps that all writers of the workload have run."""
    reconnects: int
    """Number of times that a writer of the workload has reconnected to the server."""
    seconds: float
    comparison: Comparison

    def __str__(self) -> str:
        found = self.comparison
        kills = ", ".join(f"{times} while {phase}" for phase, times in sorted(self.kills.items()))
        return (
            f"{sum(self.kills.values())} kills ({kills}), {self.restarts} restarts of the server "
            f"({self.crashes} of them crashes), {self.failovers} failovers, {self.alterations} altered "
            f"publications, {self.steps:,} steps of writers, {self.seconds:.0f} s\n"
            f"{found.messages:,} messages, {found.transactions:,} transactions, {found.sessions} sessions, "
            f"{found.timelines} timelines, {found.segments} segments; {found.tables} tables with "
            f"{found.rows:,} rows, {len(found.different)} of them listed as incomplete and different, "
            f"{len(found.unfounded)} listed without a reason\n"
            f"{found.lost} lost, {found.duplicated} duplicated, {found.invented} invented, "
            f"{len(found.silent)} silent; {len(found.gaps)} gaps"
        )


class Crash:
    """One run of the crash test of the recorder; a context manager whose exit stops the servers.

    Args:
        version: Major version of the server.
        folder: Folder for the recording and other files.
        seed: Seed of all random decisions, including the options of the recorder.
        rows: Number of rows in the table `ledger` before the recording begins.
        longest: Longest time from a start of the recorder to its kill, in seconds.
        url: URL of the recording in an object store; empty for a folder. The recorders then have two working
            folders alternately, as on two machines.
        pause: Seconds that each writer of the workload waits after a step, in addition to its own pauses.

    Attributes:
        server: The primary server; after a failover, the promoted standby.
        workload: The threads that write to the server.
        options: Options of the recorder.
        kills: Number of kills, by phase of the recorder at the kill.
    """

    def __init__(
        self,
        version: int,
        folder: Path,
        seed: int,
        *,
        rows: int,
        longest: float,
        url: str = "",
        pause: float = 0.0,
    ) -> None:
        self.kills: Counter[str] = Counter()
        self.restarts = self.crashes = self.failovers = 0
        self.options = draw_options(version, Random(f"{seed} options"))
        self.folder = folder
        self.place: str = url or str(folder)
        self._machines = itertools.cycle(folder.with_name(f"machine{number}") for number in (1, 2))
        self._longest = longest
        self._random = Random(seed)
        self._log = folder.with_name("events")
        self._servers = ExitStack()
        self.server = self._servers.enter_context(Server(version))
        with self.server.connect() as connection:
            prepare(connection, version, rows)
        retyping = not self.options.binary
        self.workload = Workload(self.server.dsn, version, seed, retyping=retyping, pause=pause)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._servers.close()

    def kill(self, *, early: bool, event: str = "") -> None:
        """Start a recorder and kill it; while the recorder runs, restart the server or fail over, or neither.

        Args:
            early: Whether to kill the recorder soon, even if its snapshot is not complete.
            event: What happens to the server: `restart`, `failover`, or empty for nothing.
        """
        random = self._random
        standby = self._add_standby() if event == "failover" else None
        exact = random.random() < 0.4
        with self._recorder(die_at=random.randint(1, 60) if exact else 0, standby=standby) as recorder:
            if not early:
                self._await_snapshot(recorder)
            longest = min(1.5, self._longest) if early else self._longest
            timer = Timer(self._longest if exact else random.uniform(0.3, longest), recorder.kill)
            timer.start()
            try:
                if standby is not None:
                    self._fail_over(standby)
                elif event:
                    self._restart()
                recorder.wait(PATIENCE)
            finally:
                timer.cancel()
            if recorder.returncode != -signal.SIGKILL:
                # A recorder that loses the server at its start ends with an error.
                assert event, f"the recorder ended by itself: {self._output()}"
                assert "ConnectionLost" in self._output(), self._output()
                return self.kill(early=early)
            self.kills[self.phase] += 1

    def record(self, seconds: float) -> None:
        """Run a new recorder for some seconds, then stop it with SIGTERM."""
        with self._recording():
            time.sleep(seconds)

    def finish(self) -> None:
        """Insert a last row into the table `ledger`, and record to the end of the WAL."""
        with self.server.connect() as connection:
            connection.execute("INSERT INTO ledger VALUES (0)")
        with self._recorder(until="now") as recorder:
            assert recorder.wait(PATIENCE) == 0, self._output()

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Run the `with` block while a new recorder streams; then stop the recorder with SIGTERM."""
        with self._recorder() as recorder:
            while recorder.poll() is None and self.phase != "recording":  # it handles signals by then
                time.sleep(0.1)
            yield
            recorder.terminate()
            assert recorder.wait(PATIENCE) == 0, self._output()

    @contextmanager
    def _recorder(
        self, *, until: str = "", die_at: int = 0, standby: Standby | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        dsn = self.server.dsn
        if standby is not None:
            dsn = f"host={self.server.folder},{standby.folder} user=postgres dbname=postgres"
            dsn += " target_session_attrs=read-write"
        options = msgspec.json.encode(self.options).decode()
        publications = ",".join([PUBLICATION, *publisher.PUBLICATIONS])
        failover = "failover" if self.server.version == WHEEL_VERSION else ""
        machine = next(self._machines)
        machine.mkdir(exist_ok=True)
        arguments = [dsn, self.place, options, publications, failover, until, str(die_at)]
        with (
            self._log.open("wb") as log,
            subprocess.Popen(
                [sys.executable, "-m", "tests.crash.recorder", *arguments, *SMALL_SEGMENTS],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "XDG_STATE_HOME": str(machine)},
            ) as recorder,
        ):
            try:
                yield recorder
            finally:
                recorder.kill()

    def _await_snapshot(self, recorder: subprocess.Popen[bytes]) -> None:
        while recorder.poll() is None and self.phase == "snapshotting":
            time.sleep(0.1)

    def _restart(self) -> None:
        random, server = self._random, self.server
        time.sleep(random.uniform(0.2, 2.0))
        self.restarts += 1
        if random.random() < 0.4:
            self.crashes += 1
            server.crash()
        else:
            server.stop()
        time.sleep(random.choice([0, 0.3]))
        server.start()

    def _add_standby(self) -> Standby:
        """Start a standby to which the slot is synchronized. The slot then waits for the standby."""
        standby = self._servers.enter_context(Standby(self.server, sync_replication_slots="on"))
        deadline = time.monotonic() + PATIENCE
        with self._recording(), self.server.connect() as connection:
            while SLOT not in standby.usable_slots():  # recording advances the slot's catalog_xmin
                assert time.monotonic() < deadline, standby.log[-2000:]
                connection.execute("SELECT pg_log_standby_snapshot()")
                time.sleep(0.2)
        with self.server.connect() as connection:
            connection.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{standby.physical_slot}'")
            connection.execute("SELECT pg_reload_conf()")
        standby.catch_up()
        return standby

    def _fail_over(self, standby: Standby) -> None:
        """Stop the primary with an immediate shutdown, and promote the standby."""
        random = self._random
        time.sleep(random.uniform(0.2, 2.0))
        self.failovers += 1
        self.server.crash()
        time.sleep(random.choice([0, 0.3]))
        standby.promote()
        self.server = standby
        self.workload.dsn = standby.dsn

    @property
    def phase(self) -> str:
        """Phase that the last started recorder has reached: snapshotting, connecting or recording."""
        state = (locate(self.place) / STATE_FILE).content()
        if state is not None and json.loads(state).get("snapshot") == "complete":
            return "recording" if b'"connected"' in self._log.read_bytes() else "connecting"
        return "snapshotting"

    def _output(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def draw_options(version: int, random: Random) -> RecorderOptions:
    """Return random recorder options that a server of the given version supports."""
    return RecorderOptions(
        binary=version >= 14 and random.random() < 0.5,
        two_phase=version >= 15 and random.random() < 0.5,
        streaming=random.choice([None, None, "off"]),
        messages=version >= 14,
    )


def crash(
    folder: Path,
    version: int,
    kills: int,
    restarts: int,
    failovers: int,
    seed: int,
    *,
    rows: int = 200_000,
    longest: float = 3.0,
    url: str = "",
    pause: float = 0.0,
) -> Outcome:
    """Run the crash test of the recorder on a new server; leave the recording in the folder."""
    began = time.monotonic()
    early = kills // 5
    place = folder / "recording"
    with Crash(version, place, seed, rows=rows, longest=longest, url=url, pause=pause) as run:
        print(f"PostgreSQL {version}, seed {seed}, {run.options}", flush=True)
        failing = run._random.sample(range(early, kills), failovers)
        restarting = run._random.sample([n for n in range(kills) if n not in failing], restarts)
        events = dict.fromkeys(failing, "failover") | dict.fromkeys(restarting, "restart")
        with run.workload as workload:
            for number in range(kills):
                if run.phase != "snapshotting":
                    workload.altering.set()
                run.kill(early=number < early, event=events.get(number, ""))
            run.record(1)
        run.finish()
        return Outcome(
            kills=dict(run.kills),
            restarts=run.restarts,
            crashes=run.crashes,
            failovers=run.failovers,
            alterations=len(workload.altered),
            steps=workload.steps,
            reconnects=workload.reconnects,
            seconds=time.monotonic() - began,
            comparison=compare(run.place, run.server, workload.altered),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", type=int, default=WHEEL_VERSION)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--failovers", type=int, default=3, help="on servers whose standbys keep slots")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="an empty folder to keep the recording in"
    )
    parser.add_argument("--store", action="store_true", help="record to moto's S3 server, on two machines")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders are removed
    failovers = arguments.failovers if arguments.version == WHEEL_VERSION else 0
    with tempfile.TemporaryDirectory(prefix="logicalrep-crash-") as temporary, ExitStack() as servers:
        folder, url = arguments.keep or Path(temporary), ""
        if arguments.store:
            url = f"s3://{store.BUCKET}/recording"
            os.environ.update(store.settings(servers.enter_context(store.moto())))
        outcome = crash(
            folder, arguments.version, arguments.kills, arguments.restarts, failovers, arguments.seed, url=url
        )
    print(outcome)
    found = outcome.comparison
    if not found.equal:
        raise SystemExit("\n".join(["FAILED", *found.silent, *found.unfounded, *found.gaps]))


if __name__ == "__main__":
    main()
