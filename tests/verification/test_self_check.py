"""The self-check: what the recorder missed is found, and what did not change is left alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from logicalrep.errors import ReplicationError
from logicalrep.recorder import (
    Connected,
    Connection,
    Progress,
    RecorderOptions,
    is_requested,
    request_snapshot,
)
from logicalrep.recorder.catalogs import watch
from logicalrep.recorder.catalogs.changes import compare_catalogs
from logicalrep.recording import PathOrUri, Recording, locate
from logicalrep.replica import (
    CheckedTable,
    SelfCheckReport,
    TableResult,
    replica_tables,
    replicate,
    store_self_check,
    use_iceberg,
)
from logicalrep.verification import Replicated, SelfCheck
from logicalrep.verification.selfcheck import check as module
from logicalrep.verification.selfcheck.published import Server
from logicalrep.verification.selfcheck.schedule import DAY, Schedule
from logicalrep.wire import parse_lsn
from tests import store
from tests.conftest import Run
from tests.recorder.conftest import direct, moto
from tests.recorder.lab import Lab, wait_until
from tests.server import Server as LabServer, Standby
from tests.verification.replica import Replica

__all__ = ["direct", "moto"]

ROWS = "INSERT INTO {0} SELECT i, i % 7 FROM generate_series(1, {1}) i"

FAULTS = {  # SQL before the end of the recording, and what the recorder misses: {0} is the table
    "added": ("CREATE TABLE {0} (id int PRIMARY KEY, v int); " + ROWS, "ALTER TABLE {0} ADD w int DEFAULT 3"),
    "added_to_many": (
        "CREATE TABLE {0} (id int PRIMARY KEY, v int);"
        "INSERT INTO {0} SELECT i, 1 FROM generate_series(1, 12000) i",
        "ALTER TABLE {0} ADD w int DEFAULT 3",
    ),
    "again": (
        "CREATE TABLE {0} (id int PRIMARY KEY, v text); INSERT INTO {0} VALUES (1, 'a')",
        "ALTER TABLE {0} DROP v; ALTER TABLE {0} ADD v text DEFAULT 'dd'",
    ),
    "swapped": (
        "CREATE TABLE {0} (id int PRIMARY KEY, v text, s text); INSERT INTO {0} VALUES (1, 'v', 's')",
        "ALTER TABLE {0} RENAME v TO x; ALTER TABLE {0} RENAME s TO v; ALTER TABLE {0} RENAME x TO s",
    ),
    "binary_cast": (
        "CREATE TABLE {0} (id int PRIMARY KEY, v cidr); INSERT INTO {0} VALUES (1, '10.0.0.1/32')",
        "ALTER TABLE {0} ALTER v TYPE inet",
    ),
    "binary_cast_of_key": (
        "CREATE TABLE {0} (id cidr PRIMARY KEY); INSERT INTO {0} VALUES ('10.0.0.1/32')",
        "ALTER TABLE {0} ALTER id TYPE inet",
    ),
    "oid": (
        "CREATE TABLE {0} (id int PRIMARY KEY, v int); INSERT INTO {0} VALUES (1, -1)",
        "ALTER TABLE {0} ALTER v TYPE oid",
    ),
    "label": (
        "CREATE TYPE label_of AS ENUM ('a', 'b'); CREATE TABLE {0} (id int PRIMARY KEY, v label_of);"
        "INSERT INTO {0} VALUES (1, 'a')",
        "ALTER TYPE label_of RENAME VALUE 'a' TO 'z'",
    ),
    "composite": (
        "CREATE TYPE pair_of AS (a int); CREATE TABLE {0} (id int PRIMARY KEY, v pair_of[]);"
        "INSERT INTO {0} VALUES (1, '{{(1)}}')",
        "ALTER TYPE pair_of ADD ATTRIBUTE b int CASCADE",
    ),
    "missing": ("SELECT 1", "CREATE TABLE {0} (v int); INSERT INTO {0} VALUES (1)"),
    "gone": ("CREATE TABLE {0} (id int PRIMARY KEY, v int); " + ROWS, "DELETE FROM {0} WHERE id < 9"),
    "gone_from_many": (
        "CREATE TABLE {0} (id text PRIMARY KEY, v int);"
        "INSERT INTO {0} SELECT md5(i::text), 1 FROM generate_series(1, 12000) i",
        "DELETE FROM {0} WHERE id < '2'",
    ),
    "new": ("CREATE TABLE {0} (id int PRIMARY KEY, v int); " + ROWS, "INSERT INTO {0} VALUES (-1)"),
    "new_in_many": (
        "CREATE TABLE {0} (id int PRIMARY KEY, v int);"
        "INSERT INTO {0} SELECT i, 1 FROM generate_series(1, 12000) i",
        "INSERT INTO {0} SELECT i FROM generate_series(20000, 32000) i",
    ),
    "multiset": (
        "CREATE TABLE {0} (v numeric); ALTER TABLE {0} REPLICA IDENTITY FULL;"
        "INSERT INTO {0} VALUES (1), (1), (1.0), ('NaN')",
        "DELETE FROM {0} WHERE ctid = '(0,1)'",
    ),
}

EQUAL = {
    "null_column": ("CREATE TABLE {0} (id int PRIMARY KEY, v int); " + ROWS, "ALTER TABLE {0} ADD w int"),
    "renamed": (
        "CREATE TABLE {0} (id int PRIMARY KEY, v int, z int); INSERT INTO {0} VALUES (1, 2, 3)",
        "ALTER TABLE {0} RENAME v TO u",
    ),
    "widened": (
        "CREATE TABLE {0} (id int PRIMARY KEY, a varchar(9), b numeric(5, 2), c timestamptz, d int);"
        "INSERT INTO {0} VALUES (1, 'a b', 1.5, '2026-01-01 12:00', 1)",
        "ALTER TABLE {0} ALTER a TYPE text, ALTER b TYPE numeric(9, 2), ALTER c TYPE timestamp, DROP d",
    ),
    "rewritten": ("CREATE TABLE {0} (id int PRIMARY KEY, v int); " + ROWS, "VACUUM FULL {0}"),
    "empty": ("SELECT 1", "CREATE TABLE {0} (id int)"),
    "no_columns": ("CREATE TABLE {0} (); INSERT INTO {0} DEFAULT VALUES", "SELECT 1"),
    "texts": (
        'CREATE TABLE {0} ("Key (1)" numeric, k2 char(3), v text, w bytea, f float8, b bool[],'
        ' PRIMARY KEY ("Key (1)", k2)); INSERT INTO {0} VALUES'
        " (1.50, 'a', E'a\\\\b\"c,(', 'x', 0.1, '{{t,NULL}}'),"
        " ('NaN', 'b', '', '', '-0', NULL), (1e30, '''', NULL, NULL, 'NaN', '{{}}')",
        "SELECT 1",
    ),
    "many": (
        "CREATE TABLE {0} (id uuid PRIMARY KEY, v int); INSERT INTO {0}"
        " SELECT md5(i::text)::uuid, 1 FROM generate_series(1, 12000) i",
        "GRANT SELECT ON {0} TO PUBLIC",
    ),
}


class Checked:
    """A self-check of a replica that nothing follows meanwhile, and what it reports and requests."""

    def __init__(self, lab: Lab, target: PathOrUri, *publications: str, dsn: str = "") -> None:
        self.results: list[TableResult] = []
        self.requests: list[tuple[str, Collection[Any] | None]] = []
        self.dsn, self.target, self.stop = dsn or lab.dsn, locate(target), Event()
        self.attempts, self.connected = 0, 0
        self.told: list[str] = []
        replicated = Replicated(
            Recording(lab.folder),
            self.target,
            publications or ("p",),
            self.connect,
            lambda: lab.lsn(),
            lambda: 1 << 60,
            self._request,
            lambda name: False,
            self.results.append,
            self.told.append,
            1 << 30,
            self.stop,
        )
        self.check = SelfCheck(replicated)

    def connect(self) -> Connection:
        self.attempts += 1
        connection = Connection(self.dsn)
        self.connected += 1
        return connection

    def _request(self, name: str, keys: Collection[Any] | None) -> str:
        self.requests.append((name, keys))
        return "request"

    def __call__(self, *names: str) -> dict[str, CheckedTable]:
        """Compare tables; return what is known about each, by name."""
        with self.connect() as connection:
            return self.look(connection, *names)

    def look(self, connection: Server, *names: str) -> dict[str, CheckedTable]:
        """Compare tables on a connection."""
        publications = self.check.open(connection)
        self.check.read_states(publications)
        known = self.check.findings.tables
        oids = [oid for oid, one in known.items() if not names or one.name.partition(".")[2] in names]
        for _ in range(2):  # a difference counts once it is found again
            self.check.check(publications, oids)
            oids = [oid for oid in oids if oid in known]
        return {known[oid].name.partition(".")[2]: known[oid] for oid in oids if oid in known}


@contextmanager
def replicated(lab: Lab, target: Path, statements: Collection[str], *publications: str) -> Iterator[Replica]:
    """Run statements and replicate their changes; in the `with` block, nothing is recorded."""
    with lab.recording(*publications) as recording:
        recording.wait(Connected)
        replica = Replica(lab, target)
        for statement in statements:
            lab.run(*statement.split(";"))
        replica.replicate()
    yield replica


def test_what_the_recorder_missed_is_found_and_the_rest_is_left_alone(
    lab: Lab, tmp_path: Path, run: Run
) -> None:
    target, cases = tmp_path / "lake", FAULTS | EQUAL
    before = [first.format(name, 50) for name, (first, _) in cases.items()]
    with replicated(lab, target, before):
        for name, (_, missed) in cases.items():
            lab.run(*missed.format(name).split(";"))
        lab.run("CREATE TABLE large (v int)", "INSERT INTO large SELECT generate_series(1, 12000)", "VACUUM")
        check = Checked(lab, target)
        found = check()
        assert {name for name, one in found.items() if one.difference} == FAULTS.keys() | {"large"}
        refused = {name for name, one in found.items() if one.refusal}
        assert refused == ({"texts"} if lab.version < 12 else set())  # it has floats
        reasons = {one.name: [*one.may_differ] for one in replica_tables(target).values()}
        marked = {
            name for name, found in reasons.items() if any(module.REASON in one.reason for one in found)
        }
        assert marked == FAULTS.keys() - {"missing"}  # which has no table to mark
        assert {one.name for one in check.results} == FAULTS.keys() | {"large"}
        whole = {name.partition(".")[2] for name, keys in check.requests if keys is None}
        assert whole == {"multiset", "missing", "large", *(name for name in FAULTS if name.endswith("_many"))}
        (gone,) = (keys for name, keys in check.requests if name == "public.gone")
        assert gone is not None
        assert sorted(gone) == [(str(i),) for i in range(1, 9)]

        # A difference that stays is copied once. The file of the target tells so to the next process.
        requests = len(check.requests)
        store_self_check(check.target, check.check.findings)
        for _ in range(10):
            check("added", "multiset", "missing")
        assert len(check.requests) == requests == len(FAULTS) + 1
        assert all("again after a copy" in one.may_differ[0].reason for one in check.results[-2:])
        status = run("status", "--recording", lab.folder, "--target", target)
        assert status.code == 1
        assert "differs    public.missing: 1 difference in 1 row compared" in status.out


PARTITIONED = """\
CREATE TABLE r (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)
;CREATE TABLE r1 PARTITION OF r FOR VALUES IN (1);CREATE TABLE r2 PARTITION OF r FOR VALUES IN (2)
;CREATE TABLE f (id int PRIMARY KEY, v int, w int);CREATE TABLE d (id int PRIMARY KEY)
;CREATE TABLE g (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED)
;CREATE PUBLICATION leaves FOR TABLE r1, g, tick, f (id, v) WHERE (v > 5)
;CREATE PUBLICATION roots FOR TABLE r WITH (publish_via_partition_root)
;CREATE PUBLICATION inserts FOR TABLE d WITH (publish = insert)"""


def test_what_is_published_under_which_root_with_which_rows(lab: Lab, tmp_path: Path) -> None:
    lab.require(15, "row filters and column lists")
    lab.run(*PARTITIONED.split(";"))
    publications = "leaves", "roots", "inserts"
    changes = (
        "INSERT INTO f SELECT i, i FROM generate_series(1, 9) i",
        "INSERT INTO r SELECT i, 1 + i % 2 FROM generate_series(1, 20000) i",
        "INSERT INTO g (id, a) VALUES (1, 1)",
        "INSERT INTO d VALUES (1)",
    )
    with replicated(lab, tmp_path / "lake", changes, *publications):
        check = Checked(lab, tmp_path / "lake", *publications)
        found = check()
        assert found.keys() == {"f", "r", "g", "d", "tick"}
        assert {name: one.refusal for name, one in found.items() if one.refusal} == {
            "d": "a publication leaves out operations"
        }
        assert not [one for one in found.values() if one.difference]
        lab.run(
            "ALTER TABLE g ALTER g DROP EXPRESSION",
            "INSERT INTO f VALUES (10, 10)",
            "ALTER TABLE r DETACH PARTITION r2",
            "ALTER PUBLICATION leaves DROP TABLE tick",
        )
        found = check()
        assert {name for name, one in found.items() if one.difference} == {"f", "r", "g"}
        (tick,) = (one for one in replica_tables(tmp_path / "lake").values() if one.name == "tick")
        assert "the publications do not contain the table" in tick.may_differ[0].reason


TARGETS: dict[str, dict[str, Any]] = {
    "vectors": {"updates": "vectors"},
    "rewrite": {"updates": "rewrite"},
    "history": {"history": True},
    "iceberg": {},
    "store": {},
}


def test_tables_of_each_kind_with_deleted_rows_and_ended_versions(
    lab: Lab, tmp_path: Path, direct: None
) -> None:
    changes = (
        "CREATE TABLE small (id date PRIMARY KEY, v text)",
        "CREATE TABLE big (id uuid, n int, v text, PRIMARY KEY (id, n))",
        "INSERT INTO small SELECT date '2026-01-01' + i, i FROM generate_series(1, 300) i",
        "INSERT INTO big SELECT md5(i::text)::uuid, i, i FROM generate_series(1, 15000) i",
    )
    updates = (
        "UPDATE small SET v = v || 'x' WHERE id < '2026-02-01'",
        "DELETE FROM small WHERE id > '2026-03-01'",
        "UPDATE big SET v = '' WHERE n % 3 = 0",
        "DELETE FROM big WHERE n % 5 = 0",
    )
    targets = {kind: tmp_path / kind for kind in TARGETS} | {"store": f"s3://{store.BUCKET}/{lab.name}/lake"}
    use_iceberg(targets["iceberg"])

    def apply() -> None:
        for kind, options in TARGETS.items():
            replicate(lab.folder, targets[kind], **options)

    with replicated(lab, tmp_path / "first", changes):
        apply()
    with replicated(lab, tmp_path / "first", updates):
        apply()
    found = {kind: Checked(lab, targets[kind])("small", "big") for kind in TARGETS}
    assert {kind: one for kind, one in found.items() if any(table.difference for table in one.values())} == {}
    lab.run("ALTER TABLE small ADD w int DEFAULT 3", "ALTER TABLE big ADD w int DEFAULT 3")
    for kind in TARGETS:
        assert all(one.difference for one in Checked(lab, targets[kind])("small", "big").values()), kind


def test_a_look_waits_for_no_migration_and_no_migration_for_a_look(lab: Lab, tmp_path: Path) -> None:
    lab.run("CREATE TABLE t (id int PRIMARY KEY)")
    with replicated(lab, tmp_path / "lake", ["INSERT INTO t SELECT generate_series(1, 9000)"]):
        check, stop, waits = Checked(lab, tmp_path / "lake"), Event(), []
        check()
        with lab.connect() as other, other.transaction():
            other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            began = time.monotonic()
            with pytest.raises(ReplicationError, match="lock timeout"):
                check()
            assert time.monotonic() < began + 1
        with Connection(lab.dsn) as connection:
            check.check.open(connection)
            assert connection.query("SHOW statement_timeout") == [("2s",)]

        def look() -> None:
            while not stop.is_set():
                with suppress(ReplicationError):
                    check()

        with ThreadPoolExecutor() as pool, lab.connect() as other:
            looking = pool.submit(look)
            for _ in range(50):  # some wait for a look that reads the table
                time.sleep(0.05)
                began = time.monotonic()
                other.execute("ALTER TABLE t ALTER id SET DEFAULT 7")
                waits.append(time.monotonic() - began)
            stop.set()
            looking.result()
        assert max(waits) < 1
    assert check.check.findings.tables
    assert not check.requests


NOT_COMPARED = {  # name of the table: SQL, and the reason
    "inserts": (
        "CREATE TABLE inserts (id int); CREATE PUBLICATION inserts FOR TABLE inserts WITH (publish = insert)",
        "a publication leaves out operations",
    ),
    "apart": (
        "CREATE SCHEMA s; CREATE TABLE s.apart (id int); GRANT SELECT ON s.apart TO reader",
        "the role may not use its schema",
    ),
    "hidden": ("CREATE TABLE hidden (id int)", "the role may not read the table or its partitions"),
    "root": (
        "CREATE TABLE root (id int) PARTITION BY LIST (id); CREATE TABLE leaf PARTITION OF root DEFAULT;"
        "GRANT SELECT ON root TO reader; CREATE PUBLICATION roots FOR TABLE root"
        " WITH (publish_via_partition_root)",
        "the role may not read the table or its partitions",
    ),
    "seen": (
        "CREATE TABLE seen (id int); GRANT SELECT ON seen TO reader;"
        "ALTER TABLE seen ENABLE ROW LEVEL SECURITY",
        "row-level security hides rows from the role",
    ),
    "types": (
        "CREATE TABLE types (v regtype); GRANT SELECT ON types TO reader",
        "the columns v cannot be compared: the recording has their values in binary format",
    ),
    "large": (
        "CREATE TABLE large (v int); INSERT INTO large SELECT generate_series(1, 12000);"
        "GRANT SELECT ON large TO reader",
        "it has no key, and more than 10,000 rows",
    ),
}


def test_what_is_not_compared_is_named_with_the_reason(lab: Lab, tmp_path: Path, run: Run) -> None:
    lab.require(14, "the option binary")
    target, publications = tmp_path / "lake", ("p", "inserts", "roots")
    lab.run("CREATE ROLE reader LOGIN", "GRANT SELECT ON tick TO reader")
    lab.run(*";".join(statements for statements, _ in NOT_COMPARED.values()).split(";"))
    try:
        options = RecorderOptions(binary=True)
        with lab.recording(*publications, options=options, snapshot=True) as recording:
            recording.wait(Connected)
            Replica(lab, target).replicate()
        check = Checked(lab, target, *publications, dsn=f"{lab.dsn} options='-c role=reader'")
        found = {name: one.refusal for name, one in check().items() if one.refusal}
        store_self_check(check.target, check.check.findings)
        dsn = lab.dsn.replace("user=postgres", "user=reader")
        named = (f"--publication={name}" for name in publications)
        doctor = run("doctor", "--dsn", dsn, *named, "--json").out
    finally:
        lab.run("DROP OWNED BY reader", "DROP ROLE reader")
    assert found.keys() == NOT_COMPARED.keys()
    status = run("status", "--recording", lab.folder, "--target", target).out
    advice = [one["found"] for one in json.loads(doctor)["findings"] if one["check"] == "self-check"]
    for name, (_, reason) in NOT_COMPARED.items():
        assert found[name].startswith(reason)
        assert f".{name}: {reason}" in status
        if name not in ("types", "large"):  # the server alone does not show these
            assert any(f".{name}" in one and reason in one for one in advice)


ASCII = "the database has the encoding SQL_ASCII, so texts need not be UTF-8"


def test_a_database_whose_texts_need_not_be_utf_8(server: LabServer, tmp_path: Path, run: Run) -> None:
    with Lab(server, tmp_path, "ENCODING 'SQL_ASCII' TEMPLATE template0") as lab:
        lab.run(
            "SET client_encoding = 'LATIN1'",
            "CREATE TABLE tick (n int)",
            r"""DO $$ BEGIN EXECUTE E'CREATE TABLE "t\xff" (id int PRIMARY KEY, "c\xff" text)'; END $$""",
            "CREATE PUBLICATION p FOR ALL TABLES",
        )
        with replicated(lab, tmp_path / "lake", ["INSERT INTO tick VALUES (0)"]):
            check = Checked(lab, tmp_path / "lake")
            assert {one.refusal for one in check().values()} == {ASCII}
            store_self_check(check.target, check.check.findings)
        status = run("status", "--recording", lab.folder, "--target", tmp_path / "lake").out
        assert rf"public.t\xff: {ASCII}" in status
        assert rf"public.t\xff: {ASCII}" in run("doctor", "--dsn", lab.dsn).out


TERMINATE = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'logicalrep' AND datname = current_database()"""


