"""Replicas equal their source after ALTER TABLE has changed rows that the server does not send."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from logicalrep.recorder import (
    Connected,
    Event,
    Progress,
    TableComplete,
    TableIncomplete,
    install_ddl_events,
    request_snapshot,
)
from logicalrep.recorder.catalogs.ddl_events import DDL_EVENTS_SINCE
from logicalrep.recorder.snapshots.table_copy import TableCopy
from tests.recorder.lab import Lab, wait_until
from tests.replica.changes import recorded_changes, sorted_changes
from tests.replica.live import Replica

pytestmark = pytest.mark.usefixtures("any_format")


@pytest.fixture(params=[False, True], ids=["current", "history"])
def replica(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Replica:
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a text, b text)", "CREATE PUBLICATION p FOR ALL TABLES")
    return Replica(lab, tmp_path / "target", history=request.param)


UNSENT = {
    "ADD c int DEFAULT 5": '"c" added with a default',
    "ADD c int DEFAULT 100 * random()": '"c" added with a default',
    "RENAME b TO c": '"c" renamed',
    "RENAME a TO c; ADD d int": '"c" renamed',
    "RENAME a TO c; RENAME b TO a; RENAME c TO b": '"a", "b" renamed',
    "DROP b, ADD b text DEFAULT 'new'": '"b" dropped and added again',
    "ALTER a TYPE int USING length(a)": '"a" retyped',
    "ALTER b TYPE text USING upper(b)": '"b" rewritten',  # PostgreSQL 17.12 also updates later columns
}
"""Subcommands of ALTER TABLE that change rows without sending them, and the reason that is reported."""


def incomplete(events: list[Event]) -> list[TableIncomplete]:
    return [one for one in events if isinstance(one, TableIncomplete)]


def make_tables(lab: Lab, count: int) -> list[str]:
    """Create tables like `t`; return their names."""
    names = [f"t{number}" for number in range(count)]
    lab.run(*(f"CREATE TABLE {name} (LIKE t INCLUDING ALL)" for name in names))
    return names


def is_equal(replica: Replica) -> None:
    """Check that a replica equals its source, and knows it, after it has applied all that is recorded."""
    replica.follow()
    replica.assert_equal()
    assert replica.may_differ() == []


def alter(lab: Lab, name: str, statement: str) -> None:
    lab.run(*(f"ALTER TABLE {name} {one}" for one in statement.split("; ")))


def test_tables_that_were_altered_are_copied_anew(replica: Replica, lab: Lab) -> None:
    names = make_tables(lab, len(UNSENT))
    lab.record()
    for name in names:
        lab.run(f"INSERT INTO {name} SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 3) i")
    lab.record()
    replica.follow()
    for name, statement in zip(names, UNSENT, strict=True):
        alter(lab, name, statement)
        lab.run(f"INSERT INTO {name} (id) VALUES (4)")
    events = lab.record(resync="on-ddl", strict=True)
    told = {one.table: one for one in incomplete(events)}
    for name, reason in zip(names, UNSENT.values(), strict=True):
        assert told[f"public.{name}"].reason.startswith(reason)
        assert told[f"public.{name}"].advice == "the recorder copies its rows"
    assert len(told) == len([one for one in events if isinstance(one, TableComplete)]) == len(names)
    for name in names:
        lab.run(f"UPDATE {name} SET id = 5 WHERE id = 1", f"DELETE FROM {name} WHERE id = 2")
    lab.record()
    replica.follow()
    for name in names:
        replica.assert_equal(name)
    assert replica.may_differ() == []


def test_an_altered_table_is_reported_until_its_rows_are_copied(replica: Replica, lab: Lab) -> None:
    lab.record()
    lab.run("INSERT INTO t VALUES (1, 'a', 'b')")
    lab.record()
    replica.follow()
    lab.run("ALTER TABLE t ADD c int DEFAULT 5", "INSERT INTO t (id) VALUES (4)")
    for _ in range(2):
        (told,) = incomplete(lab.record())
        assert told.advice == (
            f"to copy its rows, run logicalrep snapshot --recording {lab.folder} --table public.t"
        )
    replica.follow()
    assert replica.may_differ() == ["t"]
    request_snapshot(lab.folder, ["public.t"])
    lab.record()
    assert not incomplete(lab.record())
    is_equal(replica)


SENT = [
    "ADD c int",
    "DROP a",
    "RENAME a TO c",
    "ALTER a TYPE varchar",
    "ALTER n SET NOT NULL",
    "RENAME TO u",
]
"""Subcommands of ALTER TABLE after which all rows follow from the stream."""


@pytest.mark.parametrize("statement", SENT)
def test_other_alterations_are_not_reported(statement: str, lab: Lab, tmp_path: Path) -> None:
    replica = Replica(lab, tmp_path / "target", history=False)
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a text, n int)", "CREATE PUBLICATION p FOR ALL TABLES")
    lab.record()
    lab.run("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    lab.record()
    replica.follow()
    lab.run(f"ALTER TABLE t {statement}")
    name = "u" if "TO u" in statement else "t"
    lab.run(f"VACUUM FULL {name}")
    lab.run(f"UPDATE {name} SET id = 3 WHERE id = 1")
    assert not incomplete(lab.record())
    replica.follow()
    replica.assert_equal(name)


def test_unpublished_columns_and_tables_without_rows_are_not_reported(lab: Lab) -> None:
    lab.require(15, "column lists")
    lab.run(
        "CREATE TABLE listed (id int PRIMARY KEY)", "CREATE TABLE empty (id int)", "CREATE TABLE g (id int)"
    )
    lab.run("CREATE PUBLICATION p FOR TABLE listed (id), empty, g")
    lab.record()
    lab.run("INSERT INTO listed VALUES (1)", "INSERT INTO g VALUES (1)")
    lab.run(
        "ALTER TABLE listed ADD c int DEFAULT 5",
        "ALTER TABLE empty ADD c int DEFAULT 5",
        "ALTER TABLE g ADD c int GENERATED ALWAYS AS (id + 1) STORED",
    )
    assert not incomplete(lab.record())


def test_a_table_that_is_altered_after_it_was_copied_is_copied_again(
    replica: Replica, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder has copied the rows, and has not added them to the recording yet."""
    lab.run("INSERT INTO t VALUES (1, 'a', 'b')")
    run = TableCopy.run

    def run_before_alteration(*arguments: Any) -> Any:
        monkeypatch.setattr(TableCopy, "run", run)
        copied = run(*arguments)
        lab.run(  # a transaction that is streamed, so that the Relation message contains its xid
            "BEGIN; ALTER TABLE t ADD c int DEFAULT 5; "
            "INSERT INTO t SELECT g, repeat('a', 100), 'b', 6 FROM generate_series(2, 2000) g; COMMIT"
        )
        recording.wait(TableIncomplete, 2)
        return copied

    monkeypatch.setattr(TableCopy, "run", run_before_alteration)
    with lab.recording(resync="on-ddl") as recording:
        recording.wait(TableIncomplete)
        request_snapshot(lab.folder, ["public.t"])
        recording.wait(TableComplete, 2)
    assert not incomplete(lab.record())
    replica.follow()
    replica.assert_equal()


