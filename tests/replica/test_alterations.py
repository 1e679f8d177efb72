"""Replicas equal their source after ALTER TABLE has changed rows that the server does not send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pgoutput.recorder import Event, TableComplete, TableIncomplete, request_snapshot
from pgoutput.recorder.snapshot import TableCopy
from pgoutput.replica import replica_tables
from tests.recorder.lab import Lab
from tests.replica.changes import recorded_changes, sorted_changes
from tests.replica.tables import apply, row_texts


class Replica:
    """A replica of the test database's recording, which follows the recording in micro-batches."""

    def __init__(self, lab: Lab, target: Path, *, history: bool) -> None:
        self._lab, self._target, self._history = lab, target, history
        self._batches = 0
        self._position = -1

    def follow(self) -> None:
        """Apply the changes that were recorded since the last call."""
        changes = sorted_changes(recorded_changes(self._lab.folder))
        new = changes.filter([one > self._position for one in changes["position"].to_pylist()])
        apply(new.to_batches(), self._target, "query", self._batches, history=self._history)
        self._batches += 1
        self._position = max(changes["position"].to_pylist())

    def rows(self, name: str) -> list[dict[str, str | None]]:
        """Return the current rows of a Delta table as text."""
        (table,) = (one for one in replica_tables(self._target).values() if one.name == name)
        rows = map(row_texts, DeltaTable(table.place).to_pyarrow_table().to_pylist())
        return [row for row in rows if row.pop("__END_AT", None) is None]

    def may_differ(self) -> list[str]:
        """Return the names of the tables that may differ from their source."""
        return [one.name for one in replica_tables(self._target).values() if one.may_differ]

    def assert_equal(self, name: str = "t") -> None:
        """Check that a table of the replica equals the server's table."""
        query = (
            "SELECT attname FROM pg_attribute "
            f"WHERE attrelid = '{name}'::regclass AND attnum > 0 AND NOT attisdropped"
        )
        names = [one for (one,) in self._lab.rows(query)]
        values = ", ".join(f"{one}::text" for one in names)
        expected = self._lab.rows(f"SELECT {values} FROM {name}")
        found = [tuple(row[one] for one in names) for row in self.rows(name)]
        assert sorted(map(str, found)) == sorted(map(str, expected))


@pytest.fixture(params=[False, True], ids=["current", "history"])
def replica(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Replica:
    lab.run("CREATE TABLE t (id int PRIMARY KEY, a text, b text)", "CREATE PUBLICATION p FOR ALL TABLES")
    return Replica(lab, tmp_path / "target", history=request.param)


UNSENT = {
    "ADD c int DEFAULT 5": '"c" added with a default',
    "ADD c float8 DEFAULT random()": '"c" added with a default',
    "RENAME b TO c": '"c" renamed',
    "RENAME a TO c; ALTER TABLE t ADD d int": '"c" renamed',
    "RENAME a TO c; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME c TO b": '"a", "b" renamed',
    "DROP b, ADD b text DEFAULT 'new'": '"b" dropped and added again',
    "ALTER a TYPE int USING length(a)": '"a" retyped',
    "ALTER a TYPE text USING upper(a)": '"a" rewritten',
}
"""Subcommands of ALTER TABLE that change rows without sending them, and the reason that is reported."""


def incomplete(events: list[Event]) -> list[TableIncomplete]:
    return [one for one in events if isinstance(one, TableIncomplete)]


@pytest.mark.parametrize("statement", UNSENT)
def test_a_table_that_was_altered_is_copied_anew(statement: str, replica: Replica, lab: Lab) -> None:
    lab.record()
    lab.run("INSERT INTO t SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 3) i")
    lab.record()
    replica.follow()
    lab.run(*f"ALTER TABLE t {statement}".split("; "), "INSERT INTO t (id) VALUES (4)")
    events = lab.record(resync="on-ddl", strict=True)
    (told,) = incomplete(events)
    assert told.reason.startswith(UNSENT[statement])
    assert told.advice == "the recorder copies its rows"
    assert [one.table for one in events if isinstance(one, TableComplete)] == ["public.t"]
    lab.run("UPDATE t SET id = 5 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    lab.record()
    replica.follow()
    replica.assert_equal()
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
            f"to copy its rows, run pgoutput snapshot --recording {lab.folder} --table public.t"
        )
    replica.follow()
    assert replica.may_differ() == ["t"]
    request_snapshot(lab.folder, ["public.t"])
    lab.record()
    assert not incomplete(lab.record())
    replica.follow()
    replica.assert_equal()
    assert replica.may_differ() == []


SENT = [
    "ADD c int",
    "DROP a",
    "RENAME a TO c",
    "ALTER a TYPE varchar",
    "ALTER n TYPE int8",
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
    if "RENAME" not in statement and "SET" not in statement:  # like USING, these update the column's row
        lab.run(f"VACUUM FULL {name}")
    lab.run(f"UPDATE {name} SET id = 3 WHERE id = 1")
    assert not incomplete(lab.record())
    replica.follow()
    replica.assert_equal(name)


def test_unpublished_columns_and_tables_without_rows_are_not_reported(lab: Lab) -> None:
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
