"""Changes by relation, read from segments, equal the rows of the view `changes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logicalrep.recording import Recording, SegmentReader
from logicalrep.views import (
    ChangesView,
    RelationChanges,
    new_columns,
    old_columns,
    plan_changes,
    read,
    read_changes,
)
from tests.codec import corpus
from tests.effort import mostly_nightly
from tests.recording.recordings import sent, source, write
from tests.replica.changes_from_rows import from_rows

COMMON = ["operation", "commit_lsn", "commit_time", "xid", "sequence"]


def listed(changes: RelationChanges) -> list[Any]:
    relation, rows = changes
    if relation.alteration is not None:
        return [(relation, row) for row in rows.select(COMMON).to_pylist()]
    cells = [*old_columns(relation, rows), *new_columns(relation, rows)]
    columns = [zip(one.texts.to_pylist(), one.sent.tolist(), strict=True) for one in cells]
    tuples = [rows[name].is_valid().to_pylist() for name in ("old", "new")]
    return [(relation, *row) for row in zip(rows.select(COMMON).to_pylist(), *tuples, *columns, strict=True)]


def position(row: tuple[Any, ...]) -> tuple[int, int, int]:
    sequence = row[1]["sequence"]
    return sequence["position"], sequence["row"], row[0].oid


@pytest.mark.parametrize("name", mostly_nightly(corpus.CAPTURES, corpus.VARIED))
def test_changes_of_captures_equal_the_view(name: str, tmp_path: Path) -> None:
    write(tmp_path, source(name), sent(name), 200)
    recording = Recording(tmp_path)
    count = 0
    for task in plan_changes(recording, recording.numbers):
        with SegmentReader(task.place) as segment:
            found = [row for one in read_changes(segment, task, lambda _: True) for row in listed(one)]
        with SegmentReader(task.place) as segment:
            view = ChangesView(segment, task, lambda _: True)
            rows = [row for batch in read(segment, view) for one in from_rows(batch) for row in listed(one)]
        assert sorted(found, key=position) == sorted(rows, key=position)
        count += len(rows)
    assert count
