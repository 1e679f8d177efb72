"""Tables that are dropped on the server, or become incomplete, are marked; a new table takes over a name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from logicalrep.recorder import Connected, TableDropped, TableIncomplete
from logicalrep.recording import GoneTable, Location, Recording, locate
from logicalrep.replica import Dropped, remarks, replica_tables
from logicalrep.targets import registry
from logicalrep.targets.delta import table
from logicalrep.targets.delta.folders import _files, remove_folder
from logicalrep.targets.registry import archive_table, remove_table
from tests import store
from tests.kills import Killed, Kills
from tests.recorder.lab import Lab
from tests.replica.live import Replica
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import apply, read_table
from tests.targets.formats import Format

pytestmark = pytest.mark.usefixtures("any_format")


@pytest.fixture
def replica(lab: Lab, tmp_path: Path) -> Replica:
    lab.run("CREATE PUBLICATION p FOR ALL TABLES", *fill("t"), *fill("other"))
    lab.record(snapshot=True)
    return Replica(lab, tmp_path / "target")


def fill(name: str, *values: str) -> tuple[str, ...]:
    rows = ", ".join(f"({number}, '{value}')" for number, value in enumerate(values or "ab"))
    return f"CREATE TABLE {name} (id int PRIMARY KEY, a text)", f"INSERT INTO {name} VALUES {rows}"


def folders(target: Path) -> list[str]:
    return sorted(registry.format_of(locate(target)).names(locate(target)))


def texts(target: Path, name: str) -> list[str]:
    """Return the values of a table's column `a`, by the name of the table."""
    return sorted(row["a"] for row in read_table(str(target / name)).to_pylist())


def archived(target: Path) -> list[str]:
    return [name for name in folders(target) if "@" in name]


def test_the_recorder_reports_a_dropped_table_once(lab: Lab, replica: Replica) -> None:
    """The table was incomplete, and is not any more: nothing can be done about its rows."""
    lab.run("ALTER TABLE t ADD c int DEFAULT 7", "INSERT INTO t VALUES (7)")
    events = lab.record()
    assert [one.table for one in events if isinstance(one, TableIncomplete)] == ["public.t"]
    lab.run("DROP TABLE t", "INSERT INTO other VALUES (8)")
    events = lab.record(strict=True)
    assert [one.table for one in events if isinstance(one, TableDropped)] == ["public.t"]
    lab.run("INSERT INTO other VALUES (9)")
    events = lab.record(strict=True)
    assert not [one for one in events if isinstance(one, TableDropped | TableIncomplete)]
    recording = Recording(lab.folder)
    dropped = [one for segment in recording.metadata(recording.numbers) for one in segment.gone]
    assert [(one.namespace, one.name) for one in dropped] == [("public", "t")]


@pytest.mark.parametrize("gone", ["DROP TABLE {0}", "ALTER TABLE {0} SET UNLOGGED"])
@pytest.mark.parametrize("is_live", [False, True])
def test_a_table_that_is_gone_is_not_taken_for_a_partition(
    lab: Lab, replica: Replica, gone: str, is_live: bool
) -> None:
    """A partitioned table has the same columns."""
    lab.run(
        "CREATE TABLE root (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF root DEFAULT",
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
    )
    lab.record(snapshot=True, resync="on-ddl")
    statements = "INSERT INTO t VALUES (7)", gone.format("t"), "INSERT INTO root VALUES (1)"
    if is_live:
        with lab.recording() as recording:
            recording.wait(Connected)
            lab.run(*statements)
        events = recording.events
    else:
        lab.run(*statements)
        events = lab.record()
    assert {one.table for one in events if isinstance(one, TableIncomplete)} <= {"public.t"}


@pytest.mark.parametrize("dropped", get_args(Dropped))
def test_a_dropped_table_is_marked_or_put_aside(lab: Lab, replica: Replica, dropped: Dropped) -> None:
    replica.follow()
    lab.run("UPDATE t SET a = 'last' WHERE id = 0", "DROP TABLE t")
    lab.record()
    replica.follow(dropped=dropped)
    tables = {one.name: one for one in replica_tables(replica.target).values()}
    assert tables["other"].dropped is None
    if dropped == "drop":
        assert folders(replica.target) == ["public.other"]
        assert [*tables] == ["other"]
        return
    table = tables["t"]
    assert table.dropped is not None
    assert (table.dropped.name, table.may_differ, table.error) == ("t", (), "")
    (folder,) = archived(replica.target) if dropped == "archive" else ["public.t"]
    assert folders(replica.target) == ["public.other", folder]
    assert texts(replica.target, folder) == ["b", "last"]


