"""The metadata of a table that may differ has the reason and the commit since which it may differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from logicalrep.apply.schema.differences import altered_columns, store_difference
from logicalrep.recorder import request_snapshot
from logicalrep.recording import Location, Verified, locate
from logicalrep.replica import Difference, replica_tables, store_verified
from logicalrep.targets import MAY_DIFFER, ConflictError, find_table, registry
from logicalrep.views import Column
from tests.recorder.lab import Lab
from tests.replica.changes import recorded_changes, sorted_changes
from tests.replica.simulator import SimulatedServer
from tests.replica.tables import apply, open_table, read_table, table_of

pytestmark = pytest.mark.usefixtures("any_format")

ADDED = "column {} was added, and may have a default value in existing rows"
AGAIN = "column {} was dropped and added again"
UNMATCHED = "changes did not match the table's rows"
RETYPED = "column {} changed its type, and USING may have changed its values"

K, V, W = Column("k", 23, -1), Column("v", 25, -1), Column("w", 25, -1)


@pytest.mark.parametrize(
    ("old", "new", "reasons"),
    [
        ([K, V, W], [K, V, W], []),
        ([K, V, W], [K, W], []),
        ([K, V, W], [K, Column("x", 25, -1), W], []),
        (None, [K, V], []),
        ([], [K], [ADDED.format("k")]),
        ([K, V], [K, V, W], [ADDED.format("w")]),
        ([K, V, W], [K, W, V], [AGAIN.format("v")]),
        ([K, V, W], [V, W, K], [AGAIN.format("k")]),
        ([K, V, W], [W, K, V], [AGAIN.format("k"), AGAIN.format("v")]),
        ([K, V, W], [K, W, Column("v", 23, -1)], [AGAIN.format("v")]),
        ([K, V], [K, Column("v", 23, -1)], [RETYPED.format("v")]),
        ([K, V], [Column("id", 23, -1), Column("v", 1043, 9)], [ADDED.format("id"), RETYPED.format("v")]),
    ],
)
def test_altered_columns_that_may_change_existing_rows(
    old: list[Column] | None, new: list[Column], reasons: list[str]
) -> None:
    assert altered_columns(old, new) == reasons


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("ADD COLUMN x int DEFAULT 7", ADDED.format("x")),
        ("DROP COLUMN v, ADD COLUMN v text DEFAULT 'new'", AGAIN.format("v")),
        ("ALTER COLUMN w TYPE int USING length(w)", RETYPED.format("w")),
        ("RENAME COLUMN v TO x", None),
        ("DROP COLUMN v", None),
    ],
)
def test_alter_table_that_may_change_existing_rows_is_reported(
    history: bool, statement: str, reason: str | None, lab: Lab, tmp_path: Path
) -> None:
    """Two tables are altered in the same way. Only the table with rows is reported, not the empty table."""
    target = tmp_path / "target"
    for name in ("t", "empty"):
        lab.run(f"CREATE TABLE {name} (k int PRIMARY KEY, v text, w text)")
    lab.run("CREATE PUBLICATION p FOR TABLE t, empty")
    lab.record()
    lab.run(
        "INSERT INTO t VALUES (1, 'v', 'w')", "INSERT INTO empty VALUES (1, 'v', 'w')", "DELETE FROM empty"
    )
    lab.record()
    before = sorted_changes(recorded_changes(lab.folder))
    apply(before.to_batches(), target, history=history)
    for name in ("t", "empty"):
        lab.run(f"ALTER TABLE {name} {statement}", f"INSERT INTO {name} (k) VALUES (2)")
    lab.record()
    changes = with_key(lab, "2")
    applied = {one.name: one for one in apply(changes.to_batches(), target, history=history)}
    lsn = {row["relation"]["name"]: row["commit_lsn"] for row in changes.to_pylist()}["t"]
    expected = () if reason is None else (Difference(lsn, reason),)
    assert (applied["t"].may_differ, applied["empty"].may_differ) == (expected, ())
    tables = {table.name: table for table in replica_tables(target).values()}
    assert (tables["t"].may_differ, tables["empty"].may_differ) == (expected, ())
    version = open_table(tables["t"].place).version
    lab.run("INSERT INTO t (k) VALUES (3)")
    lab.record()
    (again,) = apply(with_key(lab, "3").to_batches(), target, history=history)
    assert again.may_differ == ()
    assert open_table(tables["t"].place).version == version + 1


@pytest.mark.parametrize("history", [False, True])
def test_a_later_snapshot_of_a_table_removes_the_reasons(history: bool, lab: Lab, tmp_path: Path) -> None:
    target = tmp_path / "target"
    lab.run("CREATE TABLE t (k int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE t")
    lab.run("INSERT INTO t SELECT i, 'early' FROM generate_series(1, 3) i")
    lab.record()
    lab.run("INSERT INTO t VALUES (4, 'v')", "ALTER TABLE t ADD COLUMN w int DEFAULT 7")
    lab.run("UPDATE t SET v = 'changed' WHERE k = 2")
    lab.record()
    before = sorted_changes(recorded_changes(lab.folder))
    apply(before.to_batches(), target, history=history)
    (table,) = replica_tables(target).values()
    assert [one.reason.partition(":")[0] for one in table.may_differ] == [
        "recorded without a snapshot",
        ADDED.format("w"),
        UNMATCHED,
    ]
    request_snapshot(lab.folder, ["public.t"])
    lab.record()
    added = sorted_changes(recorded_changes(lab.folder)).slice(before.num_rows)
    assert added["operation"].to_pylist() == ["Truncate", *["Snapshot"] * 4]
    apply(added.to_batches(), target, history=history)
    (table,) = replica_tables(target).values()
    assert table.may_differ == ()
    rows = read_table(table.place).to_pylist()
    current = {(one["k"], one["v"], one["w"]) for one in rows if one.get("__END_AT") is None}
    assert current == set(lab.rows("SELECT k, v, w FROM t"))


@pytest.mark.parametrize("history", [False, True])
def test_changes_that_contradict_the_rows_are_counted_and_reported(history: bool, tmp_path: Path) -> None:
    """The server did not send all changes in between, for example while the table was unlogged."""
    server = SimulatedServer(1, "t", {"k": "int4", "v": "text"}, keys=1)
    for key in range(6):
        server.insert(str(key), "old")
    batches = server.take().to_batches()
    apply(batches, tmp_path, history=history)
    server.rows += [{"k": "6", "v": "never sent"}, {"k": "7", "v": "never sent"}]
    del server.rows[:2]
    server.commit()
    server.update(4, v="updated")  # row 6, which is not there
    server.delete(5)
    server.insert("0", "again")
    server.update(0, k="1")  # a key that row 1 has
    server.update(1, v="new")
    changes = server.take().to_batches()
    (applied,) = apply(changes, tmp_path, history=history)
    assert applied.unmatched == 4
    assert [one.reason.partition(":")[0] for one in applied.may_differ] == [UNMATCHED]
    # A crash after the commit: nothing is counted or stored again.
    assert not apply(changes, tmp_path, history=history)
    (table,) = replica_tables(tmp_path).values()
    assert [(one.lsn, one.reason.partition(":")[0]) for one in table.may_differ] == [(110, UNMATCHED)]
    with server.snapshot():
        pass
    (applied,) = apply(server.take().to_batches(), tmp_path, history=history)
    assert applied.unmatched == 0
    assert replica_tables(tmp_path)[1].may_differ == ()
    rows = read_table(table.place).to_pylist()
    current = {(str(one["k"]), one["v"]) for one in rows if one.get("__END_AT") is None}
    assert current == {(one["k"], one["v"]) for one in server.rows}


def with_key(lab: Lab, key: str) -> pa.Table:
    """Return the recorded inserts of rows with this key; the column `incomplete` is set to NULL."""
    changes = sorted_changes(recorded_changes(lab.folder))
    mine = [dict(row or ()).get("k") == key for row in changes["after"].to_pylist()]
    changes = changes.filter(pa.array(mine))
    place = changes.schema.get_field_index("incomplete")
    return changes.set_column(place, "incomplete", pa.nulls(changes.num_rows, pa.string()))


def test_an_equal_table_keeps_reasons_that_are_stored_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt to store the result has a conflict with the commit of a further reason."""
    server = SimulatedServer(1, "t", {"k": "int4"}, keys=1)
    server.insert("1")
    server.commit()
    apply(server.take().to_batches(), tmp_path, recording="r")
    target, known = locate(tmp_path), Difference(1, "known")
    store_difference(table_of(tmp_path), known)
    compared = table_of(tmp_path).properties[MAY_DIFFER]

    def find(target: Location, oid: int) -> Any:
        table = find_table(target, oid)
        monkeypatch.setattr(registry, "find_table", find_table)
        monkeypatch.setattr(table, "set_properties", conflict)
        return table

    def conflict(properties: object) -> None:
        store_difference(table_of(tmp_path), Difference(2, "new"))
        raise ConflictError("another commit")

    monkeypatch.setattr(registry, "find_table", find)
    store_verified(target, 1, Verified(5, "now", 1), compared)
    (table,) = replica_tables(tmp_path).values()
    assert table.may_differ == (known, Difference(2, "new"))
    assert table.verified_through == Verified(5, "now", 1)
    store_verified(target, 1, Verified(6, "now", 1), table_of(tmp_path).properties[MAY_DIFFER])
    (table,) = replica_tables(tmp_path).values()
    assert table.may_differ == ()


