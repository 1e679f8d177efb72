"""Changes to test replicas with, from recordings and from capture files of real servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from logicalrep.recording import Recording, SegmentReader
from logicalrep.views import CHANGES, ChangesView, Task, plan_changes, read
from tests.recording.recordings import sent, source, write


def captured_changes(folder: Path, name: str, cut: int | None = None) -> pa.Table:
    """Return the committed changes of a capture file, sorted by relation and `sequence`."""
    folder.mkdir(exist_ok=True)
    write(folder, source(name), sent(name), cut)
    return sorted_changes(recorded_changes(folder))


def recorded_changes(folder: Path) -> Iterator[pa.RecordBatch]:
    """Return the committed changes of a recording, as Arrow batches with the schema `CHANGES`."""
    recording = Recording(folder)
    return changes_of_tasks(plan_changes(recording, recording.numbers))


def changes_of_tasks(tasks: Iterable[Task]) -> Iterator[pa.RecordBatch]:
    """Yield the changes that tasks read, as Arrow batches with the schema `CHANGES`."""
    for task in tasks:
        with SegmentReader(task.place) as segment:
            yield from read(segment, ChangesView(segment, task, lambda shape: True))


def sorted_changes(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return changes sorted by relation and `sequence`, as a Spark task receives them."""
    table = pa.Table.from_batches(batches, schema=CHANGES)
    sorting = pa.table(
        {
            "oid": pc.struct_field(table["relation"], "oid"),
            "lsn": table["commit_lsn"],
            "position": table["position"],
        }
    )
    order = pc.sort_indices(sorting, [(name, "ascending") for name in sorting.column_names])
    return table.take(order)
