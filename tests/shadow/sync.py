"""Run `logicalrep sync` beside a test, and compare its replica with the server."""

from __future__ import annotations

import getpass
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from logicalrep.errors import LogicalrepError
from logicalrep.recording import Recording, locate
from logicalrep.replica import Positions
from tests.shadow.compare import compare, connect
from tests.shadow.results import Kind, Result

USER: Final = "nobody" if os.geteuid() == 0 else getpass.getuser()
"""User that runs the servers, which refuse root. Also the superuser of the TAP tests' servers."""

START: Final = 180.0
"""Seconds that a started `sync` has to create its slot. CREATE SUBSCRIPTION, too, waits for its slot."""

ENDS: Final = 3
"""How often a `sync` that ends by itself is started again, as a service manager does."""

PATIENCE: Final = 15.0
"""Seconds for which a table may differ when all segments are applied."""

KILLS: Final = 2.0, 10.0
"""Least and greatest number of seconds between two kills."""


class Rules(msgspec.Struct, frozen=True):
    """How a test is followed."""

    options: tuple[str, ...] = ()
    """Further options of `logicalrep sync`."""
    kills: bool = False
    """Whether `kill -9` ends `sync` at random."""
    seconds: float = 90.0
    """Seconds that the recording has to reach the end of the WAL, and then the replica to apply it."""


