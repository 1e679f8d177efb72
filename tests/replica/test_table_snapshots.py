"""Replicas of tables whose rows were added to the recording while it was written."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from pgoutput.recorder import Connected, TableComplete
from pgoutput.recorder.snapshot import TableCopy
from tests.recorder.lab import Lab
from tests.replica.changes import recorded_changes, sorted_changes
from tests.replica.tables import apply
from tests.replica.test_replica import table_of


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
    oid = lab.value("SELECT 'late'::regclass::oid::int8")
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
    changes = sorted_changes(recorded_changes(lab.folder))
    apply(changes.to_batches(), tmp_path / "target", "query", 0)
    assert table_of(tmp_path / "target", oid).to_pyarrow_table().num_rows == 3000