@pytest.mark.parametrize("dropped", get_args(Dropped))
@pytest.mark.parametrize("when", ["in one micro-batch", "in two", "before the replica begins"])
def test_a_new_table_takes_over_the_name(lab: Lab, replica: Replica, dropped: Dropped, when: str) -> None:
    if when != "before the replica begins":
        replica.follow()
    lab.run("DROP TABLE t")
    lab.record()
    if when == "in two":
        replica.follow(dropped=dropped)
    lab.run(*fill("t", "new"))
    lab.record()
    replica.follow(dropped=dropped)
    assert texts(replica.target, "public.t") == ["new"]
    assert [texts(replica.target, one) for one in archived(replica.target)] == (
        [] if dropped == "drop" else [["a", "b"]]
    )
    lab.run("INSERT INTO t VALUES (5, 'newer')", "DROP TABLE t", *fill("t", "newest"))
    lab.record()
    replica.follow(dropped=dropped)
    assert texts(replica.target, "public.t") == ["newest"]
    assert len(archived(replica.target)) == (0 if dropped == "drop" else 2)
    current = [one for one in replica_tables(replica.target).values() if one.dropped is None]
    assert sorted(one.name for one in current) == ["other", "t"]


@pytest.mark.parametrize("dropped", ["archive", "drop"])
def test_a_kill_at_any_step_does_no_harm(
    lab: Lab, replica: Replica, dropped: Dropped, any_format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.follow()
    lab.run("DROP TABLE t", *fill("t", "new"))
    lab.record()
    times = Kills()
    for module, name in (
        (type(any_format.format), "move"),
        (type(any_format.format), "remove"),
        (registry, "register_table"),
        (registry, "remove_file"),
        (remarks, "_mark_dropped"),
    ):
        monkeypatch.setattr(module, name, times.watch(getattr(module, name), after=True))
    kills = 0
    for number in range(1, 100):
        times.left = number
        try:
            replica.follow(dropped=dropped)
            break
        except Killed:
            kills += 1
        except AssertionError:  # a table that is gone is reported once, then forgotten
            assert dropped == "drop"
    assert kills >= (3 if dropped == "drop" else 5)
    assert texts(replica.target, "public.t") == ["new"]
    assert [texts(replica.target, one) for one in archived(replica.target)] == (
        [] if dropped == "drop" else [["a", "b"]]
    )


def test_a_table_that_becomes_incomplete_is_marked_without_a_change_of_it(lab: Lab, replica: Replica) -> None:
    lab.run(
        "CREATE TABLE root (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE rest PARTITION OF root DEFAULT",
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
        "INSERT INTO root VALUES (1, 'a'), (11, 'b')",
    )
    lab.record(snapshot=True, resync="on-ddl")
    replica.follow()
    assert replica.may_differ() == []
    lab.run("DROP TABLE part")
    lab.record()
    replica.follow()
    assert replica.may_differ() == ["root"]


def test_a_table_that_leaves_the_publication_is_marked(lab: Lab, tmp_path: Path) -> None:
    replica = Replica(lab, tmp_path / "target")
    lab.run(*fill("t"), *fill("other"), "CREATE PUBLICATION p FOR TABLE t, other")
    lab.record(snapshot=True)
    replica.follow()
    lab.run("ALTER PUBLICATION p DROP TABLE t")
    lab.record()
    replica.follow()
    (difference,) = replica.table("t").may_differ
    assert difference.reason.startswith("not published any more")
    assert replica.table("t").dropped is None


PUBLISHED_ALONE = {
    "detached": (
        "ALTER TABLE root DETACH PARTITION part",
        "INSERT INTO part VALUES (5, 'c')",
        "ALTER TABLE root ATTACH PARTITION part FOR VALUES FROM (0) TO (10)",
    ),
    "root option": (
        "ALTER PUBLICATION p SET (publish_via_partition_root = false)",
        "INSERT INTO root VALUES (5, 'c')",
        "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
    ),
}


@pytest.mark.parametrize("way", PUBLISHED_ALONE)
def test_a_partition_that_was_published_by_itself_for_a_time_is_marked(
    lab: Lab, tmp_path: Path, way: str
) -> None:
    lab.require(13, "publish_via_partition_root")
    lab.run(
        "CREATE TABLE root (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (10)",
        "INSERT INTO root VALUES (1, 'a')",
        "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)",
    )
    lab.record(snapshot=True)
    replica = Replica(lab, tmp_path / "target")
    replica.follow()
    lab.run(*PUBLISHED_ALONE[way])
    lab.record()
    metadata = lab.segments()
    # A replica that runs has the partition's table when it reads the mark.
    (marked,) = (one.number for one in metadata if one.gone)
    assert marked >= max(one.number for one in metadata if one.transactions)
    replica.follow()
    assert "not published any more" in replica.table("part").may_differ[0].reason
    lab.run("ALTER TABLE root DETACH PARTITION part")
    lab.record(snapshot=True)
    late = Replica(lab, tmp_path / "late")  # which applies the mark and the copy at once
    for one in (replica, late):
        one.follow()
        assert not one.may_differ()


@pytest.mark.delta
def test_a_table_in_an_object_store_is_archived_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill after the copy, or during the removal of the old folder, leaves the next call to complete it."""
    server = SimulatedServer(1, "t", {"k": "int4"}, keys=1)
    dropped = GoneTable(oid=1, namespace="public", name="t", after_lsn=1, time=0)
    with store.moto() as port:
        for name, value in store.settings(port).items():
            monkeypatch.setenv(name, value)
        target = locate(f"s3://{store.BUCKET}/lake")
        for batch in range(3):
            server.insert(str(batch))
            apply(server.take().to_batches(), target.place)
        files = _files(target / "public.t")
        for count in range(len(files)):  # number of files removed before a kill
            with monkeypatch.context() as patched:
                patched.setattr(table, "remove_folder", partial(remove_some, count))
                archive_table(target, dropped)
            assert len(rows_of(target / "public.t@1-2000-01-01")) == 3
        assert archive_table(target, dropped) == "public.t@1-2000-01-01"
        assert (target / "public.t").names() == []
        assert len(rows_of(target / "public.t@1-2000-01-01")) == 3
        remove_some(len(files) - 2, target / "public.t@1-2000-01-01")
        remove_table(target, 1)
        assert replica_tables(target.place) == {}
        assert set(target.names()) <= {"_relations"}


def remove_some(count: int, place: Location) -> None:
    """Remove the first files of a table's folder, in the order of `remove_folder`."""
    removed = 0

    class Limited:
        def __getattr__(self, name: str) -> Any:
            return getattr(place.filesystem, name)

        def delete_file(self, path: str) -> None:
            nonlocal removed
            if removed < count:
                place.filesystem.delete_file(path)
            removed += 1

    remove_folder(Location(place.place, Limited(), place.path))


def rows_of(place: Location) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_table(place.place).to_pylist()
    return rows


RENAMED = {
    "a table": (("ALTER TABLE t RENAME TO u",), ["other", "u"]),
    "two tables": (
        (
            "BEGIN; ALTER TABLE t RENAME TO x; ALTER TABLE other RENAME TO t; ALTER TABLE x RENAME TO other",
            "COMMIT",
        ),
        ["other", "t"],
    ),
    "a schema": (
        ("CREATE SCHEMA s", "ALTER TABLE t SET SCHEMA s", "ALTER SCHEMA s RENAME TO r"),
        ["other", "r.t"],
    ),
    "nothing in the end": (
        (
            "BEGIN; ALTER TABLE t RENAME TO u;"
            " INSERT INTO u SELECT i, repeat('x', 100) FROM generate_series(10, 3000) i; ROLLBACK",
            "UPDATE other SET a = 'a' WHERE id = 0",
        ),
        ["other", "t"],
    ),
}


@pytest.mark.parametrize("way", RENAMED)
@pytest.mark.parametrize("is_live", [False, True])
def test_names_are_known_without_a_change(lab: Lab, replica: Replica, way: str, is_live: bool) -> None:
    replica.follow()
    known = {oid: one.name for oid, one in replica_tables(replica.target).items()}
    statements, expected = RENAMED[way]
    if is_live:
        with lab.recording() as recording:
            recording.wait(Connected)
            lab.run(*statements)
    else:
        lab.run(*statements)
    lab.record()
    replica.follow()
    tables = replica_tables(replica.target)
    assert sorted(one.shown_name.removeprefix("public.") for one in tables.values()) == expected
    for oid, name in known.items():
        assert texts(replica.target, Path(tables[oid].place).name) == ["a", "b"], name
        assert lab.rows(f"SELECT '{tables[oid].namespace}.{tables[oid].name}'::regclass::oid::int") == [
            (oid,)
        ]
