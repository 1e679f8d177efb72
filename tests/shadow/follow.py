"""Follow the subscriptions of a TAP test of PostgreSQL, which runs unchanged, by `logicalrep sync`."""

from __future__ import annotations

import re
import shutil
import socket
import threading
import traceback
from pathlib import Path
from typing import Final

import msgspec

from tests.shadow.compare import connect
from tests.shadow.programs import Programs, as_user
from tests.shadow.results import Outcome, Result
from tests.shadow.statements import Statement, change, parse
from tests.shadow.sync import USER, Rules, Sync

SECONDS: Final = 1800
"""Seconds that one test may take."""

EVERYTHING: Final = "shadow_all"
"""Name of a publication FOR ALL TABLES."""

# Without a replica identity, the server would refuse the tests' updates of tables that are published.
PUBLISH_EVERYTHING: Final = f"""
CREATE SCHEMA shadow; GRANT USAGE ON SCHEMA shadow TO public;
CREATE FUNCTION shadow.identify() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
    FOR r IN SELECT c.oid::regclass AS name FROM pg_event_trigger_ddl_commands() d
        JOIN pg_class c ON c.oid = d.objid AND d.classid = 'pg_class'::regclass
        WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.relreplident = 'd'
        AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)
    LOOP EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', r.name); END LOOP;
END $$;
GRANT EXECUTE ON FUNCTION shadow.identify TO public;
CREATE EVENT TRIGGER shadow_identify ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') EXECUTE FUNCTION shadow.identify();
CREATE PUBLICATION {EVERYTHING} FOR ALL TABLES"""


class Event(msgspec.Struct, frozen=True):
    """What a test does, as Shadow.pm tells it."""

    moment: str
    """`start` or `stop` of a server, `before` or `after` a statement."""
    node: str
    host: str
    port: str
    database: str = ""
    sql: str = ""
    error: str = ""


class Follower:
    """Starts, checks and stops a `sync` for each subscription of one test.

    Args:
        folder: Folder for the replicas.
        everything: Whether to replicate all tables of the first primary, instead of following subscriptions.
    """

    def __init__(self, folder: Path, results: list[Result], rules: Rules, *, everything: bool) -> None:
        self._folder, self._results, self._rules, self._everything = folder, results, rules, everything
        self._syncs: dict[tuple[str, str, str], Sync] = {}
        self._begun: list[Sync] = []

    def answer(self, event: Event) -> None:
        """Do what an event asks for; return when the test may go on."""
        if event.moment == "start":
            self._start(event)
        elif event.moment == "stop":
            self._check(event, f"stop of {event.node}")
        elif event.moment == "before":
            self._before(event)
        else:
            for statement in parse(event.sql):
                if not event.error:
                    self._after(event, statement)
                elif statement.does == "create" and "column lists" in event.error:
                    self._begin(event, statement)  # it is refused, as CREATE SUBSCRIPTION is
                    self._syncs.pop(_key(event, statement)).stop()

    def finish(self) -> int:
        """Stop what still runs; return the number of kills."""
        for sync in self._syncs.values():
            sync.stop()
        return sum(sync.kills for sync in self._begun)

    def fault(self, error: Exception) -> None:
        """Add a failure of this harness to the results."""
        self._results.append(Result("", "not applicable", f"not followed: {error}"[:300]))

    def _start(self, event: Event) -> None:
        if not self._everything or self._syncs:
            return
        dsn = f"host={event.host} port={event.port} dbname=postgres"
        with connect(f"{dsn} user={USER}") as server:
            row = server.execute("SELECT pg_is_in_recovery(), current_setting('wal_level')").fetchone()
            if row != (False, "logical"):
                return
            server.execute(PUBLISH_EVERYTHING.encode())
        self._begin(event, Statement("create", EVERYTHING, dsn, (EVERYTHING,)))

    def _before(self, event: Event) -> None:
        if self._everything:
            return
        for statement in parse(event.sql):
            sync = self._syncs.get(_key(event, statement))
            if sync and statement.does in ("drop", "set", "add", "remove"):
                sync.check(f"{statement.does} {statement.subscription}")
        if what := change(event.sql):
            self._check(event, what)

    def _after(self, event: Event, statement: Statement) -> None:
        key = _key(event, statement)
        if statement.does == "create" and not self._everything:
            self._begin(event, statement)
        elif (sync := self._syncs.get(key)) is None:
            return
        elif statement.does == "drop":
            self._syncs.pop(key).stop()
        elif statement.does == "rename":
            self._syncs[*key[:2], statement.new_name] = self._syncs.pop(key)
        else:
            given, old = statement.publications, sync.publications
            new = {
                "set": given,
                "add": (*old, *given),
                "remove": tuple(name for name in old if name not in given),
            }[statement.does]
            if not sync.follow(new):  # it cannot go on with these publications: it begins anew
                sync.stop()
                self._begin(event, Statement("create", statement.subscription, sync.dsn, new))

    def _begin(self, event: Event, statement: Statement) -> Sync:
        own = f"host={event.host} port={event.port} dbname={event.database} user={USER}"
        sync = Sync(
            self._folder / f"{len(self._begun) + 1:02d}_{statement.subscription}",
            statement.dsn,
            statement.publications,
            self._results,
            self._rules,
            subscriber="" if self._everything else own,
        )
        self._begun.append(sync)
        self._syncs[_key(event, statement)] = sync
        return sync

    def _check(self, event: Event, moment: str) -> None:
        """Check all replicas of the server at an event's port."""
        for sync in self._syncs.values():
            if sync.port == event.port:
                sync.check(moment)


