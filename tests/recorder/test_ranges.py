"""Tables are copied in ranges, and a copy that was interrupted goes on with the missing ranges."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

from logicalrep.recorder import (
    Event,
    Reconnecting,
    Snapshotted,
    TableComplete,
    TableIncomplete,
    request_snapshot,
)
from logicalrep.recorder.snapshots.copy_folder import CopiedTable
from logicalrep.recorder.snapshots.ranges import RangePlan
from tests.recorder.lab import Lab

RANGE_BYTES = 4 * 8192
"""Size of a range in these tests."""


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logicalrep.recorder.snapshots.ranges.RANGE_BYTES", RANGE_BYTES)


@pytest.fixture
def table(lab: Lab) -> Lab:
    """Create a table of about 40 ranges, with key columns that are neither first nor neighbours."""
    lab.run(
        "CREATE TABLE t (v text, b int, w text, a text, PRIMARY KEY (a, b))",
        "ALTER TABLE t SET (autovacuum_enabled = off)",
        "INSERT INTO t SELECT repeat('v', 400), g, repeat('w', g % 7), 'ä' || g % 3"
        " FROM generate_series(1, 3000) g",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    return lab


def copied(lab: Lab) -> dict[str, CopiedTable]:
    """Return the ranges in the folder of copied rows, by name of the table."""
    path = lab.folder / ".tables.partial" / "_copied.json"
    content = path.read_bytes() if path.exists() else b"{}"
    tables = msgspec.json.decode(content, type=dict[int, CopiedTable])
    return {lab.value(f"SELECT {oid}::regclass::text"): table for oid, table in tables.items()}


def interrupt(lab: Lab, events: int, **options: Any) -> list[Event]:
    """Record until tables have been copied for a number of events; return the events."""
    seen: list[Event] = []

    def stop(event: Event) -> None:
        seen.append(event)
        if sum(isinstance(one, Snapshotted) for one in seen) >= events:
            recorder.stop()
            time.sleep(0.1)  # the session stops the copy at its next tick

    recorder = lab.recorder(on_event=stop, **({"snapshot": True, "workers": 2} | options))
    recorder.run(until="now")
    return seen


def change(lab: Lab, seed: int) -> None:
    """Change rows in all ways: new and deleted rows, moved rows, changed keys, and keys that come back."""
    chance = random.Random(seed)
    for _ in range(25):
        b = chance.randrange(1, 3000)
        where = f"WHERE b = {b}"
        lab.run(
            chance.choice(
                [
                    f"UPDATE t SET v = v || 'x' {where}",
                    f"UPDATE t SET v = 'short' {where}",
                    f"DELETE FROM t {where}",
                    f"UPDATE t SET b = b + 5000 WHERE b IN ({b}, {b + 1})",
                    f"UPDATE t SET b = b - 5000 WHERE b = 5000 + {b}",
                    f"INSERT INTO t VALUES ('new', {b}, NULL, 'new') ON CONFLICT DO NOTHING",
                    f"BEGIN; DELETE FROM t {where}; INSERT INTO t VALUES ('again', {b}, NULL, 'ä1'); COMMIT",
                    f"UPDATE t SET w = w || 'y' WHERE b BETWEEN {b} AND {b + 20}",
                    "VACUUM t",
                ]
            )
        )


@pytest.mark.parametrize("tid_scans", [False, True])
def test_ranges_of_tables_and_partitions_have_every_row_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tid_scans: bool
) -> None:
    roots = lab.version >= 13
    published = "parts, without WITH (publish_via_partition_root)" if roots else "low, higher"
    key = "PRIMARY KEY" if lab.version >= 11 else "NOT NULL"
    lab.run(
        "CREATE TABLE a (id int, t text)",
        "INSERT INTO a SELECT g, repeat('x', g % 500) FROM generate_series(1, 2000) g",
        "DELETE FROM a WHERE id > 500 AND id < 1200",
        "CREATE TABLE empty (id int)",
        f"CREATE TABLE parts (id int {key}, t text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE high PARTITION OF parts FOR VALUES FROM (1000) TO (9000) PARTITION BY RANGE (id)",
        "CREATE TABLE higher PARTITION OF high FOR VALUES FROM (1000) TO (5000)",
        "CREATE TABLE without (id int) PARTITION BY RANGE (id)",
        "INSERT INTO parts SELECT g, repeat('y', 300) FROM generate_series(1, 2000) g",
        f"CREATE PUBLICATION p FOR TABLE a, empty, {published}",
    )
    if tid_scans:  # as before PostgreSQL 14
        init = RangePlan.__init__

        def older(plan: Any, *arguments: Any) -> None:
            init(plan, *arguments)
            plan._has_range_scans = False

        monkeypatch.setattr(RangePlan, "__init__", older)
    events = lab.record(snapshot=True)
    tables = lab.assert_equal()
    assert len(tables) == (2 if roots else 3)  # the empty tables have no rows, but segments
    last = [event for event in events if isinstance(event, Snapshotted)][-1]
    assert (last.tables_done, last.tables) == (4, 4)
    assert last.rows_of_all == sum(map(len, tables.values()))
    assert last.bytes_done == last.bytes > 40 * RANGE_BYTES
    assert len(lab.segments()) > 40
    assert not list(lab.folder.glob(".*"))


@pytest.mark.parametrize(
    ("seed", "identity"),
    [
        *((0, "DEFAULT"), (1, "FULL"), (2, "DEFAULT")),
        *(
            pytest.param(*one, marks=pytest.mark.nightly)
            for one in ((0, "FULL"), (1, "DEFAULT"), (2, "FULL"))
        ),
    ],
)
def test_an_interrupted_copy_goes_on_after_changes(
    table: Lab, monkeypatch: pytest.MonkeyPatch, seed: int, identity: str
) -> None:
    if seed == 2:  # as with an old open transaction: the last pass copies also rows that are not newer
        time_only = "SELECT (extract(epoch FROM now()) * 1000000)::int8, 3"
        monkeypatch.setattr("logicalrep.recorder.snapshots.table_copy._SNAPSHOT", time_only)
    table.run(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    oldest = []
    for round_ in range(3):
        interrupt(table, 12)
        oldest.append(min(one.lsn for one in copied(table)["t"].ranges))
        change(table, 10 * seed + round_)
    if identity == "DEFAULT":  # never begun anew
        assert len(set(oldest)) == 1
        assert len({one.lsn for one in copied(table)["t"].ranges}) > 1
    else:
        assert len(set(oldest)) == 3
    events = table.record(snapshot=True)
    assert [one.table for one in events if isinstance(one, TableComplete)] == ["public.t"]
    assert not list(table.folder.glob(".*"))
    change(table, 99)
    table.record(snapshot=True)
    table.assert_equal()
    assert table.segments()[-1].incomplete == ()


def test_a_copy_beside_the_stream_goes_on(table: Lab) -> None:
    """A user asks for the rows; the recorder is stopped, also while it brings ranges to the last snapshot."""
    table.record()
    request_snapshot(table.folder, ["public.t"])
    interrupt(table, 9, snapshot=False)
    (first,) = {one.lsn for one in copied(table)["t"].ranges}
    change(table, 1)
    for count in range(40, 1000, 40):
        events = interrupt(table, count, snapshot=False)
        if any(isinstance(event, TableComplete) for event in events):
            break
        assert min(one.lsn for one in copied(table)["t"].ranges) == first
        change(table, count)
    table.record()
    table.assert_equal()
    assert table.segments()[-1].incomplete == ()


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE t ADD c int DEFAULT 7"],
        ["VACUUM FULL t"],
        ["TRUNCATE t", "INSERT INTO t VALUES ('new', 1, NULL, 'new')"],
        ["ALTER PUBLICATION p DROP TABLE t", "DELETE FROM t WHERE b < 9", "ALTER PUBLICATION p ADD TABLE t"],
    ],
    ids=lambda statements: statements[0],
)
def test_an_altered_table_begins_anew_alone(table: Lab, statements: list[str]) -> None:
    table.run(
        "CREATE TABLE other (id int PRIMARY KEY, t text)",
        "INSERT INTO other SELECT g, repeat('x', 300) FROM generate_series(1, 1500) g",
        "ALTER PUBLICATION p ADD TABLE other",
    )
    interrupt(table, 30, workers=4)
    before = copied(table)
    if "other" not in before or "t" not in before:
        pytest.fail("both tables must be copied in parts")
    table.run(*statements)
    interrupt(table, 1, workers=1)
    after = copied(table)
    assert {one.lsn for one in before["t"].ranges}.isdisjoint(one.lsn for one in after["t"].ranges)
    assert set(before["other"].ranges) <= set(after["other"].ranges)
    table.record(snapshot=True)
    table.assert_equal()


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_an_old_snapshot_is_replaced(table: Lab, monkeypatch: pytest.MonkeyPatch, identity: str) -> None:
    table.run(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    monkeypatch.setattr("logicalrep.recorder.snapshots.copy_folder._SAVE_SECONDS", 0.0)
    lsns: set[int] = set()

    def look(event: Event) -> None:
        if isinstance(event, Snapshotted) and (kept := copied(table)):
            found = {one.lsn for one in kept["t"].ranges} - lsns
            if found and len(lsns) < 4:
                table.run("UPDATE t SET v = v || 'x' WHERE b % 100 = 1", "DELETE FROM t WHERE b % 100 = 2")
            lsns.update(found)

    table.recorder(snapshot=True, max_snapshot_age=0.0, on_event=look).run(until="now")
    assert len(lsns) > 2 if identity == "DEFAULT" else len(lsns) == 1
    table.record(snapshot=True)
    table.assert_equal()


def test_a_killed_first_snapshot_goes_on_with_its_slot(table: Lab) -> None:
    code = (
        "import sys; from logicalrep.recorder import Recorder\n"
        "from logicalrep.recorder.snapshots import copy_folder, ranges\n"
        f"ranges.RANGE_BYTES = {RANGE_BYTES}; copy_folder._SAVE_SECONDS = 0\n"
        "events = []\n"
        "def wait(event):\n"
        "    events.append(event)\n"
        "    if len(events) == 12: print(event, flush=True), sys.stdin.read()\n"
        "Recorder(*sys.argv[1:3], ['p'], sys.argv[3], snapshot=True, workers=1, on_event=wait).run()"
    )
    command = [sys.executable, "-c", code, table.dsn, table.slot, str(table.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"Snapshotted" in process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert table.slots() == [table.slot]
    (lsn,) = {one.lsn for one in copied(table)["t"].ranges}
    assert lsn == table.confirmed_lsn()
    change(table, 5)
    events = table.record(snapshot=True)
    assert [one.reason[:19] for one in events if isinstance(one, TableIncomplete)] == ["snapshot unfinished"]
    assert not [one for one in events if isinstance(one, Reconnecting)]
    table.assert_equal()
    assert table.segments()[-1].incomplete == ()
    assert table.slots() == [table.slot]


def test_a_role_without_privileges_on_partitions_copies_through_the_root(lab: Lab) -> None:
    lab.require(13, "publications of partitioned tables")
    role = f"{lab.name}_reader"
    lab.run(
        "CREATE TABLE parts (id int PRIMARY KEY, t text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (5000)",
        "INSERT INTO parts SELECT g, repeat('y', 300) FROM generate_series(1, 2000) g",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT ON parts TO {role}",
        "CREATE PUBLICATION p FOR TABLE parts WITH (publish_via_partition_root)",
    )
    try:
        lab.record(snapshot=True, dsn=lab.dsn.replace("user=postgres", f"user={role}"))
        lab.assert_equal()
    finally:
        lab.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