@pytest.fixture
def described(replica: Replica, lab: Lab) -> Replica:
    """Return a replica of a database with the event trigger that describes alterations."""
    lab.require(DDL_EVENTS_SINCE, "the event trigger")
    install_ddl_events(lab.dsn)
    return replica


DESCRIBED = [
    "ADD c int DEFAULT 5",
    "ADD c int, ADD d text DEFAULT 'x', ADD e timestamptz DEFAULT '2020-01-01 00:00+03'",
    "ADD c date DEFAULT 'infinity'",
    "ADD c int[] DEFAULT '{1,NULL}', ADD d bytea DEFAULT '\\xff', ADD e jsonb DEFAULT '{\"a\": 1}'",
    "ADD c int DEFAULT 5; RENAME c TO d; ALTER d DROP DEFAULT",
    "RENAME b TO c",
    "RENAME a TO c; ADD d int",
    "RENAME a TO c; RENAME b TO a; RENAME c TO b",
    "RENAME id TO key; RENAME key TO id",
    "RENAME a TO c; DROP b",
    "RENAME b TO c; ADD b text DEFAULT 'new'",
    "DROP b, ADD b text DEFAULT 'new'",
    "DROP b; ADD b text",
    "DROP b, ADD b int",
    "ADD c int DEFAULT 5; DROP c; ADD c int DEFAULT 6",
    "ADD c int DEFAULT 7; ALTER c DROP DEFAULT",
]
"""Subcommands of ALTER TABLE that replicas follow if the stream describes them."""


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_replicas_follow_described_alterations(identity: str, described: Replica, lab: Lab) -> None:
    names = make_tables(lab, len(DESCRIBED))
    lab.run(*(f"ALTER TABLE {name} REPLICA IDENTITY {identity}" for name in names))
    lab.record(strict=True)
    for name in names:
        lab.run(f"INSERT INTO {name} SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 5) i")
    lab.record()
    described.follow()
    for name, statement in zip(names, DESCRIBED, strict=True):
        alter(lab, name, statement)
    lab.record(strict=True)
    described.follow()
    for name in names:
        described.assert_equal(name)
        lab.run(
            f"INSERT INTO {name} (id) VALUES (6)",
            f"UPDATE {name} SET id = 7 WHERE id = 1",
            f"DELETE FROM {name} WHERE id = 2",
            f"UPDATE {name} SET id = 3 WHERE id = 3",
        )
    events = lab.record(strict=True)
    assert not [one for one in events if isinstance(one, TableComplete)]
    described.follow()
    for name in names:
        described.assert_equal(name)
    assert described.may_differ() == []