def _key(event: Event, statement: Statement) -> tuple[str, str, str]:
    return event.port, event.database, statement.subscription


def run_test(
    source: Path, path: Path, programs: Programs, folder: Path, rules: Rules, outcome: Outcome
) -> None:
    """Run one TAP test beside a follower; add what both find to `outcome`."""
    suite = path.parents[1]
    shared = folder / "tap"
    shared.mkdir(parents=True)
    shutil.chown(shared, USER)
    everything = suite.name == "recovery"
    follower = Follower(folder, outcome.results, rules, everything=everything)
    place = folder / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        place.chmod(0o777)
        server.listen()
        threading.Thread(target=_serve, args=(server, follower), daemon=True).start()
        libraries = [Path(__file__).parent, source / "src/test/perl", suite]
        environment = programs.environment(shared) | {
            "PERL5LIB": ":".join(map(str, libraries)),
            "PERL5OPT": "-MShadow",
            "SHADOW_SOCKET": str(place),
            "TESTDIR": str(shared),
            "TESTDATADIR": str(shared),
            "TESTLOGDIR": str(shared),
            "PG_REGRESS": str(programs.tools / "regress/pg_regress"),
            "PG_TEST_TIMEOUT_DEFAULT": "180",
            "with_icu": programs.built_with("--with-icu"),
            "enable_injection_points": programs.built_with("--enable-injection-points"),
        }
        try:
            with (folder / "tap.log").open("wb") as log:
                code = as_user(["perl", path], environment, suite, log, seconds=SECONDS)
        finally:
            outcome.kills = follower.finish()
    outcome.own, outcome.skipped = read_tap((folder / "tap.log").read_text(errors="replace"), code)


def _serve(server: socket.socket, follower: Follower) -> None:
    """Answer the events of the test, which makes one connection."""
    connection, _ = server.accept()
    with connection, connection.makefile("rwb") as stream:
        for line in stream:
            try:
                follower.answer(msgspec.json.decode(line, type=Event))
            except Exception as error:  # the test goes on, and the page shows it
                traceback.print_exc()
                follower.fault(error)
            stream.write(b"\n")
            stream.flush()


def read_tap(log: str, code: int) -> tuple[str, str]:
    """Return what a TAP test found, such as `37 ok`, and why it was skipped, if it was."""
    if skipped := re.search(r"(?m)^1\.\.0 # SKIP (.*)", log):
        return "", skipped[1].strip()
    passed, failed = (len(re.findall(rf"(?m)^{word} \d+", log)) for word in ("ok", "not ok"))
    return ", ".join(
        [f"{passed} ok", *[f"{failed} not ok"] * (failed > 0), *[f"exit code {code}"] * (code != 0)]
    ), ""