@pytest.mark.delta
def test_each_reason_of_an_incomplete_table_is_stored_once(tmp_path: Path) -> None:
    """A reason that is already stored causes no commit. Reasons survive when the data files are rewritten."""
    server = SimulatedServer(1, "t", {"k": "int4", "v": "text"}, keys=1)

    def send(batch: int, *reasons: str | None) -> tuple[Difference, ...]:
        for number, reason in enumerate(reasons):
            server.insert(str(10 * batch + number), "v")
            server.changes[-1]["incomplete"] = reason
            server.commit()
        (applied,) = apply(server.take().to_batches(), tmp_path, recording="r")
        return applied.may_differ

    first, second = Difference(110, "added to p"), Difference(140, "dropped from p")
    assert send(0, None, "added to p", "added to p") == (first,)
    version = open_table(replica_tables(tmp_path)[1].place).version
    assert send(1, "added to p") == ()
    assert open_table(replica_tables(tmp_path)[1].place).version == version + 1
    assert send(2, "dropped from p") == (second,)
    server.columns["v"] = "int4"
    retyped = Difference(150, RETYPED.format("v"))
    assert send(3, "added to p") == (retyped,)
    (table,) = replica_tables(tmp_path).values()
    assert (table.oid, table.namespace, table.name, table.recording) == (1, "public", "t", "r")
    assert table.may_differ == (first, second, retyped)
    properties = DeltaTable(table.place).metadata().configuration
    assert properties["logicalrep.may_differ"].startswith('[{"lsn":110,"reason":"added to p"},')


@pytest.mark.parametrize("history", [False, True])
def test_a_truncated_table_cannot_differ(history: bool, tmp_path: Path) -> None:
    server = SimulatedServer(1, "t", {"k": "int4"}, keys=1)
    server.insert("1")
    apply(server.take().to_batches(), tmp_path, history=history)
    server.add_column("v", "text")
    server.truncate()
    server.insert("2", "v")
    apply(server.take().to_batches(), tmp_path, history=history)
    assert replica_tables(tmp_path)[1].may_differ == ()


def test_a_column_added_to_a_table_without_columns_is_reported(tmp_path: Path) -> None:
    """Existing rows may have got a default value in the new column, which the server does not send."""
    server = SimulatedServer(1, "t", {}, keys=0)
    server.insert()
    apply(server.take().to_batches(), tmp_path)
    server.add_column("k", "int4")
    server.insert("1")
    apply(server.take().to_batches(), tmp_path)
    assert replica_tables(tmp_path)[1].may_differ == (Difference(100, ADDED.format("k")),)