def test_described_alterations_between_changes_of_one_batch(described: Replica, lab: Lab) -> None:
    lab.run("CREATE TABLE u (id int PRIMARY KEY, v int)")
    lab.record()
    lab.run(
        "INSERT INTO t VALUES (1, 'a', 'b')",
        "BEGIN; UPDATE t SET a = 'x'; ALTER TABLE t RENAME a TO c; UPDATE t SET c = c || 'y'; "
        "ALTER TABLE t ADD d int DEFAULT 5; INSERT INTO t VALUES (2, 'p', 'q', 6); "
        "ALTER TABLE t RENAME d TO a; UPDATE t SET a = a + 1 WHERE id = 2; COMMIT",
        "BEGIN; SAVEPOINT s; ALTER TABLE t DROP a; ROLLBACK TO s; ALTER TABLE t ADD e int DEFAULT 8; COMMIT",
        "BEGIN; ALTER TABLE t ADD f int DEFAULT 9; ROLLBACK",
        "ALTER TABLE u ADD w int DEFAULT 1",
        "INSERT INTO u VALUES (1, 2)",
        "ALTER TABLE u ADD x int DEFAULT 1",
        "BEGIN; INSERT INTO u VALUES (2, 2); TRUNCATE u; INSERT INTO u VALUES (3, 2); "
        "ALTER TABLE u ADD y int DEFAULT 3; INSERT INTO u VALUES (4, 2, 3, 4, 5); COMMIT",
    )
    lab.record(strict=True)
    for _ in range(2):  # again, with nothing new
        described.follow()
        for name in "tu":
            described.assert_equal(name)
    assert described.may_differ() == []


def test_two_sessions_alter_a_table_at_the_same_time(described: Replica, lab: Lab) -> None:
    """The second session has a snapshot from before the commit of the first session, and waits for it."""
    lab.record()
    lab.run("INSERT INTO t VALUES (1, 'a', 'b')")
    lab.run("BEGIN", "ALTER TABLE t ADD c int DEFAULT 5", "ALTER TABLE t RENAME b TO d", "UPDATE t SET c = 6")
    with lab.connect() as other, lab.connect() as observer:
        thread = threading.Thread(target=other.execute, args=(b"ALTER TABLE t ADD e int DEFAULT 7",))
        thread.start()
        waiting = "SELECT 1 FROM pg_locks WHERE relation = 't'::regclass AND NOT granted"
        wait_until(lambda: bool(observer.execute(waiting).fetchall()))
        lab.run("COMMIT")
        thread.join()
    lab.record(strict=True)
    is_equal(described)


def test_a_rolled_back_alteration_of_a_streamed_transaction(lab: Lab, tmp_path: Path) -> None:
    """Logical messages of streamed transactions do not name their subtransaction."""
    lab.require(DDL_EVENTS_SINCE, "the event trigger")
    replica = Replica(lab, tmp_path / "target", history=False)
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a text, b text)", "CREATE PUBLICATION p FOR ALL TABLES")
    install_ddl_events(lab.dsn)
    rows = "INSERT INTO t (id, a) SELECT g, repeat('a', 100) FROM generate_series({}, {}) g"
    with lab.recording() as recording:
        recording.wait(Connected)
        lab.run("INSERT INTO t VALUES (1, 'a', 'b')", "BEGIN", rows.format(2, 2000))
        lab.run("SAVEPOINT s", "ALTER TABLE t RENAME b TO c", rows.format(2001, 4000))
        wait_until(lambda: any(one.messages > 3000 for one in recording.events_of(Progress)))
        lab.run("ROLLBACK TO s", "ALTER TABLE t RENAME a TO d", "COMMIT")
    lab.record()  # not strict: a busy machine may hold the lock on t for longer than the recorder waits
    replica.follow()
    replica.assert_equal()


@pytest.mark.parametrize(
    "statement",
    ["ALTER a TYPE int USING length(a)", "ADD c float8 DEFAULT random()", "ALTER a TYPE text USING b"],
)
def test_unknown_values_of_described_alterations_are_copied(
    statement: str, described: Replica, lab: Lab
) -> None:
    lab.record()
    lab.run("INSERT INTO t VALUES (1, 'a', 'b')")
    lab.record()
    described.follow()
    lab.run(f"ALTER TABLE t {statement}")
    assert incomplete(lab.record(resync="on-ddl"))
    lab.run("INSERT INTO t (id) VALUES (2)")
    lab.record()
    is_equal(described)


