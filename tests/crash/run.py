"""A recorder is killed again and again, and its server restarted, while writers are at work.

`python -m tests.crash.run --version 18 --kills 50 --restarts 10 --seed 1`
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from threading import Timer

import msgspec

from pgoutput.capture import Options
from tests.crash.replay import Comparison, compare
from tests.crash.workload import Workload, prepare
from tests.server import WHEEL_VERSION, Server

SMALL_SEGMENTS = "262144", "0.3"
"""Their bytes and seconds, at most."""

PATIENCE = 120
"""Seconds for the last run to catch up, and for a restarted server to be there."""


class Outcome(msgspec.Struct, frozen=True):
    """What was done, and what came of it."""

    kills: dict[str, int]
    """By what the recorder was about."""
    restarts: int
    crashes: int
    """Restarts of which the server was not told."""
    tried: int
    """Steps of the writers."""
    reconnects: int
    """Of the writers."""
    seconds: float
    comparison: Comparison

    def __str__(self) -> str:
        found = self.comparison
        kills = ", ".join(f"{times} while {what}" for what, times in sorted(self.kills.items()))
        return (
            f"{sum(self.kills.values())} kills ({kills}), {self.restarts} restarts of the server "
            f"({self.crashes} of them crashes), {self.tried:,} steps of writers, {self.seconds:.0f} s\n"
            f"{found.messages:,} messages, {found.transactions:,} transactions, {found.sessions} sessions, "
            f"{found.segments} segments; {found.tables} tables with {found.rows:,} rows, "
            f"{len(found.different)} of them different\n"
            f"{found.lost} rows lost, {found.doubled} doubled, {found.invented} invented; "
            f"{len(found.gaps)} gaps"
        )


class Crash:
    """One run of the test.

    Args:
        server: A server without tables.
        folder: Where the recording goes.
        seed: When what happens.
        longest: Seconds that a recorder lives, at most.
    """

    def __init__(self, server: Server, folder: Path, seed: int, longest: float) -> None:
        self._longest = longest
        self.kills: Counter[str] = Counter()
        self.restarts = self.crashes = 0
        self._server = server
        self._folder = folder
        self._random = Random(seed)
        new = server.version
        self._options = Options(two_phase=new >= 15, messages=new >= 14)
        self._log = folder.with_name("events")

    def kill(self, *, early: bool, restart: bool) -> None:
        """Start a recorder, and kill it; restart the server meanwhile, or not.

        Args:
            early: Let it not come far, so that the snapshot is hit.
            restart: Whether to restart the server.
        """
        random = self._random
        exact = random.random() < 0.4
        with self._recorder(die_at=random.randint(1, 60) if exact else 0) as recorder:
            if not early:
                self._await_snapshot(recorder)
            longest = min(1.5, self._longest) if early else self._longest
            timer = Timer(self._longest if exact else random.uniform(0.3, longest), recorder.kill)
            timer.start()
            try:
                if restart:
                    self._restart()
                recorder.wait(PATIENCE)
            finally:
                timer.cancel()
            if recorder.returncode != -signal.SIGKILL:
                # A recorder that loses the server at its start says so and ends.
                assert restart, f"the recorder ended by itself: {self._said()}"
                assert "ConnectionLost" in self._said(), self._said()
                return self.kill(early=early, restart=False)
            self.kills[self.phase] += 1

    def record(self, seconds: float) -> None:
        """Record for a while, and stop in good order."""
        with self._recorder() as recorder:
            while recorder.poll() is None and self.phase != "recording":  # it listens to signals by then
                time.sleep(0.1)
            time.sleep(seconds)
            recorder.terminate()
            assert recorder.wait(PATIENCE) == 0, self._said()

    def finish(self) -> None:
        """Record what is left."""
        with self._recorder(until="now") as recorder:
            assert recorder.wait(PATIENCE) == 0, self._said()

    @contextmanager
    def _recorder(self, *, until: str = "", die_at: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        options = msgspec.json.encode(self._options).decode()
        arguments = [self._server.dsn, str(self._folder), options, until, str(die_at), *SMALL_SEGMENTS]
        with (
            self._log.open("wb") as log,
            subprocess.Popen(
                [sys.executable, "-m", "tests.crash.recorder", *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
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
        random, server = self._random, self._server
        time.sleep(random.uniform(0.2, 2.0))
        self.restarts += 1
        if random.random() < 0.4:
            self.crashes += 1
            server.crash()
        else:
            server.stop()
        time.sleep(random.choice([0, 0.3]))
        server.start()

    @property
    def phase(self) -> str:
        """What the recorder is, or was, about."""
        with suppress(FileNotFoundError):
            if json.loads((self._folder / "_recording.json").read_bytes())["snapshot"] == "complete":
                return "recording" if b'"connected"' in self._log.read_bytes() else "connecting"
        return "snapshotting"

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def crash(
    folder: Path,
    version: int,
    kills: int,
    restarts: int,
    seed: int,
    *,
    rows: int = 200_000,
    longest: float = 3.0,
) -> Outcome:
    """Make a server, and do it all; the recording is left in the folder."""
    began = time.monotonic()
    with Server(version) as server:
        with server.connect() as connection:
            prepare(connection, rows)
        run = Crash(server, folder / "recording", seed, longest)
        restarted = set(run._random.sample(range(kills), restarts))
        with Workload(server.dsn, version, seed) as workload:
            for number in range(kills):
                if run.phase != "snapshotting":
                    workload.altering.set()
                run.kill(early=number < kills // 5, restart=number in restarted)
            run.record(1)
        run.finish()
        return Outcome(
            kills=dict(run.kills),
            restarts=run.restarts,
            crashes=run.crashes,
            tried=workload.transactions,
            reconnects=workload.reconnects,
            seconds=time.monotonic() - began,
            comparison=compare(run._folder, server),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", type=int, default=WHEEL_VERSION)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--restarts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="an empty one, to keep the recording in")
    given = parser.parse_args()
    print(f"PostgreSQL {given.version}, seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pgoutput-crash-") as temporary:
        folder = given.keep or Path(temporary)
        outcome = crash(folder, given.version, given.kills, given.restarts, given.seed)
    print(outcome)
    if not outcome.comparison.equal:
        raise SystemExit("\n".join(["FAILED", *outcome.comparison.different, *outcome.comparison.gaps]))


if __name__ == "__main__":
    main()