def test_a_refused_and_a_lost_connection_are_told_once_and_end_nothing(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "check._RECONNECT_SECONDS": 0.1,
        "check._PATIENCE": 0,
        "schedule._MIN_PAUSE": 0.1,
    }.items():
        monkeypatch.setattr(f"logicalrep.verification.selfcheck.{name}", value)
    lab.run("CREATE TABLE t (id int PRIMARY KEY)")
    with replicated(lab, tmp_path / "lake", ["INSERT INTO t VALUES (1)"]), ThreadPoolExecutor() as pool:
        check = Checked(lab, tmp_path / "lake", dsn=f"host={tmp_path}/none")
        running = pool.submit(check.check.run)
        try:
            wait_until(lambda: check.attempts > 3)
            assert len(check.told) == 1
            for number in (1, 2):
                check.dsn = lab.dsn
                wait_until(lambda number=number: check.connected >= number)  # type: ignore[misc]
                wait_until(lambda: any(one.time for one in check.check.findings.tables.values()), 30)
                lab.run(TERMINATE)
        finally:
            check.stop.set()
            running.result()
    assert len(check.told) == 2
    assert check.told[0].startswith("the self-check is tried again: ")


class Conflicting(Connection):
    """A connection to a standby. A table of the primary is locked during the first look at rows."""

    def __init__(self, dsn: str, lock: Callable[[], None]) -> None:
        self.errors: list[str] = []
        super().__init__(dsn)
        self._lock = lock

    def __enter__(self) -> Conflicting:
        return self

    def query(self, query: Any, **options: Any) -> Any:
        if "md5(convert_to" not in query or self.errors:
            return super().query(query, **options)
        with ThreadPoolExecutor() as pool:
            pool.submit(self._lock)
            try:
                return super().query(
                    query.replace("LIMIT", "AND pg_sleep(0.001) IS NOT NULL LIMIT"), **options
                )
            except ReplicationError as error:
                self.errors.append(str(error))
                raise