def test_column_lists_generated_columns_and_partitions(lab: Lab, tmp_path: Path) -> None:
    lab.require(DDL_EVENTS_SINCE, "the event trigger")
    columns = " (id, a)" if lab.version >= 15 else ""
    replica = Replica(lab, tmp_path / "target", history=False)
    lab.run(
        "CREATE TABLE listed (id int PRIMARY KEY, a int, b int)",
        "CREATE TABLE computed (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED)",
        "CREATE TABLE root (id int, a int) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (100)",
        f"CREATE PUBLICATION p FOR TABLE listed{columns}, computed, leaf",
    )
    install_ddl_events(lab.dsn)
    lab.record()
    lab.run(
        "INSERT INTO listed VALUES (1, 2, 3)",
        "INSERT INTO computed VALUES (1)",
        "INSERT INTO leaf VALUES (1)",
    )
    lab.run(
        "ALTER TABLE listed ADD c int DEFAULT 5",
        "ALTER TABLE listed RENAME a TO x",
        "ALTER TABLE computed ADD c int DEFAULT 5",
        "ALTER TABLE root ADD c int DEFAULT 5",
        "ALTER TABLE root RENAME a TO x",
    )
    lab.run(
        "INSERT INTO listed VALUES (2, 2, 3)",
        "INSERT INTO computed VALUES (2)",
        "INSERT INTO leaf VALUES (2)",
    )
    lab.record(strict=True)
    assert sorted(replica.follow()) == ["computed", "leaf", "listed"]  # not the unpublished table `root`
    replica.assert_equal("leaf")
    assert {(row["id"], row["x"], "c" in row) for row in replica.rows("listed")} == {
        ("1", "2", not columns),
        ("2", "2", not columns),
    }
    assert {(row["id"], row["c"]) for row in replica.rows("computed")} == {("1", "5"), ("2", "5")}
    assert replica.may_differ() == []


def test_the_event_trigger_is_noticed_while_recording(replica: Replica, lab: Lab) -> None:
    lab.require(DDL_EVENTS_SINCE, "the event trigger")
    lab.record()
    lab.run("INSERT INTO t VALUES (1, 'a', 'b')")
    with lab.recording(strict=True) as recording:
        recording.wait(Connected)
        install_ddl_events(lab.dsn)
        assert recording.wait(Connected, 2).options["messages"] == "on"
        lab.run("ALTER TABLE t ADD c int DEFAULT 5")
    lab.record(strict=True)
    replica.follow()
    replica.assert_equal()
    install_ddl_events(lab.dsn, remove=True)
    lab.run("ALTER TABLE t ADD d int DEFAULT 5")
    assert [one.table for one in incomplete(lab.record())] == ["public.t"]


def test_a_disabled_event_trigger_describes_nothing(described: Replica, lab: Lab) -> None:
    lab.run("INSERT INTO t VALUES (1, 'a', 'b')")
    lab.record(snapshot=True)
    for mode in ("DISABLE", "ENABLE ALWAYS"):
        lab.run(f"ALTER EVENT TRIGGER logicalrep_ddl_events {mode}")
        if mode == "DISABLE":
            lab.run("ALTER TABLE t ADD c int DEFAULT 5")
    assert [one.table for one in incomplete(lab.record())] == ["public.t"]


def recorded_columns(lab: Lab) -> set[str]:
    """Return the names of the columns that recorded rows have."""
    rows = sorted_changes(recorded_changes(lab.folder))["after"].to_pylist()
    return {name for row in rows for name, _ in row or ()}


def test_a_described_alteration_of_rows_that_were_just_copied(
    described: Replica, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copied rows come after the description in the recording, so the rows are copied again."""
    lab.run("INSERT INTO t VALUES (1, 'a', 'b')")
    lab.record(snapshot=True)
    run = TableCopy.run

    def run_before_alteration(*arguments: Any) -> Any:
        monkeypatch.setattr(TableCopy, "run", run)
        copied = run(*arguments)
        lab.run("ALTER TABLE t ADD c int DEFAULT 5", "INSERT INTO t VALUES (2, 'a', 'b', 6)")
        wait_until(lambda: "c" in recorded_columns(lab))
        return copied

    monkeypatch.setattr(TableCopy, "run", run_before_alteration)
    with lab.recording(snapshot=True) as recording:
        recording.wait(Connected)
        request_snapshot(lab.folder, ["public.t"])
        recording.wait(TableComplete, 2)
    described.follow()
    described.assert_equal()
