"""Replicas equal the tables of a running PostgreSQL server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recorder.lab import Lab
from tests.replica.changes import recorded_changes, sorted_changes
from tests.replica.tables import apply
from tests.replica.test_replica import table_of


@pytest.mark.parametrize("history", [False, True])
def test_rows_of_a_table_without_columns_are_deleted(history: bool, lab: Lab, tmp_path: Path) -> None:
    """Rows are deleted in the micro-batch that inserts them, and in a later micro-batch."""
    lab.run(
        "CREATE TABLE bare ()",
        "ALTER TABLE bare REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE bare",
    )
    oid = lab.value("SELECT 'bare'::regclass::oid::int8")
    lab.record()
    insert, delete = (
        "INSERT INTO bare DEFAULT VALUES",
        "DELETE FROM bare WHERE ctid = (SELECT min(ctid) FROM bare)",
    )
    lab.run(*[insert] * 4, delete)
    lab.record()
    changes = sorted_changes(recorded_changes(lab.folder))
    apply(changes.to_batches(), tmp_path / "target", "query", 0, history=history)
    assert current_rows(tmp_path / "target", oid) == 3
    lab.run(delete, insert, delete)
    lab.record()
    later = sorted_changes(recorded_changes(lab.folder)).slice(changes.num_rows)
    apply(later.to_batches(), tmp_path / "target", "query", 1, history=history)
    assert current_rows(tmp_path / "target", oid) == lab.value("SELECT count(*) FROM bare") == 2


def current_rows(target: Path, oid: int) -> int:
    rows = table_of(target, oid).to_pyarrow_table().to_pylist()
    return sum(row.get("__END_AT") is None for row in rows)
