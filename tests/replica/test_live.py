"""Replicas equal the tables of a running PostgreSQL server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from pgoutput.recorder import Connected, TableComplete
from pgoutput.recorder.snapshot import TableCopy
from tests.recorder.lab import Lab
from tests.replica.live import Replica


@pytest.mark.parametrize("history", [False, True])
def test_rows_of_a_table_without_columns_are_deleted(history: bool, lab: Lab, tmp_path: Path) -> None:
    """Rows are deleted in the micro-batch that inserts them, and in a later micro-batch."""
    lab.run(
        "CREATE TABLE bare ()",
        "ALTER TABLE bare REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE bare",
    )
    lab.record()
    insert, delete = (
        "INSERT INTO bare DEFAULT VALUES",
        "DELETE FROM bare WHERE ctid = (SELECT min(ctid) FROM bare)",
    )
    lab.run(*[insert] * 4, delete)
    lab.record()
    replica = Replica(lab, tmp_path / "target", history=history)
    replica.follow()
    assert len(replica.rows("bare")) == 3
    lab.run(delete, insert, delete)
    lab.record()
    replica.follow()
    assert len(replica.rows("bare")) == lab.value("SELECT count(*) FROM bare") == 2


def test_a_streamed_transaction_that_commits_right_after_copied_rows_is_applied_after_them(
    lab: Lab, monkeypatch: Any, tmp_path: Path
) -> None:
    """The commit record of the transaction begins where the commit record before the copied rows ends."""
    lab.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE late (id int PRIMARY KEY)",
        "INSERT INTO late SELECT generate_series(1, 9)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    copying, changed = threading.Event(), threading.Event()
    run = TableCopy.run

    def run_after_changes(*arguments: Any) -> Any:
        copying.set()
        changed.wait()
        return run(*arguments)

    with lab.recording(snapshot=True) as recording, lab.connect() as writer:
        recording.wait(Connected)
        monkeypatch.setattr(TableCopy, "run", run_after_changes)
        lab.run("ALTER PUBLICATION p ADD TABLE late")
        assert copying.wait(60)
        writer.execute("BEGIN; INSERT INTO late SELECT generate_series(10, 3000)")
        lab.run("INSERT INTO t VALUES (1)")
        changed.set()
        recording.wait(TableComplete)
        writer.execute("COMMIT")
    lab.record(snapshot=True)
    replica = Replica(lab, tmp_path / "target")
    replica.follow()
    replica.assert_equal("late")