class Sync:
    """A running `logicalrep sync`, with a slot and a target of its own.

    Args:
        folder: New folder for the target and the log.
        dsn: Connection string of the publisher, as the subscription has it.
        publications: Names of the publications.
        results: List to which results are added.
        subscriber: Connection string of the server's own subscriber; empty if there is none.
        superuser: Name of a superuser of the publisher.

    Attributes:
        refusal: Why `sync` has not begun; empty if it has.
        kills: How often `kill -9` has ended it.
    """

    def __init__(
        self,
        folder: Path,
        dsn: str,
        publications: Iterable[str],
        results: list[Result],
        rules: Rules,
        *,
        subscriber: str = "",
        superuser: str = USER,
    ) -> None:
        given: dict[str, Any] = dict(conninfo_to_dict(dsn))
        self.dsn, self.port = dsn, str(given.get("port", ""))
        self.publications = tuple(publications)
        given.pop("options", None)
        place = {key: given[key] for key in ("host", "port", "dbname") if key in given}
        self._admin: str = make_conninfo("dbname=postgres", **place, user=superuser)
        self._dsn: str = make_conninfo(
            f"dbname=postgres user={superuser}", **given | {"application_name": "shadow"}
        )
        self._folder, self._results, self._rules, self._subscriber = folder, results, rules, subscriber
        self._slot = re.sub(r"\W", "_", f"shadow_{os.getpid()}_{folder.name}")[:63].lower()
        self._target, self._log = folder / "target", folder / "log"
        self._ends = 0
        self._lock, self._stopped = threading.RLock(), threading.Event()
        folder.mkdir(parents=True)
        self.refusal, self.kills = "", 0
        self._start()
        self.refusal = self._refused()
        threading.Thread(target=self._watch, daemon=True).start()

    def _start(self) -> None:
        """Start the program, and wait until its slot is in use or it has ended."""
        options = [part for name in self.publications for part in ("--publication", name)]
        # The self-check would copy what the recorder has missed.
        command = ["sync", "--no-self-check", "--dsn", self._dsn, *options]
        command += ["--target", str(self._target), "--slot", self._slot]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "logicalrep.cli", *map(str, command), *self._rules.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and self._process.poll() is None and not self._asked("active"):
            if self._stopped.wait(0.3):
                return

    def _watch(self) -> None:
        """Start the program again when it ends, and kill it at random if the rules say so."""
        random = Random(self._slot)
        kill = time.monotonic() + random.uniform(*KILLS)
        while not self._stopped.wait(0.5):
            with self._lock:
                if self._stopped.is_set():
                    return
                if self.refusal or self._ends > ENDS:
                    continue
                if self._process.poll() is not None:
                    self._ends += 1
                    self.note("", "ended", self._message())
                    self._start()
                elif self._rules.kills and time.monotonic() > kill:
                    self._process.kill()
                    self._process.wait()
                    self.kills += 1
                    self._start()
                    kill = time.monotonic() + random.uniform(*KILLS)

    def note(self, table: str, kind: Kind, reason: str, moment: str = "") -> None:
        self._results.append(Result(table, kind, reason, self.publications, moment))

    def check(self, moment: str) -> None:
        """Compare the replica with the server, and add the results; nothing if `sync` was refused."""
        if self.refusal:
            return
        with self._lock:
            try:
                results = self._compare()
            except psycopg.Error as error:
                self.note("", "not applicable", f"not compared: {str(error).splitlines()[0]}", moment)
                return
            different = [result for result in results if result.kind == "SILENT"]
            code, said = self._status() if different else (0, "")
            for result in results:
                kind, reason = result.kind, result.reason
                if kind == "SILENT" and self._process.poll() is not None and code:
                    kind, reason = "ended", self._message()
                elif kind == "SILENT" and code and _names(said, result.table):
                    kind, reason = "reported", "logicalrep status names it"
                self.note(result.table, kind, reason, moment)

    def _compare(self) -> list[Result]:
        """Return the results of a comparison, repeated until nothing differs or time is over."""
        with connect(self._admin) as server:
            (self._wal_end,) = server.execute("SELECT pg_current_wal_lsn()").fetchone() or ("0/0",)
        self._await(self._has_recorded)
        results = list(compare(self._admin, self.publications, str(self._target)))
        if any(result.kind == "SILENT" for result in results):
            self._await(self._has_applied)
        deadline = time.monotonic() + PATIENCE
        while not _is_settled(results) and time.monotonic() < deadline:
            time.sleep(1)
            results = list(compare(self._admin, self.publications, str(self._target)))
            if all(result.kind != "SILENT" for result in results):
                deadline = min(deadline, time.monotonic() + 3)
        if not _is_settled(results):
            results = list(compare(self._admin, self.publications, str(self._target), self._subscriber))
        return results

    def _await(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true of the running program, or time is over."""
        deadline = time.monotonic() + self._rules.seconds
        while time.monotonic() < deadline and self._process.poll() is None and not condition():
            time.sleep(1)

    def _has_recorded(self) -> bool:
        """Return whether the slot has reached the end that the server's WAL has had for the check."""
        return self._asked(f"confirmed_flush_lsn >= '{self._wal_end}'")

    def _has_applied(self) -> bool:
        """Return whether the replica has applied all segments."""
        try:
            recording = Recording(str(self._target / "_recording"))
            following = Positions(recording, locate(str(self._target))).next_segment()
        except LogicalrepError:  # nothing has been recorded or applied yet
            return False
        return recording.last is not None and following > recording.last.number

    def _status(self) -> tuple[int, str]:
        """Return the exit code of `logicalrep status`, and what it prints."""
        places = ["--recording", self._target / "_recording", "--target", self._target, "--dsn", self._admin]
        done = subprocess.run(
            [sys.executable, "-m", "logicalrep.cli", "status", *map(str, places)],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def _asked(self, condition: str) -> bool:
        """Return whether a condition is true of the slot."""
        query = f"SELECT bool_or({condition}) FROM pg_replication_slots WHERE slot_name = '{self._slot}'"
        try:
            with connect(self._admin) as server:
                row = server.execute(query.encode()).fetchone()
        except psycopg.Error:
            return False
        return bool(row and row[0])

    def _message(self) -> str:
        """Return the exit code and the last error of the program."""
        lines = self._log.read_text(errors="replace").splitlines()
        said = [line for line in lines if line.startswith("logicalrep:")] or ["no message"]
        return f"exit code {self._process.returncode}: {said[-1]}"[:400]

    def follow(self, publications: Iterable[str]) -> bool:
        """Go on with other publications, in the same target; return whether `sync` accepts them."""
        with self._lock:
            self._end()
            self.publications = tuple(publications)
            self._start()
            time.sleep(1)
            self._ends, self.refusal = 0, self._refused()
        return not self.refusal

    def _refused(self) -> str:
        """Return why the program has ended, after its start, and add that as a result; empty if it runs."""
        if self._process.poll() is None:
            return ""
        self.note("", "refused", self._message())
        return self._message()

    def stop(self) -> None:
        """End the program as a service manager does, and drop the slot."""
        self._stopped.set()
        with self._lock:
            self._end()
        try:
            with connect(self._admin) as server:
                where = f"FROM pg_replication_slots WHERE slot_name = '{self._slot}'"
                server.execute(f"SELECT pg_drop_replication_slot(slot_name) {where}".encode())
        except psycopg.Error:
            pass  # the server has stopped

    def _end(self) -> None:
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.note("", "ended", "SIGTERM did not end it within 60 s")
        # SIGTERM ends a program that has only just started without more ado.
        if self._process.returncode not in (0, 1, 130, -signal.SIGTERM):
            self.note("", "ended", self._message())


def _is_settled(results: list[Result]) -> bool:
    return all(result.kind in ("equal", "not applicable") for result in results)


def _names(said: str, table: str) -> bool:
    """Return whether a warning in the output of `logicalrep status` names a table."""
    name = re.escape(table.removeprefix("public."))
    return re.search(rf"(?m)^(incomplete|failed|may differ).*(?<!\w){name}(?!\w)", said) is not None