@pytest.mark.nightly
def test_a_conflict_on_a_standby_is_tried_again(lab: Lab, tmp_path: Path) -> None:
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY)", "DROP PUBLICATION p", "CREATE PUBLICATION p FOR TABLE t, tick"
    )

    def lock() -> None:
        time.sleep(0.2)
        lab.run("DO $$ BEGIN LOCK TABLE t; END $$")

    with (
        Standby(lab.server, max_standby_streaming_delay="0", hot_standby_feedback="off") as standby,
        replicated(lab, tmp_path / "lake", ["INSERT INTO t SELECT generate_series(1, 600)"]),
    ):
        check = Checked(lab, tmp_path / "lake")
        with Conflicting(f"{standby.dsn} dbname={lab.name}", lock) as connection:
            assert not any(one.refusal or one.difference for one in check.look(connection, "t").values())
            assert "conflict with recovery" in connection.errors[0]
            (found,) = check.look(connection, "t").values()
    assert found.time
    assert not found.difference
    assert not check.told


SILENT = {  # what the recorder of the mutant below does not understand
    **{name: case for name, case in FAULTS.items() if case[1].startswith("ALTER") and "key" not in name},
    "same_transaction": (
        "SELECT 1",
        "BEGIN; CREATE TABLE {0} (id int PRIMARY KEY, v text); INSERT INTO {0} VALUES (1, 'a');"
        "ALTER TABLE {0} ADD w int NOT NULL DEFAULT 3; COMMIT",
    ),
    "expression": (
        "CREATE TABLE {0} (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED);"
        "INSERT INTO {0} (id, a) VALUES (1, 1)",
        "ALTER TABLE {0} ALTER g DROP EXPRESSION",
    ),
}


@pytest.mark.nightly
def test_each_silent_fault_is_found_within_30_seconds_and_mended(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder is a mutant that sees no alteration in the catalogs."""
    monkeypatch.setattr(
        watch, "compare_catalogs", lambda _, new, connection: compare_catalogs(new, new, connection)
    )
    for name, (before, _) in SILENT.items():
        lab.run(*before.format(name, 50).split(";"))
    target, stop, applied, found = tmp_path / "lake", Event(), [0], {}
    with lab.recording(run={}, snapshot=True) as recording, ThreadPoolExecutor() as pool:
        recording.wait(Connected)

        def request(name: str, keys: Any) -> str:
            return str(request_snapshot(lab.folder, [name], {} if keys is None else {name: keys}))

        def report(result: TableResult) -> None:
            found[result.name] = time.monotonic()

        followed = Replicated(
            Recording(lab.folder),
            locate(target),
            ["p"],
            lambda: Connection(lab.dsn),
            lambda: parse_lsn(recording.wait(Progress).complete_lsn),
            lambda: applied[0],
            request,
            lambda place: is_requested(locate(place)),
            report,
            print,
            1 << 30,
            stop,
        )

        def follow() -> None:
            replicate(
                lab.folder,
                target,
                follow=True,
                stop=stop,
                on_progress=lambda progress: applied.__setitem__(0, progress.applied_segment),
            )

        check = SelfCheck(followed)

        def tables() -> Collection[CheckedTable]:
            return check.findings.tables.values()

        running = [pool.submit(follow), pool.submit(check.run)]
        try:
            wait_until(
                lambda: len([one for one in check.findings.tables.values() if one.time]) >= len(SILENT)
            )
            assert not found
            began = time.monotonic()
            for name, (_, missed) in SILENT.items():
                lab.run(*missed.format(name).split(";"))
            wait_until(lambda: found.keys() >= SILENT.keys() or time.monotonic() > began + 90, 100)
            print({name: round(seconds - began, 1) for name, seconds in found.items()})
            assert found.keys() == SILENT.keys()
            assert max(found.values()) < began + 30
            wait_until(lambda: not any(one.difference for one in tables()))
        finally:
            stop.set()
        for one in running:
            one.result()
        assert Replica(lab, target).unequal() == []


COSTS = [0.01] * 900 + [0.2] * 90 + [0.4] * 10


@pytest.mark.parametrize("tables", [100, pytest.param(1000, marks=pytest.mark.nightly)])
def test_a_day_takes_at_most_one_percent_of_a_core(tables: int) -> None:
    """Each table is compared within minutes of its first sight, and a changed table within 30 seconds."""
    costs = COSTS[:: 1000 // tables]
    states = {oid: (f"t{oid}", "a") for oid in range(tables)}
    reading, spent, now, due = 0.02 * tables / 1000, 0.0, 0.0, 0.0
    known = Schedule(SelfCheckReport(), now)
    while now < DAY:
        now += 5.0
        if now == 80_000.0:
            states[7] = "t7", "b"
        if now >= due:
            known.saw(states, reading, now)
            known.spend(reading)
            spent += reading
            due = now + known.reading_pause
        for oid in known.next(now, 16):
            known.spend(costs[oid])
            known.finish(oid, states[oid][1], costs[oid], now)
            spent += costs[oid]
    assert spent < 0.01 * DAY
    times = [one.time for one in known.report.tables.values()]
    assert 80_000.0 < times.pop(7) < 80_030.0
    assert min(times) > 0
    assert max(times) < 6 * 3600.0
    assert known.report.period == DAY
